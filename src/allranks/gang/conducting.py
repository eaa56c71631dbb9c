"""The roles of a run side by side: each is a session with a gang of its own, and they share the run directory (IO).

`roles.Conductor` decides, this carries it out, and makes one status and one result of those of all roles. A plain run
is one session, and nothing here changes what it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from allranks import exitcodes
from allranks.cluster import Cluster
from allranks.diagnose.roles import DONE, RoleEnd, at_fault
from allranks.findings import Verdict, in_role
from allranks.protocol.frames import RANK_LOG
from allranks.protocol.run_facts import Fact
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import NodeStatus, ResultDocument, RoleResult, StatusDocument
from allranks.runs.regular import read_end
from allranks.settings import RunSpec
from allranks.settings.ray import name_of

from .controller import Controller
from .places import RunContext
from .recording import Recording
from .roles import Conductor, EndRole, RoleDecision, RolePart
from .states import MayStart, State

LAST_LINES = 3  # of a role that did not get ready
LOG_END = 4 << 10  # bytes in which they are looked for


class RoleSession(Protocol):
    """The session of a role, as far as it is conducted (`gang.session.Session`)."""

    spec: RunSpec
    cluster: Cluster
    context: RunContext
    run_dir: RunDirectory
    controller: Controller
    recording: Recording
    verdict: Verdict | None

    @property
    def role_end(self) -> RoleEnd:
        """Say how the role has ended."""

    def own_result(self, ended_t: float) -> ResultDocument:
        """Make the result of the role alone."""

    def role_result(self, results: Mapping[str, ResultDocument]) -> RoleResult:
        """Make the role's part of the run's result."""


def conduct(sessions: Sequence[RoleSession]) -> None:
    """Let each role start in its turn, and let the end of one be that of the others, where it is to be."""
    by_name = {session.context.role.name: session for session in sessions}
    conductor = Conductor([session.context.role for session in sessions])

    def carry_out(decision: RoleDecision) -> None:
        name, event = decision
        session = by_name[name]
        controller = session.controller
        if isinstance(event, MayStart):
            controller.feed(MayStart(_values_of(sessions)))
        elif not isinstance(event, EndRole):
            controller.feed(event)
        elif not event.delay:
            grace = session.spec.limits.stop_grace if event.reason == DONE else session.spec.limits.grace
            controller.stop(event.reason, grace)
        else:
            later = (name, event._replace(delay=0.0))
            asyncio.get_running_loop().call_later(event.delay, carry_out, later)

    def take(name: str, fact: Fact) -> None:
        for decision in conductor.take(name, fact):  # none before the loop runs
            # the gang whose fact it is decides to the end first
            asyncio.get_running_loop().call_soon(carry_out, decision)

    for session in sessions:
        session.recording.watch = partial(take, session.context.role.name)
        session.recording.whole_status = partial(_status_in_turn, session, sessions)


def _values_of(sessions: Sequence[RoleSession]) -> dict[str, str]:
    values: dict[str, str] = {}
    for session in sessions:
        roster = session.controller.roster
        name = session.context.role.name
        addresses = [roster.addresses.get(node, roster.master_addr) for node in roster.nodes]
        values[f"{name}.address"] = roster.master_addr
        values[f"{name}.addresses"] = ",".join(addresses)
        values[f"{name}.port"] = str(roster.master_port)  # which its nodes have reached: Ray's head listens there
        values[f"{name}.hosts"] = ",".join(node.host for node in session.cluster.nodes)
        for port, number in zip(session.context.ports, roster.ports, strict=False):
            values[f"{name}.port.{port}"] = str(number)
    return values


def _status_in_turn(session: RoleSession, sessions: Sequence[RoleSession]) -> StatusDocument | None:
    """Describe all roles in the turn of the first that goes on, once for all; None in another's turn."""
    first = next((one for one in sessions if not one.controller.is_over), session)
    if first is session:
        return status_of_roles(sessions)
    first.recording.is_changed |= session.recording.is_changed
    session.recording.is_changed = False
    return None


def status_of_roles(sessions: Sequence[RoleSession]) -> StatusDocument:
    """Describe all roles as they are now; attempt, master and goodput are those of the first."""
    all_own = [session.controller.status() for session in sessions]
    if len(sessions) == 1:
        return all_own[0]
    nodes: list[NodeStatus] = []
    for session, own in zip(sessions, all_own, strict=True):
        nodes += [dataclasses.replace(node, role=session.context.role.name) for node in own.nodes]
    first = all_own[0]
    going_on = [own.state for own in all_own if own.state != State.OVER.value]
    state = first.state if first.state in going_on or not going_on else going_on[0]
    ranks = sum(own.world_size or 0 for own in all_own) or None
    return dataclasses.replace(first, state=state, world_size=ranks, nodes=tuple(nodes))


def result_of_roles(sessions: Sequence[RoleSession], ended_t: float) -> ResultDocument:
    """Make the result of a run of the results of its roles: the role that failed first says why it failed."""
    results = {session.context.role.name: session.own_result(ended_t) for session in sessions}
    first = results[sessions[0].context.role.name]
    if len(sessions) == 1:
        return first
    culprit = at_fault([session.role_end for session in sessions])
    merged = first
    if culprit is not None and culprit.verdict is not None:
        name = culprit.role.name
        own = results[name]
        printed = next(_printed_last(session) for session in sessions if session.context.role is culprit.role)
        part = name_of(culprit.role, culprit.verdict.finding.where.rank)
        verdict = in_role(culprit.verdict, name, printed, part)
        merged = dataclasses.replace(
            first, exit=own.exit, program_exit=own.program_exit, verdict=verdict, no_requeue=own.no_requeue
        )
    elif first.verdict is None and sessions[0].role_end.was_ended:
        merged = dataclasses.replace(first, exit=exitcodes.DONE)
    every = list(results.values())
    return dataclasses.replace(
        merged,
        findings=tuple(finding for result in every for finding in result.findings),
        left={node: left for result in every for node, left in result.left.items()},
        unfetched={node: one for result in every for node, one in result.unfetched.items()},
        dropped={node: one for result in every for node, one in result.dropped.items()},
        undecodable={source: count for result in every for source, count in result.undecodable.items()},
        outputs={node: one for result in every for node, one in result.outputs.items()},
        roles={session.context.role.name: session.role_result(results) for session in sessions},
    )


def _printed_last(session: RoleSession) -> list[str]:
    verdict = session.verdict
    node = session.controller.roster.nodes.get((verdict.finding.where.node if verdict is not None else None) or "")
    if verdict is None or verdict.cause != "role-not-ready" or node is None:
        return []
    lines: list[str] = []
    for rank in node.ranks:
        log = session.run_dir.log_path(node.index, node.name, RANK_LOG, rank, session.controller.roster.attempt)
        with contextlib.suppress(OSError):
            lines += read_end(log, LOG_END).decode("utf-8", "replace").splitlines()[-LAST_LINES:]
    return [line for line in lines[-LAST_LINES:] if line.strip()]


def directories_of(parts: Sequence[RolePart], run: RunDirectory) -> list[tuple[RolePart, RunDirectory]]:
    """Give each role its place in the run directory: the first whose success ends the run has the run's own."""
    ordered = sorted(parts, key=lambda part: not part.role.is_plain and part.role.ends != "run")
    return [(part, run if part is ordered[0] else run.of_role(part.role.name)) for part in ordered]
