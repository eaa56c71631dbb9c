"""Nodes behind a command that gives a shell there, such as ssh: the process that is the channel, and its failures."""

from __future__ import annotations

import contextlib
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence

from allranks.agent.processes import PR_SET_PDEATHSIG, prctl, raise_limits
from allranks.cluster import Node
from allranks.findings import Finding, Where
from allranks.gang.agent_archive import BOOT, NO_PYTHON, boot_script
from allranks.gang.transport import Client
from allranks.protocol.header import Header
from allranks.protocol.orders import Order
from allranks.text import name_with, with_reason

from .ssh_errors import how_ended, mute, not_started


def die_with_the_controller() -> None:
    """Have the kernel end a client with this process: on a dead link it would wait for hours to say that it ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class ProcessClient:
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
    def of_process(cls, argv: Sequence[str], is_remote: bool = True) -> ProcessClient:
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
    def of_socket(cls, sock: socket.socket) -> ProcessClient:
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


class CommandTransport(ABC):
    """Starts node processes: directly on this machine, through a command that gives a shell on all other nodes.

    An engine with a command of its own overrides `client`, and what its command's failures mean where they say it.
    """

    def __init__(self, agent_python: str | None, python: str | None) -> None:
        self._agent_python = agent_python
        self._python = python

    @abstractmethod
    def client(self, node: Node) -> list[str]:
        """Return the words that start `/bin/sh -s` on a node of another machine, with our standard input."""

    async def connect(self, node: Node, header: Header, seconds: float) -> Client | None:
        """Start what carries the channel; None where the node cannot be had within `seconds`.

        Raises OSError, SubprocessError or AllranksError where this machine cannot start it: see `not_started`.
        """
        raise_limits()  # here, where no srun starts: it would take these limits to the nodes
        return ProcessClient.of_process(self.argv(node), not self._boots_directly(node))

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

    def opening(self, node: Node) -> bytes:
        """Return what is written before the marker is awaited."""
        if self._boots_directly(node):
            return b""
        return boot_script(self._agent_python, self._python)

    def read_there(self, node: Node, order: Order) -> Order:
        """Return all of an order: the agent has nothing else to go by."""
        return order

    def _boots_directly(self, node: Node) -> bool:
        """Tell whether this interpreter boots the node; the boot script tries one that was named."""
        return node.is_local and self._agent_python is None

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
        return mute(node, seconds, self.by_hand(node, "uptime && timeout 5 ls -ld /tmp /var/tmp"))

    def silence(self, node: Node, seconds: float, stderr: str = "") -> Finding:
        """Say that the node did not answer in time."""
        text = f"{name_with(node.name, node.host)} did not answer {self._program(node)} within {seconds:g} s"
        remedy = f"try `{self.by_hand(node, 'hostname')}`, or give it longer with --connect-timeout"
        return Finding("unknown", "fail", text, remedy, Where(node=node.name))

    def retry(self, node: Node, stderr: str) -> bool:
        """Tell whether the same again may well succeed."""
        return False

    def _program(self, node: Node) -> str:
        return os.path.basename(self.argv(node)[0])
