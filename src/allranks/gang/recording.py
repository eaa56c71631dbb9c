"""The log of a run while it is written: facts, outputs and states, kept in the run directory and shown (IO)."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from allranks.diagnose.recorded import AttemptFacts, newest
from allranks.findings import Finding
from allranks.protocol.codec import encode, omit_none
from allranks.protocol.frames import METRICS, RANK_LOG, OutputFrame, Stream
from allranks.protocol.jsontext import write_json
from allranks.protocol.messages import DroppedMessage, ExitMessage
from allranks.protocol.records import NamedTuple
from allranks.protocol.run_facts import Fact, OutputDropped, PlainNote, PlanMade, Stamped, of_kind
from allranks.protocol.samples import NodeUsage
from allranks.runs.directory import RunDirectory, save_error
from allranks.runs.documents import StatusDocument
from allranks.runs.logs import LogWriter
from allranks.runs.opening import write_status
from allranks.runs.regular import append
from allranks.runs.timeledger import Timekeeper
from allranks.runs.view import View
from allranks.text import one_line

from .gate import MOST_SOURCES
from .links import Member
from .roster import Roster

# -- evidence/usage.jsonl ----------------------------------------------------------------------------------------------
# The file stays below LIMIT however long a run is: the fuller it is, the fewer of the samples are kept, of each node
# alike.

NAME = "usage.jsonl"
LIMIT = 8 << 20  # bytes
PLENTY = LIMIT // 2  # bytes up to which each sample is kept


@omit_none
class UsageSample(NamedTuple):
    """A line: which node, in which attempt, and what it did."""

    node: str = ""
    attempt: int = 0
    usage: NodeUsage = NodeUsage()


class UsageLog:
    """Writes samples. A full disk loses them: they are not part of a run's result."""

    def __init__(self, run: RunDirectory) -> None:
        self._path = run.path / "evidence" / NAME
        self._left_out: dict[str, int] = {}  # samples of a node since one was kept
        self._size: int | None = None

    def add(self, sample: UsageSample) -> None:
        """Write a sample, or leave it out where the file is full already."""
        if self._size is None:
            self._size = 0
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(mode=0o700, exist_ok=True)
                self._size = self._path.stat().st_size
        every = keeps_every(self._size)
        left_out = self._left_out.get(sample.node, every)
        self._left_out[sample.node] = left_out + 1
        if left_out + 1 < every:
            return
        line = write_json(encode(sample)) + b"\n"
        if self._size + len(line) > LIMIT:
            return
        self._left_out[sample.node] = 0
        with contextlib.suppress(OSError):
            self._size = append(self._path, line)


def keeps_every(size: int) -> int:
    """Say how many samples a node gives for one that is kept, where the file has `size` bytes.

    >>> [keeps_every(size) for size in (0, LIMIT // 2, LIMIT * 3 // 4, LIMIT * 7 // 8)]
    [1, 2, 4, 8]
    """
    every = 1
    room = LIMIT - size
    while every < 1 << 16 and room <= LIMIT // (2 * every):
        every *= 2
    return every


MOST_SOURCE = 80  # characters of what cannot be read, by its name
MOST_WHY = 200  # and of why
GONE = os.strerror(errno.ENOENT)
ROOM = 64 << 10  # bytes free on the disk of the run directory that make another try worth while


class Undecodable:
    """Count by source what others wrote and cannot be read. `tell` is called at the first of a source; `counts` goes
    into the result."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.counts: dict[str, int] = {}
        self._told: Counter[str] = Counter()  # sources by node

    def of_node(self, node: str, source: str, why: str) -> None:
        """One more of a source that a node has named: beyond the first sources of each node only their number counts.

        `source` is of the training program, or a joined node's own word.
        """
        named = f"{one_line(source, MOST_SOURCE)} of {node}"
        if named not in self.counts:
            if self._told[node] >= MOST_SOURCES:
                named = f"other texts of {node}"
            self._told[node] += 1
        self.note(named, one_line(why, MOST_WHY))

    def note(self, source: str, why: str) -> None:
        """One more of a source, such as `metrics of rank 3`."""
        first = source not in self.counts
        self.counts[source] = self.counts.get(source, 0) + 1
        if first:
            self._tell(f"{source}: left out what cannot be read ({why}). The run goes on")

    def set_counts(self, node: str, counts: Mapping[str, int]) -> None:
        """Keep how many a node has counted, by source."""
        for source, count in islice(counts.items(), MOST_SOURCES):
            named = f"{one_line(source, MOST_SOURCE)} of {node}"
            self.counts[named] = max(count, self.counts.get(named, 0))


class Recording:
    """What a run leaves behind, and what a view shows of it meanwhile."""

    def __init__(self, run: RunDirectory, roster: Roster, view: View, beat: float) -> None:
        """`beat` are the seconds after which status.json is written again though nothing has changed."""
        self.run = run
        self.view = view
        self._roster = roster
        self._beat = beat
        self.logs = LogWriter(run)
        self._usage = UsageLog(run)
        self.undecodable = Undecodable(lambda message: self.note(PlainNote(message)))
        self.timekeeper = Timekeeper()
        self.attempt_facts = AttemptFacts()  # what the verdict on the present attempt goes by
        self.dropped: dict[str, dict[int, int]] = {}  # bytes by node and rank
        self.watch: Callable[[Fact], None] | None = None  # hears of every fact
        # Of all roles, where there are several; it gives none in a turn that is not the role's to show them.
        self.whole_status: Callable[[], StatusDocument | None] | None = None
        self.is_changed = True  # since status.json was written
        self._status_due = 0.0
        self._disk_was_full = False

    # -- facts -------------------------------------------------------------------------------------

    def keep(self, fact: Fact, node: str = "", t: float | None = None) -> Stamped[Fact]:
        """Write a fact of the present attempt, which is of now where no time says else."""
        return self.keep_stamped(Stamped(node, round(time.time(), 6) if t is None else t, self._roster.attempt, fact))

    def note(self, fact: Fact, node: str = "", t: float | None = None) -> None:
        """Write a fact of the present attempt, and show it."""
        self.view.event(self.keep(fact, node, t))

    def add_finding(self, finding: Finding) -> None:
        """Keep a finding of the run itself for its result, write it, and show it."""
        self._roster.findings.append(finding)
        self.note(finding)

    def keep_stamped(self, stamped: Stamped[Fact]) -> Stamped[Fact]:
        """Write a fact, with the program's own words of an error."""
        if stamped.role != self.run.role:
            stamped = stamped._replace(role=self.run.role)
        if isinstance(stamped.fact, ExitMessage):
            save_error(self.run, self._roster.attempt, stamped.fact.rank, stamped.fact.error)
        self.run.append(stamped)
        self.remember([stamped])
        if self.watch is not None:
            self.watch(stamped.fact)
        return stamped

    def remember(self, facts: Iterable[Stamped[Fact]]) -> None:
        """Take facts that stand in the run directory."""
        for stamped in facts:
            self.timekeeper.take(stamped)
            self.attempt_facts.take(stamped)

    def resume(self, facts: Sequence[Stamped[Fact]], members: Mapping[str, Member]) -> None:
        """Go on with logs that another controller has written, of agents that run. What they had dropped they tell
        again."""
        self.remember(facts)
        self.logs.resume(facts)
        plan = newest(of_kind(facts, PlanMade))
        if plan is not None:
            self.deal(plan.fact, members)
        for dropped in of_kind(facts, OutputDropped):
            if dropped.node in members:
                stream = Stream(RANK_LOG, dropped.fact.rank, dropped.attempt or 0)
                self.count_dropped(members[dropped.node], stream, dropped.fact.bytes)

    def deal(self, plan: PlanMade, members: Mapping[str, Member]) -> None:
        """Know which ranks each node has from now on."""
        self.logs.deal({members[name].node.index: own for name, own in plan.dealt.items() if name in members})

    # -- output ------------------------------------------------------------------------------------

    def write_output(self, member: Member, frame: OutputFrame, in_place: bool) -> bytes:
        """Write output of a node, and return what of it was not seen before: a full disk has it sent again.

        `in_place` output is here already, as the node writes it where this process reads it.
        """
        node = member.node
        if not in_place and not member.behind:  # later frames would leave a hole: they are sent again
            member.behind = not self.logs.write(node.index, node.name, frame.stream, frame.offset, frame.data)
            if member.behind:
                self._disk_is_full(self.logs.failure)
        data = frame.data[max(0, member.shown.get(frame.stream, 0) - frame.offset) :]
        if data:
            member.shown[frame.stream] = frame.offset + len(frame.data)
        return data

    def note_dropped(self, member: Member, message: DroppedMessage) -> None:
        """Keep what a node has dropped of a stream: it gives the total, and again over a new channel."""
        stream = Stream(message.kind, message.rank, message.attempt)
        fresh = message.total - member.dropped.get(stream, 0)
        if fresh > 0:
            why = "bound" if message.bounded else "full"
            total = self.count_dropped(member, stream, fresh)
            self.note(OutputDropped(stream.rank, fresh, total, why), member.node.name)

    def count_dropped(self, member: Member, stream: Stream, size: int) -> int:
        """Count bytes that a node has dropped; return how many those of the rank are."""
        member.dropped[stream] = member.dropped.get(stream, 0) + size
        ranks = self.dropped.setdefault(member.node.name, {})
        ranks[stream.rank] = ranks.get(stream.rank, 0) + size
        return ranks[stream.rank]

    def add_usage(self, node: str, usage: NodeUsage) -> None:
        """Write what a node has said of its machine."""
        self._usage.add(UsageSample(node, self._roster.attempt, usage))

    def is_unfetched(self, member: Member) -> bool:
        """Tell whether a node's log in the run directory ends before the node's own does."""
        have = self.logs.sizes(member.node.index, member.node.name)
        in_place = f"{METRICS}/" if member.node.index in self._roster.context.local_nodes else "-"
        late = any(have.get(key, 0) < end for key, end in member.ends.items() if not key.startswith(in_place))
        node = self._roster.state_of(member.node.name)
        return late or bool(node.ranks and not node.drained)

    # -- states ------------------------------------------------------------------------------------

    def write_status(self, status: StatusDocument, now: float) -> None:
        """Show the state of the run, and write it where it has changed; its time says that this process lives."""
        if self.whole_status is not None:
            whole = self.whole_status()
            if whole is None:
                return
            status = whole
        self.view.status(status, time.time())
        if self.is_changed or now >= self._status_due:
            self.is_changed = False
            self._status_due = now + self._beat
            write_status(self.run, status)

    def watch_disk(self) -> None:
        """Say once that the disk of the run directory is full."""
        if self.run.write_failure:
            self._disk_is_full(self.run.write_failure)

    def _disk_is_full(self, why: str) -> None:
        if self._disk_was_full:
            return
        self._disk_was_full = True
        path = self.run.path
        if why == GONE:
            message = f"the run directory {path} was removed. Its logs and events are lost, and the run goes on"
            remedy = "remove run directories with `allranks clean`, which leaves those of runs that go on"
            self.add_finding(Finding("missing-file", "warn", message, remedy))
            return
        message = (
            f"the run directory {path} cannot be written: {why}. Output that finds no room stays on the nodes. It is "
            "fetched while the run goes on once there is some. Events of that time are lost"
        )
        self.add_finding(Finding("disk-full", "warn", message, f"free some space (df -h {path})"))

    @property
    def has_room(self) -> bool:
        """Whether output that found no room is worth another try: more than a page or two would fit."""
        try:
            filesystem = os.statvfs(self.run.path)
        except OSError:
            return False
        return filesystem.f_bavail * filesystem.f_frsize >= ROOM

    def close(self) -> None:
        """Close the logs."""
        self.logs.close()
