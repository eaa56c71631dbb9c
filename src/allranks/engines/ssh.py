"""How a node is reached: the argv that gives a shell (or the boot line) there, and what failures mean."""

from __future__ import annotations

import contextlib
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from allranks.agent.processes import PR_SET_PDEATHSIG, prctl, raise_limits
from allranks.cluster import Cluster, Node
from allranks.findings import Finding, Where
from allranks.gang.agent_archive import BOOT, NO_PYTHON, boot_script
from allranks.gang.transport import Client, NodeReach
from allranks.protocol.header import Header
from allranks.settings import RunSpec

from .reachable_nodes import listed_cluster
from .ssh_errors import destination, explain, how_ended, mute, not_started, silent, worth_another_try

# Nothing variable is in it: login shells may be tcsh or fish, so all else goes over standard input.
REMOTE_COMMAND = "exec /bin/sh -s"
FIXED_OPTIONS = (
    "BatchMode=yes",
    "RemoteCommand=none",
    "ClearAllForwardings=yes",
    "ControlMaster=no",  # an open master connection is used, none is opened
)


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


class SshTransport:
    """Starts node processes: directly for this machine, through the system's ssh for all others."""

    def __init__(self, ssh_options: Sequence[str], agent_python: str | None, python: str | None) -> None:
        self._options = tuple(ssh_options)
        self._agent_python = agent_python
        self._python = python

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
        argv = ["ssh", "-T"]
        for option in self._options:
            argv += [option] if option.startswith("-") else ["-o", option]
        for option in FIXED_OPTIONS:
            argv += ["-o", option]
        if node.port is not None:
            argv += ["-p", str(node.port)]
        if node.user is not None:
            argv += ["-l", node.user]
        return [*argv, "--", node.host, REMOTE_COMMAND]

    def described(self, node: Node) -> list[str]:
        """Return the command that reaches a node, as `--dry-run` shows it."""
        return ["(this machine, no ssh)"] if node.is_local else self.argv(node)

    def opening(self, node: Node) -> bytes:
        """Return what is written before the marker is awaited."""
        if self._boots_directly(node):
            return b""
        return boot_script(self._agent_python, self._python)

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
        return explain(node, stderr, code, have_ssh_key())

    def not_started(self, node: Node, error: Exception) -> Finding:
        """Say why this machine could not start what carries the channel; `error` is what `connect` raised."""
        if not isinstance(error, OSError):
            return Finding("unknown", "fail", f"{node.name}: {error}", "try the command by hand", Where(node=node.name))
        program = os.path.basename(self.argv(node)[0])
        return not_started(program, error, resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    def mute(self, node: Node, seconds: float) -> Finding:
        """Say that the node's Python started, and that its agent said nothing."""
        return mute(node, seconds, "" if node.is_local else f"ssh {shlex.quote(destination(node))} ")

    def silence(self, node: Node, seconds: float) -> Finding:
        """Say that the node did not answer in time."""
        return silent(node, seconds)

    def retry(self, node: Node, stderr: str) -> bool:
        """Tell whether the same again may well succeed."""
        return not node.is_local and worth_another_try(stderr)


def ssh_transport(spec: RunSpec) -> SshTransport:
    """Return the transport of a target whose nodes are named: ssh, or directly on this machine."""
    return SshTransport(spec.launch.ssh_options, spec.launch.agent_python, spec.launch.python)


def ssh_reach(spec: RunSpec) -> NodeReach:
    """Return how a session reaches nodes that are named."""
    return NodeReach(ssh_transport(spec), keeps_launch=True)


def find_nodes(spec: RunSpec, spares: int) -> Cluster:
    """Return the nodes of a list: see `engines.find_nodes`."""
    return listed_cluster(spec, None if spares else spec.target.nodes)


def reach(spec: RunSpec, cluster: Cluster) -> NodeReach:
    """Return how this process reaches the nodes of a target: see `engines.reach_nodes`."""
    return ssh_reach(spec)


def have_ssh_key() -> bool:
    """Tell whether the user has any usual key, or an agent of ssh."""
    home = Path(os.path.expanduser("~")) / ".ssh"
    return bool(os.environ.get("SSH_AUTH_SOCK")) or any(home.glob("id_*.pub"))
