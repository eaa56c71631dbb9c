"""All GPUs of a node answer, and there are as many as expected and as on the other nodes.

A GPU that fell off the bus keeps its device file and its place in /proc/driver/nvidia/gpus (NVIDIA driver README,
"The /proc/driver Filesystem") while nvidia-smi says `Unable to determine the device handle`; one whose probe
failed at boot is on the PCI bus without a driver (NVIDIA/NVSentinel#155). A container sees the bus of its host,
so GPUs there count only if no driver holds them.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from allranks.findings import Finding, Status
from allranks.text import count_of, join_names, plural

from .. import smi
from ..compare import Nodes, by_value, parts, place, remote, split
from ..host import CouldNotLook, Host, Record, Request

ID = "gpu_count"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 130.0
LOST = "gpu-fell-off-bus"
BAD_VALUES = ("[GPU is lost]", "[Unknown Error]", "[GPU requires reset]")


def collect(host: Host) -> Optional[Record]:
    """{"answer": how many, "lost": [{"gpu", "pci", "why"}], "idle": PCI addresses without a driver, "failed"}."""
    idle = [pci for pci, driver in smi.on_bus(host).items() if not driver]
    if smi.has_nvidia(host):
        return _nvidia(host, idle)
    amd = smi.amd_smi(host, "static", "-a")
    if amd is None:
        cards = smi.rocm_smi(host, "--showproductname") or {}
        amd = [card for name, card in cards.items() if name.startswith("card")]
    if amd:
        return {"answer": len(amd), "vendor": "amd"}
    return {"answer": 0, "idle": idle} if idle else None


def _nvidia(host: Host, idle: List[str]) -> Record:
    if host.which("nvidia-smi") is None:
        raise CouldNotLook("nvidia-smi is not installed (in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility)")
    counts: Dict[str, Any] = {"answer": 0, "lost": [], "idle": idle}
    try:
        answer = smi.query(host, ["name", "temperature.gpu"])
    except smi.Refused as error:
        return {**counts, "failed": str(error)}
    if answer is None:
        return counts
    bad = [row for row in answer.rows if row.get("temperature.gpu") in BAD_VALUES or row.get("name") in BAD_VALUES]
    lost = [{**smi.gpu_of(row), "why": row.get("why", "")} for row in answer.lost]
    lost += [{**smi.gpu_of(row), "why": row["temperature.gpu"].strip("[]")} for row in bad]
    answered = {row["pci"] for row in answer.rows} | {row["pci"] for row in answer.lost}
    lost += [{"gpu": None, "pci": pci, "why": ""} for pci in smi.of_driver(host) if pci not in answered]
    return {**counts, "answer": len(answer.rows) - len(bad), "lost": lost}


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """Failures: GPUs that do not answer, fewer than asked for. A warning: fewer than most nodes have."""
    collected = parts(facts_by_node, ID)
    there = {n: int(v["answer"]) + len(v.get("lost") or []) for n, v in collected.items() if not v.get("failed")}
    there.update({n: 0 for n, f in facts_by_node.items() if ID in f and f[ID] is None})
    findings = [finding for node, one in collected.items() for finding in _of_node(node, one)]
    return findings + _fewer(request, collected, there)


def _of_node(node: str, one: Record) -> List[Finding]:
    if one.get("failed"):
        return [_failed(node, str(one["failed"]))]
    findings = []
    for why, lost in smi.group_by(one.get("lost") or [], "why").items():
        message = f"{smi.which_gpus(lost)} of {node} {plural(len(lost), 'does', 'do')} not answer"
        message += f" ({why})" if why else ""
        message += f"; {count_of(int(one['answer']), 'other GPU')} {'does' if one['answer'] == 1 else 'do'}"
        remedy = f"reboot {node}, or leave it out of the list; why: {_log(node)}"
        evidence = tuple(f"{gpu['pci']}: {why or 'listed by the driver, not by nvidia-smi'}" for gpu in lost)
        findings.append(Finding(LOST, "fail", message, remedy, place([node], gpu=lost[0].get("gpu")), evidence))
    idle = one.get("idle") or []
    if idle and one.get("answer"):
        message = f"{smi.which_gpus([{'pci': p} for p in idle])} of {node} {plural(len(idle), 'is', 'are')} on the"
        message += " PCI bus, but no driver holds " + (plural(len(idle), "it", "them"))
        findings.append(Finding(ID, "warn", message, f"see why its probe failed: {_log(node)}", place([node])))
    return findings


def _failed(node: str, text: str) -> Finding:
    label = "driver-version-mismatch" if "version mismatch" in text else "cuda-device-unavailable"
    remedy = f"load the driver again ({remote(node, 'sudo', 'modprobe', 'nvidia')}) or reboot {node}; why: {_log(node)}"
    if "version mismatch" in text:
        remedy = f"reboot {node}: it still runs the driver from before an update; look: "
        remedy += remote(node, "cat", "/proc/driver/nvidia/version")
    elif "Unknown Error" in text:
        remedy = f"in a container, start it again (systemctl daemon-reload takes its devices away), else reboot {node}"
    return Finding(label, "fail", f"no GPU of {node} answers: {text}", remedy, place([node]), (text,))


def _fewer(request: Request, collected: Nodes, there: Mapping[str, int]) -> List[Finding]:
    """Against --expect-gpus, which nodes without any must meet too, else --nproc, else what most nodes have."""
    expected = request.get("expect_gpus")
    ranks = request.get("nproc")
    if expected is not None:
        odd = {n: c for n, c in there.items() if c != int(expected)}
        norm = f"{count_of(int(expected), 'GPU')} {'is' if int(expected) == 1 else 'are'} expected"
        return _against(odd, collected, norm, int(expected))
    if ranks is not None and not request.get("virtual"):
        odd = {n: c for n, c in there.items() if n in collected and c < int(ranks)}
        return _against(odd, collected, f"{count_of(int(ranks), 'rank')} would run on it", int(ranks))
    parted = split(there)
    if parted is None:
        return []
    if not parted.fine:
        shown = "; ".join(f"{count_of(c, 'GPU')} on {join_names(nodes)}" for c, nodes in by_value(there).items())
        message = f"nodes have different numbers of GPUs: {shown}"
        return [Finding(ID, "warn", message, _compare_remedy(collected, list(there)[-1]), place(list(there)))]
    norm = f"the other {len(parted.fine)} have {parted.norm}"
    if len(parted.odd) > 1:
        norm = f"{len(parted.fine)} of {len(there)} nodes have {parted.norm}"
    odd = {n: there[n] for nodes in parted.odd.values() for n in nodes}
    return _against(odd, collected, norm, int(parted.norm), "warn")


def _against(
    odd: Mapping[str, int], collected: Nodes, norm: str, wanted: int, status: Status = "fail"
) -> List[Finding]:
    findings = []
    for count, nodes in by_value(odd).items():
        gpus = count_of(count, "GPU") if count else "no GPU"
        message = f"{join_names(nodes)} {plural(len(nodes), 'has', 'have')} {gpus}; {norm}"
        idle = len((collected.get(nodes[0]) or {}).get("idle") or [])
        label = ID
        how = status
        remedy = _compare_remedy(collected, nodes[0])
        if count > wanted:
            how = "warn"
        elif idle and not count:
            message += f" ({nodes[0]} has {idle} on its PCI bus, and no driver holds them)"
            label = "cuda-device-unavailable"
            how = "fail"
            remedy = f"load the driver: {remote(nodes[0], 'sudo', 'modprobe', 'nvidia')}; why not: {_log(nodes[0])}"
        findings.append(Finding(label, how, message, remedy, place(nodes)))
    return findings


def _log(node: str) -> str:
    return f"ssh {node} 'sudo dmesg -T | grep -i nvrm'"


def _compare_remedy(collected: Nodes, node: str) -> str:
    if (collected.get(node) or {}).get("vendor") == "amd":
        return f"compare: {remote(node, 'amd-smi', 'list')}; ssh {node} 'lspci -d 1002:'"
    return f"compare: {remote(node, 'nvidia-smi', '-L')}; ssh {node} 'lspci -d 10de:'"
