"""A rank died of an exception of its own: the text gives the cause, the first one by time is at fault."""

from __future__ import annotations

from ..candidate import Candidate, Strength
from ..exceptions import Link
from ..incident import Incident
from ..memory.figures import HostMemory, read_gpu
from ..memory.levers import gpu_levers, host_levers
from ..memory.setting import setting_of
from ..signatures import lost_peer, row_of_exception
from ..words import exception, further_words, place, placed, thread_words, trace_lines
from .failures import Failure, Group, Role, failures, first_of, telling

ID = "rank-raised"
SOURCE = "the error files of the runner (torchelastic's format), else a traceback at the end of a log; ../signatures"
SHORT = 160  # characters of an exception's text in the sentence; the evidence has more


def apply(incident: Incident) -> Candidate | None:
    """The first exception that is no consequence of a peer's end."""
    group = first_of(failures(incident), "raised", incident, Role.ROOT)
    if group is None:
        return None
    first = group.first
    row = group.first.signature
    cause = row.cause if row is not None else "program-exception"
    ours = row is not None and row.cause == "dataloader-worker-killed" and "Killed" in _whole(first)
    if ours and first.exit.oom_kills:
        cause = "host-out-of-memory"
    confidence = row.confidence if row is not None else 0.85
    return Candidate(
        ID,
        cause,
        Strength.ROOT,
        _message(incident, group),
        confidence * (0.8 if first.from_log else 1.0),
        first.t,
        _remedy(incident, first, cause),
        group.where(),
        _evidence(first),
        culprits=group.ranks,
    )


def _remedy(incident: Incident, first: Failure, cause: str) -> str:
    """Of memory that ran out the levers, with the run's own figures; else the row's, or empty for the cause's own."""
    if cause == "cuda-out-of-memory":
        return gpu_levers(read_gpu(first.quoted.text if first.quoted else ""), setting_of(incident, first.exit))
    if cause == "host-out-of-memory":
        node = first.exit.node
        return host_levers(HostMemory(), setting_of(incident, first.exit), node, incident.memory.get(node))
    return first.signature.fix if first.signature is not None else ""


def _evidence(failure: Failure) -> tuple[str, ...]:
    """The place, the line there, the exception; of one that others followed, these instead of the line."""
    raised = failure.raised
    quoted = failure.quoted
    assert raised is not None and quoted is not None
    lines = trace_lines(quoted, raised.traceback)
    before, after = _neighbours(failure)
    more = [f"because of {placed(link)}" for link in (before,) if link is not None]
    more += [f"which led to {placed(link)}" for link in (after,) if link is not None]
    return (*lines[:1], lines[-1], *more) if more else lines


def _neighbours(failure: Failure) -> tuple[Link | None, Link | None]:
    """What the quoted exception came from, and what it ended as; what only repeats it, or tells of a peer, is left
    out."""
    raised = failure.raised
    quoted = failure.quoted
    assert raised is not None and quoted is not None
    links = telling(raised)
    inner = links[-1]
    outer = links[0]
    same = [(link.name, link.text) == (quoted.name, quoted.text) for link in (inner, outer)]
    lost = lost_peer(outer.type, outer.text) is not None and row_of_exception(outer.type, outer.text) is None
    return (None if same[0] else inner), (None if same[1] or lost else outer)


def _whole(failure: Failure) -> str:
    assert failure.raised is not None
    return " ".join(link.text for link in failure.raised.links)


def _message(incident: Incident, group: Group) -> str:
    """rank 3 on h2 raised ValueError: bad batch (train.py:41 in step, pid 77)."""
    first = group.first
    raised = first.raised
    quoted = first.quoted
    assert raised is not None and quoted is not None
    what = exception(quoted, SHORT)
    if first.signature is not None and first.signature.means:
        what += f", because {first.signature.means}"
    within = quoted.worker or (f"thread {raised.thread}" if raised.thread else "")
    at = ", ".join(p for p in (place(quoted), f"in {within}" if within else "", group.pid) if p)
    before, after = _neighbours(first)
    sentence = f"{group.who(incident)} raised {what}" + (f" ({at})" if at else "")
    if before is not None:
        sentence += f", because of {placed(before, SHORT)}"
    if after is not None:
        sentence += f", which led to {placed(after, SHORT)}"
    sentence += thread_words(first.exit.tail, quoted.text) + further_words(incident, first.rank)
    return sentence + group.also(incident)
