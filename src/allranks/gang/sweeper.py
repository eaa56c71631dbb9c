"""One question to each node of a target about orphans of earlier runs, over the usual channel."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from allranks.cluster import Cluster, Node
from allranks.errors import TransportError
from allranks.protocol.frames import Frame, OutputFrame
from allranks.protocol.header import SweepHeader
from allranks.protocol.jsontext import DecodeError, JsonObject
from allranks.protocol.messages import FaultMessage, Message, SweptMessage, read_message
from allranks.protocol.orders import HelloOrder
from allranks.settings import RunSpec

from .channel import Channel, ChannelFailed
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
    answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def on_frames(frames: list[Frame]) -> None:
        for frame in frames:
            if not isinstance(frame, OutputFrame) and not answer.done():
                answer.set_result(_read(frame))

    def on_closed(why: str) -> None:
        if not answer.done():
            answer.set_result(FaultMessage("closed", why))

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
    if isinstance(reply, SweptMessage):
        return reply
    if isinstance(reply, FaultMessage):
        raise TransportError(f"{node.name}: {reply.message}")
    raise TransportError(f"{node.name}: it did not answer the question that it was asked")


def _read(frame: JsonObject) -> Message:
    """Decode a message; give a fault that says what does not fit."""
    try:
        return read_message(frame)
    except DecodeError as error:
        return FaultMessage("protocol", f"its answer cannot be read: {error}")
