"""An agent's messages as events of the gang, with times on the controller's clock (pure)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from allranks.agent.foreign import error_file, fields, number, text, whole
from allranks.protocol.jsontext import DecodeError

from .clocks import Clock
from .messages import check_exit, check_facts, check_left, check_port_failure, check_summary, check_tried
from .states import (
    Counters,
    Drained,
    Ended,
    Event,
    Facts,
    Fault,
    Hello,
    Listening,
    Probed,
    Report,
    Shipped,
    Stacks,
    Started,
    read_exit,
)

Message = dict[str, Any]


def _hello(node: str, m: Message, t: float) -> Event:
    node_dir, hostname = text(m["node_dir"], 4096), text(m["hostname"], 253)
    if not node_dir:
        raise DecodeError("a node without a directory")
    check_summary(m.get("attempt"))
    return Hello(node, t, node_dir, hostname, bool(m.get("dead")), text(m.get("how")), _cleaned(m.get("attempt")))


def _cleaned(summary: Message | None) -> Message | None:
    """The attempt of a hello, with the ranks' error files as an `exit` message has them."""
    if summary is None:
        return None
    reports = fields(summary.get("ranks"))
    ranks = {key: {**report, "exit": _exit_cleaned(report.get("exit"))} for key, report in reports.items()}
    return {**summary, "ranks": ranks}


def _exit_cleaned(message: Message | None) -> Message | None:
    return {**message, "error": error_file(message.get("error"))} if message is not None else None


def _shipped(node: str, m: Message, t: float) -> Event:
    error = str(m.get("error") or "")
    files = int(m.get("files") or 0)
    return Shipped(node, t, str(m.get("sha256") or ""), files, str(m.get("path") or ""), error, whole(m.get("errno")))


def _facts(node: str, m: Message, t: float) -> Event:
    facts = m.get("facts") or {}
    check_facts(facts)
    return Facts(node, t, facts, str(m.get("prelude_error") or m.get("error") or ""))


def _listening(node: str, m: Message, t: float) -> Event:
    check_port_failure(m.get("error"))
    return Listening(node, t, int(m.get("port") or 0), m.get("error"))


def _probed(node: str, m: Message, t: float) -> Event:
    results = tuple(m.get("results") or ())
    check_tried(results)
    return Probed(node, t, results, str(m.get("error") or ""), bool(m.get("shared", True)))


def _started(node: str, m: Message, t: float) -> Event:
    return Started(node, t, int(m["rank"]), int(m["pid"]), int(m["attempt"]))


def _report(node: str, m: Message, t: float) -> Event:
    threads = m.get("threads")
    names = tuple(str(name)[:80] for name in threads[:5]) if isinstance(threads, list) else ()
    code = m.get("code")
    return Report(
        node,
        t,
        int(m["rank"]),
        str(m.get("event")),
        int(m.get("world_size") or 0),
        code if isinstance(code, int) else 0,
        names,
        str(m.get("program") or "")[:80],
    )


def _ended(node: str, m: Message, t: float) -> Event:
    left = tuple(m.get("left") or ())
    check_left(left)
    return Ended(node, t, int(m.get("attempt") or 0), left, str(m.get("reason") or ""))


def _drained(node: str, m: Message, t: float) -> Event:
    return Drained(node, t, int(m.get("attempt") or 0), text(m.get("outputs"), 4096) or None)


def _stacks(node: str, m: Message, t: float) -> Event:
    return Stacks(node, t, _by_rank(m), str(m.get("ras") or ""))


def _counters(node: str, m: Message, t: float) -> Event:
    return Counters(node, t, _by_rank(m))


def _by_rank(m: Message) -> dict[int, Message]:
    return {int(rank): found for rank, found in (m.get("ranks") or {}).items() if isinstance(found, dict)}


def _fault(node: str, m: Message, t: float) -> Event:
    return Fault(node, t, str(m.get("id")), str(m.get("message")), whole(m.get("rank")))


_KINDS: dict[str, Callable[[str, Message, float], Event]] = {
    "hello": _hello,
    "stacks": _stacks,
    "counters": _counters,
    "shipped": _shipped,
    "facts": _facts,
    "listening": _listening,
    "probed": _probed,
    "started": _started,
    "report": _report,
    "exit": read_exit,
    "ended": _ended,
    "drained": _drained,
    "fault": _fault,
}


def translate(node: str, message: Message, clock: Clock) -> Event | None:
    """The event, or None for a message that is none of the gang's business; DecodeError where it can't be one."""
    kind = _KINDS.get(message["type"])
    if kind is None:
        return None
    try:
        return _translated(kind, node, message, clock)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise DecodeError(f"{type(error).__name__} in a message {text(message['type'], 20)!r}") from None


def _translated(kind: Callable[[str, Message, float], Event], node: str, message: Message, clock: Clock) -> Event:
    t = number(message.get("died_t")) or number(message.get("t"))
    if message["type"] == "exit":
        message = {**message, "error": error_file(message.get("error"))}
        check_exit(message)
        own = number(fields(fields(message["error"]).get("allranks")).get("t"))
        if own is not None:
            t = min(own, t or own)  # the program's own word is earlier than its reaping
    if message["type"] == "facts" and clock.delay is not None:
        seen = {"offset": round(clock.offset, 4), "delay": round(clock.delay, 4)}
        message = {**message, "facts": {**(message.get("facts") or {}), "clock": seen}}
    return kind(node, message, clock.correct(t) if t is not None else 0.0)
