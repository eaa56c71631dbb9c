"""States of a gang, what happens to it beside the messages of its nodes, and its actions."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from allranks.cluster import Node
from allranks.findings import Finding
from allranks.protocol.messages import Message
from allranks.protocol.orders import Order
from allranks.protocol.run_facts import (
    Fact,
    LauncherPaused,
    NodeBack,
    NodeLost,
    NodeSilent,
    RoleLooked,
    Stamped,
    StopAsked,
)


class State(enum.Enum):
    """Where the gang stands."""

    GATHERING = "starting"  # nodes connect, say hello, are looked at
    LISTENING = "gating"  # the master opens the proof port
    PROVING = "proving"  # every node tries every offered address
    RUNNING = "running"  # ranks are started and watched
    ENDING = "ending"  # every rank is being ended, everywhere
    OVER = "over"


# -- what the controller tells, of no line in events.jsonl -----------------------------------------------


class NodeUnreachable(NamedTuple):
    """A node could not be reached at the start; final."""

    finding: Finding


class NodeListed(NamedTuple):
    """The host list has a node that no one has reached yet."""

    node: Node


class UserSignal(NamedTuple):
    """SIGUSR1 or SIGUSR2 for the ranks. It came to `source`: a node's task, or the controller ("")."""

    name: str
    source: str = ""


class Quiet(NamedTuple):
    """No rank has shown anything since `since`, by the clock of the limits. Comes again while it lasts."""

    since: float


class StepShown(NamedTuple):
    """How far the furthest rank is; stamped with the time at which it showed that."""

    step: int


class MayStart(NamedTuple):
    """The ranks of a role may start: `peers` has the addresses of all roles, by placeholder."""

    peers: Mapping[str, str]


class LookWanted(NamedTuple):
    """Another role may wait for this one: its ranks are looked at."""


class LooksComing(NamedTuple):
    """It will be known what the ranks of these roles do."""

    roles: tuple[str, ...]


class RoleSeen(NamedTuple):
    """What the ranks of another role do."""

    role: str
    look: RoleLooked


class EachSecond(NamedTuple):
    """Comes every second while ranks run: the step that the slowest rank has reached."""

    step: int | None = None


class Audited(NamedTuple):
    """What the ranks' first batches in an attempt say of how the data is split, or rules of --fail-on that hold."""

    attempt: int
    findings: tuple[Finding, ...]


class Tick(NamedTuple):
    """Time goes on. `has_line`: a rank has printed what its role's ready test looks for."""

    has_line: bool = False


Event = (
    Message
    | NodeUnreachable
    | NodeSilent
    | NodeBack
    | NodeLost
    | LauncherPaused
    | StopAsked
    | UserSignal
    | NodeListed
    | Quiet
    | StepShown
    | MayStart
    | LookWanted
    | LooksComing
    | RoleSeen
    | EachSecond
    | Audited
    | Tick
)


# -- actions -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """An order to a node's agent."""

    node: str
    order: Order


class AttemptOver:
    """The attempt has ended everywhere: the controller judges it and answers with `retry` or `finish`."""


@dataclass(frozen=True)
class Reach:
    """A node is reached again after `pause` seconds, with an agent of its own: its old one is lost or has died."""

    node: str
    pause: float = 0.0


@dataclass(frozen=True)
class Admit:
    """A node takes part from now on: it is reached for the first time."""

    node: Node


Action = Send | Stamped[Fact] | AttemptOver | Reach | Admit
