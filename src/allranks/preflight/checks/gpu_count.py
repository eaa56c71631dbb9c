"""All GPUs of a node answer, and there are as many as expected.

A GPU that fell off the bus keeps its device file and its place in /proc/driver/nvidia/gpus (NVIDIA driver README).
nvidia-smi then says `Unable to determine the device handle`. One whose probe
failed at boot is on the PCI bus without a driver (NVIDIA/NVSentinel#155). A container sees the bus of its host,
so GPUs there count only if no driver holds them. `slots` compares the numbers of nodes and ranks.
"""

from __future__ import annotations

from typing import List, Mapping, Optional, Sequence

from allranks.findings import Finding
from allranks.protocol.records import NamedTuple
from allranks.text import count_of, group, plural

from .. import smi
from ..compare import (
    Findings,
    Nodes,
    advise,
    by_value,
    collected,
    fail,
    fail_if,
    nodes_with,
    remote,
    those,
    warn,
    who,
)
from ..host import CouldNotLook, Host
from ..typed_facts import Request

ID = "gpu_count"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 130.0
BAD_VALUES = ("[GPU is lost]", "[Unknown Error]", "[GPU requires reset]")


class Count(NamedTuple):
    """How many answer, those that do not, PCI addresses without a driver, why none answers."""

    answer: int = 0
    lost: Sequence[smi.GpuState] = ()
    idle: Sequence[str] = ()
    failed: str = ""
    vendor: str = "nvidia"


def collect(host: Host) -> Optional[Count]:
    """None without GPUs."""
    idle = nodes_with(smi.on_bus(host), lambda driver: not driver)
    if smi.has_nvidia(host) and host.which("nvidia-smi") is None:
        raise CouldNotLook("nvidia-smi is not installed (in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility)")
    try:
        answer = smi.query(host, ["name", "temperature.gpu"])
    except smi.Refused as error:
        return Count(idle=idle, failed=str(error))
    if answer is not None:
        return _nvidia(host, answer, idle)
    gpus = len(smi.amd_smi(host, "static", "-a") or ())
    if not gpus:
        cards = smi.rocm_smi(host, "--showproductname") or {}
        gpus = len([name for name in cards if name.startswith("card")])
    if gpus:
        return Count(gpus, vendor="amd")
    if not idle:
        return None
    return Count(idle=idle)


def _nvidia(host: Host, answer: smi.Answer, idle: List[str]) -> Count:
    lost = [smi.GpuState(*smi.gpu_of(row), row.get("why", "")) for row in answer.lost]
    for row in answer.rows:
        why = [value for value in (row.get("temperature.gpu"), row.get("name")) if value in BAD_VALUES]
        if why:
            lost.append(smi.GpuState(*smi.gpu_of(row), str(why[0]).strip("[]")))
    answer_count = len(answer.rows) + len(answer.lost) - len(lost)
    answered = {row["pci"] for row in answer.rows + answer.lost}
    lost += [smi.GpuState(None, pci) for pci in smi.of_driver(host) if pci not in answered]
    return Count(answer_count, lost, idle)


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Failures: GPUs that do not answer or have no driver, fewer than expected."""
    counts = collected(facts_by_node, ID, Count)
    expected = request.asked.expect_gpus
    ranks = request.asked.nproc or request.asked.launching.ranks_asked_for
    have_ranks = ranks is not None and not request.asked.virtual
    are_wanted = bool(expected) or have_ranks or any(one.answer for one in counts.values())
    for node, one in counts.items():
        yield from _of_node(node, one, are_wanted)
    if expected is not None:
        present = {node: one.answer + len(one.lost) for node, one in counts.items() if not _has_no_driver(one)}
        present.update({node: 0 for node, facts in facts_by_node.items() if ID in facts and facts[ID] is None})
        yield from _unexpected(expected, present, counts)


def _has_no_driver(one: Count) -> bool:
    return bool(one.failed or (one.idle and not one.answer))


def _of_node(node: str, one: Count, are_wanted: bool) -> Findings:
    if one.failed:
        yield _failed(node, one.failed)
        return
    for why, lost in group(one.lost, lambda gpu: gpu.state).items():
        message = f"{smi.gpus_of(node, lost, 'does', 'do')} not answer"
        if why:
            message += f" ({why})"
        message += f", and {count_of(one.answer, 'other GPU')} {plural(one.answer, 'does', 'do')}"
        remedy = f"reboot {node}, or leave it out of the list. Look: {_log(node)}"
        evidence = [f"{gpu.pci}: {why or 'listed by the driver, not by nvidia-smi'}" for gpu in lost]
        yield fail("gpu-fell-off-bus", node, message, remedy, evidence, lost[0].gpu)
    if one.idle and are_wanted:
        idle = smi.gpus_of(node, [smi.GpuState(pci=pci) for pci in one.idle])
        message = f"{idle} on the PCI bus, but no driver holds {plural(len(one.idle), 'it', 'them')}"
        if one.answer:
            yield warn(ID, node, message, f"see why its probe failed: {_log(node)}")
        else:
            remedy = f"load the driver with {remote(node, 'sudo modprobe nvidia')}. Look: {_log(node)}"
            yield fail("cuda-device-unavailable", node, message, remedy)


def _failed(node: str, text: str) -> Finding:
    label = "cuda-device-unavailable"
    load = remote(node, "sudo modprobe nvidia")
    remedy = f"load the driver again ({load}) or reboot {node}. Look: {_log(node)}"
    if "version mismatch" in text:
        label = "driver-version-mismatch"
        advice = f"reboot {node}, which still runs the driver from before an update"
        remedy = advise(advice, node, "cat /proc/driver/nvidia/version")
    elif "Unknown Error" in text:
        remedy = f"in a container, start it again (systemctl daemon-reload takes its devices away), else reboot {node}"
    return fail(label, node, f"no GPU of {node} answers: {text}", remedy, [text])


def _unexpected(expected: int, present: Mapping[str, int], counts: Mapping[str, Count]) -> Findings:
    """Against --expect-gpus, which nodes without any must meet too."""
    norm = f"{count_of(expected, 'GPU')} {plural(expected, 'is', 'are')} expected"
    for count, nodes in by_value(those(present, lambda count: count != expected)).items():
        gpus = count_of(count, "GPU") if count else "no GPU"
        is_short = count < expected
        label = "invalid-device-ordinal" if is_short else ID
        yield fail_if(is_short, label, nodes, f"{who(nodes)} {gpus} ({norm})", _compare(counts, nodes[0]))


def _log(node: str) -> str:
    return smi.driver_log(node, "nvrm")


def _compare(counts: Mapping[str, Count], node: str) -> str:
    vendor = counts.get(node, Count()).vendor
    bus = smi.by_vendor(vendor, "lspci -d 10de:", "lspci -d 1002:")
    return f"compare {remote(node, smi.listing(vendor))} with ssh {node} '{bus}'"
