"""One round on real hosts: start, strike, wait for the end, look what is left."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.hosts.bed import Bed, Host, Process
from tests.hosts.waiting import wait_until
from tests.ports import free_port

from allranks.runs.directory import RunDirectory
from allranks.runs.documents import ResultDocument, result_record
from bench.census import Alive, alive_in, fields_of, is_boot, on_hosts, others
from bench.chaos import faults
from bench.chaos.faults import lease, load_factor
from bench.chaos.plan import PAUSE, STEPS, Moment, Round, fault_of
from bench.launch import ALLRANKS, BOUND, PROGRAMS, Launch

PROGRAM = PROGRAMS / "chaos.py"
STRANGERS = PROGRAMS / "chaos_strangers.py"
CLEANER = PROGRAMS / "chaos_cleaner.py"
SQUATTER = Path(__file__).resolve().parents[2] / "tests/hosts/programs/squatter.py"
POLL = 0.02
START_BOUND = 60.0  # seconds on a quiet machine until the moment of a fault has come
AHEAD = 300  # seconds that a wrong clock is ahead
FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
OTHER_PROTOCOL = (
    "from allranks.protocol import frames; frames.PROTOCOL += 1\n"
    "from allranks.__main__ import main; raise SystemExit(main())"
)
OTHER_USER = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
SMALL_DISK = "16m"
MEMORY_LIMIT = 64 << 20
LEFT_AFTER = faults.GRACE + faults.FENCE + faults.STOP_GRACE + 10.0


class Unplayable(Exception):
    """This machine lacks what the round needs."""


class Play:
    """A round in progress. `place` is its own directory, which all hosts see; nothing of it is below /tmp."""

    def __init__(self, bed: Bed, place: Path, round_: Round) -> None:
        self.bed = bed
        self.round = round_
        self.launch = Launch(place, bed)
        self.place = place
        self.code: int | None = None
        self.struck_at = 0.0
        self.steps_before = False
        self.load = os.getloadavg()[0]
        self.factor = load_factor(self.load, os.cpu_count() or 1)
        self.lease = lease(fault_of(round_), self.factor)
        self.complaints: list[str] = []  # of other commands that were part of the fault
        self._terminal: int | None = None
        self._port = free_port()
        self._after = ExitStack()  # what is undone once the round was looked at

    # -- start -------------------------------------------------------------------------------------

    def options(self) -> dict[str, str]:
        """What every way of starting is given; the directory of the outputs is made."""
        round_ = self.round
        (self.place / "outputs").mkdir()
        return {
            "--python": sys.executable,
            "--workdir": str(self.launch.work),
            "--output-dir": str(self.place / "outputs"),
            "--nproc": str(round_.nproc),
            "--retries": str(faults.RETRIES),
            "--on-hang": round_.on_hang,
            "--preload": round_.preload,
            "--lease": f"{self.lease:.0f}s",
            "--grace": f"{faults.GRACE:g}s",
            "--stop-grace": f"{faults.STOP_GRACE:g}s",
            "--hang-timeout": f"{faults.HANG_TIMEOUT:g}s",
            "--init-timeout": f"{faults.INIT_TIMEOUT * self.factor:.0f}s",
            "--connect-timeout": f"{faults.CONNECT_TIMEOUT * self.factor:.0f}s",
        }

    def start(self) -> None:
        """Start the command, after what has to be there before it."""
        round_ = self.round
        (self.place / "hostfile").write_text("".join(f"{host.name}\n" for host in self.hosts))
        prepare = PREPARED.get(round_.fault)
        options = self.options()
        options.update({"--hosts": str(self.place / "hostfile"), "--spares": str(round_.spares)})
        if prepare is not None:
            options.update(prepare(self))
        words = [word for option in options.items() for word in option]
        is_json = round_.fault not in ("hang-up", "away-hang-up")
        words += ["--json"] if is_json else []
        self._begin("run", *words, "--", str(PROGRAM), str(STEPS), str(PAUSE), in_terminal=not is_json)

    @property
    def hosts(self) -> list[Host]:
        """The hosts of this round, in the order of its host list."""
        return self.bed.hosts[: self.round.hosts]

    @property
    def host(self) -> Host:
        """The host that is struck."""
        return self.bed.hosts[self.round.node]

    def _begin(self, verb: str, *words: str, in_terminal: bool = False) -> None:
        """Start a command of ours whose end is the round's."""
        argv = [*ALLRANKS, verb, *words]
        if in_terminal:
            self.launch.process = self._in_terminal(argv)
        else:
            self.begin(argv)

    def begin(self, argv: Sequence[str]) -> None:
        """Start what the round ends with."""
        with (self.place / "stdout").open("ab") as stdout, (self.place / "stderr").open("ab") as stderr:
            self.launch.process = subprocess.Popen(
                argv, env=self.launch.env, cwd=self.standing, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                start_new_session=True,
            )  # fmt: skip

    def _in_terminal(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a command on a terminal of its own, of which somebody reads what it shows."""
        master, slave = pty.openpty()
        process = subprocess.Popen(
            argv, env={**self.launch.env, "TERM": "xterm"}, cwd=self.place, stdin=slave, stdout=slave, stderr=slave,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self._terminal = os.dup(master)

        def read() -> None:
            with suppress(OSError), (self.place / "stdout").open("ab") as file:
                while data := os.read(master, 1 << 16):
                    file.write(data)
                    if self._terminal is None:
                        break
            os.close(master)

        threading.Thread(target=read, daemon=True).start()
        return process

    # -- the moment --------------------------------------------------------------------------------

    def strike(self) -> bool:
        """Wait for the moment and do what the round is for; whether the run was still under way."""
        self._wait_for(self.round.moment)
        self.steps_before = self._steps() > 0
        self.load = max(self.load, os.getloadavg()[0])
        if self.launch.is_over():
            self.struck_at = time.monotonic()
            return False
        self.struck_at = time.monotonic()
        self.strike_now()
        return True

    def strike_now(self) -> None:
        """Carry out the fault."""
        STRIKES[self.round.fault](self)

    def _wait_for(self, moment: Moment) -> None:
        ends = time.monotonic() + START_BOUND * load_factor(self.load, os.cpu_count() or 1)
        while not self._has_come(moment):
            if self.launch.is_over():
                return
            if time.monotonic() > ends:
                raise RuntimeError(f"{moment.text} did not come: {self.launch.complaint}")
            time.sleep(POLL)
        time.sleep(moment.delay)

    def _has_come(self, moment: Moment) -> bool:
        if moment.step:
            return self._steps() >= moment.step
        if moment.event:
            return f'"event": "{moment.event}"' in self.events_text
        return True

    def _steps(self) -> int:
        """The newest step that all ranks have trained."""
        with suppress(OSError, ValueError, IndexError):
            return int((self.launch.work / "losses").read_text().splitlines()[-1].split()[1])
        return 0

    @property
    def events_text(self) -> str:
        """The events so far."""
        with suppress(OSError, ValueError):
            return (self.launch.run_dir / "events.jsonl").read_text()
        return ""

    # -- the end -----------------------------------------------------------------------------------

    def wait(self) -> float:
        """Wait for the end; seconds since the fault. A command that goes on beyond all bounds is killed."""
        bound = (fault_of(self.round).bound + self.round.lasting) * max(3.0, 1.5 * load_factor(self.load, 2))
        assert self.launch.process is not None
        with suppress(subprocess.TimeoutExpired):
            self.code = self.launch.process.wait(max(1.0, self.struck_at + bound - time.monotonic()))
        seconds = time.monotonic() - self.struck_at
        self.load = max(self.load, os.getloadavg()[0])
        if self.code is None:
            self.launch.kill()
        return seconds

    def left(self) -> list[str]:
        """Processes of the run that do not end: first with the faults of the network in place, then without."""
        factor = load_factor(max(self.load, os.getloadavg()[0]), os.cpu_count() or 1)
        patience = self.lease + LEFT_AFTER * factor
        found = _still_there(self._of_the_run, patience)
        for host in self.hosts:
            if host.is_on:
                host.clear_network_faults()
        return [*found, *_still_there(self._anything, patience)]

    def _of_the_run(self) -> list[Alive]:
        """Ranks and what they started, agents and supervisors."""
        boots = [alive for alive in others(self.bed, self.launch.work) if is_boot(alive.pid) and not _is_relay(alive)]
        return [*on_hosts(self.launch.work), *boots]

    def _anything(self) -> list[Alive]:
        """The same, relays, and this machine's own clients; sessions of sshd live as long as TCP hopes."""
        remote = [alive for alive in others(self.bed, self.launch.work) if "sshd:" not in alive.command]
        return [*on_hosts(self.launch.work), *remote, *(a for a in alive_in(self.place) if a.on_machine)]

    def result(self) -> ResultDocument | None:
        """What the run has come to: what its last command printed, else the file, for which a disk may have no room."""
        with suppress(OSError, ValueError, IndexError):
            document = json.loads((self.place / "stdout").read_text().splitlines()[-1])
            if isinstance(document, dict):
                return result_record(document)
        with suppress(OSError, ValueError):
            return RunDirectory(self.launch.run_dir).read_result()
        return None

    def close(self) -> None:
        """Undo what was done to this machine."""
        self._after.close()

    # -- preparations ------------------------------------------------------------------------------

    def prepare_port(self) -> dict[str, str]:
        """Another program has the port that the run must use."""
        holder = self.host.popen([sys.executable, str(SQUATTER), str(self._port), str(self.place / "taken")])
        self._after.callback(holder.kill)
        wait_until((self.place / "taken").exists, BOUND, "the port taken")
        assert holder.stdin is not None
        self._release = holder.stdin.close
        return {"--master-port": str(self._port)}

    def prepare_node_disk(self) -> dict[str, str]:
        """A small disk for the node directory."""
        self.host.small_tmpfs("/tmp", SMALL_DISK)
        return {}

    def prepare_run_disk(self) -> dict[str, str]:
        """A small disk for the run directory."""
        self.launch.runs.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "chaos-runs", str(self.launch.runs)], check=True)
        self._after.callback(subprocess.run, ["umount", "-l", str(self.launch.runs)], check=False)
        self._after.callback(
            shutil.copytree,
            self.launch.runs,
            self.place / "runs-on-the-small-disk",
            ignore=shutil.ignore_patterns("filler"),
        )
        return {}

    def prepare_run_stall(self) -> dict[str, str]:
        """A disk for the run directory that can be frozen."""
        self.launch.runs.mkdir()
        subprocess.run(["mount", "-o", "loop,noatime", self._disk_image(), str(self.launch.runs)], check=True)
        (self.launch.runs / "lost+found").rmdir()
        self._after.callback(subprocess.run, ["umount", "-l", str(self.launch.runs)], check=False)
        self._after.callback(shutil.copytree, self.launch.runs, self.place / "runs-on-the-disk")
        return {}

    def prepare_node_stall(self) -> dict[str, str]:
        """A disk for a host's /tmp that can be frozen."""
        self.host.run(["mount", "-o", "loop,noatime", self._disk_image(), "/tmp"])
        self.host.run(["chmod", "1777", "/tmp"])
        self._after.callback(self.host.run, ["umount", "-l", "/tmp"], check=False)
        return {}

    def _disk_image(self) -> str:
        image = self.place / "disk.img"
        with image.open("wb") as file:
            file.truncate(256 << 20)
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
        self._after.callback(image.unlink)
        return str(image)

    def prepare_directory(self) -> dict[str, str]:
        """A working directory of the controller's own."""
        (self.place / "standing").mkdir()
        return {}

    @property
    def standing(self) -> Path:
        """Where commands of the round begin."""
        own = self.place / "standing"
        return own if own.is_dir() else self.place

    def prepare_clock(self) -> dict[str, str]:
        """An interpreter for the agents that lets one host's clock be wrong."""
        if not FAKETIME:
            raise Unplayable("libfaketime is not installed (apt install faketime)")
        path = self.place / "python-of-the-agent"
        sign = "+" if self.round.number % 2 else "-"
        path.write_text(
            f'#!/bin/sh\nif [ "$(hostname)" = {self.host.name} ]; then\n'
            f"export LD_PRELOAD={FAKETIME[0]} FAKETIME={sign}{AHEAD}s\nfi\n"
            f'exec {shutil.which("python3", path="/usr/bin")} "$@"\n'
        )
        path.chmod(0o755)
        return {"--agent-python": str(path)}

    def prepare_memory(self) -> dict[str, str]:
        """A control group (version 1 or 2) with little more room than what moves into it."""
        is_unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
        self.group = Path("/sys/fs/cgroup", "" if is_unified else "memory", f"allranks-chaos-{os.getpid()}")
        try:
            self.group.mkdir(exist_ok=True)
            limit = "memory.max" if is_unified else "memory.limit_in_bytes"
            (self.group / limit).write_text(str(MEMORY_LIMIT))
        except OSError as error:
            raise Unplayable(f"no control group with a memory limit can be made here: {error}") from error
        self._after.callback(self._remove_group)
        return {}

    def _remove_group(self) -> None:
        wait_until(lambda: not (self.group / "cgroup.procs").read_text().split(), BOUND, "the group empty")
        self.group.rmdir()

    # -- strikes: ranks ----------------------------------------------------------------------------

    def _rank_process(self, rank: int) -> tuple[Host, Process]:
        """The newest process of a rank, with its host."""
        lines = [json.loads(line) for line in self.events_text.splitlines() if line.endswith("}")]
        (*_, started) = [e for e in lines if e["event"] == "rank-started" and e["rank"] == rank]
        host = self.bed.host(started["node"])
        (process,) = [p for p in host.pids() if p.inner == started["pid"]]
        return host, process

    def _rank_pid(self) -> int:
        def look() -> int:
            with suppress(ValueError):
                return self._rank_process(self.round.rank)[1].pid
            return 0

        return wait_until(look, BOUND, f"rank {self.round.rank}")

    def strike_rank(self, number: int) -> None:
        """A signal to a rank."""
        os.kill(self._rank_pid(), number)

    def strike_relay_and_rank(self) -> None:
        """Two faults at once: the rank's end is told over another connection."""
        pid = self._rank_pid()
        self.strike_boot(_is_relay_process, KILL)
        os.kill(pid, KILL)

    def order(self, word: str) -> None:
        """The program itself fails, at its next step."""
        new = self.launch.work / "do.new"
        new.write_text(word)
        new.rename(self.launch.work / f"do-{self.round.rank}")

    # -- strikes: what is ours on a node -----------------------------------------------------------

    def _boots(self, role: Callable[[Process, set[int]], bool]) -> list[Process]:
        boots = [p for p in self.host.pids() if is_boot(p.pid) and p.state != "Z"]
        pids = {p.pid for p in boots}
        return [p for p in boots if role(p, pids)]

    def strike_boot(self, role: Callable[[Process, set[int]], bool], number: int) -> None:
        """A signal to an agent, a supervisor or a relay, as soon as there is one."""
        processes = wait_until(lambda: self.launch.is_over() or self._boots(role), BOUND, "such a process")
        if isinstance(processes, list):
            with suppress(ProcessLookupError):
                os.kill(processes[0].pid, number)

    def strike_client(self) -> None:
        """SIGKILL to this machine's ssh client to the host."""
        for alive in alive_in(self.place):
            words = alive.command.split()
            if alive.on_machine and words and words[0].endswith("ssh") and self.host.name in words:
                os.kill(alive.pid, signal.SIGKILL)
                return

    # -- strikes: hosts ----------------------------------------------------------------------------

    def for_a_while(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        """Something that passes."""
        begin()
        time.sleep(self.round.lasting)
        end()

    def free_port_again(self) -> None:
        """The other program ends a while after a start has failed."""
        self._wait_for(Moment(event="retry"))
        time.sleep(self.round.lasting)
        self._release()

    def stall(self, run: Callable[[list[str]], object], path: str) -> None:
        """A disk that answers nothing for a while."""
        self._after.callback(run, ["sh", "-c", f"fsfreeze -u {path} 2>&-; true"])
        self.for_a_while(lambda: run(["fsfreeze", "-f", path]), lambda: run(["fsfreeze", "-u", path]))

    def remove_directory(self) -> None:
        """The controller stands nowhere, and has to connect again."""
        shutil.rmtree(self.standing)
        self.strike_client()

    def fill_node_disk(self) -> None:
        """Not one more byte fits into the node directory."""
        self.host.full_disk("/tmp")

    def fill_run_disk(self) -> None:
        """Not one more byte fits into the run directory."""
        for size in (1 << 16, 1):
            with suppress(OSError), open(self.launch.run_dir / "filler", "ab", buffering=0) as filler:
                while filler.write(bytes(size)):
                    pass

    # -- strikes: the controller -------------------------------------------------------------------

    def signal(self, *numbers: int) -> None:
        """Signals to the controller, a moment apart."""
        assert self.launch.process is not None
        for place, number in enumerate(numbers):
            time.sleep(0.5 if place else 0.0)
            self.launch.process.send_signal(number)

    def attach_after_death(self) -> None:
        """The controller dies, and another takes its place after a while."""
        self.launch.kill()
        time.sleep(self.round.lasting)
        self._begin("attach", "--json")

    def flap_and_attach(self) -> None:
        """Two faults at once: a host cannot be reached when another controller takes the run."""
        self.host.link_down()
        self.launch.kill()
        self._begin("attach", "--json")
        time.sleep(self.round.lasting)
        self.host.link_up()

    def take_over_falsely(self) -> None:
        """An allranks of another protocol is refused."""
        argv = [sys.executable, "-c", OTHER_PROTOCOL, "attach", "--take-over"]
        subprocess.run(argv, env=self.launch.env, cwd=self.place, stdin=subprocess.DEVNULL, capture_output=True)
        if '"controller-attached"' in self.events_text:
            self.complaints.append("an attach of another protocol took the run over")

    def stall_and_interrupt(self) -> None:
        """Ranks must have ended before the disk answers."""
        assert self.launch.process is not None
        self._after.callback(subprocess.call, ["fsfreeze", "-u", str(self.launch.runs)], stderr=subprocess.DEVNULL)
        subprocess.check_call(["fsfreeze", "-f", str(self.launch.runs)])
        time.sleep(2.0)
        self.launch.process.send_signal(signal.SIGINT)
        time.sleep(self.round.lasting)
        left = on_hosts(self.launch.work)
        subprocess.check_call(["fsfreeze", "-u", str(self.launch.runs)])
        self.complaints += [f"alive while the disk stood still: {alive.command}" for alive in left]

    def stop_after_death(self) -> None:
        """The controller dies, and the run is stopped without it."""
        self.launch.kill()
        self._begin("stop")

    def take_over(self) -> None:
        """Another controller takes the place of one that lives."""
        former = self.launch.process
        assert former is not None
        self._begin("attach", "--take-over", "--json")
        self._after.callback(self._expect_end, former, "the former controller")

    def attach_beside(self) -> None:
        """Somebody follows the run."""
        self._type_beside("attach", "attached")

    def stop(self) -> None:
        """`allranks stop`, as in another terminal."""
        self._type_beside("stop", "stopped")

    def _type_beside(self, verb: str, output: str) -> None:
        """Start a command as in another terminal; once the round is over it must have ended well."""
        with (self.place / output).open("wb") as file:
            process = subprocess.Popen(
                [*ALLRANKS, verb],
                env=self.launch.env,
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._after.callback(self._expect_end, process, verb, 0)

    def _expect_end(self, process: subprocess.Popen[bytes], name: str, code: int | None = None) -> None:
        """Another command of the round is over too."""
        try:
            ended = process.wait(BOUND)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self.complaints.append(f"`{name}` was not over")
            return
        if code is not None and ended != code:
            self.complaints.append(f"`{name}` ended with {ended}")

    def hang_up(self) -> None:
        """The terminal is closed."""
        terminal, self._terminal = self._terminal, None
        assert terminal is not None
        os.close(terminal)


def is_agent(process: Process, boots: set[int]) -> bool:
    """Whether this is an agent, among the pids of all that are ours on its host."""
    return process.ppid in boots


def _is_supervisor(process: Process, boots: set[int]) -> bool:
    return process.ppid not in boots and not _below_sshd(process.ppid)


def _is_relay_process(process: Process, boots: set[int]) -> bool:
    return process.ppid not in boots and _below_sshd(process.ppid)


def _is_relay(alive: Alive) -> bool:
    return _below_sshd(int(fields_of(alive.pid)[1])) if fields_of(alive.pid) else True


def _below_sshd(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sshd:")
    return False


def _still_there(look: Callable[[], list[Alive]], patience: float) -> list[str]:
    """What is alive after so many seconds."""
    ends = time.monotonic() + patience
    while found := look():
        if time.monotonic() > ends:
            return [f"{alive.command} ({'this machine' if alive.on_machine else 'a host'})" for alive in found]
        time.sleep(0.1)
    return []


PREPARED: dict[str, Callable[[Play], dict[str, str]]] = {
    "port-taken": Play.prepare_port,
    "node-disk": Play.prepare_node_disk,
    "run-disk": Play.prepare_run_disk,
    "node-stall": Play.prepare_node_stall,
    "run-stall": Play.prepare_run_stall,
    "run-stall-ctrl-c": Play.prepare_run_stall,
    "no-directory": Play.prepare_directory,
    "clock": Play.prepare_clock,
    "memory": Play.prepare_memory,
}
KILL, STOP, CONT = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT
STRIKES: dict[str, Callable[[Play], None]] = {
    "none": lambda play: None,
    "kill-rank": lambda play: play.strike_rank(KILL),
    "stop-rank": lambda play: play.strike_rank(STOP),
    "term-rank": lambda play: play.strike_rank(signal.SIGTERM),
    "raise": lambda play: play.order("raise"),
    "raise-outside": lambda play: play.order("connection"),
    "leave": lambda play: play.order("leave"),
    "sleep": lambda play: play.order("sleep"),
    "segfault": lambda play: play.order("segfault"),
    "memory": lambda play: play.order(str(play.group)),
    "stop-at-end": lambda play: play.order("stop-at-end"),
    "relay-and-rank": Play.strike_relay_and_rank,
    "strangers": lambda play: play.host.run([sys.executable, str(STRANGERS), str(play.round.lasting)]),
    "other-user": lambda play: play.host.run([*OTHER_USER, sys.executable, str(STRANGERS), str(play.round.lasting)]),
    "run-stall-ctrl-c": Play.stall_and_interrupt,
    "false-take-over": Play.take_over_falsely,
    "flap-and-attach": Play.flap_and_attach,
    "cleaner": lambda play: play.host.run([sys.executable, str(CLEANER)]),
    "node-stall": lambda play: play.stall(play.host.run, "/tmp"),
    "run-stall": lambda play: play.stall(subprocess.check_call, str(play.launch.runs)),
    "no-directory": Play.remove_directory,
    "kill-agent": lambda play: play.strike_boot(is_agent, KILL),
    "stop-agent": lambda play: play.strike_boot(is_agent, STOP),
    "kill-supervisor": lambda play: play.strike_boot(_is_supervisor, KILL),
    "kill-relay": lambda play: play.strike_boot(_is_relay_process, KILL),
    "kill-client": Play.strike_client,
    "link-down": lambda play: play.host.link_down(),
    "link-flap": lambda play: play.for_a_while(play.host.link_down, play.host.link_up),
    "power-off": lambda play: play.host.power_off(),
    "spare-off": lambda play: play.host.power_off(),
    "ssh-dropped": lambda play: play.host.drop_port(22),
    "ssh-rejected": lambda play: play.for_a_while(
        lambda: play.host.filter_packets("tcp dport 22 tcp flags & (syn|ack) == syn reject with tcp reset"),
        play.host.clear_network_faults,
    ),
    "one-way": lambda play: play.host.drop_from(play.bed.hosts[play.round.peer]),
    "loss": lambda play: play.for_a_while(lambda: play.host.loss(30), play.host.clear_network_faults),
    "rate": lambda play: play.for_a_while(lambda: play.host.rate("256kbit"), lambda: play.host.rate(None)),
    "port-taken": Play.free_port_again,
    "node-disk": Play.fill_node_disk,
    "run-disk": Play.fill_run_disk,
    "clock": lambda play: play.strike_rank(KILL),
    "kill-controller": Play.attach_after_death,
    "pause-controller": lambda play: play.for_a_while(lambda: play.signal(STOP), lambda: play.signal(CONT)),
    "attach": Play.attach_beside,
    "take-over": Play.take_over,
    "term": lambda play: play.signal(signal.SIGTERM),
    "ctrl-c": lambda play: play.signal(signal.SIGINT),
    "ctrl-c-twice": lambda play: play.signal(signal.SIGINT, signal.SIGINT),
    "stop": Play.stop,
    "hang-up": Play.hang_up,
    "abandoned": Play.stop_after_death,
}
