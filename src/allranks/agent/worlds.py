"""Sees the worlds below the ranks: who says that it is one of how many.

A launcher tells each of its ranks by the environment. What a process was started with stands in /proc, read when the
process is new. Nothing is asked of the process, and nothing but these variables is kept. Processes that the program
itself starts say it through the runner (runner_torch.py, `watch_below`).

A script's program has the variables of the rank itself. Its connection to the master shows that it is in the run's
world: the client of torch's store keeps it for as long as there is a process group (TCPStore.cpp).
"""

from __future__ import annotations

import os
import re
import time
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from allranks.protocol.command_words import SHELLS, Words, read_command
from allranks.protocol.foreign import NAME, ReportMessage
from allranks.protocol.messages import MOST_LEFT, MOST_WORLDS, WorldMessage
from allranks.protocol.node_names import FIRST_RANK
from allranks.protocol.orders import MOST_RANKS

from .files import read_link, read_text, size_of
from .portowner import connections_to
from .processes import Process, command_line, descendants, environment_of, open_names, read_process

# agent/runner_launched.py has the same names: torch's own, and those of MPI that launchers and programs read
RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
WHERE = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE")
READ = frozenset((*RANKS, *SIZES, *WHERE))
LOOKS = 4  # at each process: it has its launcher's environment until it becomes the rank's program (exec)
EXEC = 0.1  # seconds in which a process becomes another program
BEGINS = 1.0  # seconds in which a fork of a shell becomes what it is to be
MOST_NEW = 256  # processes that are read at one look
SLOWER_AFTER = 60  # looks; later ones are every tenth second
PACKAGES = ("torch", "accelerate", "deepspeed", "colossalai")  # what `python -m` starts of them ends with its ranks
STARTS = r"\bpython|run\b|\bmpiexec\b|\baccelerate\b|\bdeepspeed\b|\bcolossalai\b|\.py\b|\.sh\b|\$@"  # may make a world

World = Tuple[int, Tuple[str, ...]]  # its size, and where it meets, which tells worlds of one size apart


class Worlds:
    """The worlds below this process in one attempt. `given` are the environments that the ranks were started with."""

    def __init__(self, attempt: int, tell: Callable[[WorldMessage], None], node_dir: str) -> None:
        self._attempt = attempt
        self._tell = tell
        self._node_dir = node_dir
        self._given: Set[Tuple[World, int]] = set()
        self._looks = 0
        self._seen: Dict[Tuple[int, int], int] = {}  # looks at a process, by pid and start
        self._inheriting: Dict[Tuple[int, int], Tuple[World, int]] = {}  # programs that have a rank's own variables
        self._ranks: Dict[World, Set[int]] = {}
        self._members: Dict[World, Dict[Tuple[int, int], int]] = {}  # ranks by process
        self._told: Dict[World, WorldMessage] = {}
        self._written: Dict[int, Tuple[str, int]] = {}  # by rank its program's file, and the size when it was seen
        self._settled = False

    def given(self, environment: Mapping[str, str]) -> None:
        """Know what a rank was started with: what inherits that is of no world of its own."""
        member = membership("%s=%s" % (name, environment[name]) for name in READ if name in environment)
        if member is not None:
            self._given.add(member)

    def settle(self, size: Optional[int], ranks: int) -> None:
        """Look no more where a process group has more ranks than this node: the run's own world is made."""
        self._settled = self._settled or (size or 0) > ranks

    def look(self, running: bool) -> None:
        """Once a second: read new processes, and tell what has changed."""
        self._looks += 1
        if not self._settled and running and (self._looks <= SLOWER_AFTER or self._looks % 10 == 0):
            self.look_now()

    def look_now(self) -> None:
        """Read new processes, and tell what has changed."""
        living = {process.pid: process for process in descendants([os.getpid()])}
        present = {(process.pid, process.start) for process in living.values()}
        self._seen = {key: looks for key, looks in self._seen.items() if key in present}
        new = [p for p in living.values() if self._seen.get((p.pid, p.start), 0) < LOOKS]
        for process in new[:MOST_NEW]:
            key = (process.pid, process.start)
            self._seen[key] = self._seen.get(key, 0) + 1
            self._read(process, living)
        self._inheriting = {key: member for key, member in self._inheriting.items() if key in present}
        self._find_joined()
        for world in self._told:
            self._renew(world, any(key in present for key in self._members[world]))

    def programs(self) -> Dict[int, Process]:
        """Give the programs that a script, or a launcher in it, has started for ranks, by rank: of several the oldest.

        A process of a data loader inherits the variables of its rank."""
        ranks = {key: rank for key, (_, rank) in self._inheriting.items()}
        for members in self._members.values():
            ranks.update(members)
        living = [
            (process.start, process.pid, process) for process in map(read_process, {pid for pid, _ in ranks}) if process
        ]
        found: Dict[int, Process] = {}
        for start, pid, process in sorted(living):
            if (pid, start) in ranks:
                found.setdefault(ranks[pid, start], process)
        return found

    def told(self) -> Tuple[WorldMessage, ...]:
        """Give every world of the attempt, for a controller that has not heard of it."""
        return tuple(message for message in self._told.values() if message.here)

    def _read(self, process: Process, living: Mapping[int, Process]) -> None:
        member = membership(os.fsdecode(entry) for entry in environment_of(process.pid))
        if member is None or process.has_ended:
            return
        if member in self._given:
            if _may_train(command_line(process.pid), self._node_dir):
                self._inheriting[process.pid, process.start] = member
                self._note_written(process.pid, member[1])
            return
        world, rank = member
        is_new = world not in self._told
        if not self._knows(world):
            return
        if is_new:
            program = _program_of(command_line(process.pid))
            above = process.parent
            while above in living and _only_starts(above):
                above = living[above].parent
            self._told[world] = self._told[world]._replace(program=program, is_all=above not in living)
        self._ranks[world].add(rank)
        self._members[world][process.pid, process.start] = rank
        self._note_written(process.pid, rank)

    def _note_written(self, pid: int, rank: int) -> None:
        known, _ = self._written.get(rank, ("", 0))
        for number in (2, 1):  # errors count, where they have a file of their own
            link = "/proc/%d/fd/%d" % (pid, number)
            path = read_link(link)
            if path == known:
                return
            if _is_file(link, path):
                self._written[rank] = (path, size_of(path))
                return

    def written(self, ranks: Sequence[int], is_alone: bool) -> Optional[Tuple[str, int]]:
        """Give the file to which the program of a script writes its output or errors, and what it had when it was seen.

        `ranks` are those of the script. Where it `is_alone` on its node, it may have started others."""
        known = [self._written[rank] for rank in ranks if rank in self._written]
        if is_alone:
            known += self._written.values()
        return next(iter(known), None)

    def _find_joined(self) -> None:
        joined = {(world, rank) for world, ranks in self._ranks.items() for rank in ranks}
        waiting = {key: member for key, member in self._inheriting.items() if member not in joined}
        connected = {world: _connected(world) for world, _ in waiting.values()}
        for key, (world, rank) in list(waiting.items())[:MOST_NEW]:
            if not connected[world] or connected[world].isdisjoint(open_names(key[0])):
                continue
            if not self._knows(world):
                return
            self._ranks[world].add(rank)
            self._members[world][key] = rank

    def heard(self, report: ReportMessage) -> None:
        """Take the word of a process that the program has started: it is in a world."""
        size = report.world_size
        rank = report.place
        if self._settled or size is None or rank is None or not rank < size <= MOST_RANKS:
            return
        world = (size, (report.meets,))
        if not self._knows(world, is_own=True):
            return
        self._ranks[world].add(rank)
        process = read_process(report.pid or 0)
        if process is not None:
            self._members[world][process.pid, process.start] = rank
        self._renew(world, process is not None)

    def _renew(self, world: World, lives: bool) -> None:
        """Tell what has changed of a world."""
        told = self._told[world]
        now = told._replace(here=len(self._ranks[world]), lives=lives)
        if now != told:
            self._told[world] = now
            self._tell(now)

    def _knows(self, world: World, is_own: bool = False) -> bool:
        """Tell whether a world is known, as a new one is from now on; False where there are too many."""
        if world in self._told:
            return True
        if len(self._told) == MOST_WORLDS:
            return False
        self._ranks[world] = set()
        self._members[world] = {}
        self._told[world] = WorldMessage(self._attempt, len(self._told), world[0], here=0, is_own=is_own)
        return True


def _is_file(link: str, path: str) -> bool:
    """Tell whether an open file is that of its name here: in a container the name may be another file's."""
    try:
        return os.path.isfile(path) and os.path.samefile(link, path)
    except OSError:
        return False


def _connected(world: World) -> Set[str]:
    """Name the sockets that are connected to the port where a world meets; torch has it in the second of WHERE."""
    port = world[1][1]
    return connections_to(int(port)) if port.isdecimal() and len(port) < 6 else set()


def membership(entries: Iterable[str]) -> Optional[Tuple[World, int]]:
    """Read which world an environment names, and which rank of it; None where it names none that there can be."""
    variables = (entry.partition("=") for entry in entries)
    values = {name: value for name, _, value in variables if name in READ}
    rank = _number(values, RANKS)
    size = _number(values, SIZES)
    if rank is None or size is None or not 0 <= rank < size <= MOST_RANKS:
        return None
    return (size, tuple(values.get(name, "") for name in WHERE)), rank


def _number(values: Mapping[str, str], names: Iterable[str]) -> Optional[int]:
    text = next((values[name] for name in names if name in values), "")
    return int(text) if text.isdecimal() and len(text) < 10 else None


def _program_of(words: List[str]) -> str:
    read = read_command(words)
    if read.kind not in ("python-script", "python-module"):
        return ""
    return " ".join(read.program[: 2 if read.kind == "python-module" else 1])[:NAME]


def left_running(rank: int, node_dir: str) -> Tuple[str, ...]:
    """Name the programs of Python that a rank has left in the background, where it has ended.

    One that it began last may still be the shell that has forked it, or what starts it. Forks of a rank of Python run
    the runner, which lies in the node directory: its workers may end a moment later. Takes 0.1 s at most.
    """
    until = time.monotonic() + EXEC
    owners = {("%s=%d" % (name, rank)).encode() for name in ("RANK", FIRST_RANK)}
    left = (_left_by(owners, process, node_dir, until) for process in descendants([os.getpid()]))
    return tuple(filter(None, left))[:MOST_LEFT]


def _left_by(owners: Set[bytes], process: Process, node_dir: str, until: float) -> str:
    """Name a process that carries a variable of the rank; exec(2) shows neither words nor environment for a moment."""
    while True:
        words = command_line(process.pid)
        if words and not _is_left(process, words, node_dir):
            return ""
        environment = environment_of(process.pid)
        if words and environment[0]:
            return "" if owners.isdisjoint(environment) else " ".join(words)[:NAME]
        if process.has_ended or time.monotonic() > until:
            return ""
        time.sleep(0.001)


def _is_left(process: Process, words: Sequence[str], node_dir: str) -> bool:
    read = read_command(words)
    if read.kind in ("python-script", "python-module"):
        return os.path.dirname(read.target or "") != node_dir
    begins = is_shell(words) or os.path.basename("".join(words[:1])) in ("nohup", "setsid", "env")
    return _is_console_script(read) or (begins and process.age < BEGINS)


def _may_train(words: Sequence[str], node_dir: str) -> bool:
    """Tell whether a process runs a program of Python which no runner reports: a launcher is none."""
    read = read_command(words)
    if _is_console_script(read):
        return os.path.basename(read.program[0]) not in ("torchrun", *PACKAGES)
    if read.kind == "python-module":
        return (read.target or "").partition(".")[0] not in PACKAGES
    return read.kind == "python-script" and os.path.dirname(read.target or "") != node_dir


def _is_console_script(read: Words) -> bool:
    """Tell whether Python runs a program that a package has installed, such as /opt/venv/bin/torchrun."""
    return read.kind == "python-other" and os.path.basename(os.path.dirname("".join(read.program[:1]))) == "bin"


def _only_starts(pid: int) -> bool:
    """Tell whether a process starts one thing and ends with it: a launcher, a tool around it, a script of one command.

    A program of Python's may train after what it has started, and a script may have a next command that does.
    """
    words = command_line(pid)
    if is_shell(words):
        return _has_one_command(pid, words)
    read = read_command(words)
    if read.kind == "python-module":
        return (read.target or "").partition(".")[0] in PACKAGES
    return _is_console_script(read) or (read.kind == "program" and bool(words))


def starts_others(pid: int) -> bool:
    """Tell whether a process is a script, a launcher or a tool around one: what it starts is the rank's program."""
    return is_shell(command_line(pid)) or _only_starts(pid)


def is_shell(words: Sequence[str]) -> bool:
    """Tell whether a command line is that of a shell."""
    return bool(words) and os.path.basename(words[0]).lstrip("-") in SHELLS


def _has_one_command(pid: int, words: List[str]) -> bool:
    """Tell whether at most one command of a shell's may make a world; False where the script may not be read."""
    text = next((word for word in words[1:] if not word.startswith("-")), "")
    if not any(word.startswith("-") and not word.startswith("--") and "c" in word for word in words[1:]):
        path = os.path.join("/proc/%d/cwd" % pid, text)
        text = read_text(path) if os.path.isfile(path) else ""
    lines = [line for line in text.replace("\\\n", " ").split("\n") if not line.lstrip().startswith("#")]
    commands = re.split("[;&|\n]+", "\n".join(lines))
    return bool(text) and sum(re.search(STARTS, command) is not None for command in commands) <= 1
