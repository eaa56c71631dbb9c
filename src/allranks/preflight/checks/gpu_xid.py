"""The kernel log has no Xid of the NVIDIA driver that means a fault of the GPU, its memory or its links.

Which Xid means what: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Catalog"), also in
gpud's components/accelerator/nvidia/xid. Xids that a program causes by itself (13, 31, 32, 43, 45, 68, 69, …) are
no fault. What a reset has cured since stays in the log: only a GPU off the bus, which a reset can't cure, fails.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from allranks.findings import Finding, Status
from allranks.text import plural

from .. import smi
from ..compare import Nodes, place, remote
from ..host import CouldNotLook, Host, Record, Request, ago, kernel_lines, kernel_text, uptime

ID = "gpu_xid"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 130.0
SHOWN = 32


class Kind(NamedTuple):
    """What an Xid says in the catalogue, the label, and what it asks for."""

    what: str
    label: str = "gpu-hardware-error"
    action: str = "reset"


OFF_BUS = 79
RECOVERY = 154
ECC = "ecc-error"
NVLINK = "nvlink-error"
KINDS = {
    46: Kind("GPU stopped processing"),
    48: Kind("double-bit ECC error", ECC),
    62: Kind("internal micro-controller halt"),
    63: Kind("memory row remapping recorded", ECC),
    64: Kind("memory row remapping failed", ECC, "replace"),
    74: Kind("NVLink error", NVLINK),
    OFF_BUS: Kind("GPU has fallen off the bus", "gpu-fell-off-bus", "reboot"),
    92: Kind("high single-bit ECC error rate", ECC, "watch"),
    94: Kind("contained memory error", ECC),
    95: Kind("uncontained memory error", ECC),
    109: Kind("context switch timeout"),
    110: Kind("security fault"),
    119: Kind("GSP firmware gave no answer"),
    120: Kind("GSP firmware error"),
    136: Kind("NVLink training failed", NVLINK),
    140: Kind("unrecovered ECC error", ECC),
    143: Kind("GPU initialization error"),
    RECOVERY: Kind("GPU asks for recovery"),
    155: Kind("NVLink error", NVLINK),
    156: Kind("resource retirement", ECC),
    157: Kind("resource retirement failed", ECC, "replace"),
    158: Kind("fatal GPU timeout"),
    171: Kind("uncorrectable DRAM error", ECC),
    172: Kind("uncorrectable SRAM error", ECC),
    **{code: Kind("fatal NVLink error", NVLINK) for code in range(144, 151)},
}
NVLINK5 = range(144, 151)  # they say "Fatal" or "Nonfatal" themselves
SWITCH = Kind("fatal NVSwitch error", NVLINK, "reboot")
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:,|$)")
SXID = re.compile(r"nvidia-nvswitch\d+: SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+), Fatal")
PROBED = re.compile(r"NVRM: The NVIDIA GPU ([0-9a-fA-F:.]+)")
GONE = re.compile(r"NVRM: (?:GPU ([0-9a-fA-F:.]+): GPU has )?fallen off the bus")


def collect(host: Host) -> Optional[List[Record]]:
    """[{"code", "gpu", "pci", "mine", "count", "line", "ago": seconds}]: codes of KINDS, 0 for a switch; newest lines.

    A container reads the log of its host: `mine` is False for GPUs that it has not.
    """
    if not smi.has_nvidia(host):
        return None
    events = read_log(kernel_text(host), uptime(host))
    if not events:
        return []
    try:
        answer = smi.query(host, [])
        rows = answer.rows + answer.lost if answer else []
    except CouldNotLook:
        rows = []
    index = {row["pci"]: smi.gpu_of(row)["gpu"] for row in rows}
    visible = {*index, *smi.of_driver(host)}
    return [
        {**one, "gpu": index.get(one["pci"]), "mine": not visible or one["pci"] in visible} for one in events[:SHOWN]
    ]


def read_log(text: str, up: Optional[float]) -> List[Record]:
    """One entry a code and GPU, with the newest line."""
    events: Dict[Tuple[int, str], Dict[str, Any]] = {}
    probed = ""
    for age, words in kernel_lines(text, up):
        if "NVRM" not in words and "SXid" not in words:
            continue
        named = PROBED.search(words)
        probed = named.group(1) if named else probed
        code, pci = _read(words, probed)
        if code is None:
            continue
        if (code, pci) in events and not (XID.search(words) or SXID.search(words)):
            continue  # the same event, told once more in words
        one = events.setdefault((code, pci), {"code": code, "pci": pci, "count": 0})
        one.update(count=one["count"] + 1, line=words.strip()[:200], ago=age)
    others = {pci for code, pci in events if code != RECOVERY}  # it only sums up another Xid
    asks = {pci for (code, pci), one in events.items() if code == RECOVERY and "to 0x0 (None)" not in one["line"]}
    return [one for (code, pci), one in events.items() if code != RECOVERY or pci in asks - others]


def _read(words: str, probed: str) -> Tuple[Optional[int], str]:
    """The code, 0 for a switch, None for what is no fault; the PCI address."""
    xid = XID.search(words)
    switch = SXID.search(words)
    gone = GONE.search(words)
    if xid:
        code = int(xid.group(2))
        fault = code in KINDS and (code not in NVLINK5 or re.search(r"\bFatal\b", words) is not None)
        return (code if fault else None), smi.short(xid.group(1))
    if switch:
        return 0, smi.short(switch.group(1))
    if gone and (gone.group(1) or probed):
        return OFF_BUS, smi.short(gone.group(1) or probed)
    return None, ""


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """A failure: a GPU off the bus. Warnings: the others; one a node and code."""
    findings = []
    for node, facts in facts_by_node.items():
        logged = facts.get(ID)
        entries = [e for e in logged if isinstance(e, Mapping)] if isinstance(logged, list) else []
        for code, gpus in smi.group_by(entries, "code").items():
            findings.append(_finding(node, int(code), gpus))
    return findings


def _finding(node: str, code: int, gpus: List[Record]) -> Finding:
    kind = KINDS.get(code, SWITCH)
    status: Status = "fail" if code == OFF_BUS and any(gpu.get("mine") for gpu in gpus) else "warn"
    if code == OFF_BUS and not any("Xid" in str(gpu["line"]) for gpu in gpus):
        message = f"the driver of {node} logged that {smi.which_gpus(gpus)} has fallen off the bus"
    elif code:
        message = f"the driver of {node} logged Xid {code} ({kind.what}) for {smi.which_gpus(gpus)}"
    else:
        message = f"the driver of {node} logged a {kind.what} (SXid) of {' and '.join(str(g['pci']) for g in gpus[:4])}"
    ages = [gpu["ago"] for gpu in gpus if gpu.get("ago") is not None]
    count = sum(int(gpu.get("count") or 1) for gpu in gpus)
    if count > 1:
        message += f", {count} times"
    if ages:
        message += f", {plural(count, '', 'last ')}{ago(min(ages))}"
    else:
        message += " since boot"
    evidence = tuple(str(gpu["line"]) for gpu in gpus[:4])
    return Finding(
        kind.label, status, message, _remedy(node, kind.action, gpus), place([node], gpu=gpus[0].get("gpu")), evidence
    )


def _remedy(node: str, action: str, gpus: List[Record]) -> str:
    log = f"ssh {node} 'sudo dmesg -T | grep -i xid'"
    if action == "reboot":
        return f"reboot {node} or leave it out; if it comes back: cooling, power, the board; log: {log}"
    if action == "replace":
        return f"leave {node} out and have the GPU replaced; log: {log}"
    if action == "watch":
        return f"watch the GPU's memory: {remote(node, 'nvidia-smi', '-q', '-d', 'ECC,ROW_REMAPPER')}; log: {log}"
    indices = [str(gpu["gpu"]) for gpu in gpus if gpu.get("gpu") is not None]
    reset = remote(node, "sudo", "nvidia-smi", "-r", *(["-i", ",".join(indices)] if indices else []))
    return f"if the GPU has not been reset since: {reset}, or reboot {node}; log: {log}"
