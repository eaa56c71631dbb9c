"""Processes and directories that earlier runs left on nodes: asked for over ssh, and ended on request (IO)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence

from allranks.cluster import Cluster, Node
from allranks.errors import TransportError
from allranks.gang.channel import NodeFailed
from allranks.gang.node_session import OPENING_AT_ONCE, NodeSession
from allranks.gang.tasks import run_loop, run_with_callbacks
from allranks.gang.transport import Transport
from allranks.plan.network import target_words
from allranks.protocol.header import SweepHeader
from allranks.protocol.messages import SweptMessage
from allranks.protocol.orders import HelloOrder
from allranks.protocol.processes import SweptProcess
from allranks.settings import RunSpec
from allranks.text import count_of

from .ssh import SshTransport

Answers = Mapping[str, SweptMessage]
Processes = dict[str, Sequence[SweptProcess]]  # by node name
SECONDS = 60.0  # in which a node answers


def ask(spec: RunSpec, cluster: Cluster, headers: Mapping[str, SweepHeader]) -> Answers:
    """Send each named node its question over ssh; return the answers by node name. Raise TransportError."""

    async def all_of_them() -> list[SweptMessage]:
        limit = asyncio.Semaphore(OPENING_AT_ONCE)
        return await asyncio.gather(*(_ask_one(spec, transport, n, headers[n.name], limit) for n in nodes))

    transport = SshTransport(spec.launch)
    nodes = [n for n in cluster.everyone if n.name in headers]
    return dict(zip((n.name for n in nodes), run_loop(lambda: run_with_callbacks(all_of_them())), strict=True))


async def _ask_one(
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


def choose(answers: Answers, foreign: bool) -> Processes:
    """Return the processes of runs whose agent is dead; with `foreign` the user's others that are in the way."""
    if foreign:
        return {name: answer.foreign or () for name, answer in answers.items()}
    return {name: [p for p in answer.processes or () if not p.live] for name, answer in answers.items()}


def end(spec: RunSpec, cluster: Cluster, chosen: Processes, answers: Answers) -> Processes:
    """End processes by pid and start time, and remove the directories of `answers`; return what could not be ended."""
    ends = {
        name: SweepHeader(end=tuple((p.pid, p.start_time) for p in orphans))
        for name, orphans in chosen.items()
        if orphans
    }
    left: Processes = {name: answer.left or () for name, answer in ask(spec, cluster, ends).items()}
    removals = {
        name: SweepHeader(remove=tuple(answer.directories)) for name, answer in answers.items() if answer.directories
    }
    ask(spec, cluster, removals)
    return left


def name_unended(left: Processes) -> str:
    """Say which processes could not be ended; empty where none is left."""
    named = [f"{node} pid {p.pid} ({p.command})" for node, processes in left.items() for p in processes]
    return f"could not end: {', '.join(named)}" if named else ""


def end_dead_runs(spec: RunSpec, cluster: Cluster) -> None:
    """End processes of runs whose agent is dead, before anything starts (run --end-orphans).

    What no run of allranks has started is left alone, and named.
    """
    answers = ask(spec, cluster, {n.name: SweepHeader() for n in cluster.everyone})
    chosen = choose(answers, foreign=False)
    count = sum(len(p) for p in chosen.values())
    lines = []
    if count:
        unended = name_unended(end(spec, cluster, chosen, answers))
        lines = [f"ended {count_of(count, 'process', 'processes')} of earlier runs", *filter(None, [unended])]
    question = SweepHeader(foreign=spec.rendezvous.master_port)
    others = ask(spec, cluster, {n.name: question for n in cluster.everyone})
    for line in [*lines, *left_alone(others, spec)]:
        sys.stderr.write(f"{line}\n")


def left_alone(answers: Answers, spec: RunSpec) -> list[str]:
    """Name the processes that are in the way and that --end-orphans does not end, and the command that does."""
    command = f"allranks clean --foreign --master-port {spec.rendezvous.master_port} {target_words(spec)}"
    return [
        f"left alone, because no run of allranks started it: {name} pid {process.pid} {process.why} "
        f"({process.command}). To end it: {command}"
        for name, answer in answers.items()
        for process in answer.foreign or ()
    ]
