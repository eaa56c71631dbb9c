"""The roles of a run side by side: each has a controller with a gang of its own, and they share the run directory (IO).

`roles.Conductor` decides, this carries it out, and makes one status of those of all roles. A plain run is one
controller, and nothing here changes what it does.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from functools import partial

from allranks.diagnose.roles import DONE
from allranks.protocol.run_facts import Fact
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import NodeStatus, StatusDocument

from .controller import Controller
from .roles import Conductor, EndRole, RoleDecision, RolePart
from .states import MayStart, State


def conduct(controllers: Sequence[Controller]) -> None:
    """Let each role start in its turn, and let the end of one be that of the others, where it is to be."""
    by_name = {controller.context.role.name: controller for controller in controllers}
    conductor = Conductor([controller.context.role for controller in controllers])

    def carry_out(decision: RoleDecision) -> None:
        name, event = decision
        controller = by_name[name]
        if isinstance(event, MayStart):
            controller.feed(MayStart(_values_of(controllers)))
        elif not isinstance(event, EndRole):
            controller.feed(event)
        elif not event.delay:
            limits = controller.spec.limits
            grace = limits.stop_grace if event.reason == DONE else limits.grace
            controller.stop(event.reason, grace)
        else:
            later = (name, event._replace(delay=0.0))
            asyncio.get_running_loop().call_later(event.delay, carry_out, later)

    def take(name: str, fact: Fact) -> None:
        for decision in conductor.take(name, fact):  # none before the loop runs
            # the gang whose fact it is decides to the end first
            asyncio.get_running_loop().call_soon(carry_out, decision)

    for controller in controllers:
        controller.recording.watch = partial(take, controller.context.role.name)
        controller.recording.whole_status = partial(_status_in_turn, controller, controllers)


def _values_of(controllers: Sequence[Controller]) -> dict[str, str]:
    values: dict[str, str] = {}
    for controller in controllers:
        roster = controller.roster
        name = controller.context.role.name
        addresses = [roster.addresses.get(node, roster.master_addr) for node in roster.nodes]
        values[f"{name}.address"] = roster.master_addr
        values[f"{name}.addresses"] = ",".join(addresses)
        values[f"{name}.port"] = str(roster.master_port)  # which its nodes have reached: Ray's head listens there
        values[f"{name}.hosts"] = ",".join(node.host for node in controller.roster.cluster.nodes)
        for port, number in zip(controller.context.ports, roster.ports, strict=False):
            values[f"{name}.port.{port}"] = str(number)
    return values


def _status_in_turn(controller: Controller, controllers: Sequence[Controller]) -> StatusDocument | None:
    """Describe all roles in the turn of the first that goes on, once for all; None in another's turn."""
    first = next((one for one in controllers if not one.is_over), controller)
    if first is controller:
        return status_of_roles(controllers)
    first.recording.is_changed |= controller.recording.is_changed
    controller.recording.is_changed = False
    return None


def status_of_roles(controllers: Sequence[Controller]) -> StatusDocument:
    """Describe all roles as they are now; attempt, master and goodput are those of the first."""
    all_own = [controller.status() for controller in controllers]
    if len(controllers) == 1:
        return all_own[0]
    nodes: list[NodeStatus] = []
    for controller, own in zip(controllers, all_own, strict=True):
        nodes += [dataclasses.replace(node, role=controller.context.role.name) for node in own.nodes]
    first = all_own[0]
    going_on = [own.state for own in all_own if own.state != State.OVER.value]
    state = first.state if first.state in going_on or not going_on else going_on[0]
    ranks = sum(own.world_size or 0 for own in all_own) or None
    return dataclasses.replace(first, state=state, world_size=ranks, nodes=tuple(nodes))


def directories_of(parts: Sequence[RolePart], run: RunDirectory) -> list[tuple[RolePart, RunDirectory]]:
    """Give each role its place in the run directory: the first whose success ends the run has the run's own."""
    ordered = sorted(parts, key=lambda part: not part.role.is_plain and part.role.ends != "run")
    return [(part, run if part is ordered[0] else run.of_role(part.role.name)) for part in ordered]
