"""TORCH_DISTRIBUTED_DEBUG=DETAIL names what ranks call: other calls, or one call with other shapes."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

from ...rules.candidate import Candidate
from ..evidence import Evidence, cut
from .table import candidate

ID = "collective-mismatch"
SOURCE = "torch: ProcessGroupWrapper.cpp (CollectiveFingerPrint)"
NEAR = 12  # lines that belong to the message
SCALAR, FAR = 64, 100  # a count or a loss against a bucket of gradients is another call, not another shape
_OP = re.compile(r"OpType=(\w+)|\b([A-Za-z_]\w+) ?\(TensorShape|Rank \d+: +(\w+), TensorShape")
_SHAPE = re.compile(r"TensorShape=\[([\d, ]*)\]")
_ASPECTS = re.compile(r"aspects:(.*)", re.DOTALL)


def apply(evidence: Evidence) -> list[Candidate]:
    """One candidate, by the whole message."""
    seen = evidence.weighed_by(ID)
    if not seen:
        return []
    head = seen[0]
    at = next(i for i, line in enumerate(evidence.lines) if line is head.line)
    text = "\n".join(line.text for line in evidence.lines[at : at + NEAR] if line.file == head.line.file)
    cause, confidence = meaning(text)
    made = candidate(evidence, seen)
    named = ", ".join(dict.fromkeys(m for ms in _OP.findall(text) for m in ms if m))
    shapes = " against ".join(dict.fromkeys(f"[{s}]" for s in _SHAPE.findall(text)))
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


def meaning(text: str) -> tuple[str, float]:
    """Cause and confidence."""
    ops = {m for ms in _OP.findall(text) for m in ms if m}
    sizes = [prod(int(n) for n in s.split(",") if n.strip()) for s in _SHAPE.findall(text)]
    aspects = _ASPECTS.search(text)
    if aspects and re.search(r"Sequence number|Op type", aspects[1]):
        return "collective-mismatch", 0.92
    if len(ops) > 1:
        return "collective-mismatch", 0.92
    if sizes and min(sizes) <= SCALAR and max(sizes) >= FAR * max(1, min(sizes)):
        return "collective-mismatch", 0.75
    if len(set(sizes)) > 1 or (aspects and re.search(r"shape|dtype", aspects[1])):
        return "collective-shape-mismatch", 0.9
    return "collective-mismatch", 0.6
