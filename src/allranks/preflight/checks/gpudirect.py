"""Where there are GPUs and RDMA ports, the adapters can reach the GPUs' memory (GPUDirect RDMA).

Without it every message goes through the host's memory. NCCL looks for the peer memory modules by these paths
and else tries DMA-BUF. That takes Linux 5.12 with NVIDIA's open kernel modules (src/transport/net_ib.cc, NVIDIA
GPUDirect RDMA documentation, "Supported Software").
"""

from __future__ import annotations

from typing import Optional

from allranks.protocol.records import NamedTuple

from .. import rdma
from ..compare import Findings, Nodes, by_value, collected, nodes_with, others, remote, warn, who
from ..host import CouldNotLook, Host, text_in, version_of
from ..typed_facts import Request

ID = "gpudirect"
GROUP = "network"
LEVEL = "quick"
MODULES = {
    "nvidia": (
        "/sys/module/nvidia_peermem/version",
        "/sys/kernel/mm/memory_peers/nv_mem/version",
        "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
        "/sys/module/nv_peer_mem/version",
        "/sys/module/efa_nv_peermem",
    ),
    "amd": ("/sys/kernel/mm/memory_peers/amdkfd/version", "/sys/module/amd_peer_mem", "/sys/module/amdgpu_peermem"),
}
DMABUF = "DMA-BUF"
DMABUF_SINCE = (5, 12)


class Direct(NamedTuple):
    """The way: a module's path, DMABUF, or none and what is missing."""

    vendor: str
    way: str = ""
    why: str = ""


def collect(host: Host) -> Optional[Direct]:
    """None without GPUs or active RDMA ports."""
    vendor = host.facts.gpus.vendor or ""
    modules = MODULES.get(vendor)
    if not host.facts.gpu_count or modules is None:
        return None
    if not any(rdma.is_active(host, path) for path in rdma.ports(host).values()):
        return None
    release = text_in(host, "/proc/sys/kernel/osrelease", 256)
    direct = Direct(vendor)
    module = next((path for path in modules if host.exists(path)), "")
    if module:
        return direct._replace(way=module)
    if version_of(release) < DMABUF_SINCE:
        return direct._replace(why=f"Linux {release} has no DMA-BUF for it (5.12 and newer have)")
    if vendor == "nvidia":
        text = host.text("/proc/driver/nvidia/version", 1024)
        if text is None:
            raise CouldNotLook("/proc/driver/nvidia/version can't be read, so it is not known which driver is loaded")
        if "Open Kernel Module" not in text:
            return direct._replace(why="the driver's kernel modules are the closed ones, without DMA-BUF")
    return direct._replace(way=DMABUF)


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """nccl-p2p-error, a warning: it works, more slowly."""
    nodes = collected(facts_by_node, ID, Direct)
    fine = nodes_with(nodes, lambda direct: direct.way)
    lacking = {node: (direct.vendor, direct.why) for node, direct in nodes.items() if not direct.way}
    for (vendor, why), names in by_value(lacking).items():
        module = "nvidia_peermem"
        remedy = remote(names[0], "sudo modprobe nvidia-peermem")
        if vendor == "amd":
            module = "amdkfd peer memory"
            remedy = "install amdgpu-dkms, or boot a newer kernel"
        message = f"{who(names)} no GPUDirect RDMA: {module} is not loaded, and {why}"
        yield warn("nccl-p2p-error", names, message + others(fine), remedy)
