"""All NVLinks are up, as many as on other GPUs and nodes, and the NVSwitch fabric is ready.

What is normal differs: cards of a pair with bridges leave some links inactive (H100 PCIe: 6 of 18), so a GPU is
odd only among GPUs of its model. The driver tells of the fabric since Hopper (`fabric.state`): until it is Completed
with Success, CUDA does not start (error 802, "system not yet initialized"; NVIDIA Fabric Manager User Guide).
imbue's host-health-checks and Azure NHC look for `<inactive>`.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional

from allranks.findings import Finding
from allranks.text import count_of

from .. import smi
from ..compare import Nodes, differences, parts, place, remote
from ..host import Host, Record, Request

ID = "gpu_nvlink"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 190.0
LABEL = "nvlink-error"
GPU = re.compile(r"GPU (\d+): (.{1,100}?) \(UUID:")
LINK = re.compile(r"\s+Link (\d+): (<inactive>|[\d.]+ GB/s)")
MANAGER = "nv-fabricmanage"  # the kernel keeps 15 letters of a name
STOPPED = ("inactive", "failed", "activating")


def collect(host: Host) -> Optional[Record]:
    """{"links": {"0": [model, active, [inactive…]]}, "fabric": [{"gpu", "pci", "said"}], "manager": state}."""
    answer = smi.query(host, ["fabric.state", "fabric.status"])
    if answer is None:
        return None
    links = read_links(smi.nvidia_smi(host, "nvlink", "-s").out)
    fabric = []
    for row in answer.rows:
        state = smi.value_of(row.get("fabric.state"))
        status = smi.value_of(row.get("fabric.status"))
        if state and (state, status) != ("Completed", "Success"):
            fabric.append({**smi.gpu_of(row), "said": f"{state}, {status}" if state == "Completed" else state})
    evidence = {"links": links, "fabric": fabric, "manager": _manager(host)}
    return evidence if links or fabric or evidence["manager"] else None


def read_links(text: str) -> Dict[str, List[Any]]:
    """Of nvidia-smi nvlink -s. A GPU whose links are all inactive, or that has none, says so in words."""
    links: Dict[str, List[Any]] = {}
    index = ""
    for line in text.splitlines():
        gpu = GPU.match(line)
        link = LINK.match(line)
        if gpu:
            index = gpu.group(1)
            links[index] = [gpu.group(2), 0, []]
        elif link and index and link.group(2) == "<inactive>":
            links[index][2].append(int(link.group(1)))
        elif link and index:
            links[index][1] += 1
        elif "support" in line:  # "does not have or support Nvlink", "not supported for Devices in MIG mode"
            links.pop(index, None)
    return links


def _manager(host: Host) -> str:
    """What systemd says of a fabric manager that does not run, where there are NVSwitches and it can be seen."""
    if not host.glob("/dev/nvidia-nvswitch[0-9]*"):
        return ""
    if any(host.text(path, 32) == MANAGER for path in host.glob("/proc/[0-9]*/comm")):
        return ""
    state = host.run(["systemctl", "is-active", "nvidia-fabricmanager"], 10.0).out.strip()
    return state if state in STOPPED else ""


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """A failure: the fabric is not ready. Warnings: links that are down, a fabric manager that does not run."""
    collected = parts(facts_by_node, ID)
    findings = [finding for node, one in collected.items() for finding in _fabric(node, one)]
    reported = set()
    for node, one in collected.items():
        for gpu in _down(one.get("links") or {}):
            reported.add(node)
            findings.append(_links(node, gpu, one["links"]))
    rest = {n: _counts(v["links"]) for n, v in collected.items() if n not in reported and v.get("links")}
    for d in differences("NVLinks:", rest, lambda count: f"{count} active NVLinks a GPU"):
        node = d.nodes[0]
        message = d.message.replace(" NVLinks: ", " ", 1).replace("::", ":", 1)
        remedy = f"look: {remote(node, 'nvidia-smi', 'nvlink', '-s')}; {remote(node, 'nvidia-smi', 'topo', '-m')}"
        findings.append(Finding(LABEL, "warn", message, remedy, place(d.nodes)))
    return findings


def _fabric(node: str, one: Record) -> List[Finding]:
    findings = []
    restart = remote(node, "sudo", "systemctl", "restart", "nvidia-fabricmanager")
    remedy = f"see that the fabric manager runs and has the driver's version: {restart}; "
    remedy += remote(node, "journalctl", "-u", "nvidia-fabricmanager", "-n", "50")
    for state, gpus in smi.group_by(one.get("fabric") or [], "said").items():
        message = f"the NVSwitch fabric is not ready for {smi.which_gpus(gpus)} of {node}: {state}"
        findings.append(
            Finding(
                "fabric-manager",
                "fail",
                message,
                remedy,
                place([node], gpu=gpus[0].get("gpu")),
                (f"fabric.state: {state}",),
            )
        )
    if one.get("manager") and not findings:
        message = f"{node} has NVSwitches, but its fabric manager does not run (systemd: {one['manager']})"
        findings.append(Finding("fabric-manager", "warn", message, remedy, place([node])))
    return findings


def _down(links: Record) -> List[str]:
    """GPUs with fewer links than most GPUs of their model on the node have."""
    indices = []
    for index, (model, active, _) in links.items():
        alike = [other[1] for other in links.values() if other[0] == model]
        most = max(alike)
        if active < most and 2 * alike.count(most) > len(alike):
            indices.append(index)
    return indices


def _links(node: str, index: str, links: Record) -> Finding:
    _, active, inactive = links[index]
    most = max(other[1] for other in links.values())
    message = f"GPU {index} of {node} has {count_of(active, 'active NVLink')}; most of its GPUs have {most}"
    message += f" (inactive: {', '.join(str(n) for n in inactive)})" if inactive and active else ""
    remedy = f"reset the GPUs or reboot {node}; if it stays, a board or cable is at fault: "
    remedy += remote(node, "nvidia-smi", "nvlink", "-e", "-i", index)
    return Finding(LABEL, "warn", message, remedy, place([node], gpu=int(index)))


def _counts(links: Record) -> str:
    """`18`, or `12 and 0` where they differ."""
    return " and ".join(str(count) for count in sorted({one[1] for one in links.values()}, reverse=True))
