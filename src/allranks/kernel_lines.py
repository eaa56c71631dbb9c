"""What lines of the Linux kernel mean: one table for the check of a node and for the diagnosis of a log (pure).

NVIDIA's Xids have a table of their own (`allranks.xid`). Each kind names its source. Node problem detector's
config/kernel-monitor.json, gpud's components (cpu, disk, memory, nfs, os, infiniband, nccl, peermem) and AMD's
node-scraper (dmesg analyzer) watch for lines of these kinds, too. Ships to the nodes: Python 3.8.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import NamedTuple

ROOT = "root"
WEAK = "weak"
SYMPTOM = "symptom"
CHECK = "kernel_log"
UNKNOWN = "unknown"


class KernelLineKind(NamedTuple):
    """Lines of one kind.

    One of `needs` stands in every line that `pattern` finds. `cause`, `role` and `confidence` are what the diagnosis
    makes of it (`diagnose/signatures/row.py`), `remedy` what both say (`advice`); `label` is the finding's id. A check
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

    def advice(self, node: str, disk: str = "--scan") -> str:
        """Write what to do on a node; `disk` is what smartctl is to look at."""
        return self.remedy.format(
            node=node,
            log=f"ssh {node} 'sudo dmesg -T | tail -n 200'",
            nfs=f"ssh {node} 'nfsstat -m'",
            smart=f"ssh {node} 'sudo smartctl {disk}'",
            ras=f"ssh {node} 'sudo ras-mc-ctl --errors'",
        )


NIC = "reseat or replace the adapter or its cable in {node}. Look: ssh {node} 'sudo dmesg -T | grep mlx5'"
AMD_RESET = "reset the GPU with `amd-smi reset --gpureset --gpu GPU` or reboot {node}. Leave it out if it comes back"
AMD_LOG = "Look: ssh {node} 'sudo dmesg -T | grep amdgpu'"

# Kinds that share what the diagnosis makes of them.
_of_gpu_memory = partial(KernelLineKind, cause="ecc-error", role=ROOT, confidence=0.9, label="ecc-error")
_of_adapter = partial(KernelLineKind, remedy=NIC, cause="nccl-ib-error")
_of_standstill = partial(KernelLineKind, cause="straggler", confidence=0.5, days=1)
_of_storage = partial(KernelLineKind, cause="storage-error", role=ROOT, confidence=0.75)

KINDS = (
    # -- GPUs of AMD ---------------------------------------------------------------------------------------
    KernelLineKind(
        "amdgpu-lost",
        "that an AMD GPU has fallen off the bus",
        needs=("device lost from bus",),
        pattern=r"device lost from bus",
        source="linux amdgpu_device.c amdgpu_device_gpu_recover",
        remedy="reboot {node} or leave it out. If it comes back, check cooling, power and the board. " + AMD_LOG,
        cause="gpu-fell-off-bus",
        role=ROOT,
        confidence=0.95,
        label="gpu-fell-off-bus",
    ),
    _of_gpu_memory(
        "amdgpu-bad-pages",
        "that an AMD GPU has more bad pages than its threshold",
        needs=("exceed threshold:",),
        pattern=r"RAS records:\d+ exceed threshold:\d+",
        source="linux amdgpu_ras_eeprom.c",
        remedy="leave {node} out and have the GPU replaced (`amd-smi bad-pages` lists them). " + AMD_LOG,
    ),
    _of_gpu_memory(
        "amdgpu-ecc",
        "uncorrectable memory errors of an AMD GPU",
        needs=("uncorrectable hardware error", "poison is consumed", "sram_ecc"),
        pattern=r"(?:amdgpu|socket: \d+).{0,80}\b[1-9]\d* (?:new )?uncorrectable hardware errors detected"
        r"|uncorrectable hardware error ?\(ERREVENT_ATHUB_INTERRUPT\) detected"
        r"|amdgpu.{0,80}poison is consumed|sq_intr: error, .{0,80}sram_ecc",
        source="linux amdgpu_ras.c, amdgpu_umc.c, kfd_int_process_v9.c",
        remedy=AMD_RESET + " (`amd-smi metric --ecc --gpu GPU` counts errors). " + AMD_LOG,
    ),
    KernelLineKind(
        "amdgpu-page-fault",
        "a bad access of a program on an AMD GPU",
        needs=("page fault (src_id", "VM_L2_PROTECTION_FAULT_STATUS", "GPU fault detected"),
        pattern=r"\[\w+\] ?(?:no-)?(?:retry )?page fault \(src_id|VM_L2_PROTECTION_FAULT_STATUS:0x"
        r"|amdgpu.{0,60}GPU fault detected",
        source="linux gmc_v9_0.c, gmc_v8_0.c gmc_v9_0_process_interrupt",
        remedy="look at the program that ran then, if it still fails (AMD_SERIALIZE_KERNEL=3 shows the kernel). "
        + AMD_LOG,
        cause="cuda-kernel-fault",
        role=ROOT,
        confidence=0.8,
        days=1,
    ),
    KernelLineKind(
        "amdgpu-hang",
        "a reset of an AMD GPU",
        needs=("amdgpu", "qcm fence wait loop", "*ERROR* ring"),
        pattern=r"amdgpu.{0,80}(?:GPU reset begin|GPU reset\(\d+\) failed|GPU Recovery Failed|Mode[12] reset failed"
        r"|HW exception|Fatal error during GPU init|Failed to evict (?:queue|process)|ring \S{1,40} timeout"
        r"|hw_init of IP block)"
        r"|\*ERROR\* ring \S{1,40} timeout|qcm fence wait loop timeout",
        # The driver resets the GPU after a program's bad access, too, and says that before.
        source="linux amdgpu_device.c, amdgpu_job.c, kfd_device_queue_manager.c",
        remedy=AMD_RESET + ". " + AMD_LOG,
        cause="gpu-hardware-error",
        role=WEAK,
        confidence=0.75,
        label="gpu-hardware-error",
    ),
    # -- InfiniBand, RoCE, network cards -------------------------------------------------------------------
    _of_adapter(
        "nic-power",
        "a network adapter without enough power from its PCIe slot",
        needs=("insufficient power on the PCIe slot",),
        pattern=r"Detected insufficient power on the PCIe slot \(\d+W\)",
        source="linux mlx5/core/events.c mlx5_pcie_event",
        confidence=0.4,
    ),
    _of_adapter(
        "nic-module",
        "a bad or overheated cable or module of a network adapter",
        needs=("Port module event",),
        pattern=r"Port module event(?:\[error\]: |.{0,60}High Temperature)",
        source="linux mlx5/core/events.c mlx5_port_module_event",
        role=WEAK,
        confidence=0.6,
        label="nccl-ib-error",
    ),
    _of_adapter(
        "mlx5-fatal",
        "a failed network adapter",
        needs=("mlx5_core", "bnxt", "irdma"),
        pattern=r"mlx5_core .{0,120}(?:health|fatal|assert|cmd.{0,40} timeout|Device unrecoverable"
        r"|firmware.{0,40}(?:error|fail))|(?:bnxt_re|irdma).{0,120}(?:fatal|unrecoverable)",
        source="linux mlx5/core/health.c, cmd.c, bnxt_re, irdma",
        role=ROOT,
        confidence=0.75,
        label="nccl-ib-error",
    ),
    KernelLineKind(
        "netdev-watchdog",
        "a network adapter that does not send",
        needs=("NETDEV WATCHDOG",),
        pattern=r"NETDEV WATCHDOG",
        source="linux net/sched/sch_generic.c dev_watchdog",
        remedy="look at the link and the adapter's driver: ssh {node} 'ip -br link && sudo dmesg -T | tail -n 200'",
        cause="node-network-down",
        role=ROOT,
        confidence=0.85,
        days=1,
    ),
    KernelLineKind(
        "peermem",
        "GPU memory that went away under GPUDirect RDMA",
        needs=("detected invalid context",),
        pattern=r"nvidia[-_]peermem.{0,80}detected invalid context",
        source="open-gpu-kernel-modules nvidia-peermem.c nv_get_p2p_free_callback",
        remedy="a program ended while its memory was registered. If none did, update driver and nvidia-peermem. "
        "Look: {log}",
        cause="nccl-p2p-error",
        confidence=0.4,
        days=1,
    ),
    KernelLineKind(
        "nccl-segfault",
        "a crash inside NCCL or RCCL",
        needs=("in libnccl.so", "in librccl.so"),
        pattern=r"segfault at .{1,160} in lib[nr]ccl\.so",
        source="linux arch/x86/mm/fault.c show_signal_msg",
        remedy="compare the versions of NCCL and driver, and see that the fabric manager runs. Look: {log}",
        cause="segfault-native",
        role=WEAK,
        confidence=0.7,
        days=1,
    ),
    # -- processor and kernel ------------------------------------------------------------------------------
    KernelLineKind(
        "panic",
        "a kernel panic",
        needs=("Kernel panic - not syncing",),
        pattern=r"Kernel panic - not syncing",
        source="linux kernel/panic.c",
        remedy="reboot {node}. If it comes back, suspect firmware, kernel or hardware",
        cause="node-network-down",
        role=ROOT,
        confidence=0.75,
    ),
    _of_standstill(
        "lockup",
        "a CPU lockup",
        needs=("soft lockup", "hard LOCKUP", "atchdog detected hard", "workqueue lockup", "detected stall"),
        pattern=r"BUG: soft lockup|hard LOCKUP|[Ww]atchdog detected hard|BUG: workqueue lockup"
        r"|\brcu\w{0,20}:? .{0,40}detected stall",
        source="linux kernel/watchdog.c, workqueue.c, rcu/tree_stall.h",
        remedy="reboot {node}. If it comes back, suspect firmware, kernel or hardware",
    ),
    KernelLineKind(
        "oops",
        "a fault of the kernel itself",
        ("BUG: unable to handle", "kernel BUG at", "Oops: ", "general protection fault"),
        r"BUG: unable to handle|kernel BUG at |Oops: \d{4}|general protection fault(?:,|: \d{4})",
        "linux arch/x86/mm/fault.c, kernel/panic.c",
        "reboot {node}. If it comes back, suspect firmware, kernel or hardware",
    ),
    _of_standstill(
        "hung",
        "a task that hung in the kernel",
        needs=("blocked for more than", "Comm: khungtaskd "),
        pattern=r"\btask .{1,40}:\d+ blocked for more than \d+ seconds|PID: \d+ Comm: khungtaskd ",
        source="linux kernel/hung_task.c (khungtaskd shows its own stack where it found one)",
        remedy="a disk or file server does not answer: {log}",
    ),
    # -- memory and files ----------------------------------------------------------------------------------
    KernelLineKind(
        "oom",
        "a process killed for lack of memory",
        needs=("ut of memory", "Killed process", "invoked oom-killer", "oom-kill:constraint"),
        pattern=r"Out of memory.{0,120}[Kk]ill(?:ed)? process|Memory cgroup out of memory"
        r"|Killed process (?P<pid>\d+) \((?P<name>[^)]{1,60})\)|\binvoked oom-killer: "
        r"|oom-kill:constraint=CONSTRAINT_\w{1,20},.{1,900}\bpid=\d+",
        source="linux mm/oom_kill.c",
        remedy="fewer data-loader workers or a smaller batch, or a larger memory limit. Look: {log}",
        cause="host-out-of-memory",
        role=ROOT,
        confidence=0.93,
        label="host-out-of-memory",
        days=1,
    ),
    KernelLineKind(
        "file-max",
        "that the system's limit of open files was reached",
        needs=("VFS: file-max limit",),
        pattern=r"VFS: file-max limit \d+ reached",
        source="linux fs/file_table.c",
        remedy="raise it: ssh {node} 'sudo sysctl fs.file-max=9223372036854775807', and see who holds so many files",
        cause="too-many-open-files",
        role=ROOT,
        confidence=0.9,
        label="too-many-open-files",
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
    _of_standstill(
        "nfs",
        "a file server that did not answer",
        needs=(
            "nfs: server",
            "operations using this service will wait",
            "client was evicted by",
            "has not responded in",
        ),
        pattern=r"nfs: server (?P<peer>\S{1,200}) not responding"
        r"|Connection to \S{1,80} \(at \S{1,80}\) was lost; in progress operations using this service will wait"
        r"|This client was evicted by|CIFS.{0,120}has not responded in \d+ seconds",
        source="linux net/sunrpc/clnt.c, fs/smb/client/connect.c, Lustre ptlrpc/import.c",
        remedy="see that the server and its network are up: {nfs}",
    ),
    # An empty drive is not a failing disk, nor is one that refuses a request it does not support.
    _of_storage(
        "disk",
        "a failing disk",
        needs=(
            *("I/O error, dev ", " error, dev ", "Buffer I/O error on dev", "Disk failure on"),
            *(" QID ", "I/O tag ", "controller is down", "Removing after probe", "not ready; aborting"),
            *("after reset failure", "no available path - failing"),
        ),
        pattern=r"(?:I/O error, dev |critical \w{1,20} error, dev )(?!(?:fd|sr|loop|nbd)\d)"
        r"(?!.{0,120}\((?:DISCARD|WRITE_ZEROES|SECURE_ERASE)\))"
        r"|Buffer I/O error on dev(?:ice)? (?!(?:fd|sr|loop|nbd)\d)\S{1,40}, logical block"
        r"|nvme\d{0,4}n?\d{0,4}: (?:I/O .{0,80} QID \d{1,6} timeout|I/O tag .{0,80}timeout"
        r"|controller is down|Removing after probe"
        r"|Device not ready; aborting|Disabling device after reset failure)"
        r"|md/raid\S{1,40}: Disk failure on|block \S{1,40}: no available path - failing I/O",
        source="linux block/blk-core.c, fs/buffer.c, drivers/nvme/host/pci.c, multipath.c, "
        "drivers/md/raid0.c … raid10.c",
        remedy="replace the disk, or keep data and checkpoints off it. Look: {smart}",
    ),
    _of_storage(
        "filesystem",
        "a damaged file system",
        needs=(
            *("-fs error", "BTRFS error", "BTRFS critical", "XFS (", "Remounting filesystem read-only"),
            *("writing superblock", "access beyond end of device"),
        ),
        pattern=r"EXT[234]-fs error|Remounting filesystem read-only|BTRFS (?:error|critical)"
        r"|I/O error while writing superblock"
        r"|XFS \(\S+\): (?:Corruption|Metadata (?:corruption|CRC error)|Internal error"
        r"|xfs_do_force_shutdown|log I/O error|metadata I/O error|.{0,200}[Ss]hutting down filesystem)"
        r"|attempt to access beyond end of device",
        source="linux fs/ext4/super.c, fs/btrfs/messages.c, fs/xfs/xfs_message.c, block/blk-core.c",
        remedy="unmount it and run fsck or xfs_repair. Look: {log}",
    ),
    # -- PCIe ----------------------------------------------------------------------------------------------
    KernelLineKind(
        "pcie-fatal",
        "a fatal PCIe error",
        needs=("severity=Uncorrect", "AER: "),
        pattern=r"(?:severity=|AER: .{0,80})Uncorrect\w{1,20} \(Fatal\)",
        source="linux drivers/pci/pcie/aer.c",
        remedy="reseat or replace the device named in the line: {log}",
        cause="gpu-fell-off-bus",
        role=ROOT,
        confidence=0.6,
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
