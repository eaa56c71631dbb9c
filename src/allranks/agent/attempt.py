"""The ranks of one attempt on this node: started together, watched, ended together."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Sequence, Set, Tuple

from allranks.protocol.foreign import CalledGroup, clean_called, clean_error, error_time
from allranks.protocol.frames import COPIED, RANK_LOG, Stream
from allranks.protocol.jsontext import DecodeError, JsonObject, read_json
from allranks.protocol.messages import (
    AttemptSummary,
    EndedMessage,
    ExitMessage,
    FaultMessage,
    RankSummary,
    StartedMessage,
)
from allranks.protocol.node_names import BIND, NodeFiles
from allranks.protocol.orders import RankOrder
from allranks.protocol.processes import RemainingProcess

from .files import open_left, read_left, read_left_from, read_text, write_all
from .forking import Forking
from .processes import (
    END_SECONDS,
    Process,
    end_all,
    everything,
    reap_children,
    remaining,
    send_signal,
    would_end,
)
from .rank_start import Rank, RankStartError, environment_of, start_rank
from .this_node import ThisNode
from .worlds import Worlds, left_running

if TYPE_CHECKING:
    from .asking import Asking  # which few agents need

ERROR_FILE_LIMIT = 128 << 10
CALLS_FILE_LIMIT = 1 << 20
WRITTEN = 8 << 10  # bytes of the end of a file that a script's program writes; a pipe holds them (pipe(7))
RAISED = 1 << 8  # the wait status of a Python that an exception has ended
TRACEBACK = b"Traceback (most recent call last):"
NOTING = 0.5  # seconds: a rank needs some 50 ms to note 2,000 calls
NOTING_TICK = 0.02


class RankAttempt:
    """Ranks of one attempt. `forking` may give some; `beat` is called again and again while an end takes seconds."""

    def __init__(self, number: int, node: ThisNode, forking: Forking, beat: Callable[[], None]) -> None:
        self.number = number
        self.ranks: Dict[int, Rank] = {}
        self.awaited: Tuple[int, ...] = ()  # ranks that are to start
        self.signalled: Set[int] = set()  # ranks that have had the signal for their stacks
        self._node = node
        self._tell = node.tell
        self._forking = forking
        self._beat = beat
        self._end_at: Optional[float] = None
        self._reason = ""
        self._began_end = 0.0
        self._noting: Optional[Asking] = None
        self._noted_by = 0.0
        self.left: Optional[List[RemainingProcess]] = None
        self.signals = 0  # number of the last signal that was passed on to the ranks
        self._ooms = _oom_kills()
        self.worlds = Worlds(number, node.tell, node.directory)

    @property
    def ending(self) -> bool:
        """True from the first signal on."""
        return self._end_at is not None

    @property
    def ended(self) -> bool:
        """True once looked for and verified: nothing is left, or what is left is in `left`."""
        return self.left is not None

    def start(self, orders: Sequence[RankOrder], base: Dict[str, str], pass_pipe: Callable[[Rank], None]) -> None:
        """Start all ranks. Where one cannot start, report the fault and begin no other."""
        self.awaited = ()
        if BIND in orders[0].env:
            from .binding import bind_ranks  # late: few runs ask for it

            orders, bound = bind_ranks(orders, base)
            self._tell(bound)
        for order in orders:
            try:
                rank = start_rank(order, base, os.getpid(), self._forking.fork)
            except RankStartError as error:
                self._tell(FaultMessage("start-failed", str(error), order.rank, time.time()))
                return
            self.ranks[rank.rank] = rank
            self.worlds.given(environment_of(order, base))
            self._node.outlet.add_spool(self._stream(rank))
            pass_pipe(rank)
            self._tell(StartedMessage(rank.rank, rank.process.pid, self.number, time.time()))
        self._forking.begun()

    def _stream(self, rank: Rank) -> Stream:
        return Stream(RANK_LOG, rank.rank, self.number)

    def pump(self, rank: Rank) -> Optional[int]:
        """Move a rank's output to the spool; return the bytes moved, None once the pipe is at its end."""
        spool = self._node.outlet.spool(self._stream(rank))
        assert spool is not None
        return spool.pump(rank.pipe)

    def reaped(self, statuses: Dict[int, int]) -> None:
        """Record the exits of main processes among dead children."""
        for rank in self.ranks.values():
            status = statuses.get(rank.process.pid)
            if status is None or rank.exit is not None:
                continue
            rank.exit = self._exit(rank.rank, status, rank.error_files)
            if not (rank.exit.expected or rank.starts_ranks):
                self._add_written(rank, rank.exit.code == 0)
            self._tell(rank.exit)

    def _add_written(self, rank: Rank, is_success: bool) -> None:
        """Add the end of the file to which a script's program has written: the script itself may have printed nothing.

        After a success only where an exception stands there, which the script may have hidden."""
        written = self.worlds.written(rank.ranks, len(self.ranks) == 1)
        if written is None:
            return
        path, start = written
        text = read_left_from(path, start, WRITTEN)
        if not text or (is_success and TRACEBACK not in text):
            return
        while rank.pipe >= 0 and self.pump(rank):  # what the script has printed comes before
            pass
        spool = self._node.outlet.spool(self._stream(rank))
        assert spool is not None
        source, target = os.pipe()  # as what a rank prints comes: on a full disk it is held or counted alike
        write_all(target, COPIED + os.fsencode(path) + b", to which its command writes\n" + text)
        os.close(target)
        while spool.pump(source):
            pass
        os.close(source)

    def observe(self) -> None:
        """Tell what the kernel shows of the ranks' processes, and of the worlds below them."""
        self.worlds.look(bool(self.running()) and not self.ending)
        for rank in self.running():
            change = rank.observed.sample()
            if change is not None:
                self._tell(change)

    def _exit(self, rank: int, status: int, error_files: Sequence[str]) -> ExitMessage:
        message = ExitMessage(
            rank,
            self.number,
            time.time(),
            expected=self.ending,
            oom_kills=_oom_kills() - self._ooms,
            error=_first_error(error_files),
            calls=_calls(rank, error_files),
        )
        if os.WIFSIGNALED(status):
            return message._replace(signal=os.WTERMSIG(status))
        code = os.WEXITSTATUS(status)
        if code == 0 and not self.ending and rank in self.ranks:
            message = message._replace(background=left_running(rank, self._node.directory))
        if message.background:
            self.worlds.look_now()  # whether a world of theirs lives on
        return message._replace(code=code)

    def launched_rank_ended(self, rank: int, status: Optional[int]) -> None:
        """Report a rank that a launcher started and that has failed, unless that launcher may start it once more.

        Without a status, as the launcher was quicker, its error file tells. A SIGTERM is the launcher's, for another
        rank's sake: that one's end, or the launcher's own, says why.
        """
        if status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM:
            return
        for owner in self.ranks.values():
            index = rank - owner.rank
            if owner.starts_ranks and 0 <= index < len(owner.error_files):
                files = owner.error_files[index : index + 1]
                if status is None and _first_error(files) is None:
                    return
                self._tell(self._exit(rank, RAISED if status is None else status, files))

    def begin_end(self, grace: float, reason: str, noting: Optional[Asking] = None) -> None:
        """SIGTERM to each main process alone; a second call can only shorten the grace.

        `noting`: ranks were asked to note what they called, and get the time for it first.
        """
        now = time.monotonic()
        if self._end_at is None:
            self._reason = reason
            self._began_end = now
            self._end_at = now + grace
            self._noting = noting
            self._noted_by = now + min(NOTING, grace)
            self._note_reason(reason)
            if noting is None:
                self._terminate()
        else:
            self._end_at = min(self._end_at, now + grace)

    def _note_reason(self, reason: str) -> None:
        """Leave word for runner_ray.py, which saves Ray's logs where its work was not done."""
        files = NodeFiles(self._node.directory)
        if not os.path.isdir(files.ray):
            return
        try:
            with os.fdopen(open_left(files.ending, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
                file.write(reason)
        except OSError:
            pass  # a full disk: the logs are saved then

    def _terminate(self) -> None:
        for rank in self.running():
            send_signal(rank.process, signal.SIGTERM)
            send_signal(rank.process, signal.SIGCONT)  # a stopped rank would never see it

    def pass_signal(self, order: int, number: int, launched: Dict[int, Process]) -> None:
        """Send a signal to each rank's process once; `order` counts those of this attempt.

        `launched` are the processes of ranks that another launcher has started: it would end itself (torchrun handles
        neither SIGUSR1 nor SIGUSR2). What has no handler is left out: a notice of the end must not be the end.
        """
        if order <= self.signals:
            return
        self.signals = order
        processes = {rank.rank: rank.process for rank in self.running() if not rank.starts_ranks}
        for process in {**processes, **launched}.values():
            if not would_end(process.pid, number):
                send_signal(process, number)

    def next_deadline(self) -> Optional[float]:
        """When SIGKILL is due, or ranks may have noted their calls (CLOCK_MONOTONIC seconds)."""
        if self.ended:
            return None
        if self._noting is not None:
            return time.monotonic() + NOTING_TICK
        return self._end_at

    def advance_end(self) -> None:
        """Once the main processes have ended or the grace is over: SIGKILL to everything, then look."""
        if self._end_at is None or self.ended:
            return
        if self._noting is not None:
            if not self._noting.take(time.monotonic()) and time.monotonic() < self._noted_by:
                return
            self._noting.forget()
            self._noting = None
            self._terminate()
        if time.monotonic() < self._end_at and self.running():
            return
        left = end_all(self._everything, self._reap)
        self._await_exits({p.pid for p in left})
        self.left = remaining(left)
        self.tell_ended(self._reason, round(time.monotonic() - self._began_end, 3))

    def tell_ended(self, reason: str, seconds: float = 0.0) -> None:
        """Say what the end came to; `seconds` is how long it took."""
        self._tell(EndedMessage(self.number, tuple(self.left or ()), reason, seconds, time.time()))

    def _await_exits(self, left: Set[int]) -> None:
        """Wait for killed processes: until the last thread has given back its memory, waitpid(2) does not give them."""
        deadline = time.monotonic() + END_SECONDS
        while any(rank.process.pid not in left for rank in self.running()):
            if time.monotonic() > deadline:
                return
            time.sleep(0.002)
            self._reap()

    def _reap(self) -> None:
        self._beat()
        self.reaped(reap_children())

    def _everything(self) -> List[Process]:
        """All but the template: what imports for the next attempt does not belong to this one."""
        kept = self._forking.process
        pid = kept.pid if kept is not None else 0
        return [process for process in everything(self._node.header.run_tag) if process.pid != pid]

    def running(self) -> List[Rank]:
        """Ranks whose main process has not ended."""
        return [r for r in self.ranks.values() if r.exit is None]

    def summary(self) -> AttemptSummary:
        """State for a controller that comes back."""
        ranks = {r.rank: RankSummary(r.process.pid, r.exit) for r in self.ranks.values()}
        awaited = () if self.ending else self.awaited
        return AttemptSummary(self.number, ranks, self.ending, self.signals, awaited, self.worlds.told())


def _first_error(paths: Sequence[str]) -> Optional[JsonObject]:
    """Read the structured error file of a rank; of several ranks that which was written first."""
    errors = [error for error in map(read_error_file, paths) if error is not None]
    return min(errors, key=lambda error: error_time(error) or float("inf"), default=None)


def read_error_file(path: str) -> Optional[JsonObject]:
    """Read a rank's error file; None where there is none, or it says nothing."""
    try:
        return clean_error(read_json(read_left(path, ERROR_FILE_LIMIT + 1), ERROR_FILE_LIMIT))
    except DecodeError:
        return None


def _calls(rank: int, error_files: Sequence[str]) -> Dict[int, Tuple[CalledGroup, ...]]:
    """Read what ranks have noted of their calls; `rank` is that of the first file."""
    calls = {}
    for number, path in enumerate(error_files, rank):
        try:
            text = read_left(path + ".calls", CALLS_FILE_LIMIT + 1)  # agent/runner_torch.py has the same name
            groups = clean_called(read_json(text, CALLS_FILE_LIMIT))
        except DecodeError:
            continue
        if groups:
            calls[number] = groups
    return calls


def _oom_kills() -> int:
    """How often the kernel has ended a process of this machine for want of memory."""
    for line in read_text("/proc/vmstat").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0
