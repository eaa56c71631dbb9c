"""Starting a rank: fork from the agent's only thread, set limits and death signal, exec."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Callable, Dict, List, NoReturn, Optional, Tuple

from allranks.protocol.messages import ExitMessage
from allranks.protocol.node_names import CPUS
from allranks.protocol.orders import RankOrder
from allranks.text import read_ranges

from .files import grow_pipe, open_left
from .observing import Observed
from .processes import PR_SET_PDEATHSIG, PR_SET_PTRACER, Process, prctl, read_process

PIPE_SIZE = 256 << 10  # more than the default 64 KiB lets a fast printer run on; below a user's soft limit
SYSTEM_PATHS = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")

# A template: gives the process and the read end of its output, None where the rank is to be started.
Fork = Callable[[RankOrder, Dict[str, str]], Optional[Tuple[Process, int]]]


class Rank:
    """A rank of the present attempt: its main process, its pipe, how it ended."""

    def __init__(self, order: RankOrder, process: Process, pipe: int) -> None:
        self.rank = order.rank
        self.ranks = order.ranks
        self.process = process
        self.pipe = pipe  # -1 once at its end
        self.error_files = order.error_files  # of itself, or of all ranks that it starts
        self.observed = Observed(order.rank, process, order.argv)
        self.starts_ranks = order.starts_ranks  # their ends are to be watched
        self.exit: Optional[ExitMessage] = None


class TemplateLost(Exception):
    """The template has ended, or does not answer."""


class RankStartError(Exception):
    """A rank could not be started; the text says which call failed on what."""


def environment_of(order: RankOrder, base: Dict[str, str]) -> Dict[str, str]:
    """Give the environment of a rank: the node's own below what was ordered, but for what yields to it."""
    environment = dict(base)
    for name, value in order.env.items():
        if name not in base or name not in order.weak:
            environment[name] = value
    environment["PATH"] = _path(environment.get("PATH", os.defpath), order.path_first)
    environment["PWD"] = order.workdir  # as after cd: the session's own is the home directory
    return environment


def start_rank(order: RankOrder, base: Dict[str, str], agent_pid: int, fork: Fork) -> Rank:
    """Start one rank as the controller ordered, from a template where that gives one; raise RankStartError."""
    environment = environment_of(order, base)
    _write_files(order)
    begun = fork(order, environment)
    if begun is None:
        begun = start_process(order, environment, agent_pid)
    return Rank(order, *begun)


def start_process(
    order: RankOrder, environment: Dict[str, str], agent_pid: int, kept: Optional[int] = None
) -> Tuple[Process, int]:
    """Fork and exec; return the process and the read end of its output. `kept` is a descriptor that it keeps.

    Raise RankStartError."""
    ends: List[int] = []
    try:
        ends += output_pipe()
        ends += os.pipe()
        pid = os.fork()
    except OSError as error:  # the node has no descriptor or no process left
        for end in ends:
            os.close(end)
        raise RankStartError("rank %d could not start: %s" % (order.rank, error.strerror)) from None
    read_end, write_end, error_read, error_write = ends
    if pid == 0:
        if kept is not None:
            os.set_inheritable(kept, True)
        _become_rank(order, environment, write_end, error_write, agent_pid)
    os.close(write_end)
    os.close(error_write)
    process = read_process(pid)
    with open(error_read, "rb") as file:
        failure = file.read().decode("utf-8", "replace")
    if failure or process is None:
        os.close(read_end)
        raise RankStartError(failure or "rank %d could not start" % order.rank)
    return process, read_end


def output_pipe() -> Tuple[int, int]:
    """Make the pipe for a rank's output; raise OSError."""
    read_end, write_end = os.pipe()
    grow_pipe(read_end, PIPE_SIZE)
    os.set_blocking(read_end, False)
    return read_end, write_end


def _path(path: str, first: Optional[str]) -> str:
    """PATH with a directory in front; the system's own stay where they are: others may hide programs of theirs."""
    entries = path.split(":")
    if not first or (first in SYSTEM_PATHS and first in entries):
        return path
    return ":".join([first] + [entry for entry in entries if entry != first])


def _write_files(order: RankOrder) -> None:
    for path, text in order.files.items():
        try:
            with open(open_left(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
                file.write(text)
        except OSError as error:
            raise RankStartError("rank %d could not write %s: %s" % (order.rank, path, error.strerror)) from None


def _become_rank(order: RankOrder, environment: Dict[str, str], output: int, failure: int, agent_pid: int) -> NoReturn:
    doing = "start"
    try:
        os.setsid()
        _run_on(environment.get(CPUS, ""))
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a help only: setuid programs clear it
        # Where Yama lets only ancestors attach (Ubuntu's default), py-spy and reads of /proc below the agent may too.
        # The relation covers the agent's descendants and outlives exec (Linux security/yama/yama_lsm.c).
        with suppress(OSError):  # no Yama in this kernel
            prctl(PR_SET_PTRACER, agent_pid)
        if os.getppid() != agent_pid:
            os._exit(1)
        _restore_signals()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        doing = "enter the working directory %s" % order.workdir
        os.chdir(order.workdir)
        doing = "run %s" % order.argv[0]
        os.execvpe(order.argv[0], order.argv, environment)
    except OSError as error:
        text = "rank %d could not %s: %s" % (order.rank, doing, error.strerror)
        os.write(failure, text.encode("utf-8", "replace"))
    finally:
        os._exit(127)


def _run_on(cpus: str) -> None:
    """Stay on some CPUs, as what this process starts will. The ranks of a launcher do so once they are started."""
    if not cpus or "|" in cpus:
        return
    with suppress(OSError):  # a cpuset has become another since they were chosen
        os.sched_setaffinity(0, read_ranges(cpus))


def _restore_signals() -> None:
    """Python ignores SIGPIPE and SIGXFSZ, the agent handles SIGCHLD, and a batch script may ignore SIGXCPU: a rank
    starts with none of it."""
    signal.set_wakeup_fd(-1)
    for name in ("PIPE", "XFSZ", "CHLD", "TERM", "HUP", "INT", "USR1", "USR2", "XCPU"):
        signal.signal(signal.Signals["SIG" + name], signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
