"""All NVLinks are up, as many as on other GPUs and nodes, and the NVSwitch fabric is ready.

What is normal differs. Cards of a pair with bridges leave some links inactive (H100 PCIe 6 of 18). So a GPU is
odd only among GPUs of its model. The driver tells of the fabric since Hopper (`fabric.state`). Until it is Completed
with Success, CUDA does not start (error 802, "system not yet initialized", NVIDIA Fabric Manager User Guide).
Azure NHC and imbue's host-health-checks look for `<inactive>`.
"""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from allranks.findings import Finding
from allranks.protocol.records import NamedTuple
from allranks.text import count_of, group

from .. import smi
from ..compare import Findings, Nodes, collected, differences, fail, remote, warn
from ..host import Host
from ..typed_facts import Request

ID = "gpu_nvlink"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 190.0
LABEL = "nvlink-error"
GPU = re.compile(r"GPU (\d+): (.{1,100}?) \(UUID:")
LINK = re.compile(r"\s+Link (\d+): (<inactive>|[\d.]+ GB/s)")
MANAGER = "nv-fabricmanage"  # the kernel keeps 15 letters of a name
STOPPED = ("inactive", "failed", "activating")
Links = Tuple[str, int, List[int]]  # a GPU's model, how many are active, those that are not


class NvLinks(NamedTuple):
    """By GPU its links; GPUs whose fabric is not ready; the state of a fabric manager that does not run."""

    links: Mapping[str, Links] = {}
    fabric: Sequence[smi.GpuState] = ()
    manager: str = ""


def collect(host: Host) -> Optional[NvLinks]:
    """None without NVLinks."""
    answer = smi.query(host, ["fabric.state", "fabric.status"])
    if answer is None:
        return None
    fabric = []
    for row in answer.rows:
        state = smi.value_of(row.get("fabric.state"))
        status = smi.value_of(row.get("fabric.status"))
        if state and (state, status) != ("Completed", "Success"):
            fabric.append(smi.GpuState(*smi.gpu_of(row), f"{state}, {status}" if state == "Completed" else state))
    nvlinks = NvLinks(read_links(smi.nvidia_smi(host, "nvlink", "-s").out), fabric, _manager(host))
    if not any(nvlinks):
        return None
    return nvlinks


def read_links(text: str) -> Dict[str, Links]:
    """Of nvidia-smi nvlink -s. A GPU whose links are all inactive, or that has none, says so in words."""
    links: Dict[str, Links] = {}
    index = ""
    for line in text.splitlines():
        gpu = GPU.match(line)
        link = LINK.match(line)
        if gpu:
            index = gpu.group(1)
            links[index] = (gpu.group(2), 0, [])
        elif link and index:
            model, active, inactive = links[index]
            if link.group(2) == "<inactive>":
                inactive.append(int(link.group(1)))
            else:
                links[index] = (model, active + 1, inactive)
        elif "support" in line:  # "does not have or support Nvlink", "not supported for Devices in MIG mode"
            links.pop(index, None)
    return links


def _manager(host: Host) -> str:
    """Read the state of a fabric manager that does not run; empty without NVSwitches or where systemd can't say."""
    if not host.glob("/dev/nvidia-nvswitch[0-9]*"):
        return ""
    if any(host.text(path, 32) == MANAGER for path in host.glob("/proc/[0-9]*/comm")):
        return ""
    state = host.run(["systemctl", "is-active", "nvidia-fabricmanager"], 10.0).out.strip()
    if state not in STOPPED:
        return ""
    return state


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Fail where the fabric is not ready; warn of links that are down and of a fabric manager that does not run."""
    nodes = collected(facts_by_node, ID, NvLinks)
    for node, one in nodes.items():
        yield from _fabric(node, one)
    counts = {}
    for node, one in nodes.items():
        down = [index for index in one.links if one.links[index][1] < _usual(index, one.links)]
        for index in down:
            yield _down(node, index, one.links)
        if one.links and not down:
            numbers = sorted({active for _, active, _ in one.links.values()}, reverse=True)
            counts[node] = " and ".join(map(str, numbers))
    for odd in differences("NVLinks", counts, lambda count: f"{count} active NVLinks a GPU", phrase="{value}"):
        node = odd.nodes[0]
        remedy = f"look: {remote(node, 'nvidia-smi nvlink -s')} and {remote(node, 'nvidia-smi topo -m')}"
        yield warn(LABEL, odd.nodes, odd.message, remedy)


def _fabric(node: str, one: NvLinks) -> Findings:
    restart = remote(node, "sudo systemctl restart nvidia-fabricmanager")
    log = remote(node, "journalctl -u nvidia-fabricmanager -n 50")
    remedy = f"restart the fabric manager, which must have the driver's version: {restart}. Look: {log}"
    for state, gpus in group(one.fabric, lambda gpu: gpu.state).items():
        message = f"the NVSwitch fabric is not ready for {smi.which_gpus(gpus)} of {node}: {state}"
        yield fail("fabric-manager", node, message, remedy, [f"fabric.state: {state}"], gpus[0].gpu)
    if one.manager and not one.fabric:
        message = f"{node} has NVSwitches, but its fabric manager does not run (systemd: {one.manager})"
        yield warn("fabric-manager", node, message, remedy)


def _usual(index: str, links: Mapping[str, Links]) -> int:
    alike = [active for model, active, _ in links.values() if model == links[index][0]]
    most = max(alike)
    if 2 * alike.count(most) > len(alike):
        return most
    return 0


def _down(node: str, index: str, links: Mapping[str, Links]) -> Finding:
    _, active, inactive = links[index]
    message = f"GPU {index} of {node} has {count_of(active, 'active NVLink')}"
    if inactive and active:
        message += f" (inactive: {', '.join(map(str, inactive))})"
    message += f", while most of its GPUs have {_usual(index, links)}"
    show = remote(node, f"nvidia-smi nvlink -e -i {index}")
    remedy = f"reset the GPUs or reboot {node}. If it stays, a board or cable is at fault: {show}"
    return warn(LABEL, node, message, remedy, gpu=int(index))
