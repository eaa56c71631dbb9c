"""Processes by identity (pid and start time) and by lineage; nothing here goes by name or pattern.

Lineage is the means that counts: supervisor and agent are child subreapers, so whatever a rank leaves
behind stays below them. The run tag (ALLRANKS_MARK in /proc/PID/environ) is the second means: it misses
processes that cleared their environment or are not dumpable, and finds those whose lineage was lost.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import resource
import signal
import time
from contextlib import suppress
from typing import Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from allranks.protocol.node_names import RUN_TAG
from allranks.protocol.processes import RemainingProcess
from allranks.protocol.records import NamedTuple

from .files import names_in, read_bytes, read_link, read_text

ENVIRONMENT_LIMIT = 1 << 20
CHILDREN_LIMIT = 16 << 20
PR_SET_PDEATHSIG = 1
TICKS = os.sysconf("SC_CLK_TCK")  # a second, in the times of /proc/PID/stat
PR_SET_CHILD_SUBREAPER = 36
PR_SET_PTRACER = 0x59616D61
SIGTIMEDWAIT = {"x86_64": "128", "aarch64": "137"}  # rt_sigtimedwait: the kernel's syscall_64.tbl, asm-generic/unistd.h
# Seconds before each look at the signals of a process that runs: one that was woken may wait for a core.
SIGNAL_PAUSES = (0.0, 0.001, 0.002, 0.004, 0.008, 0.016)
END_SECONDS = 5.0  # how long SIGKILL is repeated before what is left is reported
USER_SIGNALS = {"USR1": signal.SIGUSR1, "USR2": signal.SIGUSR2}  # for the ranks alone, whoever gets them

_libc = ctypes.CDLL(None, use_errno=True)


def survive_user_signals() -> None:
    """Keep this process of ours alive at SIGUSR1 and SIGUSR2, which are meant for the ranks.

    A handler and not SIG_IGN: exec keeps an ignored signal ignored, and what this process starts must not inherit it.
    """
    for number in USER_SIGNALS.values():
        signal.signal(number, lambda *_: None)


def would_end(pid: int, number: int) -> bool:
    """Whether a signal whose default action ends a process would end this one: it is not caught, ignored or blocked.

    /proc/PID/status has the masks; its main thread's blocked signals count (proc_pid_status(5)). What a thread waits
    for in sigwait(3) is not among those that it blocks until it runs again (do_sigtimedwait of the kernel's signal.c
    takes them out). So what it waits for is read before and after, and a process that runs is looked at again.
    """
    for pause in SIGNAL_PAUSES:
        time.sleep(pause)
        before = _system_call(pid)
        masks = signal_masks(pid, pid)
        after = _system_call(pid)
        if not masks or any(masks[name] >> (number - 1) & 1 for name in ("SigBlk", "SigIgn", "SigCgt")):
            return False
        if SIGTIMEDWAIT.get(os.uname().machine) in (before, after):
            return False
        if before == after != "running":
            return True
    return True


def _system_call(pid: int) -> str:
    """Read the number of the call that a main thread waits in, or "running"; empty where it may not be read.

    proc_pid_syscall(5).
    """
    return "".join(read_text("/proc/%d/syscall" % pid, 4096).split()[:1])


def raise_limits() -> None:
    """Raise this process's soft limits to the hard ones; what it starts inherits them.

    NCCL locks memory and opens many sockets, a rank starts many threads, the launcher has three files a node.
    """
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_NPROC):
        with suppress(OSError, ValueError):
            hard = resource.getrlimit(limit)[1]
            resource.setrlimit(limit, (hard, hard))


class Process(NamedTuple):
    """One line of /proc/PID/stat. `start` (clock ticks since boot) makes the pid unique."""

    pid: int
    parent: int
    state: str
    start: int

    @property
    def has_ended(self) -> bool:
        """Tell whether it is a zombie: nothing of it runs."""
        return self.state in "ZX"

    @property
    def age(self) -> float:
        """Seconds since it was forked."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.start / TICKS

    @property
    def is_stopped(self) -> bool:
        """Tell whether a signal or a tracer has stopped it."""
        return self.state in "Tt"


def prctl(option: int, value: int) -> None:
    """Call prctl(2) with one argument; raise OSError."""
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def everything(run_tag: str) -> List[Process]:
    """All of a run but this process: what is below it, and what carries the run tag."""
    members = {process.pid: process for process in descendants([os.getpid()]) + tagged(run_tag)}
    members.pop(os.getpid(), None)
    return list(members.values())


def read_process(pid: int) -> Optional[Process]:
    """Read the process with this pid; None where there is none."""
    fields = stat_fields(pid)
    if len(fields) < 20:
        return None
    return Process(pid, int(fields[1]), fields[0], int(fields[19]))


def stat_fields(pid: int) -> List[str]:
    """Return the fields of /proc/PID/stat from the state on (proc(5) counts them from 3); empty without a process."""
    return read_text("/proc/%d/stat" % pid).rpartition(") ")[2].split()


def machine() -> Tuple[str, str, str]:
    """Host name, boot and pid namespace: where a pid of ours means something."""
    return os.uname().nodename, read_text("/proc/sys/kernel/random/boot_id"), read_link("/proc/self/ns/pid")


def read_processes(pids: Iterable[int]) -> List[Process]:
    """Read those of these processes that there are."""
    return [process for process in map(read_process, pids) if process is not None]


def all_pids() -> List[int]:
    """Pids of all processes that can be seen now."""
    return [int(name) for name in names_in("/proc") if name.isdecimal()]


def descendants(roots: Iterable[int]) -> List[Process]:
    """All processes below `roots` (not the roots themselves).

    The kernel lists the children of a process that still runs. While one ends its list may lack another
    (proc_pid_children(5)): who ends processes looks again until there is none, and then no list lacks any.
    """
    find_children: Callable[[int], List[int]] = children_of
    if not os.path.exists("/proc/self/task/%d/children" % os.getpid()):
        find_children = _children_by_parent()  # a kernel without CONFIG_PROC_CHILDREN
    below: Dict[int, Process] = {}
    queue = list(roots)
    visited = set(queue)
    while queue:
        for child in read_processes(pid for pid in find_children(queue.pop()) if pid not in visited):
            visited.add(child.pid)
            below[child.pid] = child
            queue.append(child.pid)
    return list(below.values())


def children_of(pid: int) -> List[int]:
    """Pids of the children of a process, zombies too: of all its threads, as each may have started some."""
    return [child for thread in names_in("/proc/%d/task" % pid) for child in children_of_thread(pid, int(thread))]


def children_of_thread(pid: int, thread: int) -> List[int]:
    """Pids of the children that one thread of a process has started; none where the kernel does not list them."""
    return [int(word) for word in read_text("/proc/%d/task/%d/children" % (pid, thread), CHILDREN_LIMIT).split()]


def _children_by_parent() -> Callable[[int], List[int]]:
    children: Dict[int, List[int]] = {}
    for process in read_processes(all_pids()):
        children.setdefault(process.parent, []).append(process.pid)
    return lambda pid: children.get(pid, [])


def variable_of(pid: int, name: str) -> Optional[str]:
    """Return a variable that a process was started with; None where it is absent or may not be read."""
    prefix = name.encode() + b"="
    for entry in environment_of(pid):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode("utf-8", "replace")
    return None


def environment_of(pid: int) -> List[bytes]:
    """Read the environment that a process was started with, as NAME=value; empty where it may not be read."""
    return read_bytes("/proc/%d/environ" % pid, ENVIRONMENT_LIMIT).split(b"\0")


def command_line(pid: int) -> List[str]:
    """Read the words of a process's command line; empty where it may not be read, or it is a zombie."""
    return [os.fsdecode(word) for word in read_bytes("/proc/%d/cmdline" % pid).split(b"\0")[:-1]]


def signal_masks(pid: int, thread: int) -> Dict[str, int]:
    """Read all sets of signals in the status of a thread, by their names there; none where it may not be read."""
    masks: Dict[str, int] = {}
    for line in read_text("/proc/%d/task/%d/status" % (pid, thread)).splitlines():
        name, _, value = line.partition(":")
        if name.startswith("Sig") and name != "SigQ":
            masks[name] = int(value, 16)
    return masks


def tagged(run_tag: str) -> List[Process]:
    """Find the processes that carry exactly this run tag and belong to this user.

    Each environment of the machine is read for it, and nothing else of a process that has another one or none.
    """
    entry = ("%s=%s" % (RUN_TAG, run_tag)).encode()
    return read_processes(pid for pid in all_pids() if entry in environment_of(pid))


def command_of(pid: int) -> str:
    """Name a process by its command line for messages, in at most 200 characters."""
    text = read_text("/proc/%d/cmdline" % pid, 4096).replace("\0", " ").strip()
    if text:
        return text[:200]
    name = read_text("/proc/%d/comm" % pid)
    if not name:
        return "?"
    return "[%s]" % name


def remaining(processes: Sequence[Process]) -> List[RemainingProcess]:
    """Name processes that could not be ended."""
    return [RemainingProcess(p.pid, p.state, command_of(p.pid)) for p in processes]


def send_signal(process: Process, number: int) -> bool:
    """Signal this very process, never one that took over its pid; False where it has ended."""
    try:
        handle = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        handle = -1  # Python 3.8, an old kernel, or the process has ended: the check below tells
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
    """Read the processes that still run again; zombies do not count."""
    starts = {process.pid: process.start for process in processes}
    return [now for now in read_processes(starts) if now.start == starts[now.pid] and not now.has_ended]


def lives(pid: int, start: int) -> bool:
    """Tell whether the process that started then as this pid still runs."""
    return bool(alive([Process(pid, 0, "", start)]))


def end_all(
    find: Callable[[], List[Process]], reap: Callable[[], object], seconds: float = END_SECONDS
) -> List[Process]:
    """Kill what `find` gives, again and again until nothing is found or `seconds` have passed.

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
    """Reap every dead child; return wait statuses by pid."""
    statuses: Dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except OSError:
            return statuses
        if pid == 0:
            return statuses
        statuses[pid] = status


def open_names(pid: int) -> Set[str]:
    """Targets of the open file descriptors of a process, as far as they may be read."""
    directory = "/proc/%d/fd" % pid
    return {read_link("%s/%s" % (directory, entry)) for entry in names_in(directory)}


def user_name(uid: int) -> str:
    """Return the name of a user, else the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def wake_by_signals() -> int:
    """Have every signal with a handler write to a pipe, SIGCHLD among them; give the end that a selector watches."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    return read_end


def clear_wake(read_end: int) -> None:
    """Empty the pipe of `wake_by_signals`."""
    with suppress(BlockingIOError):
        os.read(read_end, 4096)
