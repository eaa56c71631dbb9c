"""A rank died of an exception of its own: the text gives the cause, the first one by time is at fault."""

from __future__ import annotations

from ..incident import Incident
from ..memory.figures import HostMemory, read_gpu
from ..memory.levers import gpu_levers, host_levers
from ..memory.setting import setting_of
from .candidate import Candidate, Strength
from .failures import Failure, Group, Role, failures, first_of
from .words import place, summary, trace_lines

ID = "rank-raised"
SOURCE = "the error files of the runner (torchelastic's format), else a traceback at the end of a log; signatures.py"
SHORT = 160  # characters of an exception's text in the sentence; the evidence has more
REMEDY = "read the traceback in that rank's log: allranks logs --rank {rank}"


def apply(incident: Incident) -> Candidate | None:
    """The first exception that is no consequence of a peer's end."""
    group = first_of(failures(incident), "raised", incident, Role.ROOT)
    if group is None:
        return None
    first, row = group.first, group.first.signature
    cause = row.cause if row is not None else "program-exception"
    ours = row is not None and row.cause == "dataloader-worker-killed" and "Killed" in _whole(first)
    if ours and first.exit.oom_kills:
        cause = "host-out-of-memory"
    confidence = row.confidence if row is not None else 0.85
    assert first.raised is not None
    return Candidate(
        ID, cause, Strength.ROOT, _message(incident, group), confidence * (0.8 if first.from_log else 1.0), first.t,
        _remedy(incident, first, cause), group.where(), _evidence(first),
        culprits=group.ranks,
    )  # fmt: skip


def _remedy(incident: Incident, first: Failure, cause: str) -> str:
    """What the row says; of memory that ran out the levers, with the run's own figures."""
    if cause == "cuda-out-of-memory":
        return gpu_levers(read_gpu(first.told[1]), setting_of(incident, first.exit))
    if cause == "host-out-of-memory":
        node = first.exit.node
        return host_levers(HostMemory(), setting_of(incident, first.exit), node, incident.memory.get(node))
    row = first.signature
    return row.remedy if row is not None else REMEDY.format(rank=first.rank)


def _evidence(failure: Failure) -> tuple[str, ...]:
    """The place, the line there, the exception; of a wrapped one what it came from instead of the line."""
    assert failure.raised is not None
    lines = trace_lines(failure.raised)
    kind, told = failure.told
    if (kind, told) == (failure.raised.type, failure.raised.text):
        return lines
    return (*lines[:1], lines[-1], f"because of {kind}: {summary(told)}")


def _whole(failure: Failure) -> str:
    assert failure.raised is not None
    return " ".join([failure.raised.text, *(text for _, text in failure.raised.chain)])


def _message(incident: Incident, group: Group) -> str:
    """rank 3 on h2 raised ValueError: bad batch (train.py:41 in step, pid 77)."""
    first = group.first
    raised = first.raised
    assert raised is not None
    text = summary(raised.text, SHORT)
    what = f"{raised.type}: {text}" if text else raised.type
    kind, told = first.told
    if (kind, told) != (raised.type, raised.text):
        what += f", because of {kind}: {summary(told, SHORT)}"
    if first.signature is not None and first.signature.means:
        what += f", because {first.signature.means}"
    pid = f"pid {first.pid}" if first.pid and len(group.ranks) == 1 else ""
    at = ", ".join(p for p in (place(raised), pid) if p)
    return f"{group.who(incident)} raised {what}" + (f" ({at})" if at else "") + group.also(incident)
