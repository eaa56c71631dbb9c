"""What the NVIDIA driver's Xids mean: one table for the check of a node and for the diagnosis of a log (pure).

NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Catalog"), also in gpud's
components/accelerator/nvidia/xid. Ships to the nodes: Python 3.8.
"""

from __future__ import annotations

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
