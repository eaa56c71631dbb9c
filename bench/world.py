"""world: hosts are switched off, cut off and killed under `--nodes 2:4`, and come back. Each run must end with 0."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from typing import Any, NamedTuple

from tests.hosts.bed import Bed
from tests.hosts.waiting import wait_until

from bench.census import alive_in, fields_of, is_boot
from bench.launch import PROGRAMS, Ground, Launch, hosts
from bench.table import Report, Sample, alternate, column

HOSTS = 4
ROUNDS = 60
STEPS = 400
PAUSE = 0.05  # seconds a step: a run of 20 s, without faults
LEASE = 4.0
FENCE = 3.0  # --grace, and what a lost node's own agent may need beyond it
SHRINK_WITHIN = 2.0  # seconds beyond lease and fence to the first step of the others
REGROW_WITHIN = 1.5  # seconds from the step that all have saved to the first step of all
BOUND = 400.0
SEED = 20261128
FAULTS = ("off", "off-on", "cut-heal", "short-cut", "two", "agent")


class Round(NamedTuple):
    """One round: `lasting` are seconds until a host is back, `node` its number, `other` that of another host."""

    fault: str
    regrow: str
    node: int
    other: int
    step: int
    lasting: float


def draw(seed: int, rounds: int) -> list[Round]:
    """Draw what happens."""
    dice = random.Random(seed)
    drawn = []
    for number in range(rounds):
        node, other = dice.sample(range(HOSTS), 2)
        regrow = dice.choice(("save", "now"))
        drawn.append(
            Round(FAULTS[number % len(FAULTS)], regrow, node, other, dice.randint(5, 60), dice.uniform(4.0, 12.0))
        )
    return drawn


def rows(launch: Launch) -> list[dict[str, Any]]:
    """All steps that any rank has shown."""
    found = []
    for path in launch.runs.glob("*/outputs/*.jsonl"):
        found += [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return found


def kill_agent(launch: Launch) -> None:
    """Kill the agent of a rank: the nearest process above it that allranks has booted."""
    pid = next(a.pid for a in alive_in(launch.work) if not a.on_machine)
    while pid > 1 and not is_boot(pid):
        pid = int(fields_of(pid)[1])
    os.kill(pid, signal.SIGKILL)


def strike(bed: Bed, launch: Launch, round_: Round) -> None:
    """Do what the round says, to its end."""
    host, other = bed.hosts[round_.node], bed.hosts[round_.other]
    if round_.fault == "agent":
        kill_agent(launch)
        return
    if round_.fault in ("cut-heal", "short-cut"):
        host.link_down()
        time.sleep(round_.lasting if round_.fault == "cut-heal" else LEASE / 4)
        host.link_up()
        return
    host.power_off()
    if round_.fault == "two":
        time.sleep(round_.lasting / 2)
        other.power_off()
    if round_.fault != "off":
        time.sleep(round_.lasting)
        host.power_on(wait=False)
        other.power_on(wait=False)


def events(launch: Launch, kind: str) -> list[dict[str, Any]]:
    """The events of a kind."""
    (path,) = launch.runs.glob("*/events.jsonl")
    return [event for event in map(json.loads, path.read_text().splitlines()) if event["event"] == kind]


def sample(bed: Bed, ground: Ground, round_: Round) -> Sample:
    """Play one round."""
    launch = Launch(ground.place(), bed)
    try:
        options = {"nodes": f"2:{HOSTS}", "lease": f"{LEASE:g}s", "regrow": round_.regrow, "workdir": str(launch.work)}
        launch.start([str(PROGRAMS / "world.py"), str(STEPS), str(PAUSE)], {**options, "connect-timeout": "4s"})
        wait_until(lambda: any(row["step"] >= round_.step for row in rows(launch)), BOUND, "the step")
        struck_t = time.time()
        strike(bed, launch, round_)
        code = launch.wait(BOUND)
        shown = rows(launch)
        first_steps = {
            attempt: min(row["t"] for row in shown if row["attempt"] == attempt)
            for attempt in {row["attempt"] for row in shown}
        }
        grown = [end["attempt"] for end in events(launch, "attempt-end") if end["outcome"] == "regrown"]
        saved = {done["attempt"]: done["t"] for done in events(launch, "saved")}
        return {
            **round_._asdict(),
            "exit": code,
            "steps": max(row["step"] for row in shown),
            "attempts": len(first_steps),
            "shrink": first_steps[1] - struck_t if round_.fault.startswith("off") and 1 in first_steps else None,
            "regrow_seconds": [
                first_steps[attempt + 1] - saved[attempt]
                for attempt in grown
                if attempt in saved and attempt + 1 in first_steps
            ],
            "left": len([a for a in alive_in(launch.work) if not a.on_machine]),
            "said": launch.complaint if code else "",
        }
    finally:
        bed.heal()


def run(quick: bool) -> Report:
    """All rounds."""
    rounds = draw(SEED, len(FAULTS) if quick else ROUNDS)
    report = Report(
        "world", f"world: {len(rounds)} rounds of {', '.join(FAULTS)} under --nodes 2:{HOSTS}, lease {LEASE:g} s"
    )
    with hosts(HOSTS) as (bed, ground):
        for number, round_ in enumerate(rounds):
            label = f"{number} {round_.fault}"
            found = alternate({label: lambda round_=round_: sample(bed, ground, round_)}, 1)  # type: ignore[misc]
            report.samples.update(found)
    every = [one for found in report.samples.values() for one in found]
    right = [s for s in every if s.get("exit") == 0 and s.get("steps") == STEPS and not s.get("left")]
    report.add("rounds that ended as they must", [len(right)], "", f"{len(every)}", lambda value: value == len(every))
    shrinks = [s["shrink"] - LEASE - FENCE for s in every if s.get("shrink") is not None]
    report.add(
        "host lost for good to the first step with the rest, beyond lease and fence",
        shrinks,
        "s",
        f"≤ {SHRINK_WITHIN:g} s",
        lambda value: value <= SHRINK_WITHIN,
    )
    grown = [seconds for s in every for seconds in s.get("regrow_seconds", ())]
    report.add(
        "step that all have saved to the first step of all",
        grown,
        "s",
        f"≤ {REGROW_WITHIN:g} s",
        lambda value: value <= REGROW_WITHIN,
    )
    report.add("attempts a round", column(every, "attempts"), "")
    report.remark()
    return report
