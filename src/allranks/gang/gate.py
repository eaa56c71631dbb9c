"""What one node may say: of itself and its own ranks, and within bounds (pure).

Every frame of every transport passes here once, after it has been decoded and before anything acts upon it. Who is in
a run may still be wrong, or another version: what it sends must change nothing of another node, and must not fill the
run directory. What is over a bound is dropped and counted; the node goes on, and its beats are heard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from allranks.protocol.frames import FOLLOWED, NODE_LOG, RANK_LOG, RAS, TRACE, Stream
from allranks.protocol.jsontext import DecodeError
from allranks.protocol.messages import (
    BoundMessage,
    CallTimesMessage,
    CountersMessage,
    DrainedMessage,
    DroppedMessage,
    EndedMessage,
    ExitMessage,
    FactsMessage,
    FaultMessage,
    HelloMessage,
    ListeningMessage,
    Message,
    PongMessage,
    ProbedMessage,
    ProfiledMessage,
    SavingMessage,
    ShippedMessage,
    StacksMessage,
    StartedMessage,
)
from allranks.protocol.orders import MOST_PROFILES
from allranks.protocol.plan_facts import check_facts
from allranks.protocol.samples import DeviceCounters, NodeUsage

STREAM_KINDS = frozenset({RANK_LOG, NODE_LOG, *FOLLOWED.values()})
OF_NODE = (NODE_LOG, RAS)  # streams of the node itself
MOST_NOTED = 4 << 20  # bytes in events.jsonl that come of one node's words, at once
ATTEMPT_NOTED = 1 << 20  # of them each attempt has at least: what ranks report decides over it too
NOTED_PER_SECOND = 256  # bytes by which that grows again: 20 MB in a day
MOST_SOURCES = 64  # of texts that cannot be read, by node: of others only the number is kept
# Without them an attempt can neither begin nor end: they have twice the room.
ESSENTIAL = (
    HelloMessage,
    FactsMessage,
    ShippedMessage,
    ListeningMessage,
    ProbedMessage,
    StartedMessage,
    ExitMessage,
    EndedMessage,
    DrainedMessage,
    FaultMessage,
)


def require_stream(stream: Stream, owned: Collection[int], attempt: int) -> None:
    """Raise DecodeError where a stream is none of a node that owns these ranks, in a run that is in this attempt."""
    if stream.kind not in STREAM_KINDS:
        raise DecodeError(f"expected a known kind of output, got {stream.kind}")
    if stream.attempt > (MOST_PROFILES if stream.kind == TRACE else attempt):
        raise DecodeError(f"expected output of attempt {attempt} at most, got {stream.attempt}")
    if stream.kind in OF_NODE:
        if stream.kind == NODE_LOG and stream != Stream(NODE_LOG, 0, 0):
            raise DecodeError("expected one log of the node")
        return
    _require_ranks((stream.rank,), owned)


def require_own(message: Message, owned: Collection[int]) -> None:
    """Raise DecodeError where a message speaks for ranks that its node does not own, or has no facts that are any.

    A report is not looked at: a program may have made other ranks than it was given, and only its node is charged.
    """
    if isinstance(message, FactsMessage):
        check_facts(message.facts)
    _require_ranks(_ranks_of(message), owned)


def _ranks_of(message: Message) -> Iterable[int]:
    match message:
        case StacksMessage() | ProfiledMessage() | CountersMessage() | SavingMessage():
            return message.ranks
        case NodeUsage():
            return [rank for gpu in (message.devices or DeviceCounters()).gpus for rank in gpu.ranks]
        case CallTimesMessage():
            return (*message.ranks, *message.suspects, *(link.rank for link in message.links))
        case ExitMessage():
            return (message.rank, *message.calls)
        case BoundMessage():
            return message.cpus
        case StartedMessage(rank=int(rank)) | FaultMessage(rank=int(rank)):
            return (rank,)
        case DroppedMessage() if message.kind not in OF_NODE:
            return (message.rank,)
    return ()


def _require_ranks(ranks: Iterable[int], owned: Collection[int]) -> None:
    foreign = next((rank for rank in ranks if rank not in owned), None)
    if foreign is not None:
        raise DecodeError(f"rank {foreign} is not of this node")


class LogRoom:
    """One node's room in the log of a run. `over` counts the messages that found none."""

    def __init__(self) -> None:
        self._spent = 0.0  # bytes, less what time has given back
        self._spent_at = 0.0  # by the clock of the limits
        self._attempt = 0
        self.over = 0

    def has_room(self, message: Message, attempt: int, now: float) -> bool:
        """Tell whether a message may be acted upon; one that may not is counted. A beat costs nothing."""
        if isinstance(message, PongMessage):
            return True
        self._spent = max(0.0, self._spent - NOTED_PER_SECOND * (now - self._spent_at))
        self._spent_at = now
        if attempt != self._attempt:
            self._attempt = attempt
            self._spent = min(self._spent, MOST_NOTED - ATTEMPT_NOTED)
        most = 2 * MOST_NOTED if isinstance(message, ESSENTIAL) else MOST_NOTED
        if self._spent < most:
            return True
        self.over += 1
        return False

    def spend(self, size: int) -> None:
        """Take what a message has led to."""
        self._spent += size
