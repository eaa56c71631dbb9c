"""ssh that is lent: through a door, for the nodes of the host list alone, while who lends it is there."""

import asyncio
import secrets
import sys

from allranks.cluster import Node
from allranks.engines.lent_ssh import StartRequest, ask_door, lend_ssh
from allranks.engines.ssh import SshTransport
from allranks.gang.transport import Client
from allranks.protocol.header import DialHeader
from allranks.settings.runspec import Launch

HEADER = DialHeader(places=(("127.0.0.1", 1),), rank_from="", secret="00", patience=0.1, lease=1.0)
DOOR = "from allranks.engines.lent_ssh import keep_door; keep_door()"


class RefusingSsh(SshTransport):
    """In the place of ssh: a command that ends."""

    def client(self, node: Node) -> list[str]:
        return ["/bin/sh", "-c", "echo Permission denied \\(publickey\\). >&2; exit 255"]


def test_only_nodes_of_the_list_are_reached_while_the_lender_is_there() -> None:
    name = secrets.token_hex(8)
    door = Client.of_process([sys.executable, "-c", DOOR, name])
    lend_ssh(door, [Node(1, "h2", "h2")], RefusingSsh(Launch()))

    async def ask(*nodes: str) -> list[str]:
        asked = (ask_door(name, StartRequest(node, HEADER, 10.0)) for node in nodes)
        findings = [answer.finding for answer in await asyncio.gather(*asked)]
        return [f"{finding.id}: {finding.message}" for finding in findings if finding is not None]

    of_h2, of_h9 = asyncio.run(ask("h2", "h9"))
    assert of_h2.startswith("ssh-auth: h2")
    assert of_h9 == "unknown: h9 is not in the list of hosts"
    door.end()
    (at_the_end,) = asyncio.run(ask("h2"))
    assert at_the_end == ("ssh-unreachable: h2 cannot be reached: ssh from the machine that started the run has ended")
