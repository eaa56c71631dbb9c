"""How a node is reached: the argv that gives a shell (or the boot line) there, and what failures mean."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from allranks.cluster import Node
from allranks.findings import Finding, Where

from .bundle import BOOT, NO_PYTHON, boot_script
from .ssh_errors import explain, silent, worth_another_try

# Nothing variable is in it: login shells may be tcsh or fish, so all else goes over standard input.
REMOTE_COMMAND = "exec /bin/sh -s"
FIXED_OPTIONS = (
    "BatchMode=yes",
    "RemoteCommand=none",
    "ClearAllForwardings=yes",
    "ControlMaster=no",  # an open master connection is used, none is opened
)


class Transport:
    """Starts node processes: directly for this machine, through the system's ssh for all others."""

    def __init__(self, ssh_options: Sequence[str], guard_python: str | None, python: str | None) -> None:
        self._options = tuple(ssh_options)
        self._guard_python, self._python = guard_python, python

    def argv(self, node: Node) -> list[str]:
        """The command whose standard input and output are the channel."""
        if node.is_local:
            return [self._guard_python or sys.executable, "-I", "-S", "-c", BOOT]
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

    def opening(self, node: Node) -> bytes:
        """What is written before the marker is awaited."""
        return b"" if node.is_local else boot_script(self._guard_python, self._python)

    def failure(self, node: Node, stdout: bytes, stderr: str, code: int | None) -> Finding:
        """Why the node process ended before its marker came."""
        if NO_PYTHON in stdout:
            tried = stdout.split(NO_PYTHON, 1)[1].split(b"\n")[0].decode("utf-8", "replace")
            return Finding(
                "python-version-or-env-mismatch",
                "fail",
                f"{node.name}: no Python 3.8 or newer was found (tried {tried})",
                "name one with --guard-python /path/to/python3",
                Where(node=node.name),
            )
        if node.is_local:
            text = stderr.strip()[-300:] or f"ended with code {code}"
            return Finding("unknown", "fail", f"{node.name}: the guard could not start: {text}", "", Where(node.name))
        return explain(node, stderr, code, have_ssh_key())

    def silence(self, node: Node, seconds: float) -> Finding:
        """The node did not answer in time."""
        return silent(node, seconds)

    def retry(self, node: Node, stderr: str) -> bool:
        """True where the same again may well succeed."""
        return not node.is_local and worth_another_try(stderr)


def have_ssh_key() -> bool:
    """True where the user has any usual key, or an agent."""
    home = Path(os.path.expanduser("~")) / ".ssh"
    return bool(os.environ.get("SSH_AUTH_SOCK")) or any(home.glob("id_*.pub"))
