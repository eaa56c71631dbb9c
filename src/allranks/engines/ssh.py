"""Nodes that the user names: ssh to them, or directly on this machine, and what ssh's failures mean."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from allranks.cluster import Node
from allranks.cluster.nodes import ssh_words
from allranks.errors import UsageError
from allranks.findings import Finding
from allranks.gang.transport import NodeReach, Transport
from allranks.settings import RunSpec

from .reachable_nodes import listed_cluster
from .ssh_errors import explain, silent, worth_another_try

# Nothing variable is in it: login shells may be tcsh or fish, so all else goes over standard input.
REMOTE_COMMAND = "exec /bin/sh -s"
FIXED_OPTIONS = (
    "BatchMode=yes",
    "RemoteCommand=none",
    "ClearAllForwardings=yes",
    "ControlMaster=no",  # an open master connection is used, none is opened
    "LogLevel=DEBUG1",  # it says how far it has come: see ssh_errors.reached
)


class SshTransport(Transport):
    """Starts node processes: directly on this machine, through the system's ssh on all others."""

    def client(self, node: Node) -> list[str]:
        """Return ssh with its options and the remote command."""
        argv = ["ssh", "-T"]
        for option in self._launch.ssh_options:
            argv += [option] if option.startswith("-") else ["-o", option]
        for option in FIXED_OPTIONS:
            argv += ["-o", option]
        if node.port is not None:
            argv += ["-p", str(node.port)]
        if node.user is not None:
            argv += ["-l", node.user]
        return [*argv, "--", node.host, REMOTE_COMMAND]

    def by_hand(self, node: Node, commands: str) -> str:
        """Return the line by which a user runs shell commands on a node."""
        if node.is_local:
            return commands
        return f"ssh {ssh_words(node)} {shlex.quote(commands)}"

    def refusal(self, node: Node, stderr: str, code: int | None) -> Finding:
        """Say what ssh means by what it printed."""
        return explain(node, stderr, code, have_ssh_key())

    def silence(self, node: Node, seconds: float, stderr: str = "") -> Finding:
        """Say that the node did not answer in time, and how far ssh had come."""
        return silent(node, seconds, stderr)

    def retry(self, node: Node, stderr: str) -> bool:
        """Tell whether the same again may well succeed."""
        return not node.is_local and worth_another_try(stderr)


class ListedReach(NodeReach):
    """How a session reaches nodes that are named, in a hostfile that may change."""

    def __init__(self, spec: RunSpec, transport: SshTransport) -> None:
        super().__init__(transport, keeps_launch=True)
        self._spec = spec
        self._changed_at = self._change_of_list()

    def listed_again(self) -> Sequence[Node]:
        """Return the nodes of the hostfile, where it has changed. A file that cannot be read now is read later."""
        changed_at = self._change_of_list()
        if changed_at == self._changed_at:
            return ()
        try:
            nodes = listed_cluster(self._spec, None).nodes
        except UsageError:  # it is being written
            return ()
        self._changed_at = changed_at
        return nodes

    def _change_of_list(self) -> int:
        try:
            return os.stat(os.path.expanduser(self._spec.target.hosts or "")).st_mtime_ns
        except OSError:  # a list on the command line
            return 0


def ssh_reach(spec: RunSpec) -> NodeReach:
    """Return how a session reaches nodes that are named, over ssh."""
    return ListedReach(spec, SshTransport(spec.launch))


def have_ssh_key() -> bool:
    """Tell whether the user has any usual key, or an agent of ssh."""
    home = Path(os.path.expanduser("~")) / ".ssh"
    return bool(os.environ.get("SSH_AUTH_SOCK")) or any(home.glob("id_*.pub"))
