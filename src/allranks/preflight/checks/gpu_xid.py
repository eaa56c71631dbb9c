"""The kernel log has no Xid of the NVIDIA driver that means a fault of the GPU, its memory or its links.

Which Xid means what: `allranks.xid`. Xids that a program causes by itself (13, 31, 32, 43, 45, 68, 69, …) are
not faults. Xids that follow from one fault of a GPU are one finding. What a reset has cured since stays in the log:
only a GPU off the bus, which a reset can't cure, fails.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Dict, List, Optional, Sequence, Tuple

from allranks.findings import Finding
from allranks.protocol.records import NamedTuple
from allranks.text import format_ago, group, join_words, plural
from allranks.xid import FAULTS, NVLINK5, OFF_BUS, RECOVERY, SWITCH, gravest_action, one_fault_each

from .. import smi
from ..compare import Findings, Nodes, collected, fail_if, remote
from ..host import CouldNotLook, Host, kernel_lines, kernel_text, search_in, uptime
from ..typed_facts import Request

ID = "gpu_xid"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 130.0
SHOWN = 32
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:,|$)")
SXID = re.compile(r"nvidia-nvswitch\d+: SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+), Fatal")
PROBED = re.compile(r"NVRM: The NVIDIA GPU ([0-9a-fA-F:.]+)")
GONE = re.compile(r"NVRM: (?:GPU ([0-9a-fA-F:.]+): GPU has )?fallen off the bus")


class XidEvent(NamedTuple):
    """An Xid (0: of a switch) of a GPU: how often, the newest line, seconds ago.

    A container reads the log of its host: `visible` is False for GPUs that it does not have.
    """

    code: int
    pci: str
    count_: int = 1
    line: str = ""
    ago: Optional[float] = None
    gpu: Optional[int] = None
    visible: bool = False


def collect(host: Host) -> Optional[List[XidEvent]]:
    """Read the faults out of the kernel log; None without GPUs."""
    if not smi.has_nvidia(host):
        return None
    events = read_log(kernel_text(host), uptime(host))
    if not events:
        return []
    index = {}
    with suppress(CouldNotLook):
        answer = smi.query(host, []) or smi.Answer([], [])
        index = {row["pci"]: smi.gpu_of(row)[0] for row in answer.rows + answer.lost}
    present = {*index, *smi.of_driver(host)}
    return [
        event._replace(gpu=index.get(event.pci), visible=not present or event.pci in present)
        for event in events[:SHOWN]
    ]


def read_log(text: str, up: Optional[float]) -> List[XidEvent]:
    """One entry a code and GPU, with the newest line."""
    events: Dict[Tuple[int, str], XidEvent] = {}
    probed = ""
    for age, words in kernel_lines(text, up):
        if "NVRM" not in words and "SXid" not in words:
            continue
        probed = search_in(PROBED, words) or probed
        key = _read(words, probed)
        if key is None or (key in events and not (XID.search(words) or SXID.search(words))):
            continue  # no fault, or the same event once more in words
        count = events[key].count_ if key in events else 0
        events[key] = XidEvent(*key, count + 1, words.strip()[:200], age)
    others = {pci for code, pci in events if code != RECOVERY}  # it only sums up another Xid
    return [event for event in events.values() if event.code != RECOVERY or _asks(event, others)]


def _asks(event: XidEvent, others: "set[str]") -> bool:
    return "to 0x0 (None)" not in event.line and event.pci not in others


def _read(words: str, probed: str) -> Optional[Tuple[int, str]]:
    """Read the code, 0 for a switch, and the PCI address; None for any other line."""
    xid = XID.search(words)
    if xid:
        code = int(xid.group(2))
        pci = xid.group(1)
        if code not in FAULTS or (code in NVLINK5 and not re.search(r"\bFatal\b", words)):
            return None
    else:
        code = 0
        pci = search_in(SXID, words)
        if not pci and GONE.search(words):
            code = OFF_BUS
            pci = search_in(GONE, words) or probed
    if not pci:
        return None
    return (code, smi.short(pci))


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Fail a GPU off the bus; warn of the others, once a node and fault."""
    for node, events in collected(facts_by_node, ID, List[XidEvent]).items():
        faults: Dict[Tuple[int, ...], List[XidEvent]] = {}
        for of_gpu in group(events, lambda event: event.pci).values():
            by_code = group(of_gpu, lambda event: event.code)
            for codes in one_fault_each(by_code):
                faults.setdefault(tuple(codes), []).extend(event for code in codes for event in by_code[code])
        for fault, of_fault in faults.items():
            yield _finding(node, fault, of_fault)


def _finding(node: str, codes: Tuple[int, ...], events: Sequence[XidEvent]) -> Finding:
    code = codes[0]
    xid = FAULTS.get(code, SWITCH)
    gpus = [of_gpu[0] for of_gpu in group(events, lambda event: event.pci).values()]
    if code == OFF_BUS and not any("Xid" in gpu.line for gpu in gpus):
        message = f"the driver of {node} logged that {smi.which_gpus(gpus)} has fallen off the bus"
    elif code:
        message = f"the driver of {node} logged Xid {code} ({xid.what}) for {smi.which_gpus(gpus)}"
    else:
        message = f"the driver of {node} logged a {xid.what} (SXid) of {' and '.join(gpu.pci for gpu in gpus[:4])}"
    if len(codes) > 1:
        message += f", with Xid {join_words([str(other) for other in codes[1:]])} of the same fault"
    count = sum(event.count_ for event in events)
    if count > 1:
        message += f", {count} times"
    ages = [event.ago for event in events if event.ago is not None]
    when = " since boot"
    if ages:
        when = f", {plural(count, '', 'last ')}{format_ago(min(ages))}"
    message += when
    is_off = code == OFF_BUS and any(gpu.visible for gpu in gpus)
    evidence = [event.line for event in events[:4]]
    action = gravest_action(codes)
    advice = f"if the GPU has not been reset since, run {smi.reset(node, gpus)} or reboot {node}"
    if action == "reboot":
        advice = f"reboot {node} or leave it out. If it comes back, check cooling, power and the board"
    elif action == "replace":
        advice = f"leave {node} out and have the GPU replaced"
    elif action == "watch":
        advice = f"watch the GPU's memory: {remote(node, 'nvidia-smi -q -d ECC,ROW_REMAPPER')}"
    remedy = f"{advice}. Look: {smi.driver_log(node, 'xid')}"
    return fail_if(is_off, xid.cause, node, message, remedy, evidence, gpu=gpus[0].gpu)
