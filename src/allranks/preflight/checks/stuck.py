"""No process hangs inside the kernel (state D), as those do whose disk or file server does not answer.

There are two looks, a second apart. A process in D both times that was not scheduled in between is stuck. One that
reads a busy disk is in D often, but runs in between. Kernel threads are left out: some drivers keep theirs
in D for good. Sources: proc_pid_stat(5), Documentation/filesystems/proc.rst (wchan, voluntary_ctxt_switches).
"""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from allranks.protocol.records import NamedTuple
from allranks.text import count_of, group, join_names, plural

from ..compare import Findings, Nodes, collected, remote, warn
from ..host import CouldNotLook, Host, lines_of, process_stat, text_in
from ..typed_facts import Request

ID = "stuck"
GROUP = "host"
LEVEL = "full"
SECONDS = 20.0
MOST = 20
KERNEL_THREAD = 0x00200000  # PF_KTHREAD, include/linux/sched.h
# A parent that waits for its vfork child, and what a paused container (state D under cgroup v1) was at:
# none of them waits for a device.
# fmt: off
HARMLESS = ("refrigerator", "kernel_clone", "do_fork", "wait_for_vfork", "nanosleep", "ep_poll", "poll_schedule",
            "do_wait", "futex", "sigsuspend", "sigtimedwait")
# fmt: on
WAITS = (
    (("nfs", "rpc_", "nlm"), "an NFS server"),
    (("ll_", "ldlm", "ptlrpc", "cl_", "osc_", "lov_"), "a Lustre server"),
    (("ceph",), "a Ceph server"),
    (("fuse", "request_wait_answer"), "a FUSE file system's program"),
    (("cifs", "smb"), "an SMB server"),
    (("gpfs", "mmfs", "cxi"), "a GPFS server"),
    (("nv", "uvm", "amdgpu", "kfd", "drm"), "the GPU driver"),
    (
        ("io_schedule", "blk", "bio", "jbd2", "xfs", "ext4", "btrfs", "wb_wait", "folio", "bit_wait", "nvme", "scsi"),
        "a disk",
    ),
)


class Stuck(NamedTuple):
    """A process and the kernel function that it sleeps in (only root may see that of others)."""

    pid: int
    name: str
    waits: str = ""

    @property
    def where(self) -> str:
        """What it waits for, by the function."""
        plain = self.waits.lstrip("_")
        for words, what in WAITS:
            if plain.startswith(words) or any(f"_{w}" in self.waits for w in words if len(w) > 3):
                return f", waiting for {what}"
        if not self.waits:
            return ""
        return f" in {self.waits}"


def collect(host: Host) -> List[Stuck]:
    """List the processes that are stuck."""
    first = _asleep(host)
    if first is None:
        raise CouldNotLook("/proc shows no process")
    if not first or not host.run(["sleep", "1"], 5.0).ok:
        return []
    again = _asleep(host) or {}
    stuck = []
    for pid, before in first.items():
        waits = text_in(host, f"/proc/{pid}/wchan", 128)
        if again.get(pid) == before and not any(word in waits for word in HARMLESS) and not _is_frozen(host, pid):
            stuck.append(Stuck(pid, before[0], "" if waits == "0" else waits))
    return stuck[:MOST]


def _asleep(host: Host) -> Optional[Dict[int, Tuple[str, int, str]]]:
    """Name, start and context switches of each user process in state D; None without any process."""
    asleep: Dict[int, Tuple[str, int, str]] = {}
    pids = [int(name) for name in host.names("/proc") if name.isdecimal()]
    for pid in pids:
        stat = process_stat(host, pid)
        if stat is not None and stat.state == "D" and not stat.flags & KERNEL_THREAD:
            status = lines_of(host, f"/proc/{pid}/status")
            switches = " ".join(line.split()[-1] for line in status if "ctxt_switches" in line)
            asleep[pid] = (stat.name[:40], stat.start, switches)
    if not pids:
        return None
    return asleep


def _is_frozen(host: Host, pid: int) -> bool:
    """Tell whether its container is paused, as what it waits for is hidden from other users.

    Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst.
    """
    for line in lines_of(host, f"/proc/{pid}/cgroup"):
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers == "freezer":
            return host.text(f"/sys/fs/cgroup/freezer{path}/freezer.state", 32) in ("FROZEN", "FREEZING")
    return False


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warn of each node and what its processes wait for."""
    for node, processes in collected(facts_by_node, ID, List[Stuck]).items():
        for where, hanging in group(processes, lambda process: process.where).items():
            shown = join_names([f"{process.name} (pid {process.pid})" for process in hanging])
            message = f"{count_of(len(hanging), 'process', 'processes')} on {node}"
            message += f" {plural(len(hanging), 'hangs', 'hang')} in the kernel{where}: {shown}"
            remedy = f"bring back what it waits for, or reboot {node} (kill does not end it). Look: "
            remedy += remote(node, f"sudo cat /proc/{hanging[0].pid}/stack")
            evidence = [f"{process.name} {process.pid} D {process.waits or '?'}" for process in hanging[:8]]
            yield warn(ID, node, message, remedy, evidence)
