"""What earlier runs left on this node: processes by run tag, node directories without an agent."""

from __future__ import annotations

import os
import time
from typing import Dict, Iterable, List, Optional, Set, Tuple

from allranks.protocol.header import SweepHeader
from allranks.protocol.messages import SweptMessage
from allranks.protocol.node_names import DIALS, RUN_TAG, NodeFiles
from allranks.protocol.processes import SweptProcess

from .door import answers
from .files import names_in
from .journal import read_journal
from .node_directory import bases, has_outputs_alone, kept_outputs, remove
from .portowner import who_holds
from .processes import (
    Process,
    alive,
    all_pids,
    command_of,
    descendants,
    end_all,
    machine,
    open_names,
    read_processes,
    reap_children,
    variable_of,
)

BEING_MADE = 60.0  # seconds a directory without a journal may be that of a run that is just starting
OLD = 7 * 86400.0  # seconds after which what a run has left is looked at when another begins
MOST_OLD = 20  # directories that are looked at then
GPU_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/renderD")
NOT_A_GPU = ("/dev/nvidiactl", "/dev/nvidia-modeset")


def sweep(header: SweepHeader) -> SweptMessage:
    """List the orphans of this user, or do what the header asks for."""
    if header.end is not None:
        return SweptMessage(left=_end(header.end))
    if header.remove is not None:
        # dead runs' directories, only such as this sweep itself would list
        unused = _unused(header.node_dir, _agents(_run_dirs(header.node_dir))[0])
        for path in header.remove:
            if path in unused:
                remove(path)
        return SweptMessage()
    if header.foreign is not None:
        return SweptMessage(foreign=_foreign(header.foreign))
    live, unanswering = _agents(_run_dirs(header.node_dir))
    tagged = [(variable_of(process.pid, RUN_TAG), process) for process in read_processes(all_pids())]
    runs = {tag.partition("/")[0] for tag in live}
    orphans: Dict[int, SweptProcess] = {}
    for run_tag, process in [*unanswering, *tagged]:
        if run_tag is None or process.has_ended:
            continue
        uid, _, node = run_tag.partition("/")
        lives = run_tag in live or (node.startswith(DIALS) and uid in runs)
        orphan = SweptProcess(process.pid, process.start, command_of(process.pid), uid, node, lives)
        orphans.setdefault(process.pid, orphan)
    unused = _unused(header.node_dir, live)
    kept = [path for path in unused if has_outputs_alone(path)]
    directories = [path for path in unused if path not in kept]
    return SweptMessage(list(orphans.values()), directories, kept=[kept_outputs(path) or path for path in kept])


def _foreign(port: int) -> List[SweptProcess]:
    reasons: Dict[int, str] = {}
    holder = who_holds(port) if port else None
    if holder is not None and holder.pid:
        reasons[holder.pid] = "holds port %d" % port
    for pid in all_pids():
        devices = sorted(n for n in open_names(pid) if n.startswith(GPU_DEVICES) and n not in NOT_A_GPU)
        if devices:
            reasons.setdefault(pid, "holds " + devices[0])
    listed = []
    for process in read_processes(sorted(reasons)):
        pid = process.pid
        try:
            owner = os.stat("/proc/%d" % pid).st_uid
        except OSError:
            continue  # it has ended
        if owner == os.getuid() and variable_of(pid, RUN_TAG) is None:
            listed.append(SweptProcess(pid, process.start, command_of(pid), why=reasons[pid]))
    return listed


def _end(named: Iterable[Tuple[int, int]]) -> List[SweptProcess]:
    wanted = [Process(pid, 0, "R", start) for pid, start in named]

    def find() -> List[Process]:
        roots = alive(wanted)
        return roots + descendants([process.pid for process in roots])

    left = end_all(find, reap_children)
    return [SweptProcess(p.pid, p.start, command_of(p.pid)) for p in left]


def _run_dirs(wanted: Optional[str]) -> List[str]:
    directories: Set[str] = set()
    for base in bases(wanted):
        top = os.path.join(os.path.abspath(base), "allranks-%d" % os.getuid())
        for run in names_in(top):
            directories.update(os.path.join(top, run, node) for node in names_in(os.path.join(top, run)))
    return sorted(directories)


def _tag_of(node_dir: str) -> str:
    return "%s/%s" % (os.path.basename(os.path.dirname(node_dir)), os.path.basename(node_dir))


def _agents(paths: Iterable[str]) -> Tuple[Set[str], List[Tuple[str, Process]]]:
    """Give run tags whose ranks are held, or may be, and agents and supervisors with their tags that hold none."""
    live: Set[str] = set()
    unanswering: List[Tuple[str, Process]] = []
    for path in paths:
        tag = _tag_of(path)
        begun = read_journal(path).begun
        if begun is None:
            is_being_made = os.path.isdir(path) and 0 <= _age(path) < BEING_MADE
            if is_being_made and not has_outputs_alone(path):
                live.add(tag)
            continue
        keepers = alive(Process(pid, 0, "", start) for pid, start in begun.keepers)
        here = machine()
        host, boot, space = begun.machine or here
        is_elsewhere = host != here[0] or (boot == here[1] and space != here[2])
        supervises = any(process.pid != begun.pid and not process.is_stopped for process in keepers)
        is_there = any(process.pid == begun.pid for process in keepers)
        if is_elsewhere or supervises or (is_there and answers(NodeFiles(path).orders)):
            live.add(tag)
        else:
            unanswering += [(tag, process) for process in keepers]
    return live, unanswering


def _unused(wanted: Optional[str], live: Set[str]) -> List[str]:
    return [path for path in _run_dirs(wanted) if _tag_of(path) not in live]


def tidy(wanted: Optional[str]) -> None:
    """Remove the oldest directories of runs that have died, but not their outputs: else they would pile up."""
    aged = sorted((_age(path), path) for path in _run_dirs(wanted))
    old = [path for age, path in aged[-MOST_OLD:] if age > OLD and not has_outputs_alone(path)]
    live = _agents(old)[0]
    for path in old:
        if _tag_of(path) not in live:
            try:
                remove(path)
            except OSError:
                pass


def _age(path: str) -> float:
    try:
        return time.time() - os.stat(path).st_mtime
    except OSError:
        return 0.0
