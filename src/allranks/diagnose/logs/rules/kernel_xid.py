"""The NVIDIA driver's Xid says whether the card, its memory, its links or the program is at fault."""

from __future__ import annotations

from dataclasses import replace

from allranks.preflight.checks.gpu_xid import KINDS

from ...rules.candidate import Candidate, Strength
from ..evidence import Evidence, cut, shown
from ..sighting import Sighting
from .table import candidate

ID = "kernel-xid"
SOURCE = "NVIDIA: Xid catalogue; the table of preflight/checks/gpu_xid.py"
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
    32: "invalid or corrupted push buffer stream",
    38: "driver firmware error",
    61: "internal micro-controller breakpoint",
}
FALLBACK = 0.55


def apply(evidence: Evidence) -> list[Candidate]:
    """One candidate a kind of Xid."""
    groups: dict[str, list[tuple[Sighting, str, float]]] = {}
    for sighting in evidence.weighed_by(ID):
        cause, what, confidence = meaning(sighting)
        groups.setdefault(cause, []).append((sighting, what, confidence))
    found = []
    for cause, seen in groups.items():
        head, what, confidence = max(seen, key=lambda s: s[2])
        place = f"GPU {head.groups['pci']}" + (f" on {head.line.node}" if head.line.node else "")
        lines = dict.fromkeys(shown(s[0].line) for s in ((head, what, confidence), *seen))
        made = candidate(evidence, [head])
        found.append(
            replace(
                made,
                rule=ID,
                cause=cause,
                strength=Strength.ROOT,
                confidence=confidence,
                evidence=tuple(lines)[:3],
                message=f"{place}: {what}: {cut(head.line.text, 160)}",
            )
        )
    return found


def meaning(sighting: Sighting) -> tuple[str, str, float]:
    """Cause, words and confidence of one line."""
    code = int(sighting.groups["code"])
    if sighting.row.id == "sxid":
        fatal = sighting.groups.get("severity") == "Fatal"
        return "nvlink-error", f"NVSwitch SXid {code}", 0.85 if fatal else 0.6
    if code in KINDS:
        return KINDS[code].label, f"Xid {code}, {KINDS[code].what}", 0.95
    if code in PROGRAM:
        return (
            "cuda-kernel-fault",
            f"Xid {code}, {PROGRAM[code]}",
            0.6 if code in CONSEQUENCE else 0.85,
        )
    if code in CONSEQUENCE:
        return "unknown", f"Xid {code}, a channel was cleaned up after something else", 0.3
    return "gpu-hardware-error", f"Xid {code}{', ' + CODES[code] if code in CODES else ''}", FALLBACK
