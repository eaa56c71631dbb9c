"""The ranks of a node, attempt after attempt: how they start, what they print, which signals they get, how they end."""

from __future__ import annotations

import ctypes
import os
import selectors
import time
from functools import partial
from typing import Dict, List, Optional, Tuple

from allranks.protocol.codec import DecodeError
from allranks.protocol.foreign import ReportMessage
from allranks.protocol.frames import FOLLOWED, OF_ATTEMPT, Stream
from allranks.protocol.messages import FaultMessage
from allranks.protocol.node_names import REPORT_SOCKET, NodeFiles
from allranks.protocol.orders import (
    EndOrder,
    ImportsOrder,
    PreloadOrder,
    RankOrder,
    SaveOrder,
    SignalOrder,
    StartOrder,
)

from .attempt import RankAttempt
from .forking import Forking
from .link import log
from .node_directory import Upkeep
from .outlet import FULL_PIPE
from .processes import (
    USER_SIGNALS,
    Process,
    clear_wake,
    environment_of,
    read_process,
    reap_children,
    stat_fields,
)
from .rank_start import Rank
from .readiness import Readiness
from .saving import SaveForwarding
from .supervised import SupervisorLink
from .this_node import ThisNode
from .worlds import starts_others

# -- How ranks end that another launcher has started -------------------------------------------------------------------
# Each tells its process when it starts (runner_launched.py). A pidfd says that it has ended; until its launcher has
# reaped it, a second or a tenth of one later, /proc still has its exit status. Where the launcher is quicker there is
# the rank's error file. Where the kernel knows no pidfd (before 5.3) there is only the launcher's own word.

PIDFD_OPEN = 434  # the same on every architecture
EXEC_TRIES = 50
EXEC_PAUSE = 0.002  # seconds between two tries to read a process that is in the midst of exec(2)


class ExitWatcher:
    """Follows processes through the agent's selector. `reports` is the socket that they know, by their environment:
    in a container of its own counting a number may be another's."""

    def __init__(self, selector: selectors.BaseSelector, reports: str) -> None:
        self._selector, self._proof = selector, ("%s=%s" % (REPORT_SOCKET, reports)).encode()
        self._attempt: Optional[RankAttempt] = None
        self._open: List[int] = []
        self.processes: Dict[int, Process] = {}

    def heard(self, report: ReportMessage, attempt: Optional[RankAttempt]) -> bool:
        """Take the word of a process that starts; tell whether it was one. The attempt learns how it ends."""
        if report.event != "launched":
            return False
        if attempt is not self._attempt:
            self.processes.clear()  # of an attempt that is over
            for old in list(self._open):
                self._close(old)
            self._attempt = attempt
        if report.pid is not None and _has_variable(report.pid, self._proof):
            self._follow(report.pid, report.rank)
        return True

    def _follow(self, pid: int, rank: int) -> None:
        fd = _pidfd(pid)
        if fd is None:
            return
        self._open.append(fd)
        process = read_process(pid)
        if process is not None:
            self.processes[rank] = process
        self._selector.register(fd, selectors.EVENT_READ, partial(self._ended, fd, pid, rank))

    def _ended(self, fd: int, pid: int, rank: int) -> None:
        status = exit_status(pid)
        self._close(fd)
        self.processes.pop(rank, None)
        if status != 0 and self._attempt is not None:
            self._attempt.launched_rank_ended(rank, status)

    def _close(self, fd: int) -> None:
        self._open.remove(fd)
        self._selector.unregister(fd)
        os.close(fd)


def exit_status(pid: int) -> Optional[int]:
    """Return the wait status of a process that has ended and is not reaped; None where there is none."""
    fields = stat_fields(pid)
    if fields[:1] != ["Z"] or len(fields) < 50:
        return None
    return int(fields[49])


def _has_variable(pid: int, entry: bytes) -> bool:
    """Whether a process was started with this variable.

    It reports, then becomes the runner: in the midst of exec(2) its environment reads as empty.
    """
    for _ in range(EXEC_TRIES):
        entries = environment_of(pid)
        if entries != [b""] or read_process(pid) is None:
            return entry in entries
        time.sleep(EXEC_PAUSE)
    return False


def _pidfd(pid: int) -> Optional[int]:
    """os.pidfd_open came with Python 3.9."""
    try:
        if hasattr(os, "pidfd_open"):
            return os.pidfd_open(pid)
        fd = int(ctypes.CDLL(None).syscall(PIDFD_OPEN, pid, 0))
    except OSError:  # of the library too
        return None
    if fd < 0:
        return None
    return fd


FILE_TICK = 0.25  # seconds between reads of followed files while ranks run
PRINTING = 0.002  # seconds in which ranks may print on: at 16 MB/s a pipe is half full then


class Ranks:
    """The present attempt, and what stays from one to the next: the template, the request to save, the directories."""

    def __init__(self, node: ThisNode, readiness: Readiness, supervisor: SupervisorLink) -> None:
        self.attempt: Optional[RankAttempt] = None
        self._node = node
        self._readiness = readiness
        self._supervisor = supervisor
        self._upkeep = Upkeep(node.directory)
        self._forking = Forking(node, self._own)
        self._saving = SaveForwarding(node.directory, node.tell)
        self._most_moved = 0  # bytes out of one pipe, in this turn of the loop
        self._files = NodeFiles(node.directory)
        self._exit_watcher = ExitWatcher(node.selector, self._files.reports)

    # -- time ----------------------------------------------------------------------------------------

    def next_deadline(self, connected: bool) -> float:
        """When something here is due (CLOCK_MONOTONIC seconds)."""
        deadlines = [self._saving.next_look]
        if self.attempt is not None:
            due = self.attempt.next_deadline()
            if due is not None:
                deadlines.append(due)
            if connected and not self.attempt.ended:
                deadlines.append(time.monotonic() + FILE_TICK)
        return min(deadlines)

    def advance(self, now: float) -> bool:
        """Go on with a request to save and with an end; tell whether the attempt is over now."""
        self._saving.look(now)
        attempt = self.attempt
        if attempt is None or not attempt.ending or attempt.ended:
            return False
        attempt.advance_end()
        if attempt.ended:
            self._saving.forget()
            self._pump_rest(attempt)
        return attempt.ended

    def look(self, now: float) -> None:
        """Once a second."""
        self._upkeep.look(now)
        if self.attempt is not None:
            self.attempt.observe()
            if not self.attempt.ending:
                self._forking.tick(now)

    # -- what they print, and how they end -----------------------------------------------------------

    def on_children(self, wake: int) -> None:
        """Take the exits of children."""
        clear_wake(wake)
        statuses = reap_children()
        self._saving.look(float("inf"))  # what a rank has saved comes before its end
        if self.attempt is not None:
            self.attempt.reaped(statuses)

    def _follow_pipe(self, attempt: RankAttempt, rank: Rank) -> None:
        """Hand the supervisor the pipe's read end, and follow it here."""
        self._supervisor.pass_pipe(rank.rank, attempt.number, rank.pipe)
        self._node.selector.register(rank.pipe, selectors.EVENT_READ, partial(self._on_output, attempt, rank))

    def _on_output(self, attempt: RankAttempt, rank: Rank) -> None:
        if rank.pipe < 0:
            return
        moved = attempt.pump(rank)
        if moved is None:
            self._close_pipe(rank)
        else:
            self._most_moved = max(self._most_moved, moved)

    def let_them_print(self) -> None:
        """Wait a moment where ranks have just printed little: each line would wake this process again."""
        if 0 < self._most_moved < FULL_PIPE // 2:
            time.sleep(PRINTING)
        self._most_moved = 0

    def _close_pipe(self, rank: Rank) -> None:
        self._node.selector.unregister(rank.pipe)
        os.close(rank.pipe)
        rank.pipe = -1

    def _pump_rest(self, attempt: RankAttempt) -> None:
        """After the end: what the pipes still hold. What could not be ended may keep one open."""
        for rank in attempt.ranks.values():
            while rank.pipe >= 0:
                if not attempt.pump(rank):  # at its end, or empty
                    self._close_pipe(rank)

    def initialised(self, report: ReportMessage) -> None:
        """Note that a rank has a process group."""
        self._forking.initialised(report.rank)
        if self.attempt is not None:
            ranks = sum(len(rank.ranks) for rank in self.attempt.ranks.values())
            self.attempt.worlds.settle(report.world_size, ranks)

    def is_below(self, report: ReportMessage) -> bool:
        """Take the word of a process that the program of a rank has started; False for any other report."""
        if report.event == "below" and self.attempt is not None:
            self.attempt.worlds.heard(report)
        return report.event == "below"

    def launched(self, report: ReportMessage) -> bool:
        """Take the word of a process that another launcher has started; False for any other report."""
        return self._exit_watcher.heard(report, self.attempt)

    # -- who they are --------------------------------------------------------------------------------

    def _own(self) -> Dict[int, Process]:
        if self.attempt is None:
            return {}
        return {rank.rank: rank.process for rank in self.attempt.running()}

    def _programs(self, ranks: Tuple[int, ...]) -> Dict[int, Process]:
        """Return the processes of ranks that are, or are started by, these: in the place of a script what it runs.

        Where a script has started other ranks than were planned, it stands for them."""
        if self.attempt is None:
            return {}
        owners = [rank for rank in self.attempt.running() if rank.rank in ranks]
        found = {owner.rank: owner.process for owner in owners}
        below = self.attempt.worlds.programs()
        planned = {rank for owner in self.attempt.ranks.values() for rank in owner.ranks}
        if not below or not planned.issuperset(below):
            return found
        for owner in owners:
            if starts_others(owner.process.pid):
                own = [rank for rank in owner.ranks if rank in below and not os.path.exists(self._files.asked(rank))]
                found.update({rank: below[rank] for rank in own})  # else a runner in a container answers
        return found

    def sampled(self, ranks: Tuple[int, ...]) -> Dict[int, Process]:
        """Return the processes of ranks: in place of another launcher's own those of all ranks that it has started."""
        running = self._programs(ranks)
        if running and self._exit_watcher.processes:
            return dict(self._exit_watcher.processes)
        return running

    def chosen(self, ranks: Tuple[int, ...]) -> Dict[int, Process]:
        """Return the processes of these ranks, or of all: behind another launcher those that it has started."""
        known = self._exit_watcher.processes or self._programs(tuple(self._own()))
        return {rank: process for rank, process in known.items() if not ranks or rank in ranks}

    # -- start ---------------------------------------------------------------------------------------

    def on_preload(self, order: PreloadOrder) -> None:
        """Begin to import for the ranks of an attempt."""
        if self.attempt is None or self.attempt.ended:
            self._forking.prepare(order._replace(rank=self._placed(order.rank)), self._readiness.environment)

    def on_imports(self, order: ImportsOrder) -> None:
        """Say what the template has imported."""
        self._node.tell(self._forking.imports)

    def on_start(self, order: StartOrder) -> None:
        """Begin an attempt; raise DecodeError where there is nothing to start."""
        if self.attempt is not None and not self.attempt.ended:
            self._node.tell(FaultMessage("protocol", "an attempt is still running"))
            return
        order = order._replace(ranks=tuple(map(self._placed, order.ranks)))
        files = _followed(order)  # before anything is changed: a stream without a name would end all output
        self._readiness.hold_port()
        attempt = self.attempt = self._begin_attempt(order.attempt)
        for stream, path in files.items():
            self._node.outlet.add_file(stream, self._place(path))
        if self._make_directories(order):
            attempt.awaited = tuple(rank.rank for rank in order.ranks)
            self._forking.begin(order, self._readiness.environment, partial(self._start, attempt, order))

    def _begin_attempt(self, number: int) -> RankAttempt:
        return RankAttempt(number, self._node, self._forking, self._supervisor.beat)

    def _start(self, attempt: RankAttempt, order: StartOrder) -> None:
        if attempt is self.attempt and not attempt.ending:
            attempt.start(order.ranks, self._readiness.environment, partial(self._follow_pipe, attempt))

    def _placed(self, rank: RankOrder) -> RankOrder:
        """Have a rank begin where the session stood, and not where this process stands."""
        return rank._replace(workdir=self._place(rank.workdir))

    def _place(self, path: str) -> str:
        return os.path.join(self._node.header.cwd, path)

    def _make_directories(self, order: StartOrder) -> bool:
        try:
            for name in self._upkeep.restore():
                log("something has removed %s from the node directory: made again" % name)
            for path in order.make:
                os.makedirs(self._place(path), mode=0o700, exist_ok=True)
        except OSError as error:
            text = "rank %d could not make %s: %s" % (order.ranks[0].rank, error.filename, error.strerror)
            self._node.tell(FaultMessage("start-failed", text, order.ranks[0].rank, time.time()))
            return False
        return True

    # -- while they run ------------------------------------------------------------------------------

    def on_signal(self, order: SignalOrder) -> None:
        """SIGUSR1 or SIGUSR2 for the ranks: it came to the controller, or to an engine's task on some node."""
        if self.attempt is not None and self.attempt.number == order.attempt:
            self.attempt.pass_signal(order.order, USER_SIGNALS[order.name], self._exit_watcher.processes)

    def on_save(self, order: SaveOrder) -> None:
        """Show the ranks a request to save, and answer with how far they are."""
        if self.attempt is not None and self.attempt.number == order.attempt:
            self._saving.obey(order)

    # -- end -----------------------------------------------------------------------------------------

    def on_end(self, order: EndOrder) -> None:
        """End the attempt, or say again what its end came to."""
        self._node.tasks.forget_answers()
        self._readiness.forget()
        self._forking.cancel()
        if self.attempt is None:
            self.attempt = self._begin_attempt(0)
        if self.attempt.ended:
            self.attempt.tell_ended("already")
            return
        noting = None
        if order.note_calls and not self.attempt.ending:
            from .asking import Asking  # late: few attempts end so

            noting = Asking(self.sampled(tuple(self.attempt.ranks)), self._node.directory, "calls")
        self.attempt.begin_end(order.grace, order.reason, noting)

    def end(self, reason: str) -> None:
        """End the attempt, if there is one, within the grace of this run."""
        if self.attempt is not None and not self.attempt.ended:
            self.attempt.begin_end(self._node.header.grace, reason)


def _followed(order: StartOrder) -> Dict[Stream, str]:
    """Give the files to follow in an attempt; raise DecodeError where there is nothing to start."""
    if not order.ranks or not all(rank.argv for rank in order.ranks):
        raise DecodeError("$.ranks: expected ranks, each with a command")
    files: Dict[Stream, str] = {}
    for entry in order.follow:
        kind = FOLLOWED[entry.kind]
        files[Stream(kind, entry.rank, order.attempt if kind in OF_ATTEMPT else 0)] = entry.path
    return files
