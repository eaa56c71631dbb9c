"""One real controller over simulated agents: simulated_run.py NODES NPROC RUNS_DIR SOCKET…"""

from __future__ import annotations

import json
import os
import socket
import sys

from allranks.cluster import Cluster, Node
from allranks.engines.ssh import SshTransport
from allranks.gang.session import create
from allranks.gang.transport import Client, NodeReach
from allranks.protocol.header import Header
from allranks.report.live import choose_view
from allranks.settings import RunSpec
from allranks.settings.runspec import Launch


class SimulatedTransport(SshTransport):
    """Connections to processes that play agents, in place of ssh."""

    def __init__(self, sockets: list[str]) -> None:
        super().__init__(Launch())
        self._sockets = sockets

    async def connect(self, node: Node, header: Header, seconds: float) -> Client | None:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self._sockets[node.index % len(self._sockets)])
        sock.sendall(json.dumps({"index": node.index, "name": f"n{node.index:04d}"}).encode() + b"\n")
        return Client.of_socket(sock)


def main() -> int:
    nodes, nproc, runs_dir, *sockets = sys.argv[1:]
    # A list of addresses, as most people have: each node gets a name of its own when it says hello.
    addresses = [f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}" for index in range(int(nodes))]
    listed = tuple(Node(index, address, address) for index, address in enumerate(addresses))
    cluster = Cluster(listed, "a simulation")
    spec = RunSpec.of(
        command=("train",), nproc=int(nproc), launcher="direct", runs_dir=runs_dir, name="simulated", init_timeout=600.0
    )
    view = choose_view(as_json=False)
    session = create(spec, cluster, NodeReach(SimulatedTransport(sockets)), dict(os.environ), os.getcwd(), lambda: view)
    return session.run().exit


if __name__ == "__main__":
    sys.exit(main())
