"""Nobody else computes on the GPUs, and none of their memory is taken.

Processes as nvidia-smi and amd-smi list them before ranks start: of other users, of other jobs, of an earlier run.
A container does not see those of others, but their memory counts. Desktops and monitors that take little are let be.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Tuple

from allranks.findings import Finding, Status
from allranks.text import plural

from .. import smi
from ..compare import Nodes, part, place, remote, target
from ..host import Host, Record, Request

ID = "gpu_busy"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 190.0
LITTLE = 100  # MiB: a CUDA context alone takes more
# MiB and part of the whole: older drivers count what they reserve
UNSEEN = 2048
SHARE = 0.04
SHOWN = 16
APPS = "gpu_bus_id,pid,process_name,used_gpu_memory"
UNIFIED = ("GH200", "GB200", "GB300")  # Linux keeps files in their memory too


def collect(host: Host) -> Optional[Record]:
    """{"processes": [{"gpu", "pci", "pid", "name", "mib", "user"}], "unseen": [{"gpu", "pci", "mib"}], "exclusive"}."""
    answer = smi.query(host, ["name", "memory.total", "memory.used", "compute_mode"])
    if answer is None:
        return _amd(host)
    ran = smi.nvidia_smi(host, f"--query-compute-apps={APPS}", "--format=csv,noheader,nounits")
    index = {row["pci"]: row for row in answer.rows}
    processes = []
    taken = set()
    for line in ran.out.splitlines():
        words = [word.strip() for word in line.split(", ")]
        if len(words) < 4 or not words[1].isdecimal():
            continue
        pci = smi.short(words[0])
        mib = smi.number(words[-1])
        taken.add(pci)
        if mib is None or mib >= LITTLE:
            row = {**index.get(pci, {}), "pci": pci}
            processes.append({**smi.gpu_of(row), **_process(host, words[1], ", ".join(words[2:-1])), "mib": mib})
    unseen = [
        {**smi.gpu_of(row), "mib": smi.number(row["memory.used"])}
        for row in answer.rows
        if row["pci"] not in taken and _is_taken(row)
    ]
    exclusive = any(row.get("compute_mode") == "Exclusive_Process" for row in answer.rows)
    return {"processes": processes[:SHOWN], "count": len(processes), "unseen": unseen, "exclusive": exclusive}


def _is_taken(row: Mapping[str, str]) -> bool:
    used = smi.number(row.get("memory.used")) or 0
    total = smi.number(row.get("memory.total")) or 0
    return used > max(UNSEEN, SHARE * total) and not any(name in row.get("name", "") for name in UNIFIED)


def _process(host: Host, pid: str, name: str) -> Record:
    """Only the program's name; the user where the process is visible here."""
    user = ""
    for line in (host.text(f"/proc/{pid}/status", 4096) or "").splitlines():
        if line.startswith("Uid:"):
            user = _user(host, line.split()[1])
    return {"pid": int(pid), "name": smi.value_of(name).partition(" ")[0].rpartition("/")[2][:40], "user": user}


def _user(host: Host, uid: str) -> str:
    for line in (host.text("/etc/passwd", 1 << 20) or "").splitlines():
        words = line.split(":")
        if len(words) > 2 and words[2] == uid:
            return words[0][:32]
    return f"uid {uid}"


def _amd(host: Host) -> Optional[Record]:
    """`process_info` is "N/A" or `No running processes detected` where there is none."""
    gpus = smi.amd_smi(host, "process")
    if gpus is None:
        return None
    processes = []
    for gpu in gpus:
        for entry in gpu.get("process_list") or []:
            info = entry.get("process_info") if isinstance(entry, Mapping) else None
            if not isinstance(info, Mapping) or not str(info.get("pid")).isdecimal():
                continue
            memory = info.get("memory_usage")
            vram = smi.integer(memory.get("vram_mem")) if isinstance(memory, Mapping) else None
            mib = None if vram is None else vram / (1 << 20)
            if mib is None or mib >= LITTLE:
                about = _process(host, str(info["pid"]), str(info.get("name") or ""))
                processes.append({"gpu": smi.integer(gpu["gpu"]), "pci": "", **about, "mib": mib})
    return {"processes": processes[:SHOWN], "count": len(processes), "unseen": [], "exclusive": False}


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """A warning a node; a failure where a GPU takes one process only."""
    findings = []
    for node, facts in facts_by_node.items():
        one = part(facts, ID)
        if one.get("processes"):
            findings.append(_by_others(request, node, one))
        if one.get("unseen"):
            gpus = one["unseen"]
            most = max(float(gpu["mib"] or 0) for gpu in gpus)
            have = plural(len(gpus), "has", "have")
            message = f"{smi.which_gpus(gpus)} of {node} {have} {_gib(most)} of memory taken"
            message += " by a process that can't be seen from here (another container or user, or a dead one)"
            remedy = f"see who holds it: ssh {node} 'sudo fuser -v /dev/nvidia*'"
            findings.append(Finding(ID, "warn", message, remedy, place([node], gpu=gpus[0].get("gpu"))))
    return findings


def _by_others(request: Request, node: str, one: Record) -> Finding:
    held: Dict[Tuple[int, str, str], List[Record]] = {}
    for process in one["processes"]:
        held.setdefault((process["pid"], process["name"], process["user"]), []).append(process)
    shown = [_process_text(pid, name, user, gpus) for (pid, name, user), gpus in list(held.items())[:3]]
    shown += [f"and {len(held) - 3} more"] if len(held) > 3 else []
    message = f"GPUs of {node} are in use: {'; '.join(shown)}"
    status: Status = "fail" if one.get("exclusive") else "warn"
    if one.get("exclusive"):
        message += " (compute mode Exclusive_Process: no other process can use them)"
    pids = ",".join(str(pid) for pid, _, _ in list(held)[:8])
    remedy = f"wait for them or leave {node} out; leftovers of yours: allranks clean --leftovers {target(request)}; "
    remedy += f"look: {remote(node, 'ps', '-o', 'user,pid,etime,args', '-p', pids)}"
    label = "cuda-device-unavailable" if one.get("exclusive") else ID
    return Finding(label, status, message, remedy, place([node], gpu=one["processes"][0].get("gpu")))


def _process_text(pid: int, name: str, user: str, gpus: List[Record]) -> str:
    """`python3 (pid 4711, alice) on GPUs 0 and 1 with 71.2 GiB`."""
    sizes = [float(gpu["mib"]) for gpu in gpus if gpu.get("mib")]
    where = smi.which_gpus([gpu if gpu.get("gpu") is None else {"gpu": gpu["gpu"]} for gpu in gpus])
    memory = f" with {_gib(sum(sizes))}" if sizes else ""
    return f"{name or 'a process'} (pid {pid}{', ' + user if user else ''}) on {where}{memory}"


def _gib(mib: float) -> str:
    return f"{mib / 1024:.1f} GiB"
