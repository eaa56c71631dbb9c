"""TORCH_DISTRIBUTED_DEBUG=DETAIL names what ranks call: other calls, or one call with other shapes (pure)."""

from __future__ import annotations

import re
from math import prod

SCALAR = 64
FAR = 100  # a count or a loss against a bucket of gradients is another call, not another shape
OP = re.compile(r"OpType=(\w+)|\b([A-Za-z_]\w+) ?\(TensorShape|Rank \d+: +(\w+), TensorShape")
SHAPE = re.compile(r"TensorShape=\[([\d, ]*)\]")
DTYPES = re.compile(r"TensorDtypes=([\w ]+)")
_ASPECTS = re.compile(r"aspects:(.*)", re.DOTALL)


def compare_calls(text: str) -> tuple[str, float]:
    """Give the cause and its confidence, by the text of the message (CollectiveFingerPrint)."""
    ops = {m for ms in OP.findall(text) for m in ms if m}
    sizes = [prod(int(n) for n in s.split(",") if n.strip()) for s in SHAPE.findall(text)]
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
