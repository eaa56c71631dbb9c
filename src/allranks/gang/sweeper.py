"""One question to each node of a target about leftovers of earlier runs, over the usual channel."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from allranks.cluster import Cluster, Node
from allranks.errors import TransportError
from allranks.protocol.frames import Frame, OutputFrame
from allranks.protocol.header import SweepHeader
from allranks.protocol.jsontext import DecodeError, JsonObject
from allranks.protocol.messages import read_message
from allranks.protocol.orders import HelloOrder
from allranks.settings import RunSpec

from .channel import Channel, ChannelFailed
from .tasks import run_loop, run_with_callbacks
from .transport import Transport

SECONDS = 60.0
AT_ONCE = 64


def ask(
    spec: RunSpec, transport: Transport, cluster: Cluster, headers: Mapping[str, SweepHeader]
) -> dict[str, dict[str, Any]]:
    """Sends each named node its sweep header; the answers by node name. TransportError names a node."""

    async def all_of_them() -> list[dict[str, Any]]:
        limit = asyncio.Semaphore(AT_ONCE)
        return await asyncio.gather(*(_one(spec, transport, n, headers[n.name], limit) for n in nodes))

    nodes = [n for n in cluster.nodes if n.name in headers]
    return dict(zip((n.name for n in nodes), run_loop(lambda: run_with_callbacks(all_of_them())), strict=True))


async def _one(
    spec: RunSpec, transport: Transport, node: Node, header: SweepHeader, limit: asyncio.Semaphore
) -> dict[str, Any]:
    answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def on_frames(frames: list[Frame]) -> None:
        for frame in frames:
            if not isinstance(frame, OutputFrame) and not answer.done():
                answer.set_result(_checked(frame))

    def on_closed(why: str) -> None:
        if not answer.done():
            answer.set_result({"type": "fault", "message": why})

    channel = Channel(node, transport, on_frames, on_closed)
    async with limit:
        try:
            await channel.open(header._replace(node_dir=spec.places.node_dir), HelloOrder(), SECONDS)
            reply = await asyncio.wait_for(answer, SECONDS)
        except ChannelFailed as error:
            raise TransportError(f"{error.finding.message}\n  {error.finding.remedy}") from None
        except asyncio.TimeoutError:
            raise TransportError(f"{node.name} did not answer within {SECONDS:g} s") from None
        finally:
            channel.close()
    if reply["type"] != "swept":
        raise TransportError(f"{node.name}: {reply.get('message')}")
    return reply


def _checked(frame: JsonObject) -> JsonObject:
    """Give a message as it is where it fits its record, else a fault that says what does not."""
    try:
        read_message(frame)
    except DecodeError as error:
        return {"type": "fault", "message": f"its answer cannot be read: {error}"}
    return frame
