"""Processes by identity (pid and start time) and by lineage; nothing here goes by name or pattern.

Lineage is the means that counts: supervisor and agent are child subreapers, so whatever a rank leaves
behind stays below them. The run tag (ALLRANKS_MARK in /proc/PID/environ) is the second means: it misses
processes that cleared their environment or are not dumpable, and finds those whose lineage was lost.
"""

import ctypes
import os
import resource
import signal
import time
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

RUN_TAG = "ALLRANKS_MARK"
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_PTRACER = 0x59616D61
USER_SIGNALS = {"USR1": signal.SIGUSR1, "USR2": signal.SIGUSR2}  # for the ranks alone, whoever gets them

_libc = ctypes.CDLL(None, use_errno=True)


def survive_user_signals() -> None:
    """Keep this process of ours alive at SIGUSR1 and SIGUSR2, which are meant for the ranks.

    A handler and not SIG_IGN: exec keeps an ignored signal ignored, and what this process starts must not inherit it.
    """
    for number in USER_SIGNALS.values():
        signal.signal(number, lambda *_: None)


def raise_limits() -> None:
    """Raise this process's soft limits to the hard ones; what it starts inherits them.

    NCCL locks memory and opens many sockets, a rank starts many threads, the launcher has three files a node.
    """
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_NPROC):
        try:
            hard = resource.getrlimit(limit)[1]
            resource.setrlimit(limit, (hard, hard))
        except (OSError, ValueError):
            pass


class Process(NamedTuple):
    """One line of /proc/PID/stat. `start` (clock ticks since boot) makes the pid unique."""

    pid: int
    parent: int
    state: str
    start: int


def prctl(option: int, value: int) -> None:
    """prctl(2) with one argument; raises OSError."""
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def everything(run_tag: str, group: List[int]) -> List[Process]:
    """All of a run below this process: by lineage, by run tag, by control group; never this process."""
    processes = snapshot()
    members = {p.pid: p for p in descendants([os.getpid()], processes)}
    for process in tagged(run_tag, processes) + [processes[pid] for pid in group if pid in processes]:
        members.setdefault(process.pid, process)
    members.pop(os.getpid(), None)
    return list(members.values())


def read_process(pid: int) -> Optional[Process]:
    """The process with this pid, or None where there is none."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            text = file.read()
    except OSError:
        return None
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Process(pid, int(fields[1]), fields[0].decode(), int(fields[19]))


def machine() -> Tuple[str, str, str]:
    """Host name, boot and pid namespace: where a pid of ours means something."""
    boot = space = ""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        pass
    return os.uname().nodename, boot, space


def snapshot() -> Dict[int, Process]:
    """All processes that can be seen now."""
    processes = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            process = read_process(int(name))
            if process is not None:
                processes[process.pid] = process
    return processes


def descendants(roots: Iterable[int], processes: Dict[int, Process]) -> List[Process]:
    """All processes below `roots` (not the roots themselves)."""
    children: Dict[int, List[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    below = []
    queue = list(roots)
    visited = set(roots)
    while queue:
        for child in children.get(queue.pop(), []):
            if child.pid not in visited:
                visited.add(child.pid)
                below.append(child)
                queue.append(child.pid)
    return below


def run_tag_of(pid: int) -> Optional[str]:
    """The run tag in a process's environment, or None (none there, or it may not be read)."""
    prefix = RUN_TAG.encode() + b"="
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            for entry in file.read(1 << 20).split(b"\0"):
                if entry.startswith(prefix):
                    return entry[len(prefix) :].decode("utf-8", "replace")
    except OSError:
        pass
    return None


def tagged(run_tag: str, processes: Dict[int, Process]) -> List[Process]:
    """Processes that carry exactly this run tag and belong to this user."""
    return [p for p in processes.values() if run_tag_of(p.pid) == run_tag]


def command_of(pid: int) -> str:
    """A process's command line for messages, at most 200 characters."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            words = file.read(4096).split(b"\0")
        text = b" ".join(words).strip().decode("utf-8", "replace")
        if not text:
            with open("/proc/%d/comm" % pid, "rb") as file:
                text = "[%s]" % file.read(64).strip().decode("utf-8", "replace")
    except OSError:
        return "?"
    return text[:200]


def send_signal(process: Process, number: int) -> bool:
    """Signals this very process, never one that took over its pid; False where it is gone."""
    try:
        handle = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else -1
    except OSError:
        handle = -1  # an old kernel, or the process is gone: the check below tells
    try:
        now = read_process(process.pid)
        if now is None or now.start != process.start:
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)  # type: ignore[attr-defined,unused-ignore]
        else:
            os.kill(process.pid, number)
        return True
    except OSError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)


def alive(processes: Iterable[Process]) -> List[Process]:
    """Those that still run: the dead that nobody has reaped do not count."""
    running = []
    for process in processes:
        now = read_process(process.pid)
        if now is not None and now.start == process.start and now.state not in "ZX":
            running.append(process)
    return running


def end_all(find: Callable[[], List[Process]], reap: Callable[[], object], seconds: float) -> List[Process]:
    """SIGKILLs what `find` gives, again and again until nothing is found or `seconds` have passed.

    Each round stops the processes first, so that none forks between being seen and being killed.
    Returns what is left (in state D, or of another user).
    """
    deadline = time.monotonic() + seconds
    pause = 0.001
    while True:
        reap()
        targets = alive(find())
        if not targets:
            return []
        for process in targets:
            send_signal(process, signal.SIGSTOP)
        for process in targets:
            send_signal(process, signal.SIGKILL)
        if time.monotonic() > deadline:
            return targets
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def reap_children() -> Dict[int, int]:
    """Collects every dead child; gives wait statuses by pid."""
    statuses: Dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except OSError:
            return statuses
        if pid == 0:
            return statuses
        statuses[pid] = status


def open_names(pids: Iterable[int]) -> Set[str]:
    """Targets of the open file descriptors of these processes, as far as they may be read."""
    names: Set[str] = set()
    for pid in pids:
        try:
            for entry in os.listdir("/proc/%d/fd" % pid):
                names.add(os.readlink("/proc/%d/fd/%s" % (pid, entry)))
        except OSError:
            continue
    return names
