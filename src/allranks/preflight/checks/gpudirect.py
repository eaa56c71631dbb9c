"""Where there are GPUs and RDMA ports, the adapters can reach the GPUs' memory (GPUDirect RDMA).

Without it every message goes through the host's memory. NCCL looks for the peer memory modules by these paths
and else tries DMA-BUF: Linux 5.12 with NVIDIA's open kernel modules (src/transport/net_ib.cc; NVIDIA GPUDirect
RDMA documentation, "Supported Software"). RCCL reads CONFIG_PCI_P2PDMA and CONFIG_DMABUF_MOVE_NOTIFY
from /boot/config-RELEASE (src/misc/rocmwrap.cc).
"""

from __future__ import annotations

from typing import Dict, List, Optional

from allranks.findings import Finding
from allranks.text import join_names, plural

from ..compare import Nodes, by_value, others, part, parts, place, remote
from ..host import CouldNotLook, Host, Record, Request

ID = "gpudirect"
GROUP = "network"
LEVEL = "quick"
LABEL = "nccl-p2p-error"
NVIDIA = (
    "/sys/module/nvidia_peermem/version",
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "/sys/module/nv_peer_mem/version",
    "/sys/module/efa_nv_peermem",
)
AMD = ("/sys/kernel/mm/memory_peers/amdkfd/version", "/sys/module/amd_peer_mem", "/sys/module/amdgpu_peermem")
DMABUF_SINCE = (5, 12)
OPTIONS = ("CONFIG_PCI_P2PDMA=y", "CONFIG_DMABUF_MOVE_NOTIFY=y")


def collect(host: Host) -> Optional[Record]:
    """{"vendor", "way": path, "DMA-BUF" or "", "kernel", "why": what is missing}."""
    gpus = part(host.facts, "gpus")
    vendor = gpus.get("vendor")
    states = [host.text(path, 64) or "" for path in host.glob("/sys/class/infiniband/*/ports/*/state")]
    active = any(state.endswith("ACTIVE") for state in states)
    if not gpus.get("count") or not active or vendor not in ("nvidia", "amd"):
        return None
    release = host.text("/proc/sys/kernel/osrelease", 256) or ""
    answer = {"vendor": vendor, "kernel": release[:100], "way": "", "why": ""}
    module = next((path for path in (NVIDIA if vendor == "nvidia" else AMD) if host.exists(path)), "")
    if module:
        return {**answer, "way": module}
    if _version(release) < DMABUF_SINCE:
        return {**answer, "why": f"Linux {release} is older than 5.12, so there is no DMA-BUF either"}
    return {**answer, **(_nvidia(host) if vendor == "nvidia" else _amd(host, release))}


def _version(release: str) -> "tuple[int, ...]":
    words = release.split(".")[:2]
    return tuple(int("".join(c for c in w if c.isdecimal()) or "0") for w in words)


def _nvidia(host: Host) -> Dict[str, str]:
    text = host.text("/proc/driver/nvidia/version", 1024)
    if text is None:
        raise CouldNotLook("/proc/driver/nvidia/version can't be read, so it is not known which driver is loaded")
    if "Open Kernel Module" in text:
        return {"way": "DMA-BUF"}
    return {"why": "the driver's kernel modules are the closed ones, which have no DMA-BUF"}


def _amd(host: Host, release: str) -> Dict[str, str]:
    config = host.text(f"/boot/config-{release}", 1 << 20)
    if config is None:
        raise CouldNotLook(f"/boot/config-{release} can't be read, so it is not known whether the kernel has DMA-BUF")
    lines = set(config.splitlines())
    missing = [option for option in OPTIONS if option not in lines]
    return {"why": f"the kernel lacks {' and '.join(missing)}"} if missing else {"way": "DMA-BUF"}


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """nccl-p2p-error, a warning: it works, more slowly."""
    collected = parts(facts_by_node, ID)
    fine = [n for n, v in collected.items() if v.get("way")]
    lacking = {n: str(v.get("why") or "") for n, v in collected.items() if not v.get("way")}
    findings = []
    for why, nodes in by_value(lacking).items():
        module = "nvidia_peermem" if collected[nodes[0]].get("vendor") == "nvidia" else "amdkfd peer memory"
        have = plural(len(nodes), "has", "have")
        message = f"{join_names(nodes)} {have} no GPUDirect RDMA: {module} is not loaded, and {why}"
        message += others(fine, "have it", "has it")
        remedy = remote(nodes[0], "sudo", "modprobe", "nvidia-peermem")
        if module != "nvidia_peermem":
            remedy = "install amdgpu-dkms, or boot a kernel with " + " and ".join(OPTIONS)
        findings.append(Finding(LABEL, "warn", message, remedy, place(nodes)))
    return findings
