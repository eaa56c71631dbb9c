"""The NVIDIA driver's Xid says whether the card, its memory, its links or the program is at fault."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from allranks.xid import FAULTS, one_fault_each

from ..candidate import Candidate
from ..logs.sightings import Evidence, Sighting, quoted
from ..words import on_node, short
from .log_lines import read_by_cause, read_candidate

PROGRAM = {
    13: "graphics engine exception: a kernel's bad access",
    31: "MMU fault: a kernel's bad address",
    32: "invalid push buffer",
    43: "channel stopped: the program's own fault",
    68: "video processor exception",
    69: "graphics engine class error",
}
CONSEQUENCE = frozenset({43, 45})  # of what came before
CODES = {
    38: "driver firmware error",
    61: "internal micro-controller breakpoint",
}
FALLBACK = 0.55
_PREVIOUS = re.compile(r"caused by previous Xid (\d{1,3})\b")  # open-gpu-kernel-modules: kernel_channel.c, gpu/rc


def xids(evidence: Evidence) -> list[Candidate]:
    """Make one candidate a kind of Xid."""
    candidates = []
    for cause, pairs in read_by_cause(evidence, "kernel-xid", read_xid).items():
        head, reading = _speaker(pairs)
        place = on_node(f"GPU {head.groups['pci']}", head.line.node)
        lines = dict.fromkeys(quoted(sighting.line) for sighting, _ in ((head, reading), *pairs))
        read = read_candidate(evidence, [head])
        message = f"{place}: {reading.message}: {short(head.line.text, 160)}"
        candidate = replace(read, rule="kernel-xid", cause=cause, strength=reading.strength, message=message)
        candidates.append(replace(candidate, confidence=reading.confidence, evidence=tuple(lines)[:3]))
    return candidates


def _speaker(pairs: Sequence[tuple[Sighting, Candidate]]) -> tuple[Sighting, Candidate]:
    """Choose the sighting that speaks for a fault: of the surest the Xid that the others of its family follow from."""
    surest = max(reading.confidence for _, reading in pairs)
    sure = [pair for pair in pairs if pair[1].confidence == surest]
    order = [code for fault in one_fault_each(int(s.groups["code"]) for s, _ in sure) for code in fault]
    return min(sure, key=lambda pair: order.index(int(pair[0].groups["code"])))


def read_xid(sighting: Sighting) -> Candidate:
    """Read one line by the number of its Xid or SXid."""
    code = int(sighting.groups["code"])
    if sighting.row.id == "sxid":
        fatal = sighting.groups.get("severity") == "Fatal"
        return Candidate("nvlink-error", 0.85 if fatal else 0.6, f"NVSwitch SXid {code}")
    before = _PREVIOUS.search(sighting.line.text)
    if code in CONSEQUENCE and before is not None and int(before[1]) in FAULTS:
        fault = FAULTS[int(before[1])]
        return Candidate(fault.cause, 0.9, f"Xid {code} follows from Xid {before[1]}, {fault.what}")
    if code in FAULTS:
        return Candidate(FAULTS[code].cause, 0.95, f"Xid {code}, {FAULTS[code].what}")
    if code in PROGRAM:
        return Candidate("cuda-kernel-fault", 0.6 if code in CONSEQUENCE else 0.85, f"Xid {code}, {PROGRAM[code]}")
    if code in CONSEQUENCE:
        return Candidate("unknown", 0.3, f"Xid {code}, a channel was cleaned up after something else")
    words = ", ".join(filter(None, (f"Xid {code}", CODES.get(code))))
    return Candidate("gpu-hardware-error", FALLBACK, words)


RULES = {"kernel-xid": ("NVIDIA Xid catalogue, the table of allranks/xid.py", xids)}
