"""Plays rounds of two roles: `python -m bench.chaos.roles [--rounds N] [--seed N]`.

A server is on one host, a trainer on three.

Each round a fault strikes one of the roles at a random moment after the trainer's first step. What must follow stands
in FAULTS: who is named, with which exit code, and within how many seconds on a quiet machine. Nothing may be left.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from tests.hosts.bed import Bed, Host, missing

from bench.census import Alive, is_boot, on_hosts, others
from bench.chaos.faults import load_factor
from bench.launch import Ground, Launch, hosts

HOSTS = 4
LEASE = 8.0
LATEST = 3.0  # seconds after the first step
START = 60.0  # seconds until it
SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if os.path.exists("server-leaves"):
            os._exit(3)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"answer")
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
"""
TRAINER = """
import os, sys, time, urllib.request
for step in range(400):
    while True:
        try:
            urllib.request.urlopen("http://" + sys.argv[1], timeout=20).read()
            break
        except OSError:
            if os.environ["PATIENT"] == "0":
                raise
            time.sleep(0.2)
    print("step", step, flush=True)
    if os.path.exists("trainer-raises-%s" % os.environ["RANK"]):
        raise ValueError("bad batch")
    time.sleep(0.05)
"""


class Fault(NamedTuple):
    """`role`: who is named. `restarts`: with on_failure = restart of the server the run ends with 0 all the same."""

    name: str
    strike: Callable[[Played], None]
    role: str
    code: int
    bound: float
    restarts: bool = False


class Played:
    """A round in progress; the struck trainer is `rank` on `host`."""

    def __init__(self, bed: Bed, ground: Ground, dice: random.Random) -> None:
        self.bed = bed
        self.launch = Launch(ground.place(), bed)
        self.rank = dice.randrange(HOSTS - 1)
        self.server, self.host = bed.hosts[0], bed.hosts[1 + self.rank]
        self.restarts = dice.random() < 0.5
        self.delay = dice.uniform(0.0, LATEST)

    def start(self) -> None:
        """Start the run and wait for the trainer's first step."""
        work = self.launch.work
        (work / "serve.py").write_text(SERVER)
        (work / "train.py").write_text(TRAINER)
        restart = 'on_failure = "restart"\nretries = 2\n' if self.restarts else ""
        (work / "roles.toml").write_text(
            f'[roles.rollout]\ncommand = "{sys.executable} serve.py {{rollout.port.http}}"\nnodes = 1\n'
            f'ready = "http://{{address}}:{{rollout.port.http}}/"\n{restart}'
            '[roles.trainer]\ncommand = "train.py {rollout.address}:{rollout.port.http}"\nnproc = 1\n'
            f'after = ["rollout"]\nenv = {{ PATIENT = "{int(self.restarts)}" }}\n'
        )
        options: dict[str, str | int | None] = {
            "roles": str(work / "roles.toml"), "workdir": str(work), "lease": f"{LEASE:g}s", "grace": "1s",
            "stop-grace": "5s", "connect-timeout": "10s", "no-check": None, "json": None,
        }  # fmt: skip
        self.launch.start((), options)
        ends = time.monotonic() + START * factor()
        while b"step" not in (self.launch.place / "stderr").read_bytes():
            if time.monotonic() > ends or self.launch.is_over():
                raise RuntimeError(f"no step came: {self.launch.complaint}")
            time.sleep(0.05)
        time.sleep(self.delay)

    def of(self, host: Host, word: str) -> int:
        """The process on a host whose command has this word."""
        return next(p.pid for p in host.pids() if word in p.command and not is_boot(p.pid) and "sshd" not in p.command)

    def boot(self, host: Host) -> int:
        """The agent on a host: the child of another process of ours."""
        boots = {p.pid: p for p in host.pids() if is_boot(p.pid)}
        return next(pid for pid, p in boots.items() if p.ppid in boots)

    def left(self) -> list[Alive]:
        """Processes of the run."""
        boots = [alive for alive in others(self.bed, self.launch.work) if is_boot(alive.pid)]
        return [*on_hosts(self.launch.work), *boots]


def order(name: str) -> Callable[[Played], None]:
    """A program fails by itself."""
    return lambda play: (play.launch.work / name.format(rank=play.rank)).touch()


def kill(number: int) -> Callable[[Played], None]:
    """A signal to the controller."""
    return lambda play: os.kill(play.launch.pid, number)


FAULTS = (
    Fault("server killed", lambda p: os.kill(p.of(p.server, "serve.py"), signal.SIGKILL), "rollout", 1, 15, True),
    Fault("server ends with 3", order("server-leaves"), "rollout", 1, 15),
    Fault("trainer's rank killed", lambda p: os.kill(p.of(p.host, "train.py"), signal.SIGKILL), "trainer", 1, 15),
    Fault("trainer raises", order("trainer-raises-{rank}"), "trainer", 1, 15),
    Fault("agent of the server killed", lambda p: os.kill(p.boot(p.server), signal.SIGKILL), "rollout", 4, 25, True),
    Fault("agent of a trainer killed", lambda p: os.kill(p.boot(p.host), signal.SIGKILL), "trainer", 4, 25),
    Fault("server's host loses power", lambda p: p.server.power_off(), "rollout", 4, 45),
    Fault("a trainer's host loses power", lambda p: p.host.power_off(), "trainer", 4, 45),
    Fault("Ctrl-C", kill(signal.SIGINT), "", 130, 20),
    Fault("SIGTERM", kill(signal.SIGTERM), "", 143, 20),
)


def factor() -> float:
    """By how much bounds grow on this machine now."""
    return load_factor(os.getloadavg()[0], os.cpu_count() or 1)


def play(bed: Bed, ground: Ground, number: int, seed: int) -> str:
    """One round; empty where all held, else what did not."""
    fault = FAULTS[number % len(FAULTS)]
    played = Played(bed, ground, random.Random(f"{seed}/{number}"))
    goes_on = played.restarts and fault.restarts
    played.start()
    fault.strike(played)
    began = time.monotonic()
    bound = (fault.bound + (60.0 if goes_on else 0.0)) * factor()
    code = played.launch.wait(bound)
    seconds = time.monotonic() - began
    result = played.launch.result()
    verdict = result.get("verdict") or {}
    named = verdict.get("where", {}).get("role", "")
    breaches = []
    if goes_on:
        if code != 0 or len(result["roles"]["rollout"]["attempts"]) != 2:
            breaches.append(f"exit {code} where the server is restarted: {verdict.get('message')}")
    elif (code, named) != (fault.code, fault.role):
        breaches.append(
            f"exit {code} and role {named!r}, not {fault.code} and {fault.role!r}: {verdict.get('message')}"
        )
    ends = time.monotonic() + (LEASE + 10.0) * factor()
    while (left := played.left()) and time.monotonic() < ends:
        time.sleep(0.2)
    breaches += [f"left: {alive.command}" for alive in left]
    what = f"{number:3d} {fault.name}{' (restart)' if goes_on else ''}: exit {code} after {seconds:.1f} s"
    print(
        f"{what}, {named or 'nobody'} named, {verdict.get('cause')}: {'; '.join(breaches) or 'as it must'}", flush=True
    )
    return "; ".join(breaches)


def main() -> int:
    """Play the rounds."""
    parser = argparse.ArgumentParser(prog="python -m bench.chaos.roles", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=16)
    options = parser.parse_args()
    reason = missing()
    if reason:
        print(f"chaos is skipped: {reason}")
        return 0
    broken = 0
    with hosts(HOSTS) as (bed, ground):
        for number in range(options.start, options.rounds):
            try:
                broken += bool(play(bed, ground, number, options.seed))
            except (RuntimeError, StopIteration, OSError) as error:
                broken += 1
                print(f"{number:3d} {type(error).__name__}: {error}", flush=True)
            bed.heal()
    print(f"{options.rounds - options.start} rounds, {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
