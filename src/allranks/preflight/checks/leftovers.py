"""No process of an earlier run is left on a node.

Processes of allranks carry a run mark in their environment, and a live run has an agent (see
`allranks.agent.sweep`). Ranks of other launchers are orphans where init has become their parent: when
torchrun is killed, its workers stay.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Optional, Tuple

from allranks.findings import Finding
from allranks.text import join_names

from ..compare import Nodes, part, place, remote, some, target
from ..host import Host, Record, Request

ID = "leftovers"
GROUP = "leftovers"
LEVEL = "quick"
SECONDS = 10.0
MARK = "ALLRANKS_MARK"
RANK = ("RANK", "WORLD_SIZE", "MASTER_ADDR")
YOUNG = 60.0  # seconds in which a run may not have written its journal yet
TICKS = 100  # USER_HZ, fixed at 100 for all that reads /proc (time(7))
MOST = 50
# Where one of these is process 1 (a container), its children are its own, not orphans.
OWN_INITS = (
    "python",
    "torchrun",
    "accelerate",
    "deepspeed",
    "colossalai",
    "pt_main",
    "bash",
    "sh",
    "dash",
    "slurm",
    "mpirun",
    "orted",
    "prte",
)
BASES = ("/tmp", "/var/tmp", "/dev/shm")


def collect(host: Host) -> Record:
    """{"runs": {run: [[pid, program], …]}, "orphans": [[pid, program], …]} of this user."""
    uid = part(host.facts, "identity").get("uid")
    current = str(host.request.get("uid") or "")
    journals = _journals(host, uid)
    can_tell = _orphans_can_be_told(host)
    runs: Dict[str, List[Any]] = {}
    orphans: List[Any] = []
    for pid in (int(name) for name in host.names("/proc") if name.isdecimal()):
        environment = _environment(host, pid)
        mark = environment.get(MARK)
        rank = all(name in environment for name in RANK)
        if not mark and not rank:
            continue
        state, parent, age = _stat(host, pid)
        if state in "ZX" or not _is_of(host, pid, uid):
            continue
        if mark:
            run = mark.partition("/")[0]
            if run != current and not _lives(host, journals.get(mark), age):
                runs.setdefault(run, []).append([pid, _program(host, pid)])
        elif can_tell and (parent == 1 or host.text(f"/proc/{parent}/comm", 64) == "systemd"):
            orphans.append([pid, _program(host, pid)])
    return {"runs": {run: processes[:MOST] for run, processes in list(runs.items())[:MOST]}, "orphans": orphans[:MOST]}


def _environment(host: Host, pid: int) -> Dict[str, str]:
    """Only the names that are asked for; unreadable for processes of others."""
    variables = {}
    for entry in (host.text(f"/proc/{pid}/environ", 1 << 20) or "").split("\0"):
        name, _, value = entry.partition("=")
        if name == MARK or name in RANK:
            variables[name] = value
    return variables


def _stat(host: Host, pid: int) -> Tuple[str, int, Optional[float]]:
    """State, parent, age in seconds (None: not known). proc_pid_stat(5), after the name in brackets."""
    words = (host.text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    if len(words) < 20:
        return "X", 0, None
    up = (host.text("/proc/uptime") or "").split()
    age = float(up[0]) - int(words[19]) / TICKS if up else None
    return words[0], int(words[1]), age if age is not None and age >= 0 else None


def _is_of(host: Host, pid: int, uid: object) -> bool:
    """root may read the environment of all."""
    for line in (host.text(f"/proc/{pid}/status") or "").splitlines():
        if line.startswith("Uid:"):
            return uid is None or line.split()[1] == str(uid)
    return False


def _program(host: Host, pid: int) -> str:
    """The program and its script: an argument may be a secret."""
    words = (host.text(f"/proc/{pid}/cmdline", 4096) or "").split("\0")
    script = next((w.rpartition("/")[2] for w in words[1:4] if w.endswith(".py")), "")
    program = words[0].rpartition("/")[2] or host.text(f"/proc/{pid}/comm") or "?"
    return f"{program} {script}".strip()[:80]


def _orphans_can_be_told(host: Host) -> bool:
    """Children of init and of the user's systemd (a subreaper, prctl(2)) have lost their parent.

    Not in a pod or container whose every process has RANK and so on from its specification, nor where
    process 1 is itself what starts the ranks.
    """
    init = host.text("/proc/1/comm", 64) or ""
    everywhere = any(all(name in env for name in RANK) for env in (host.env, _environment(host, 1)))
    return bool(init) and not init.startswith(OWN_INITS) and not everywhere


# -- which runs live -------------------------------------------------------------------------------


def _journals(host: Host, uid: object) -> Dict[str, Record]:
    """{mark: the first entry of its agent's journal}, in every directory where runs may be."""
    disk = part(host.facts, "disk").get("node_dirs") or ()
    bases = [str(host.request.get("node_dir") or ""), *(str(d.get("path") or "") for d in disk), *BASES]
    journals: Dict[str, Record] = {}
    for base in dict.fromkeys(path for path in bases if path):
        top = f"{base}/allranks-{uid}"
        for run in host.names(top):
            for node in host.names(f"{top}/{run}"):
                line = (host.text(f"{top}/{run}/{node}/journal.jsonl") or "").partition("\n")[0]
                entry = _entry(line)
                if entry:
                    journals[f"{run}/{node}"] = entry
    return journals


def _entry(line: str) -> Record:
    try:
        entry = json.loads(line or "null")
    except ValueError:
        return {}
    return entry if isinstance(entry, Mapping) else {}


def _lives(host: Host, journal: Optional[Record], age: Optional[float]) -> bool:
    """Its agent or supervisor runs, or may: on another machine that sees this disk, or about to write its journal."""
    if journal is None:
        return age is not None and age < YOUNG
    boot = host.text("/proc/sys/kernel/random/boot_id") or ""
    name = host.text("/proc/sys/kernel/hostname") or ""
    space = host.link("/proc/self/ns/pid") or ""
    there = list(journal.get("machine") or [name, boot, space])
    if there[0] != name or (there[1] == boot and there[2] != space):
        return True
    return any(_is_alive(host, int(pid), int(start)) for pid, start in journal.get("keepers") or ())


def _is_alive(host: Host, pid: int, start: int) -> bool:
    words = (host.text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return len(words) > 19 and int(words[19]) == start and words[0] not in "ZX"


# -- the judgement ---------------------------------------------------------------------------------


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """orphan-process, a warning: they may hold GPUs, memory and ports."""
    findings = []
    collected = {n: part(f, ID) for n, f in facts_by_node.items()}
    runs = dict.fromkeys(run for v in collected.values() for run in v.get("runs") or ())
    for run in runs:
        by_node = {n: v["runs"][run] for n, v in collected.items() if run in (v.get("runs") or ())}
        nodes = list(by_node)
        count = sum(map(len, by_node.values()))
        what = "a process" if count == 1 else f"{count} processes"
        message = f"{what} of the earlier run {run} still {'runs' if count == 1 else 'run'} on {join_names(nodes)}: "
        message += _some(by_node[nodes[0]])
        remedy = f"allranks clean --leftovers {target(request)}"
        findings.append(Finding("orphan-process", "warn", message, remedy, place(nodes), _evidence(by_node)))
    for node, v in collected.items():
        orphans = v.get("orphans") or []
        if orphans:
            one = len(orphans) == 1
            message = f"{'a rank' if one else f'{len(orphans)} ranks'} of another launcher that is gone"
            message += f" {'runs' if one else 'run'} on {node}: {_some(orphans)}"
            remedy = remote(node, "kill", *(str(pid) for pid, _ in orphans))
            findings.append(Finding("orphan-process", "warn", message, remedy, place([node])))
    return findings


def _some(processes: List[Any]) -> str:
    return some([f"{program} (pid {pid})" for pid, program in processes], 3)


def _evidence(by_node: Mapping[str, List[Any]]) -> Tuple[str, ...]:
    return tuple(f"{node}: {_some(processes)}" for node, processes in list(by_node.items())[:8])
