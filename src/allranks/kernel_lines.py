"""What lines of the Linux kernel mean: one table for the check of a node and for the diagnosis of a log (pure).

NVIDIA's Xids have a table of their own (`allranks.xid`). Each kind names its source. Node problem detector's
config/kernel-monitor.json, gpud's components (cpu, disk, memory, nfs, os, infiniband, nccl, peermem) and AMD's
node-scraper (dmesg analyzer) watch for lines of these kinds, too. Ships to the nodes: Python 3.8.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

ROOT = "root"
WEAK = "weak"
SYMPTOM = "symptom"
CHECK = "kernel_log"
UNKNOWN = "unknown"
STORAGE = "storage-error"


class KernelLineKind(NamedTuple):
    """Lines of one kind.

    One of `needs` stands in every line that `pattern` finds. `cause`, `role` and `confidence` are what the diagnosis
    makes of it (`diagnose/signatures/row.py`), `remedy` what the check says; `label` is the finding's id. A check
    counts lines of the last `days` (0: since boot), from `least` of them on.
    """

    id: str
    what: str
    needs: tuple[str, ...]
    pattern: str
    source: str
    remedy: str
    cause: str = UNKNOWN
    role: str = SYMPTOM
    confidence: float = 0.45
    label: str = CHECK
    days: float = 0.0
    least: int = 1


NIC = "reseat or replace the adapter or its cable in {node}. Look: ssh {node} 'sudo dmesg -T | grep mlx5'"
AMD_RESET = "reset the GPU with `amd-smi reset --gpureset --gpu GPU` or reboot {node}. Leave it out if it comes back"
AMD_LOG = "Look: ssh {node} 'sudo dmesg -T | grep amdgpu'"

KINDS = (
    # -- GPUs of AMD ---------------------------------------------------------------------------------------
    KernelLineKind(
        "amdgpu-lost",
        "that an AMD GPU has fallen off the bus",
        ("device lost from bus",),
        r"device lost from bus",
        "linux amdgpu_device.c amdgpu_device_gpu_recover",
        "reboot {node} or leave it out. If it comes back, check cooling, power and the board. " + AMD_LOG,
        "gpu-fell-off-bus",
        ROOT,
        0.95,
        "gpu-fell-off-bus",
    ),
    KernelLineKind(
        "amdgpu-bad-pages",
        "that an AMD GPU has more bad pages than its threshold",
        ("exceed threshold:",),
        r"RAS records:\d+ exceed threshold:\d+",
        "linux amdgpu_ras_eeprom.c",
        "leave {node} out and have the GPU replaced (`amd-smi bad-pages` lists them). " + AMD_LOG,
        "ecc-error",
        ROOT,
        0.9,
        "ecc-error",
    ),
    KernelLineKind(
        "amdgpu-ecc",
        "uncorrectable memory errors of an AMD GPU",
        ("uncorrectable hardware error", "poison is consumed", "sram_ecc"),
        r"(?:amdgpu|socket: \d+).{0,80}\b[1-9]\d* (?:new )?uncorrectable hardware errors detected"
        r"|uncorrectable hardware error ?\(ERREVENT_ATHUB_INTERRUPT\) detected"
        r"|amdgpu.{0,80}poison is consumed|sq_intr: error, .{0,80}sram_ecc",
        "linux amdgpu_ras.c, amdgpu_umc.c, kfd_int_process_v9.c",
        AMD_RESET + " (`amd-smi metric --ecc --gpu GPU` counts errors). " + AMD_LOG,
        "ecc-error",
        ROOT,
        0.9,
        "ecc-error",
    ),
    KernelLineKind(
        "amdgpu-page-fault",
        "a bad access of a program on an AMD GPU",
        ("page fault (src_id", "VM_L2_PROTECTION_FAULT_STATUS", "GPU fault detected"),
        r"\[\w+\] ?(?:no-)?(?:retry )?page fault \(src_id|VM_L2_PROTECTION_FAULT_STATUS:0x"
        r"|amdgpu.{0,60}GPU fault detected",
        "linux gmc_v9_0.c, gmc_v8_0.c gmc_v9_0_process_interrupt",
        "look at the program that ran then, if it still fails (AMD_SERIALIZE_KERNEL=3 shows the kernel). " + AMD_LOG,
        "cuda-kernel-fault",
        ROOT,
        0.8,
        days=1,
    ),
    KernelLineKind(
        "amdgpu-hang",
        "a reset of an AMD GPU",
        ("amdgpu", "qcm fence wait loop", "*ERROR* ring"),
        r"amdgpu.{0,80}(?:GPU reset begin|GPU reset\(\d+\) failed|GPU Recovery Failed|Mode[12] reset failed"
        r"|HW exception|Fatal error during GPU init|Failed to evict (?:queue|process)|ring \S{1,40} timeout"
        r"|hw_init of IP block)"
        r"|\*ERROR\* ring \S{1,40} timeout|qcm fence wait loop timeout",
        # The driver resets the GPU after a program's bad access, too, and says that before.
        "linux amdgpu_device.c, amdgpu_job.c, kfd_device_queue_manager.c",
        AMD_RESET + ". " + AMD_LOG,
        "gpu-hardware-error",
        WEAK,
        0.75,
        "gpu-hardware-error",
    ),
    # -- InfiniBand, RoCE, network cards -------------------------------------------------------------------
    KernelLineKind(
        "nic-power",
        "a network adapter without enough power from its PCIe slot",
        ("insufficient power on the PCIe slot",),
        r"Detected insufficient power on the PCIe slot \(\d+W\)",
        "linux mlx5/core/events.c mlx5_pcie_event",
        NIC,
        "nccl-ib-error",
        confidence=0.4,
    ),
    KernelLineKind(
        "nic-module",
        "a bad or overheated cable or module of a network adapter",
        ("Port module event",),
        r"Port module event(?:\[error\]: |.{0,60}High Temperature)",
        "linux mlx5/core/events.c mlx5_port_module_event",
        NIC,
        "nccl-ib-error",
        WEAK,
        0.6,
        "nccl-ib-error",
    ),
    KernelLineKind(
        "mlx5-fatal",
        "a failed network adapter",
        ("mlx5_core", "bnxt", "irdma"),
        r"mlx5_core .{0,120}(?:health|fatal|assert|cmd.{0,40} timeout|Device unrecoverable"
        r"|firmware.{0,40}(?:error|fail))|(?:bnxt_re|irdma).{0,120}(?:fatal|unrecoverable)",
        "linux mlx5/core/health.c, cmd.c, bnxt_re, irdma",
        NIC,
        "nccl-ib-error",
        ROOT,
        0.75,
        "nccl-ib-error",
    ),
    KernelLineKind(
        "netdev-watchdog",
        "a network adapter that does not send",
        ("NETDEV WATCHDOG",),
        r"NETDEV WATCHDOG",
        "linux net/sched/sch_generic.c dev_watchdog",
        "look at the link and the adapter's driver: ssh {node} 'ip -br link && sudo dmesg -T | tail -n 200'",
        "node-network-down",
        ROOT,
        0.85,
        days=1,
    ),
    KernelLineKind(
        "peermem",
        "GPU memory that went away under GPUDirect RDMA",
        ("detected invalid context",),
        r"nvidia[-_]peermem.{0,80}detected invalid context",
        "open-gpu-kernel-modules nvidia-peermem.c nv_get_p2p_free_callback",
        "a program ended while its memory was registered. If none did, update driver and nvidia-peermem. Look: {log}",
        "nccl-p2p-error",
        confidence=0.4,
        days=1,
    ),
    KernelLineKind(
        "nccl-segfault",
        "a crash inside NCCL or RCCL",
        ("in libnccl.so", "in librccl.so"),
        r"segfault at .{1,160} in lib[nr]ccl\.so",
        "linux arch/x86/mm/fault.c show_signal_msg",
        "compare the versions of NCCL and driver, and see that the fabric manager runs. Look: {log}",
        "segfault-native",
        WEAK,
        0.7,
        days=1,
    ),
    # -- processor and kernel ------------------------------------------------------------------------------
    KernelLineKind(
        "panic",
        "a kernel panic",
        ("Kernel panic - not syncing",),
        r"Kernel panic - not syncing",
        "linux kernel/panic.c",
        "reboot {node}. If it comes back, suspect firmware, kernel or hardware",
        "node-network-down",
        ROOT,
        0.75,
    ),
    KernelLineKind(
        "lockup",
        "a CPU lockup",
        ("soft lockup", "hard LOCKUP", "atchdog detected hard", "workqueue lockup", "detected stall"),
        r"BUG: soft lockup|hard LOCKUP|[Ww]atchdog detected hard|BUG: workqueue lockup"
        r"|\brcu\w{0,20}:? .{0,40}detected stall",
        "linux kernel/watchdog.c, workqueue.c, rcu/tree_stall.h",
        "reboot {node}. If it comes back, suspect firmware, kernel or hardware",
        "straggler",
        confidence=0.5,
        days=1,
    ),
    KernelLineKind(
        "oops",
        "a fault of the kernel itself",
        ("BUG: unable to handle", "kernel BUG at", "Oops: ", "general protection fault"),
        r"BUG: unable to handle|kernel BUG at |Oops: \d{4}|general protection fault(?:,|: \d{4})",
        "linux arch/x86/mm/fault.c, kernel/panic.c",
        "reboot {node}. If it comes back, suspect firmware, kernel or hardware",
    ),
    KernelLineKind(
        "hung",
        "a task that hung in the kernel",
        ("blocked for more than", "Comm: khungtaskd "),
        r"\btask .{1,40}:\d+ blocked for more than \d+ seconds|PID: \d+ Comm: khungtaskd ",
        "linux kernel/hung_task.c (khungtaskd shows its own stack where it found one)",
        "a disk or file server does not answer: {log}",
        "straggler",
        confidence=0.5,
        days=1,
    ),
    # -- memory and files ----------------------------------------------------------------------------------
    KernelLineKind(
        "oom",
        "a process killed for lack of memory",
        ("ut of memory", "Killed process", "invoked oom-killer", "oom-kill:constraint"),
        r"Out of memory.{0,120}[Kk]ill(?:ed)? process|Memory cgroup out of memory"
        r"|Killed process (?P<pid>\d+) \((?P<name>[^)]{1,60})\)|\binvoked oom-killer: "
        r"|oom-kill:constraint=CONSTRAINT_\w{1,20},.{1,900}\bpid=\d+",
        "linux mm/oom_kill.c",
        "fewer data-loader workers or a smaller batch, or a larger memory limit. Look: {log}",
        "host-out-of-memory",
        ROOT,
        0.93,
        "host-out-of-memory",
        days=1,
    ),
    KernelLineKind(
        "file-max",
        "that the system's limit of open files was reached",
        ("VFS: file-max limit",),
        r"VFS: file-max limit \d+ reached",
        "linux fs/file_table.c",
        "raise it: ssh {node} 'sudo sysctl fs.file-max=9223372036854775807', and see who holds so many files",
        "too-many-open-files",
        ROOT,
        0.9,
        "too-many-open-files",
        days=1,
    ),
    KernelLineKind(
        "hardware",
        "an uncorrected hardware error (memory, processor or bus)",
        ("[Hardware Error]", "EDAC ", "Machine Check Exception", "mce: ", "Memory failure: 0x"),
        r"\[Hardware Error\]: (?:event severity: (?:fatal|recoverable)|.{0,80}Uncorrected)"
        r"|EDAC .{0,80}\b\d{1,9} UE\b|Machine Check Exception: 0*[1-9a-f]"
        r"|mce: .{0,80}[Uu]ncorrected|Memory failure: 0x",
        "linux drivers/firmware/efi/cper.c, drivers/edac/edac_mc.c, arch/x86/kernel/cpu/mce, mm/memory-failure.c",
        "leave {node} out and have it looked at: {ras}",
    ),
    KernelLineKind(
        "corrected",
        "many corrected memory errors",
        ("EDAC ",),
        r"EDAC .{0,80}\b\d{1,9} CE\b",
        "linux drivers/edac/edac_mc.c",
        "have the memory module looked at: {ras}",
        confidence=0.1,
        days=1,
        least=10,
    ),
    # -- storage -------------------------------------------------------------------------------------------
    KernelLineKind(
        "nfs",
        "a file server that did not answer",
        ("nfs: server", "operations using this service will wait", "client was evicted by", "has not responded in"),
        r"nfs: server (?P<peer>\S{1,200}) not responding"
        r"|Connection to \S{1,80} \(at \S{1,80}\) was lost; in progress operations using this service will wait"
        r"|This client was evicted by|CIFS.{0,120}has not responded in \d+ seconds",
        "linux net/sunrpc/clnt.c, fs/smb/client/connect.c, Lustre ptlrpc/import.c",
        "see that the server and its network are up: {nfs}",
        "straggler",
        confidence=0.5,
        days=1,
    ),
    # An empty drive is not a failing disk, nor is one that refuses a request it does not support.
    KernelLineKind(
        "disk",
        "a failing disk",
        (
            *("I/O error, dev ", " error, dev ", "Buffer I/O error on dev", "Disk failure on"),
            *(" QID ", "I/O tag ", "controller is down", "Removing after probe", "not ready; aborting"),
            *("after reset failure", "no available path - failing"),
        ),
        r"(?:I/O error, dev |critical \w{1,20} error, dev )(?!(?:fd|sr|loop|nbd)\d)"
        r"(?!.{0,120}\((?:DISCARD|WRITE_ZEROES|SECURE_ERASE)\))"
        r"|Buffer I/O error on dev(?:ice)? (?!(?:fd|sr|loop|nbd)\d)\S{1,40}, logical block"
        r"|nvme\d{0,4}n?\d{0,4}: (?:I/O .{0,80} QID \d{1,6} timeout|I/O tag .{0,80}timeout"
        r"|controller is down|Removing after probe"
        r"|Device not ready; aborting|Disabling device after reset failure)"
        r"|md/raid\S{1,40}: Disk failure on|block \S{1,40}: no available path - failing I/O",
        "linux block/blk-core.c, fs/buffer.c, drivers/nvme/host/pci.c, multipath.c, drivers/md/raid0.c … raid10.c",
        "replace the disk, or keep data and checkpoints off it. Look: {smart}",
        STORAGE,
        ROOT,
        0.75,
    ),
    KernelLineKind(
        "filesystem",
        "a damaged file system",
        (
            *("-fs error", "BTRFS error", "BTRFS critical", "XFS (", "Remounting filesystem read-only"),
            *("writing superblock", "access beyond end of device"),
        ),
        r"EXT[234]-fs error|Remounting filesystem read-only|BTRFS (?:error|critical)|I/O error while writing superblock"
        r"|XFS \(\S+\): (?:Corruption|Metadata (?:corruption|CRC error)|Internal error"
        r"|xfs_do_force_shutdown|log I/O error|metadata I/O error|.{0,200}[Ss]hutting down filesystem)"
        r"|attempt to access beyond end of device",
        "linux fs/ext4/super.c, fs/btrfs/messages.c, fs/xfs/xfs_message.c, block/blk-core.c",
        "unmount it and run fsck or xfs_repair. Look: {log}",
        STORAGE,
        ROOT,
        0.75,
    ),
    # -- PCIe ----------------------------------------------------------------------------------------------
    KernelLineKind(
        "pcie-fatal",
        "a fatal PCIe error",
        ("severity=Uncorrect", "AER: "),
        r"(?:severity=|AER: .{0,80})Uncorrect\w{1,20} \(Fatal\)",
        "linux drivers/pci/pcie/aer.c",
        "reseat or replace the device named in the line: {log}",
        "gpu-fell-off-bus",
        ROOT,
        0.6,
    ),
    KernelLineKind(
        "pcie-hotplug",
        "a PCIe card that vanished",
        ("Slot(",),
        r"pciehp: Slot\(\S{1,20}\): (?:Link Down|Card not present)",
        "linux drivers/pci/hotplug/pciehp_ctrl.c",
        "reseat or replace the card of the slot named in the line: {log}",
    ),
)
KIND_BY_ID = {kind.id: kind for kind in KINDS}


@lru_cache(maxsize=64)
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile when a line holds a literal of it: all of them take 20 ms, which a diagnosis need not pay."""
    return re.compile(pattern)


def kernel_line_kind(text: str) -> KernelLineKind | None:
    """Tell of which kind a line is, the first that fits; None where it tells of no fault."""
    for kind in KINDS:
        if any(need in text for need in kind.needs) and compiled(kind.pattern).search(text):
            return kind
    return None
