"""Incidents of tests: made in one line, and written down in tests/diagnose/rules/*/*.json with one level for each."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from allranks.diagnose.incident import Incident, RankEnd
from allranks.findings import Finding, Hang, Logins
from allranks.protocol.codec import decode, encode
from allranks.protocol.messages import ExitMessage, FaultMessage
from allranks.protocol.run_facts import HangNoted, LauncherPaused, NodeLost, RankDeparted, RankLeaving, Stamped

OF_LOG = ("tail",)


def rank_end(
    rank: int, node: str, code: int | None, signal: int | None, t: float, expected: bool = False, **rest: Any
) -> RankEnd:
    """`rest`: what else an exit has, and the ends of its log."""
    log = {name: rest.pop(name) for name in OF_LOG if name in rest}
    return RankEnd(node, t, ExitMessage(rank, 0, None, code, signal, expected, **rest), **log)


def fault(node: str, id: str, message: str, t: float) -> Stamped[FaultMessage]:
    return Stamped(node, t, 0, FaultMessage(id, message))


def lost(node: str, t: float, last_heard: float, hung_up: bool = False) -> Stamped[NodeLost]:
    return Stamped(node, t, 0, NodeLost(last_heard, hung_up))


def pause(t: float, **fields: Any) -> Stamped[LauncherPaused]:
    return Stamped("", t, 0, LauncherPaused(**fields))


def read_incident(document: Mapping[str, Any]) -> Incident:
    """An incident as a fixture has it."""
    rest = dict(document)
    at = rest.pop("departed_at", {})
    made: dict[str, Any] = {
        "exits": tuple(_end(end) for end in rest.pop("exits", ())),
        "faults": tuple(fault(**one) for one in rest.pop("faults", ())),
        "lost": tuple(lost(**one) for one in rest.pop("lost", ())),
        "pauses": tuple(pause(**one) for one in rest.pop("pauses", ())),
        "departed": {
            int(rank): Stamped("", t, 0, RankDeparted(int(rank), at.get(rank, "")))
            for rank, t in rest.pop("departed", {}).items()
        },
        "left": {
            int(rank): Stamped("", one["t"], 0, RankLeaving(int(rank), "", one["code"], tuple(one["threads"]), True))
            for rank, one in rest.pop("left", {}).items()
        },
    }
    noted = rest.pop("noted", None)
    if noted:
        made["noted"] = Stamped("", noted["t"], 0, HangNoted(noted["quiet"], decode(Hang, noted["hang"])))
    return Incident(**decode(PlainFields, rest)._asdict(), **made)


class PlainFields(NamedTuple):
    """The fields of an Incident that are no facts with a stamp."""

    attempt: int = 0
    world_size: int = 0
    ranks_by_node: Mapping[str, tuple[int, ...]] = {}
    findings: tuple[Finding, ...] = ()
    initialised: frozenset[int] = frozenset()
    init_entered: frozenset[int] = frozenset()
    init_timeout_hit: bool = False
    hang: Hang | None = None
    stop_reason: str | None = None
    started_t: float = 0.0
    detected_t: float | None = None
    master: str = ""
    addresses: Mapping[str, str] = {}
    pids: Mapping[int, int] = {}
    gpus: Mapping[int, int] = {}
    command: tuple[str, ...] = ()
    memory: Mapping[str, int] = {}
    deepspeed: Mapping[str, int] = {}
    became: Mapping[int, str] = {}
    lease: float = 0.0
    logins: Logins = Logins()
    is_joined: bool = False
    schedulers: Mapping[str, str] = {}
    jobs: Mapping[str, str] = {}
    withheld: tuple[str, ...] = ()


def _end(document: Mapping[str, Any]) -> RankEnd:
    fields = {name: value for name, value in document.items() if name != "attempt"}
    return rank_end(**fields)


def write_incident(incident: Incident) -> dict[str, Any]:
    """What `read_incident` reads."""
    written = dict(encode(incident))
    flat = {
        "exits": [
            {**one["fact"], "node": one["node"], "t": one["t"], **{name: one[name] for name in OF_LOG if name in one}}
            for one in written["exits"]
        ],
        "faults": [{"node": f.node, "id": f.fact.id, "message": f.fact.message, "t": f.t} for f in incident.faults],
        "lost": [{"node": one.node, "t": one.t, "last_heard": one.fact.last_heard} for one in incident.lost],
        "pauses": [{"t": one.t, **one.fact._asdict()} for one in incident.pauses],
        "departed": {rank: one.t for rank, one in incident.departed.items()},
        "departed_at": {rank: one.fact.at for rank, one in incident.departed.items()},
        "left": {r: {"t": e.t, "code": e.fact.code, "threads": e.fact.threads} for r, e in incident.left.items()},
        "noted": {**written["noted"]["fact"], "t": written["noted"]["t"]} if incident.noted else None,
    }
    for one in flat["exits"]:
        one.pop("calls", None)
    return {**written, **flat}
