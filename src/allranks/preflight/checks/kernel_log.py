"""The kernel has logged no lockup, hung task, kill for memory, failing disk, file system, memory or PCIe device.

Patterns after node-problem-detector's config/kernel-monitor.json and gpud's components (os, memory, disk,
nfs, pci), and the kernel's own texts: kernel/watchdog.c, kernel/hung_task.c, mm/oom_kill.c,
net/sunrpc/clnt.c, drivers/nvme/host/pci.c, drivers/pci/pcie/aer.c. NVIDIA's Xid is another check's.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from allranks.findings import Finding
from allranks.text import join_names

from ..compare import Nodes, by_value, place, remote
from ..host import Host, Record, Request, ago, kernel_lines, kernel_text, uptime

ID = "kernel_log"
GROUP = "host"
LEVEL = "full"
SECONDS = 30.0
DAY = 86400.0
DEVICE = re.compile(r"\b(nvme\d{1,4}|sd[a-z]{1,4})(?:n?\d{1,4})?(?:p\d{1,4})?\b")
# An empty drive is no failing disk, nor one that refuses a request it does not support.
NO_DISK = re.compile(r"\bdev (fd|sr|loop|nbd)\d+|\((DISCARD|WRITE_ZEROES|SECURE_ERASE)\)")


class Kind(NamedTuple):
    """Lines of one kind; `days` back they count (0: since boot), from `least` of them on."""

    what: str
    pattern: str
    remedy: str
    label: str = ID
    days: float = 0.0
    least: int = 1


DISK = "look: {smart}; replace the disk, or keep data and checkpoints off it"
KINDS = {
    "lockup": Kind(
        "a CPU lockup",
        r"BUG: soft lockup|hard LOCKUP|[Ww]atchdog detected hard",
        "reboot {node}; if it comes back: firmware, kernel or hardware",
        days=1,
    ),
    "hung": Kind(
        "a task that hung in the kernel",
        r"INFO: task .{1,40}:\d+ blocked for more than \d+ seconds",
        "a disk or file server does not answer: {log}",
        days=1,
    ),
    "oom": Kind(
        "a process killed for lack of memory",
        r"(?:Out of memory|Memory cgroup out of memory).{0,120}[Kk]ill(?:ed)? process|^Killed process \d+",
        "fewer data-loader workers or a smaller batch, or a larger memory limit; {log}",
        "host-out-of-memory",
        days=1,
    ),
    "nfs": Kind(
        "an NFS server that did not answer",
        r"nfs: server \S+ not responding",
        "see that the server and its network are up: {nfs}",
        days=1,
    ),
    "disk": Kind(
        "a failing disk",
        r"(?:I/O error, dev |critical \w{1,20} error, dev |Buffer I/O error on dev(?:ice)? )"
        r"|nvme\d{0,4}n?\d{0,4}: (?:I/O .{0,80}QID \d{1,6} timeout|I/O tag .{0,80}timeout"
        r"|controller is down|Removing after probe"
        r"|Device not ready; aborting|Disabling device after reset failure)",
        DISK,
    ),
    "filesystem": Kind(
        "a damaged file system",
        r"EXT[234]-fs error|EXT4-fs .{0,80}Remounting filesystem read-only|BTRFS (?:error|critical)"
        r"|XFS \(\S+\): (?:Corruption|Metadata (?:corruption|CRC error)|Internal error"
        r"|xfs_do_force_shutdown|log I/O error|metadata I/O error|.{0,200}[Ss]hutting down filesystem)",
        "unmount it and run fsck or xfs_repair; {log}",
    ),
    "hardware": Kind(
        "an uncorrected hardware error (memory, processor or bus)",
        r"\[Hardware Error\]: (?:event severity: (?:fatal|recoverable)|.{0,80}Uncorrected)"
        r"|EDAC .{0,80}\b\d{1,9} UE\b|Machine Check Exception: 0*[1-9a-f]"
        r"|mce: .{0,80}[Uu]ncorrected|Memory failure: 0x",
        "leave {node} out and have it looked at: {ras}",
    ),
    "corrected": Kind(
        "many corrected memory errors",
        r"EDAC .{0,80}\b\d{1,9} CE\b",
        "have the memory module looked at: {ras}",
        days=1,
        least=10,
    ),
    "pcie": Kind(
        "a fatal PCIe error",
        r"(?:severity=|AER: .{0,80})Uncorrect\w{1,20} \(Fatal\)",
        "reseat or replace the device named in the line: {log}",
    ),
}
COMPILED = {name: re.compile(kind.pattern) for name, kind in KINDS.items()}


def collect(host: Host) -> Dict[str, Record]:
    """{kind: {"count", "line", "ago"}}: the newest line of each, seconds ago (None: the log has no times)."""
    by_kind: Dict[str, Dict[str, Any]] = {}
    for age, text in kernel_lines(kernel_text(host), uptime(host)):
        name = _kind(text)
        if name is None:
            continue
        days = KINDS[name].days
        if days and age is not None and age > days * DAY:
            continue
        count = by_kind.get(name, {}).get("count", 0) + 1
        by_kind[name] = {"count": count, "line": text[:300], "ago": age}
    return {name: one for name, one in by_kind.items() if one["count"] >= KINDS[name].least}


def _kind(text: str) -> Optional[str]:
    """The first kind that a line is of."""
    for name, pattern in COMPILED.items():
        if pattern.search(text) and not (name == "disk" and NO_DISK.search(text)):
            return name
    return None


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """A warning for each kind; nodes with the same newest line (one kernel) are told together."""
    findings = []
    for name, kind in KINDS.items():
        logged = {n: f[ID][name] for n, f in facts_by_node.items() if isinstance(f.get(ID), Mapping) and name in f[ID]}
        for _, nodes in by_value({n: v.get("line") for n, v in logged.items()}).items():
            one = logged[nodes[0]]
            message = f"the kernel of {join_names(nodes)} logged {kind.what}{_when(kind, one)}"
            findings.append(
                Finding(
                    kind.label,
                    "warn",
                    message,
                    _remedy(kind, nodes[0], str(one["line"])),
                    place(nodes),
                    (str(one["line"]),),
                )
            )
    return findings


def _remedy(kind: Kind, node: str, line: str) -> str:
    device = DEVICE.search(line)
    disk = ("-a", f"/dev/{device.group(1)}") if device else ("--scan",)
    log = f"ssh {node} 'sudo dmesg -T | tail -n 200'"
    return kind.remedy.format(
        node=node,
        log=log,
        nfs=remote(node, "nfsstat", "-m"),
        smart=remote(node, "sudo", "smartctl", *disk),
        ras=remote(node, "sudo", "ras-mc-ctl", "--errors"),
    )


def _when(kind: Kind, one: Record) -> str:
    age = one.get("ago")
    if one["count"] == 1:
        return " since boot" if age is None else f" {ago(age)}"
    period = "in the last day" if kind.days and age is not None else "since boot"
    newest = "" if age is None else f", the newest {ago(age)}"
    return f": {one['count']} lines {period}{newest}"
