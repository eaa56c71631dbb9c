"""No process of an earlier run is left on a node.

Processes of allranks carry a run tag in their environment, and a live run has an agent (see
`allranks.agent.sweep`). Ranks of other launchers are orphans where init has become their parent: when
torchrun is killed, its workers stay.
"""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from allranks.protocol.codec import DecodeError, decode, read_json
from allranks.protocol.node_names import DIALS, RUN_TAG
from allranks.protocol.orders import NAME
from allranks.protocol.processes import AgentBegun
from allranks.protocol.records import NamedTuple
from allranks.text import join_names, list_first, plural

from ..compare import Findings, Nodes, by_item, collected, remote, values_of, warn
from ..host import Host, base_name, process_stat, text_in, uptime, user_of
from ..typed_facts import Request

ID = "leftovers"
GROUP = "leftovers"
LEVEL = "quick"
SECONDS = 10.0
TAG_VALUE = f"{NAME}/{NAME}"  # run/node
RANK = ("RANK", "WORLD_SIZE", "MASTER_ADDR")
YOUNG = 60.0  # seconds in which a run may not have written its journal yet
TICKS = 100  # USER_HZ, fixed at 100 for all that reads /proc (time(7))
MOST = 50
LONGEST_LINE = 65536
# Where one of these is process 1 (a container), its children are its own, not orphans.
OWN_PROGRAMS = ("python", "torchrun", "accelerate", "deepspeed", "colossalai", "pt_main")
OWN_INITS = (*OWN_PROGRAMS, "bash", "sh", "dash", "slurm", "mpirun", "orted", "prte")
BASES = ("/tmp", "/var/tmp", "/dev/shm")
Process = Tuple[int, str]  # process id and program


class Orphans(NamedTuple):
    """Processes of this user that outlived their run: of allranks by run, and of other launchers."""

    runs: Mapping[str, List[Process]] = {}
    orphans: Sequence[Process] = ()


def collect(host: Host) -> Orphans:
    """Both kinds."""
    uid = host.facts.identity.uid
    bases = [host.request.asked.node_dir, *(room.path for room in host.facts.disk.node_dirs), *BASES]
    tops = [f"{base}/allranks-{uid}" for base in dict.fromkeys(filter(None, bases))]
    # Children of init and of the user's systemd (a subreaper, prctl(2)) have lost their parent. Not in a pod where each
    # process has RANK and so on from its specification, nor where process 1 is itself what starts the ranks.
    init = text_in(host, "/proc/1/comm", 64)
    everywhere = any(all(name in env for name in RANK) for env in (host.env, _environment(host, 1)))
    can_tell = init and not init.startswith(OWN_INITS) and not everywhere
    up = uptime(host)
    runs: Dict[str, List[Process]] = {}
    orphans: List[Process] = []
    for pid in (int(name) for name in host.names("/proc") if name.isdecimal()):
        environment = _environment(host, pid)
        tag = environment.get(RUN_TAG)
        if not tag and not all(name in environment for name in RANK):
            continue
        stat = process_stat(host, pid)
        owner = user_of(host, pid)  # root may read the environment of all
        if stat is None or stat.state in "ZX" or not owner or uid not in (None, int(owner)):
            continue
        if tag:
            run, _, node = tag.partition("/")
            if node.startswith(DIALS):  # it ends by its lease, and holds nothing that a run needs
                continue
            age = None if up is None else up - stat.start / TICKS
            if run != host.request.asked.uid and not _lives(host, _journal(host, tops, tag), age):
                runs.setdefault(run, []).append((pid, _program(host, pid)))
        elif can_tell and (stat.parent == 1 or host.text(f"/proc/{stat.parent}/comm", 64) == "systemd"):
            orphans.append((pid, _program(host, pid)))
    return Orphans({run: processes[:MOST] for run, processes in list(runs.items())[:MOST]}, orphans[:MOST])


def _environment(host: Host, pid: int) -> Dict[str, str]:
    text = text_in(host, f"/proc/{pid}/environ", 1 << 20)
    if RUN_TAG not in text and RANK[0] not in text:
        return {}
    variables = {}
    for entry in text.split("\0"):
        name, _, value = entry.partition("=")
        if name == RUN_TAG or name in RANK:
            variables[name] = value
    return variables


def _program(host: Host, pid: int) -> str:
    """Name the program and its script only: an argument may be a secret."""
    words = text_in(host, f"/proc/{pid}/cmdline", 4096).split("\0")
    script = next((base_name(w) for w in words[1:4] if w.endswith(".py")), "")
    program = words[0].rpartition("/")[2] or host.text(f"/proc/{pid}/comm") or "?"
    return f"{program} {script}".strip()[:80]


# -- which runs live -------------------------------------------------------------------------------


def _journal(host: Host, tops: Sequence[str], tag: str) -> Optional[AgentBegun]:
    """Read the first entry of the journal of an agent; a node has one of each run that was ever on it."""
    if not re.fullmatch(TAG_VALUE, tag):
        return None
    for top in tops:
        line = text_in(host, f"{top}/{tag}/journal.jsonl").partition("\n")[0]
        try:
            return decode(AgentBegun, read_json(line.encode(), LONGEST_LINE))
        except DecodeError:
            continue
    return None


def _lives(host: Host, journal: Optional[AgentBegun], age: Optional[float]) -> bool:
    if journal is None:
        return age is not None and 0 <= age < YOUNG
    boot = text_in(host, "/proc/sys/kernel/random/boot_id")
    name = text_in(host, "/proc/sys/kernel/hostname")
    space = host.link("/proc/self/ns/pid") or ""
    machine = journal.machine or (name, boot, space)
    if machine[0] != name or (machine[1] == boot and machine[2] != space):
        return True
    for pid, start in journal.keepers:
        stat = process_stat(host, pid)
        if stat is not None and stat.start == start and stat.state not in "ZXT":  # stopped, it holds nothing
            return True
    return False


# -- the judgement ---------------------------------------------------------------------------------


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """orphan-process, a warning: they may hold GPUs, memory and ports."""
    nodes = collected(facts_by_node, ID, Orphans)
    for run, by_node in by_item(values_of(nodes, lambda one: one.runs)).items():
        names = list(by_node)
        count = sum(map(len, by_node.values()))
        what = plural(count, "a process", f"{count} processes")
        message = f"{what} of the earlier run {run} still {plural(count, 'runs', 'run')} on {join_names(names)}: "
        message += _some(by_node[names[0]])
        evidence = [f"{node}: {_some(processes)}" for node, processes in list(by_node.items())[:8]]
        yield warn("orphan-process", names, message, f"`allranks clean --orphans {request.target}`", evidence)
    for node, one in nodes.items():
        count = len(one.orphans)
        if count:
            what = plural(count, "a rank", f"{count} ranks")
            message = f"{what} of another launcher that has ended {plural(count, 'runs', 'run')} on {node}"
            pids = [str(pid) for pid, _ in one.orphans]
            yield warn("orphan-process", node, f"{message}: {_some(one.orphans)}", remote(node, "kill", *pids))


def _some(processes: Sequence[Process]) -> str:
    return list_first([f"{program} (pid {pid})" for pid, program in processes], 3)
