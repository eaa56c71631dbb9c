"""What a gang needs of its engine: channels to nodes, and what becomes of the nodes (IO).

A channel is a process on this machine: an interpreter of it, or a command that gives a shell on the node, such as ssh.
An engine has its own command, or connections that come from the nodes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from allranks.agent.processes import PR_SET_PDEATHSIG, prctl, raise_limits
from allranks.cluster import Node
from allranks.findings import Finding, Where
from allranks.protocol.header import DialHeader, Header
from allranks.protocol.jsontext import JsonObject
from allranks.protocol.orders import Order
from allranks.runs.directory import RunDirectory
from allranks.settings.runspec import Launch
from allranks.text import name_with, with_reason

from .agent_archive import BOOT, NO_PYTHON, boot_script


class NodeHungUp(Exception):
    """What dialled from a node has ended, and dials no more: its host answers, and no connection came."""


def die_with_the_controller() -> None:
    """Have the kernel end a client with this process: on a dead link it would wait for hours to say that it ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Client:
    """This side's end of a channel: descriptors to write to and to read from. `boots`: the marker comes first."""

    def __init__(self, stdin: int, stdout: int, stderr: int | None, process: subprocess.Popen[bytes] | None) -> None:
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.boots = process is not None
        self._process = process
        for fd in (stdin, stdout, stderr):
            if fd is not None:
                os.set_blocking(fd, False)

    @classmethod
    def of_process(cls, argv: Sequence[str], is_remote: bool = True) -> Client:
        """Start a client process, such as ssh; raise OSError. One on this machine ends with its standard input."""
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
            preexec_fn=die_with_the_controller if is_remote else None,  # with one, all of our memory is forked
        )
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        return cls(process.stdin.fileno(), process.stdout.fileno(), process.stderr.fileno(), process)

    @classmethod
    def of_socket(cls, sock: socket.socket) -> Client:
        """Take over a connected socket whose other side has booted."""
        fd = sock.detach()
        return cls(os.dup(fd), fd, None, None)

    def code(self, seconds: float = 0.0) -> int | None:
        """Wait for the process's exit code; None while it runs, or without a process."""
        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=seconds)
        return self._process.returncode

    def end(self) -> None:
        """Close everything and end the process (never anything on the node but the relay)."""
        process = self._process
        if process is None:
            os.close(self.stdin)
            os.close(self.stdout)
            return
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if process.poll() is None:
            process.kill()
            process.wait()


class Transport(ABC):
    """Starts node processes: directly on this machine, through a command that gives a shell on all other nodes.

    An engine with a command of its own overrides `client`, and what its command's failures mean where they say it.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self.buffer = memoryview(bytearray(READ))  # of all channels: a fresh one a read costs as much as the read

    @abstractmethod
    def client(self, node: Node) -> list[str]:
        """Return the words that start `/bin/sh -s` on a node of another machine, with our standard input."""

    async def connect(self, node: Node, header: Header, seconds: float) -> Client | None:
        """Start what carries the channel; None where the node cannot be had within `seconds`.

        Raise OSError, SubprocessError or AllranksError where this machine cannot start it: see `not_started`. Raise
        NodeHungUp where waiting is of no use.
        """
        raise_limits()  # here, where no srun starts: it would take these limits to the nodes
        return Client.of_process(self.argv(node), not self._boots_directly(node))

    def argv(self, node: Node) -> list[str]:
        """Return the command whose standard input and output are the channel."""
        if self._boots_directly(node):
            return [sys.executable, "-I", "-S", "-c", BOOT]
        if node.is_local:
            return ["/bin/sh", "-s"]
        return self.client(node)

    def described(self, node: Node) -> list[str]:
        """Return the command that reaches a node, as `--dry-run` shows it."""
        return ["(this machine, no ssh)"] if node.is_local else self.argv(node)

    def by_hand(self, node: Node, commands: str) -> str:
        """Return the line by which a user runs shell commands on a node."""
        if node.is_local:
            return commands
        return f"echo {shlex.quote(commands)} | {shlex.join(self.argv(node))}"

    def opening(self, node: Node, header: Header) -> bytes:
        """Return what is written before the marker is awaited."""
        if self._boots_directly(node):
            return b""
        run_tag = header.run_tag if isinstance(header, DialHeader) else ""
        return boot_script(self._launch.agent_python, self._launch.python, run_tag)

    def read_there(self, node: Node, order: Order) -> Order:
        """Return what the node's side reads of an order: what it does not read is not sent."""
        return order

    def _boots_directly(self, node: Node) -> bool:
        """Tell whether this interpreter boots the node; the boot script tries one that was named."""
        return node.is_local and self._launch.agent_python is None

    def failure(self, node: Node, stdout: bytes, stderr: str, code: int | None) -> Finding:
        """Say why the node process ended before its marker came."""
        if NO_PYTHON in stdout:
            tried = stdout.split(NO_PYTHON, 1)[1].split(b"\n")[0].decode("utf-8", "replace")
            return Finding(
                "environment-mismatch",
                "fail",
                f"{node.name}: no Python 3.8 or newer was found (tried {tried})",
                "name one with --agent-python /path/to/python3",
                Where(node=node.name),
            )
        if node.is_local:
            text = stderr.strip()[-300:] or f"its process {how_ended(code)}"
            return Finding("unknown", "fail", f"the agent could not start on {node.name}: {text}", "", Where(node.name))
        return self.refusal(node, stderr, code)

    def refusal(self, node: Node, stderr: str, code: int | None) -> Finding:
        """Say why the command ended on this machine, from what it printed."""
        lines = [line.strip() for line in stderr.splitlines() if line.strip()]
        ended = f"{node.name}: {self._program(node)} {how_ended(code)} before the node answered"
        message = with_reason(ended, "".join(lines[-1:])[:300])
        remedy = f"try it by hand: {self.by_hand(node, 'hostname')}"
        return Finding("unknown", "fail", message, remedy, Where(node=node.name), tuple(lines[-3:]))

    def not_started(self, node: Node, error: Exception) -> Finding:
        """Say why this machine could not start what carries the channel; `error` is what `connect` raised."""
        if not isinstance(error, OSError):
            return Finding("unknown", "fail", f"{node.name}: {error}", "try the command by hand", Where(node=node.name))
        return not_started(self._program(node), error, resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    def mute(self, node: Node, seconds: float) -> Finding:
        """Say that the node's Python started, and that its agent said nothing."""
        look = self.by_hand(node, "uptime && timeout 5 ls -ld /tmp /var/tmp")
        message = (
            f"{node.name}: Python started, but the agent did not answer within {seconds:g} s. The node or its link is "
            "down, the node is overloaded, or the file system of its node directory hangs"
        )
        remedy = f"try `{look}`, or name another directory with --node-dir"
        return Finding("unknown", "fail", message, remedy, Where(node=node.name))

    def silence(self, node: Node, seconds: float, stderr: str = "") -> Finding:
        """Say that the node did not answer in time. Its client has printed `stderr`."""
        text = f"{name_with(node.name, node.host)} did not answer {self._program(node)} within {seconds:g} s"
        remedy = f"try `{self.by_hand(node, 'hostname')}`, or give it longer with --connect-timeout"
        return Finding("unknown", "fail", text, remedy, Where(node=node.name))

    def retry(self, node: Node, stderr: str) -> bool:
        """Tell whether the same again may well succeed."""
        return False

    def _program(self, node: Node) -> str:
        return os.path.basename(self.argv(node)[0])


# -- what this machine says when a channel cannot be started -----------------------------------------------------


def how_ended(code: int | None) -> str:
    """Say how a process ended, from subprocess's return code."""
    if code is None:
        return "closed its output"
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


READ = 1 << 20  # what a client's pipe may hold: with 64 KB, ssh waits at each packet for this process
NOT_STARTED = {
    errno.ENOENT: "environment-mismatch",
    errno.EACCES: "environment-mismatch",
    errno.ENOEXEC: "environment-mismatch",
    errno.EMFILE: "too-many-open-files",
    errno.ENFILE: "too-many-open-files",
    errno.ENOMEM: "host-out-of-memory",
}
"""Causes of errors of fork(2), execve(2) and pipe(2)."""


def not_started(program: str, error: OSError, open_files: int) -> Finding:
    """Make the finding for a client that this machine could not start: no node is at fault.

    `open_files` is this process's soft limit of file descriptors.
    """
    cause = NOT_STARTED.get(error.errno or 0, "unknown")
    reason = error.strerror or str(error)
    if error.errno == errno.ENOENT and error.filename == program:
        reason = "not found on PATH"
    message = f"this machine cannot start {program}: {reason}"
    if cause == "too-many-open-files":
        message = f"this machine cannot open a channel to every node: {reason}, the limit is {open_files}"
        remedy = "ulimit -n 65536, then run again in the same shell"
    elif cause == "environment-mismatch":
        package = "openssh-client (Debian, Ubuntu) or openssh-clients (RHEL)" if program == "ssh" else program
        remedy = f"install {package}, or put it on PATH. `type {program}` shows where it is"
    elif error.errno == errno.EAGAIN:
        message += ", the limit of processes is reached"
        remedy = "end processes that are not needed (ps -u $USER). Limits: `ulimit -u; cat /sys/fs/cgroup/pids.max`"
    else:
        remedy = "compare with `free -h; ulimit -a`, and try the program by hand"
    return Finding(cause, "fail", message, remedy)


# -- the nodes of a session --------------------------------------------------------------------------------------


class TimeLeft(NamedTuple):
    """How many seconds ranks have until the engine ends everything by force, and what sets them."""

    seconds: float
    source: str


class BegunSession(Protocol):
    """The session whose nodes are reached, as far as an engine speaks to it (`gang.session.Session`)."""

    run_dir: RunDirectory

    def stop_from_afar(self, reason: str) -> None:
        """End the run because a node wants it, from any thread."""

    def signal_at_node(self, node: str, name: str) -> None:
        """Take SIGUSR1 or SIGUSR2, which came to a node's task; from any thread."""

    def step_ended(self) -> None:
        """Give up all nodes; from any thread."""

    def say_note(self, text: str) -> None:
        """Show and keep a remark."""


class NodeReach:
    """How a session's nodes are reached: by `transport`. These nodes are not taken back; an engine that may, overrides.

    `warning_signal`: what the engine sends before it takes the nodes back. `document`: `slurm` of run.json.
    `run_suffix`: what a run directory has behind its name. `keeps_launch`: another controller may take the run over.
    `awaited_since`: when nodes that come by themselves were first waited for (unix seconds).
    """

    warning_signal: int | None = None
    awaited_since: float | None = None
    run_suffix = ""

    def __init__(self, transport: Transport, keeps_launch: bool = False) -> None:
        self.transport = transport
        self.keeps_launch = keeps_launch

    @property
    def document(self) -> JsonObject:
        """Return what the engine has in run.json."""
        return {}

    def run_directory(self, runs_dir: str) -> RunDirectory | None:
        """Return the run directory that who started this controller has made for the run; else None."""
        named = os.environ.pop("ALLRANKS_RUN_DIR", None)
        return RunDirectory(Path(named)) if named else None

    def begin(self, session: BegunSession) -> None:
        """Prepare the nodes for a session that is about to run."""

    def warned(self) -> None:
        """Take note that the warning signal has come."""

    def time_left(self) -> TimeLeft | None:
        """Return how long the engine leaves ranks; None where it ends nothing by force. It may take a while."""
        return None

    def finding(self, is_stopped: bool) -> Finding | None:
        """Return the engine's own reason for the end of the ranks; None where it has none."""
        return None

    def listed_again(self) -> Sequence[Node]:
        """Return the nodes of the host list, where that has changed since the last call; it is asked once a second."""
        return ()

    def against_retry(self) -> str:
        """Return why the nodes cannot have another attempt; empty where they can."""
        return ""

    def refuse_requeue(self) -> str:
        """Have the engine not start this run again, as it would fail the same way; say what was done."""
        return ""

    def linger(self, cause: str) -> None:
        """Stay as long as the engine needs this process after a run that ended by `cause`."""

    def end(self) -> None:
        """Give the nodes back."""
