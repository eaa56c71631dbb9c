"""One question to each node of a target about orphans of earlier runs, over the usual channel."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from allranks.cluster import Cluster, Node
from allranks.errors import TransportError
from allranks.protocol.header import SweepHeader
from allranks.protocol.messages import SweptMessage
from allranks.protocol.orders import HelloOrder
from allranks.settings import RunSpec

from .node_session import NodeFailed, NodeSession
from .tasks import run_loop, run_with_callbacks
from .transport import Transport

SECONDS = 60.0
AT_ONCE = 64


def ask(
    spec: RunSpec, transport: Transport, cluster: Cluster, headers: Mapping[str, SweepHeader]
) -> dict[str, SweptMessage]:
    """Send each named node its sweep header; return the answers by node name. Raise TransportError."""

    async def all_of_them() -> list[SweptMessage]:
        limit = asyncio.Semaphore(AT_ONCE)
        return await asyncio.gather(*(_one(spec, transport, n, headers[n.name], limit) for n in nodes))

    nodes = [n for n in cluster.nodes if n.name in headers]
    return dict(zip((n.name for n in nodes), run_loop(lambda: run_with_callbacks(all_of_them())), strict=True))


async def _one(
    spec: RunSpec, transport: Transport, node: Node, header: SweepHeader, limit: asyncio.Semaphore
) -> SweptMessage:
    session = NodeSession(node, transport)
    async with limit:
        try:
            asked = header._replace(node_dir=spec.places.node_dir)
            return await session.open(asked, HelloOrder(), SweptMessage, SECONDS, SECONDS)
        except NodeFailed as error:
            raise TransportError(f"{error.finding.message}\n  {error.finding.remedy}") from None
        finally:
            session.close()
