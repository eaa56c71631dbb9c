"""A shell on a host, over the user's own ssh: it gets commands, and answers with files (IO).

Every answer has a limit and an end: a line that could not have been written before.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import time
from collections.abc import Sequence

from allranks.cluster import Node
from allranks.errors import TransportError, UsageError
from allranks.findings import Finding
from allranks.gang.channel import STDERR_LIMIT
from allranks.gang.transport import Client
from allranks.settings import RunSpec
from allranks.settings.runspec import Launch, Target

from .reachable_nodes import listed_cluster
from .ssh import SshTransport
from .ssh_errors import silent

ANSWER_SECONDS = 20.0  # for one answer
ANSWER_LIMIT = 64 << 20  # bytes of one answer

# Prints the output of a command as a file of the answer: its name, and the words of the command.
SHOW = """show() {
echo "$T file $1"
shift
"$@"
echo
echo "$T end"
}"""


class RemoteShell:
    """A shell on a host. `ask` runs commands there, and returns the files of their answer by name."""

    def __init__(self, node: Node, launch: Launch) -> None:
        self._node = node
        self.transport = SshTransport(launch)
        self._client: Client | None = None

    def ask(self, commands: str) -> dict[str, bytes]:
        """Run commands that print files. Raise TransportError where the host does not answer.

        `show NAME COMMAND` prints a file of the answer, and `$T` is the mark of this answer alone.
        """
        if self._client is None:
            self._client = self._connect()
        client = self._client
        mark = secrets.token_hex(16)
        script = f'exec 2>/dev/null\nT={mark}\n{SHOW}\n{commands}\necho "$T done"\n'
        self._send(client, script.encode("utf-8", "surrogateescape"))
        return files_of(self._receive(client, f"{mark} done\n".encode()), mark.encode())

    def become(self, command: str) -> Client:
        """Have a command take the place of the shell that has answered, and return its client of ssh."""
        client = self._client
        assert client is not None
        self._send(client, f"exec {command}\n".encode("utf-8", "surrogateescape"))
        self._client = None
        return client

    def close(self) -> None:
        """End the client of ssh."""
        if self._client is not None:
            self._client.end()
            self._client = None

    def _connect(self) -> Client:
        if self._node.is_local:
            raise UsageError(f"--on {self._node.name} is this machine. Leave --on out")
        try:
            return Client.of_process(self.transport.argv(self._node))
        except OSError as error:
            raise _refused(self.transport.not_started(self._node, error)) from None

    def _send(self, client: Client, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            _, ready, _ = select.select([], [client.stdin], [], ANSWER_SECONDS)
            if not ready:
                raise _refused(silent(self._node, ANSWER_SECONDS))
            try:
                rest = rest[os.write(client.stdin, rest) :]
            except OSError:
                raise _refused(self._why_ended(client, b"")) from None

    def _receive(self, client: Client, end: bytes) -> bytes:
        deadline = time.monotonic() + ANSWER_SECONDS
        answer = bytearray()
        while not answer.endswith(end):
            ready, _, _ = select.select([client.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise _refused(silent(self._node, ANSWER_SECONDS))
            data = os.read(client.stdout, 1 << 20)
            if not data:
                raise _refused(self._why_ended(client, bytes(answer[-STDERR_LIMIT:])))
            answer += data
            if len(answer) > ANSWER_LIMIT:
                raise TransportError(f"{self._node.name}: its answer is longer than {ANSWER_LIMIT >> 20} MB")
        return bytes(answer)

    def _why_ended(self, client: Client, answer: bytes) -> Finding:
        code = client.code(2.0)
        stderr = b""
        if client.stderr is not None:
            with contextlib.suppress(OSError):
                stderr = os.read(client.stderr, STDERR_LIMIT)
        return self.transport.failure(self._node, answer, stderr.decode("utf-8", "replace"), code)


def _refused(finding: Finding) -> TransportError:
    hint = f"\nhint: {finding.remedy}" if finding.remedy else ""
    return TransportError(f"{finding.message}{hint}")


def files_of(answer: bytes, mark: bytes) -> dict[str, bytes]:
    """Split an answer into its files; what stands between them is left out."""
    files = {}
    for part in answer.split(mark + b" file ")[1:]:
        name, _, rest = part.partition(b"\n")
        content, end, _ = rest.partition(mark + b" end")
        if end:
            files[name.decode("utf-8", "surrogateescape")] = content.removesuffix(b"\n")
    return files


def nodes_named(hosts: str) -> Sequence[Node]:
    """Return all nodes of a host list, as --hosts takes it."""
    return listed_cluster(RunSpec(target=Target(hosts=hosts), launch=Launch(command=("true",))), None).nodes


def node_named(host: str) -> Node:
    """Return the node that a word names: `host`, `user@host`, with `:port`."""
    nodes = nodes_named(host)
    if len(nodes) != 1:
        raise UsageError(f"--on takes one host, got {host}")
    return nodes[0]
