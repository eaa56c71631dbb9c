"""An agent's messages as events of the gang, with times on the controller's clock (pure)."""

from __future__ import annotations

from allranks.diagnose.hangs.doing import read_sample
from allranks.diagnose.stragglers.lateness import ClockEstimate
from allranks.protocol.foreign import ReportMessage, error_time
from allranks.protocol.jsontext import DecodeError, JsonObject
from allranks.protocol.messages import (
    CallTimesMessage,
    CountersMessage,
    DrainedMessage,
    EndedMessage,
    ExitMessage,
    FactsMessage,
    FaultMessage,
    HelloMessage,
    ImportsMessage,
    ListeningMessage,
    Message,
    ProbedMessage,
    SavingMessage,
    ShippedMessage,
    StacksMessage,
    StartedMessage,
    TemplateMessage,
    WorldMessage,
)
from allranks.protocol.plan_facts import check_facts
from allranks.protocol.usage import NodeUsage

from .clocks import NodeClock
from .states import (
    CallTimes,
    Counters,
    Drained,
    Ended,
    Event,
    FactsCollected,
    Fault,
    Hello,
    ImportsTold,
    Listening,
    Probed,
    Report,
    SavingAnswer,
    Shipped,
    Stacks,
    Started,
    TemplateReady,
    Used,
    WorldSeen,
    read_exit,
)

MOST_THREADS = 5  # of a program that leaves: named in a remark
MOST_LETTERS = 80  # of a thread's or a program's name


def translate(node: str, message: Message, clock: NodeClock) -> Event | None:
    """Give the event; None for a message that is not for the gang. Raise DecodeError where the gang cannot use it."""
    t = _corrected_time(message, clock)
    if isinstance(message, HelloMessage):
        return _hello(node, message, t)
    if isinstance(message, FactsMessage):
        return _facts(node, message, clock, t)
    if isinstance(message, ExitMessage):
        return read_exit(node, message, t)
    if isinstance(message, ReportMessage):
        return _report(node, message, t)
    if isinstance(message, CallTimesMessage):
        return _call_times(node, message, clock, t)
    return _plain(node, message, t)


def _plain(node: str, message: Message, t: float) -> Event | None:
    """Messages that differ from their events by node and time alone."""
    if isinstance(message, ShippedMessage):
        return Shipped(node, t, message.sha256, message.files, message.path, message.error, message.errno)
    if isinstance(message, ListeningMessage):
        return Listening(node, t, message.port, message.error)
    if isinstance(message, ProbedMessage):
        return Probed(node, t, message.results, message.error, message.shared)
    if isinstance(message, StartedMessage):
        return Started(node, t, message.rank, message.pid, message.attempt)
    if isinstance(message, WorldMessage):
        return WorldSeen(node, t, message.attempt, message)
    if isinstance(message, TemplateMessage):
        if message.state != "ready":
            return None
        return TemplateReady(node, t)
    if isinstance(message, ImportsMessage):
        return ImportsTold(node, t, message.imports)
    if isinstance(message, EndedMessage):
        return Ended(node, t, message.attempt, message.left, message.reason)
    if isinstance(message, DrainedMessage):
        return Drained(node, t, message.attempt, message.outputs or None)
    if isinstance(message, StacksMessage):
        samples = {rank: read_sample(rank, answer) for rank, answer in message.ranks.items()}
        return Stacks(node, t, samples, message.ras or "")
    if isinstance(message, CountersMessage):
        return Counters(node, t, message.ranks)
    if isinstance(message, NodeUsage):
        return Used(node, t, message)
    if isinstance(message, SavingMessage):
        return SavingAnswer(node, t, message.attempt, message.request, message.phase, message.step, message.ranks)
    if isinstance(message, FaultMessage):
        return Fault(node, t, message.id, message.message, message.rank)
    return None


def _call_times(node: str, message: CallTimesMessage, clock: NodeClock, t: float) -> CallTimes:
    """Give the times as they are, with the node's clock; none where that is not known."""
    if clock.delay is None:
        return CallTimes(node, t, {}, ClockEstimate(), message.links)
    node_clock = ClockEstimate(clock.offset, clock.delay / 2)
    return CallTimes(node, t, message.ranks, node_clock, message.links, message.suspects)


def _corrected_time(message: Message, clock: NodeClock) -> float:
    """When it happened, by the controller's clock; 0 where the message does not say."""
    t: float | None = getattr(message, "t", None)
    if isinstance(message, HelloMessage):
        t = message.died_t or t
    if isinstance(message, ExitMessage):
        raised_t = error_time(message.error)
        if raised_t is not None:
            t = min(raised_t, t or raised_t)  # the program's own word is earlier than its reaping
    if t is None:
        return 0.0
    return clock.correct(t)


def _hello(node: str, message: HelloMessage, t: float) -> Hello:
    if not message.node_dir:
        raise DecodeError("$.node_dir: expected the path of a directory")
    return Hello(node, t, message.node_dir, message.hostname, message.dead, message.how, message.attempt)


def _facts(node: str, message: FactsMessage, clock: NodeClock, t: float) -> FactsCollected:
    check_facts(message.facts)
    facts: JsonObject = dict(message.facts)
    if clock.delay is not None:
        facts["clock"] = {"offset": round(clock.offset, 4), "delay": round(clock.delay, 4)}
    return FactsCollected(node, t, facts, message.prelude_error or message.error)


def _report(node: str, message: ReportMessage, t: float) -> Report:
    threads = tuple(name[:MOST_LETTERS] for name in message.threads[:MOST_THREADS])
    return Report(
        node,
        t,
        message.rank,
        message.event,
        message.world_size or 0,
        message.code or 0,
        threads,
        message.program[:MOST_LETTERS],
        message.step,
        message.at[:MOST_LETTERS],
        message.limit,
    )
