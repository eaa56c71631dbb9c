"""No other process computes on the GPUs, and none of their memory is taken.

Processes as nvidia-smi and amd-smi list them before ranks start: of other users, of other jobs, of an earlier run.
A container does not see those of others, but their memory counts. Desktops and monitors that take little are let be.
"""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

from allranks.findings import Finding
from allranks.protocol.records import NamedTuple
from allranks.text import group, join_words

from .. import smi
from ..compare import Findings, Nodes, advise, collected, fail_if, warn
from ..host import Host, base_name, lines_of, user_of
from ..typed_facts import Request

ID = "gpu_busy"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 190.0
LITTLE = 100  # MiB: a CUDA context alone takes more
# MiB and part of the whole: older drivers count what they reserve
UNSEEN = 2048
SHARE = 0.04
SHOWN = 16
APPS = "--query-compute-apps=gpu_bus_id,pid,process_name,used_gpu_memory"
UNIFIED = ("GH200", "GB200", "GB300")  # Linux keeps files in their memory too


class GpuProcess(NamedTuple):
    """A process on a GPU and its memory in MiB there; `user` is empty where the process is not visible here."""

    gpu: Optional[int]
    pci: str
    pid: int = 0
    name: str = ""
    user: str = ""
    mib: Optional[float] = None


class Use(NamedTuple):
    """Who uses the GPUs, and whose memory is taken by no process that is listed; `exclusive`: a GPU lets one in."""

    processes: List[GpuProcess]
    unseen: Sequence[GpuProcess] = ()
    exclusive: bool = False


def collect(host: Host) -> Optional[Use]:
    """None without GPUs."""
    answer = smi.query(host, ["name", "memory.total", "memory.used", "compute_mode"])
    if answer is None:
        return _amd(host)
    rows = {row["pci"]: row for row in answer.rows}
    processes = []
    for cells in smi.table(host, APPS):
        if len(cells) >= 4 and cells[1].isdecimal():
            pci = smi.short(cells[0])
            gpu = smi.gpu_of(rows.get(pci, {}), pci)
            processes.append(_process(host, gpu, cells[1], ", ".join(cells[2:-1]), smi.number(cells[-1])))
    listed = {process.pci for process in processes}
    unseen = []
    for row in answer.rows:
        used = smi.number(row.get("memory.used")) or 0
        total = smi.number(row.get("memory.total")) or 0
        unified = any(name in row.get("name", "") for name in UNIFIED)
        if row["pci"] not in listed and used > max(UNSEEN, SHARE * total) and not unified:
            unseen.append(GpuProcess(*smi.gpu_of(row), mib=used))
    exclusive = any(row.get("compute_mode") == "Exclusive_Process" for row in answer.rows)
    return Use(_large(processes), unseen, exclusive)


def _large(processes: List[GpuProcess]) -> List[GpuProcess]:
    return [process for process in processes if process.mib is None or process.mib >= LITTLE][:SHOWN]


def _process(host: Host, gpu: Tuple[Optional[int], str], pid: str, name: str, mib: Optional[float]) -> GpuProcess:
    """Only the program's name: arguments may be secrets."""
    program = base_name(smi.value_of(name).partition(" ")[0])
    return GpuProcess(*gpu, int(pid), program[:40], _user(host, user_of(host, int(pid))), mib)


def _user(host: Host, uid: str) -> str:
    for line in lines_of(host, "/etc/passwd", 1 << 20):
        words = line.split(":")
        if len(words) > 2 and words[2] == uid:
            return words[0][:32]
    return uid and f"uid {uid}"


def _amd(host: Host) -> Optional[Use]:
    """`process_info` is "N/A" or `No running processes detected` where there is none."""
    gpus = smi.amd_smi(host, "process")
    if gpus is None:
        return None
    processes = []
    for gpu in gpus:
        listed = gpu.get("process_list")
        for entry in listed if isinstance(listed, list) else []:
            pid = smi.text_at(entry, "process_info", "pid")
            if pid.isdecimal():
                memory = smi.integer(smi.at(entry, "process_info", "memory_usage", "vram_mem"))
                mib = memory and memory / (1 << 20)
                name = smi.text_at(entry, "process_info", "name")
                processes.append(_process(host, (smi.integer(gpu["gpu"]), ""), pid, name, mib))
    return Use(_large(processes))


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warn once a node; fail where a GPU takes one process only."""
    for node, use in collected(facts_by_node, ID, Use).items():
        if use.processes:
            yield _by_others(request, node, use)
        if use.unseen:
            most = _gib(max(gpu.mib or 0 for gpu in use.unseen))
            message = f"{smi.gpus_of(node, use.unseen, 'has', 'have')} {most}"
            message += " of memory taken by a process that is not visible from here"
            message += " (of another container or user, or a dead one)"
            remedy = f"see who holds it: ssh {node} 'sudo fuser -v /dev/nvidia*'"
            yield warn(ID, node, message, remedy, gpu=use.unseen[0].gpu)


def _by_others(request: Request, node: str, use: Use) -> Finding:
    held = list(group(use.processes, lambda process: (process.pid, process.name, process.user)).values())
    message = f"GPUs of {node} are in use: {join_words([_process_text(one) for one in held], limit=4)}"
    pids = ",".join(str(one[0].pid) for one in held[:8])
    advice = f"wait for them or leave {node} out. If they are yours, `allranks clean --orphans {request.target}`"
    remedy = advise(f"{advice} ends them", node, "ps -o user,pid,etime,args -p", pids)
    label = ID
    if use.exclusive:
        message += " (compute mode Exclusive_Process: no other process can use them)"
        label = "cuda-device-unavailable"
    return fail_if(use.exclusive, label, node, message, remedy, gpu=use.processes[0].gpu)


def _process_text(held: List[GpuProcess]) -> str:
    """`python3 (pid 4711, alice) on GPUs 0 and 1 with 71.2 GiB`."""
    first = held[0]
    sizes = [process.mib for process in held if process.mib]
    where = smi.which_gpus([one._replace(pci="") if one.gpu is not None else one for one in held])
    user = f", {first.user}" if first.user else ""
    text = f"{first.name or 'a process'} (pid {first.pid}{user}) on {where}"
    return f"{text} with {_gib(sum(sizes))}" if sizes else text


def _gib(mib: float) -> str:
    return f"{mib / 1024:.1f} GiB"
