"""What a process does below Python, read from /proc and by py-spy: no signal is sent, and nothing is written to it.

The main thread's system call is in /proc/PID/syscall (proc(5)), which who may attach to the process may read.
"""

from __future__ import annotations

import os
from typing import List, Optional

from allranks.protocol.records import NamedTuple

from .bounded_commands import run_command
from .files import find_program, read_text
from .processes import command_line

# System calls in which a program waits, by number (asm/unistd_64.h, asm-generic/unistd.h); others have only theirs.
X86_64 = {
    0: "read",
    1: "write",
    7: "poll",
    16: "ioctl",
    17: "pread64",
    23: "select",
    34: "pause",
    35: "nanosleep",
    45: "recvfrom",
    47: "recvmsg",
    61: "wait4",
    128: "rt_sigtimedwait",
    202: "futex",
    219: "restart_syscall",
    220: "semtimedop",
    230: "clock_nanosleep",
    232: "epoll_wait",
    247: "waitid",
    270: "pselect6",
    271: "ppoll",
    281: "epoll_pwait",
}
AARCH64 = {
    22: "epoll_pwait",
    29: "ioctl",
    63: "read",
    64: "write",
    67: "pread64",
    72: "pselect6",
    73: "ppoll",
    95: "waitid",
    98: "futex",
    101: "nanosleep",
    115: "clock_nanosleep",
    128: "restart_syscall",
    137: "rt_sigtimedwait",
    192: "semtimedop",
    207: "recvfrom",
    212: "recvmsg",
    260: "wait4",
}
CALLS = {"x86_64": X86_64, "aarch64": AARCH64}
# A stop, as py-spy's for native frames, ends these early (signal(7), "Interruption ... by stop signals").
ENDED_BY_STOP = ("epoll_wait", "epoll_pwait", "semtimedop", "rt_sigtimedwait")
TEXT_LIMIT = 64 << 10


def system_call(pid: int) -> str:
    """Name the system call that the main thread is in; empty while it runs, or where it may not be read."""
    words = read_text("/proc/%d/task/%d/syscall" % (pid, pid)).split()
    if len(words) < 3 or not words[0].isdecimal():
        return ""
    return CALLS.get(os.uname().machine, {}).get(int(words[0]), "system call " + words[0])


class NativeStacks(NamedTuple):
    """What py-spy gave: the stacks, or why there are none."""

    text: str
    error: str


def py_spy(pid: int, native: bool, seconds: float) -> NativeStacks:
    """Take the stacks by py-spy, which reads the process's memory.

    With `native` frames it has to stop the process for some milliseconds; without it does not."""
    tool = _py_spy_tool(pid)
    if tool is None:
        return NativeStacks("", "py-spy is not installed here")
    how = "--native" if native else "--nonblocking"
    stacks = _run([tool, "dump", how, "--full-filenames", "--pid", str(pid)], seconds)
    if "full-filenames" in stacks.error:  # an older one
        stacks = _run([tool, "dump", how, "--pid", str(pid)], seconds)
    return stacks


def _run(command: List[str], seconds: float) -> NativeStacks:
    try:
        ended = run_command(command, seconds, TEXT_LIMIT)
    except OSError as error:
        return NativeStacks("", "py-spy: %s" % error)
    if ended.code is None:
        return NativeStacks("", "py-spy gave no answer within %g s" % seconds)
    text = ended.out.decode("utf-8", "replace")
    if ended.code == 0:
        return NativeStacks(text, "")
    return NativeStacks("", "py-spy: " + (text + ended.err.decode("utf-8", "replace"))[-300:].strip())


def _py_spy_tool(pid: int) -> Optional[str]:
    """On PATH, else beside the interpreter that the rank was started with."""
    tool = find_program("py-spy")
    words = command_line(pid)
    if tool is None and words and os.path.isabs(words[0]):
        tool = find_program("py-spy", path=os.path.dirname(words[0]))
    return tool
