"""The kernel has logged no lockup, hung task, kill for memory, failing disk, file system, memory or PCIe device.

Patterns after node-problem-detector's config/kernel-monitor.json and gpud's components (os, memory, disk,
nfs, pci), and the kernel's own texts: kernel/watchdog.c, kernel/hung_task.c, mm/oom_kill.c,
net/sunrpc/clnt.c, drivers/nvme/host/pci.c, drivers/pci/pcie/aer.c. NVIDIA's Xid is another check's.
"""

from __future__ import annotations

import re
from typing import Dict, NamedTuple, Optional

from allranks.text import join_names, plural

from ..compare import Findings, Nodes, alike, by_item, collected, remote, warn
from ..host import Host, ago, kernel_lines, kernel_text, search_in, uptime
from ..typed_facts import Request

ID = "kernel_log"
GROUP = "host"
LEVEL = "full"
SECONDS = 30.0
DAY = 86400.0
DEVICE = re.compile(r"\b(nvme\d{1,4}|sd[a-z]{1,4})(?:n?\d{1,4})?(?:p\d{1,4})?\b")
# An empty drive is no failing disk, nor one that refuses a request it does not support.
NO_DISK = re.compile(r"\bdev (fd|sr|loop|nbd)\d+|\((DISCARD|WRITE_ZEROES|SECURE_ERASE)\)")


class KernelLineKind(NamedTuple):
    """Lines of one kind; `days` back they count (0: since boot), from `least` of them on."""

    what: str
    pattern: str
    remedy: str
    label: str = ID
    days: float = 0.0
    least: int = 1


DISK = "replace the disk, or keep data and checkpoints off it. Look: {smart}"
KINDS = {
    "lockup": KernelLineKind(
        "a CPU lockup",
        r"BUG: soft lockup|hard LOCKUP|[Ww]atchdog detected hard",
        "reboot {node}. If it comes back, suspect firmware, kernel or hardware",
        days=1,
    ),
    "hung": KernelLineKind(
        "a task that hung in the kernel",
        r"INFO: task .{1,40}:\d+ blocked for more than \d+ seconds",
        "a disk or file server does not answer: {log}",
        days=1,
    ),
    "oom": KernelLineKind(
        "a process killed for lack of memory",
        r"(?:Out of memory|Memory cgroup out of memory).{0,120}[Kk]ill(?:ed)? process|^Killed process \d+",
        "fewer data-loader workers or a smaller batch, or a larger memory limit. Look: {log}",
        "host-out-of-memory",
        days=1,
    ),
    "nfs": KernelLineKind(
        "an NFS server that did not answer",
        r"nfs: server \S+ not responding",
        "see that the server and its network are up: {nfs}",
        days=1,
    ),
    "disk": KernelLineKind(
        "a failing disk",
        r"(?:I/O error, dev |critical \w{1,20} error, dev |Buffer I/O error on dev(?:ice)? )"
        r"|nvme\d{0,4}n?\d{0,4}: (?:I/O .{0,80}QID \d{1,6} timeout|I/O tag .{0,80}timeout"
        r"|controller is down|Removing after probe"
        r"|Device not ready; aborting|Disabling device after reset failure)",
        DISK,
    ),
    "filesystem": KernelLineKind(
        "a damaged file system",
        r"EXT[234]-fs error|EXT4-fs .{0,80}Remounting filesystem read-only|BTRFS (?:error|critical)"
        r"|XFS \(\S+\): (?:Corruption|Metadata (?:corruption|CRC error)|Internal error"
        r"|xfs_do_force_shutdown|log I/O error|metadata I/O error|.{0,200}[Ss]hutting down filesystem)",
        "unmount it and run fsck or xfs_repair. Look: {log}",
    ),
    "hardware": KernelLineKind(
        "an uncorrected hardware error (memory, processor or bus)",
        r"\[Hardware Error\]: (?:event severity: (?:fatal|recoverable)|.{0,80}Uncorrected)"
        r"|EDAC .{0,80}\b\d{1,9} UE\b|Machine Check Exception: 0*[1-9a-f]"
        r"|mce: .{0,80}[Uu]ncorrected|Memory failure: 0x",
        "leave {node} out and have it looked at: {ras}",
    ),
    "corrected": KernelLineKind(
        "many corrected memory errors",
        r"EDAC .{0,80}\b\d{1,9} CE\b",
        "have the memory module looked at: {ras}",
        days=1,
        least=10,
    ),
    "pcie": KernelLineKind(
        "a fatal PCIe error",
        r"(?:severity=|AER: .{0,80})Uncorrect\w{1,20} \(Fatal\)",
        "reseat or replace the device named in the line: {log}",
    ),
}
COMPILED = {name: re.compile(kind.pattern) for name, kind in KINDS.items()}


class Logged(NamedTuple):
    """How many lines, the newest of them and how many seconds ago (None: the log has no times)."""

    count_: int
    line: str
    ago: Optional[float] = None


NONE = Logged(0, "")


def collect(host: Host) -> Dict[str, Logged]:
    """By kind."""
    logged: Dict[str, Logged] = {}
    for age, text in kernel_lines(kernel_text(host), uptime(host)):
        name = _kind(text)
        if name is None:
            continue
        days = KINDS[name].days
        if not days or age is None or age <= days * DAY:
            logged[name] = Logged(logged.get(name, NONE).count_ + 1, text[:300], age)
    return {name: one for name, one in logged.items() if one.count_ >= KINDS[name].least}


def _kind(text: str) -> Optional[str]:
    """Tell of which kind a line is, the first that fits."""
    for name, pattern in COMPILED.items():
        if pattern.search(text) and not (name == "disk" and NO_DISK.search(text)):
            return name
    return None


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warn of each kind; nodes with the same newest line (one kernel) stand together."""
    by_kind = by_item(collected(facts_by_node, ID, Dict[str, Logged]))
    for name, kind in KINDS.items():
        logged = by_kind.get(name, {})
        for line, nodes in alike(logged, lambda one: one.line).items():
            message = f"the kernel of {join_names(nodes)} logged {kind.what}{_when(kind, logged[nodes[0]])}"
            yield warn(kind.label, nodes, message, _remedy(kind, nodes[0], line), [line])


def _remedy(kind: KernelLineKind, node: str, line: str) -> str:
    device = search_in(DEVICE, line)
    disk = f"-a /dev/{device}" if device else "--scan"
    return kind.remedy.format(
        node=node,
        log=f"ssh {node} 'sudo dmesg -T | tail -n 200'",
        nfs=remote(node, "nfsstat -m"),
        smart=remote(node, f"sudo smartctl {disk}"),
        ras=remote(node, "sudo ras-mc-ctl --errors"),
    )


def _when(kind: KernelLineKind, one: Logged) -> str:
    lines = plural(one.count_, "", f": {one.count_} lines")
    if one.ago is None:
        return f"{lines} since boot"
    if not lines:
        return f" {ago(one.ago)}"
    period = "in the last day" if kind.days else "since boot"
    return f"{lines} {period}, the newest {ago(one.ago)}"
