"""What the NVIDIA driver's Xids mean: one table for the check of a node and for the diagnosis of a log (pure).

NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Catalog"), also in gpud's
components/accelerator/nvidia/xid. Ships to the nodes: Python 3.8.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Xid(NamedTuple):
    """What an Xid says in the catalogue, its cause of failure, and what it asks for."""

    what: str
    cause: str = "gpu-hardware-error"
    action: str = "reset"


OFF_BUS = 79
RECOVERY = 154
ECC = "ecc-error"
NVLINK = "nvlink-error"
NVLINK5 = range(144, 151)  # they say "Fatal" or "Nonfatal" themselves
FAULTS = {
    46: Xid("GPU stopped processing"),
    48: Xid("double-bit ECC error", ECC),
    62: Xid("internal micro-controller halt"),
    63: Xid("memory row remapping recorded", ECC),
    64: Xid("memory row remapping failed", ECC, "replace"),
    74: Xid("NVLink error", NVLINK),
    OFF_BUS: Xid("GPU has fallen off the bus", "gpu-fell-off-bus", "reboot"),
    92: Xid("high single-bit ECC error rate", ECC, "watch"),
    94: Xid("contained memory error", ECC),
    95: Xid("uncontained memory error", ECC),
    109: Xid("context switch timeout"),
    110: Xid("security fault"),
    119: Xid("GSP firmware gave no answer"),
    120: Xid("GSP firmware error"),
    136: Xid("NVLink training failed", NVLINK),
    140: Xid("unrecovered ECC error", ECC),
    143: Xid("GPU initialization error"),
    RECOVERY: Xid("GPU asks for recovery"),
    155: Xid("NVLink error", NVLINK),
    156: Xid("resource retirement", ECC),
    157: Xid("resource retirement failed", ECC, "replace"),
    158: Xid("fatal GPU timeout"),
    171: Xid("uncorrectable DRAM error", ECC),
    172: Xid("uncorrectable SRAM error", ECC),
    **dict.fromkeys(NVLINK5, Xid("fatal NVLink error", NVLINK)),
}
SWITCH = Xid("fatal NVSwitch error", NVLINK, "reboot")

# An Xid behind another one of its family is the same fault seen again: 63, 64, 94, 95, 171 and 172 say what became of
# the memory error of a 48, 154 what the driver asks for, 109 and 119 that the firmware no longer answers. The first
# that was logged speaks for its family.
FAMILIES = (
    (OFF_BUS,),
    (48, 140, 171, 172, 95, 94, 157, 64, 156, 63, 92),
    (74, *NVLINK5, 155, 136),
    (119, 120, 158, 62, 46, 143, 109, 110),
)


def one_fault_each(codes: Iterable[int]) -> list[list[int]]:
    """Group the Xids of one GPU by fault, each with the Xid that speaks for it first.

    A GPU off the bus explains all of its others, and the recovery that the driver asks for belongs to any fault.
    """
    logged = set(codes)
    if OFF_BUS in logged:
        return [[OFF_BUS, *sorted(logged - {OFF_BUS})]]
    faults = [[code for code in family if code in logged] for family in FAMILIES]
    others = sorted(logged - {RECOVERY} - {code for family in FAMILIES for code in family})
    faults = [fault for fault in faults if fault] + [[code] for code in others]
    if RECOVERY in logged and faults:
        faults[0].append(RECOVERY)
    elif RECOVERY in logged:
        faults.append([RECOVERY])
    return faults


GRAVEST = ("replace", "reboot", "reset", "watch")


def gravest_action(codes: Iterable[int]) -> str:
    """Choose what to do about Xids that are one fault: a replacement before a reset."""
    actions = {FAULTS.get(code, SWITCH).action for code in codes}
    return next(action for action in GRAVEST if action in actions)
