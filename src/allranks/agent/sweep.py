"""What earlier runs left on this node: processes by run mark, node directories without an agent."""

import os
import time
from typing import Any, Dict, List, Set

from .link import read_journal
from .nodedir import bases, remove
from .portowner import who_holds
from .processes import (
    Process,
    alive,
    command_of,
    descendants,
    end_all,
    machine,
    mark_of,
    open_names,
    read_process,
    reap_children,
    snapshot,
)

BEING_MADE = 60.0  # seconds a directory without a journal may be that of a run that is just starting
GPU_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/renderD")
NOT_A_GPU = ("/dev/nvidiactl", "/dev/nvidia-modeset")


def sweep(header: Dict[str, Any]) -> Dict[str, Any]:
    """Lists leftovers of this user; with "end" (list of [pid, start]) ends exactly those.

    "live" marks processes whose run still has its agent: they are listed, and ended only when named.
    """
    if header.get("end") is not None:
        return {"left": _end(header["end"])}
    if header.get("remove") is not None:
        return {"removed": _remove(header["remove"], header.get("node_dir"))}
    if header.get("foreign") is not None:
        return {"foreign": _foreign(int(header["foreign"].get("port") or 0))}
    live = _agents(header.get("node_dir"))
    found = []
    for process in snapshot().values():
        mark = mark_of(process.pid)
        if mark is None or process.state in "ZX":
            continue
        uid, _, node = mark.partition("/")
        found.append(
            {
                "uid": uid,
                "node": node,
                "pid": process.pid,
                "start_time": process.start,
                "command": command_of(process.pid),
                "live": mark in live,
            }
        )
    return {"processes": found, "directories": _directories(header.get("node_dir"), live)}


def _foreign(port: int) -> List[Dict[str, Any]]:
    """This user's processes without a run mark that hold a GPU, or the port."""
    found: Dict[int, str] = {}
    holder = who_holds(port) if port else None
    if holder is not None and holder.get("pid"):
        found[int(holder["pid"])] = "holds port %d" % port
    for pid in snapshot():
        devices = sorted(n for n in open_names([pid]) if n.startswith(GPU_DEVICES) and n not in NOT_A_GPU)
        if devices:
            found.setdefault(pid, "holds " + devices[0])
    ours = os.getuid()
    listed = []
    for pid, why in sorted(found.items()):
        process = read_process(pid)
        if process is not None and mark_of(pid) is None and _owner(pid) == ours:
            listed.append({"pid": pid, "start_time": process.start, "command": command_of(pid), "why": why})
    return listed


def _owner(pid: int) -> int:
    try:
        return os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return -1


def _end(names: List[List[int]]) -> List[Dict[str, Any]]:
    """Ends the named processes and what is below them, by pid and start time."""
    wanted = [Process(int(pid), 0, "R", int(start)) for pid, start in names]

    def find() -> List[Process]:
        roots = alive(wanted)
        processes = snapshot()
        below = descendants([p.pid for p in roots], processes)
        return roots + below

    left = end_all(find, reap_children, 5.0)
    return [{"pid": p.pid, "start_time": p.start, "command": command_of(p.pid)} for p in left]


def _run_dirs(wanted: Any) -> List[str]:
    found = []
    for base in bases(wanted):
        top = os.path.join(os.path.abspath(base), "allranks-%d" % os.getuid())
        for run in _names(top):
            found += [os.path.join(top, run, node) for node in _names(os.path.join(top, run))]
    return sorted(set(found))


def _names(path: str) -> List[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _agents(wanted: Any) -> Set[str]:
    """Run marks of which agent or supervisor live, or may live: they run on another machine that sees this disk."""
    here = machine()
    found = set()
    for path in _run_dirs(wanted):
        begun = (read_journal(os.path.join(path, "journal.jsonl")) or [{}])[0]
        keepers = [Process(int(pid), 0, "", int(start)) for pid, start in begun.get("keepers", [])]
        there = begun.get("machine", here)
        elsewhere = there[0] != here[0] or (there[1] == here[1] and there[2] != here[2])
        if elsewhere or alive(keepers) or _is_being_made(path, begun):
            found.add("%s/%s" % (os.path.basename(os.path.dirname(path)), os.path.basename(path)))
    return found


def _is_being_made(path: str, begun: Dict[str, Any]) -> bool:
    try:
        return not begun and 0 <= time.time() - os.stat(path).st_mtime < BEING_MADE
    except OSError:
        return False


def _directories(wanted: Any, live: Set[str]) -> List[str]:
    """Node directories that no agent uses."""
    return [
        path
        for path in _run_dirs(wanted)
        if "%s/%s" % (os.path.basename(os.path.dirname(path)), os.path.basename(path)) not in live
    ]


def _remove(paths: List[str], wanted: Any) -> List[str]:
    """Removes dead runs' directories, only such as this sweep itself would list."""
    known = set(_directories(wanted, _agents(wanted)))
    removed = [path for path in paths if path in known]
    for path in removed:
        remove(path)
    return removed
