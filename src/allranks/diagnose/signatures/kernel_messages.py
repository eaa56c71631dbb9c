"""The kernel's lines, as rows of `allranks.kernel_lines`, which the check of a node reads too."""

from __future__ import annotations

from allranks.kernel_lines import KINDS, KernelLineKind

from .row import Role, Row

# Causes whose own remedy says more than what the check of a node advises.
_OWN_REMEDY = frozenset({"host-out-of-memory", "too-many-open-files", "node-network-down", "segfault-native"})
_LOOKS = {
    "log": "ssh {node} 'sudo dmesg -T | tail -n 200'",
    "nfs": "ssh {node} nfsstat -m",
    "smart": "ssh {node} sudo smartctl --scan",
    "ras": "ssh {node} sudo ras-mc-ctl --errors",
}


def _row(kind: KernelLineKind) -> Row:
    fix = ""
    if kind.cause not in _OWN_REMEDY:
        advice = kind.remedy.format(node="{node}", **_LOOKS)
        fix = f"{advice[0].upper()}{advice[1:]}"
    return Row(
        f"kernel-{kind.id}",
        kind.cause,
        Role(kind.role),
        kind.source,
        kind.needs,
        kind.pattern,
        kind.confidence,
        kind.what.removeprefix("that "),
        fix=fix,
    )


# One line of a kind that is a fault only in numbers tells nothing.
ROWS = tuple(_row(kind) for kind in KINDS if kind.least == 1)
