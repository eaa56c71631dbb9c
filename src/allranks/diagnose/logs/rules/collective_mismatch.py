"""TORCH_DISTRIBUTED_DEBUG=DETAIL names what ranks call: other calls, or one call with other shapes."""

from __future__ import annotations

from dataclasses import replace

from ...rules.candidate import Candidate
from ...signatures.mismatch import OP, SHAPE, compare_calls
from ..evidence import Evidence, cut
from .table import candidate

ID = "collective-mismatch"
SOURCE = "torch: ProcessGroupWrapper.cpp (CollectiveFingerPrint)"
NEAR = 12  # lines that belong to the message


def apply(evidence: Evidence) -> list[Candidate]:
    """One candidate, by the whole message."""
    seen = evidence.weighed_by(ID)
    if not seen:
        return []
    head = seen[0]
    at = next(i for i, line in enumerate(evidence.lines) if line is head.line)
    text = "\n".join(line.text for line in evidence.lines[at : at + NEAR] if line.file == head.line.file)
    cause, confidence = compare_calls(text)
    made = candidate(evidence, seen)
    named = ", ".join(dict.fromkeys(m for ms in OP.findall(text) for m in ms if m))
    shapes = " against ".join(dict.fromkeys(f"[{s}]" for s in SHAPE.findall(text)))
    message = cut(
        f"ranks call different collectives: {named} {shapes}"
        if cause.startswith("nccl")
        else f"ranks call {named or 'one collective'} with different shapes: {shapes}"
    )
    return [
        replace(
            made,
            cause=cause,
            confidence=confidence,
            message=message,
            culprits=frozenset(),
            where=replace(made.where, rank=None),
        )
    ]
