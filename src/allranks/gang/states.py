"""States, events and actions of a gang, and the table that says which event is handled in which state.

An event that stands in no row of the present state is never acted on. It is out of order, and is noted, unless it
comes late: it belongs to an attempt that is over.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from allranks.diagnose.hangs.doing import StackSample
from allranks.diagnose.stragglers.lateness import ClockEstimate
from allranks.findings import Finding
from allranks.protocol.calltimes import LinkCount, RankCalls, SuspectLook
from allranks.protocol.foreign import CalledGroup
from allranks.protocol.jsontext import JsonObject
from allranks.protocol.messages import (
    AddressProbe,
    AttemptSummary,
    ExitMessage,
    PortFailure,
    RankSaving,
    WorldMessage,
)
from allranks.protocol.orders import Order
from allranks.protocol.processes import ImportRecord, RemainingProcess
from allranks.protocol.run_facts import Fact, Stamped
from allranks.protocol.usage import NodeUsage


class State(enum.Enum):
    """Where the gang stands."""

    GATHERING = "starting"  # nodes connect, say hello, are looked at
    LISTENING = "gating"  # the master opens the proof port
    PROVING = "proving"  # every node tries every offered address
    RUNNING = "running"  # ranks are started and watched
    ENDING = "ending"  # every rank is being ended, everywhere
    OVER = "over"


# -- events --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """Something that happened on a node; `node` is its name, `t` its time on the controller's clock."""

    node: str
    t: float


@dataclass(frozen=True)
class Hello(Event):
    """An agent (or what is left of one: `dead`) answers."""

    node_dir: str
    hostname: str
    dead: bool = False
    how: str = ""
    attempt: AttemptSummary | None = None


@dataclass(frozen=True)
class Shipped(Event):
    """The synced tree lies on a node, or `error` says why it does not."""

    sha256: str = ""
    files: int = 0
    path: str = ""
    error: str = ""
    errno: int | None = None


@dataclass(frozen=True)
class FactsCollected(Event):
    """The look at a node is done."""

    facts: JsonObject
    error: str = ""


@dataclass(frozen=True)
class Listening(Event):
    """The master's proof port is open, or could not be."""

    port: int = 0
    error: PortFailure | None = None


@dataclass(frozen=True)
class Probed(Event):
    """A node has tried the offered addresses; `shared`: it sees the output directory's nonce."""

    results: tuple[AddressProbe, ...] = ()
    error: str = ""
    shared: bool = True


@dataclass(frozen=True)
class Started(Event):
    """A rank's process runs."""

    rank: int
    pid: int
    attempt: int


@dataclass(frozen=True)
class WorldSeen(Event):
    """Another launcher has made a world below a node's ranks."""

    attempt: int
    world: WorldMessage

    @property
    def is_whole(self) -> bool:
        """Tell whether no rank of it is on another node."""
        return self.world.here == self.world.size


@dataclass(frozen=True)
class TemplateReady(Event):
    """A node has a process that has imported what its ranks import."""


@dataclass(frozen=True)
class ImportsTold(Event):
    """What the template of a node has imported; nothing where it has none any more."""

    imports: ImportRecord


@dataclass(frozen=True)
class Report(Event):
    """The runner says: init-entered, initialised, destroyed, raised, leaving, threads-ended; agent/observing.py:
    `main-gone`, became; agent/runner_launched.py: alone; program.py: saves.

    `size` is the process group's. Of a program that leaves: the `code` of its process and the names of the `threads`
    that this waits for; `program` is what a rank has become by exec; `at` is where it has
    destroyed its process group. `limit`: seconds after which that gives up a collective."""

    rank: int
    what: str
    size: int = 0
    code: int = 0
    threads: tuple[str, ...] = ()
    program: str = ""
    step: int | None = None
    at: str = ""
    limit: float | None = None


@dataclass(frozen=True)
class Exit(Event):
    """A rank's main process ended."""

    rank: int
    attempt: int
    code: int | None
    signal: int | None
    expected: bool
    oom_kills: int = 0
    error: JsonObject | None = None
    calls: Mapping[int, tuple[CalledGroup, ...]] = field(default_factory=dict)


def read_exit(node: str, message: ExitMessage, t: float) -> Exit:
    """Give the event of a rank's end; `t` is its corrected time."""
    return Exit(
        node,
        t,
        message.rank,
        message.attempt,
        message.code,
        message.signal,
        message.expected,
        message.oom_kills,
        message.error,
        message.calls,
    )


@dataclass(frozen=True)
class Ended(Event):
    """A node has ended its ranks: `left` is what it could not end. Reason `lease`: its lease ran out, no order came."""

    attempt: int
    left: tuple[RemainingProcess, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Drained(Event):
    """All output of a node has arrived; `outputs` is where the program's own files stay, if there are any."""

    attempt: int
    outputs: str | None = None


@dataclass(frozen=True)
class Fault(Event):
    """An agent, or the way to it, reports a failure of its own."""

    id: str
    message: str
    rank: int | None = None


@dataclass(frozen=True)
class Unreachable(Event):
    """A node could not be reached at the start; final."""

    finding: Finding


@dataclass(frozen=True)
class Silent(Event):
    """Nothing is heard from a node for several beats; the channel is being renewed."""


@dataclass(frozen=True)
class Back(Event):
    """A silent node is heard again."""


@dataclass(frozen=True)
class Lost(Event):
    """A node was silent for the whole lease: its agent has ended its ranks by itself, if it lives."""

    last_heard: float


@dataclass(frozen=True)
class Stop(Event):
    """The user or the system wants the run to end; `node` is empty."""

    reason: str
    grace: float


@dataclass(frozen=True)
class UserSignal(Event):
    """SIGUSR1 or SIGUSR2 for the ranks; `node` is empty. It came to `source`: a node's task, or the controller ("")."""

    name: str
    source: str = ""


@dataclass(frozen=True)
class Quiet(Event):
    """No rank has shown anything since `since`, by the clock of the limits; `node` is empty. Comes again while it
    lasts."""

    since: float


@dataclass(frozen=True)
class Stacks(Event):
    """What a node's ranks are doing, by rank; `ras`: NCCL's word."""

    samples: Mapping[int, StackSample]
    ras: str = ""


@dataclass(frozen=True)
class Counters(Event):
    """How many collectives a node's ranks have begun and done, by rank, in numbers that only grow."""

    ranks: Mapping[int, JsonObject]


@dataclass(frozen=True)
class Used(Event):
    """What a node's machine did in the seconds before `t`."""

    usage: NodeUsage


@dataclass(frozen=True)
class StepShown(Event):
    """How far the furthest rank is; `node` is empty, `t` is when it showed that."""

    step: int


@dataclass(frozen=True)
class CallTimes(Event):
    """When a node's ranks called their newest collectives, by its `clock`, and what was seen of suspects."""

    ranks: Mapping[int, RankCalls]
    clock: ClockEstimate
    links: tuple[LinkCount, ...] = ()
    suspects: Mapping[int, SuspectLook] = field(default_factory=dict)


@dataclass(frozen=True)
class EachSecond(Event):
    """Come every second while ranks run: the step that the slowest rank has reached; `node` is empty."""

    step: int | None = None


@dataclass(frozen=True)
class SavingAnswer(Event):
    """How far a node's ranks are with a request to save; the first fields are those of the order that it answers."""

    attempt: int
    request: int
    phase: str
    step: int
    ranks: Mapping[int, RankSaving]


@dataclass(frozen=True)
class Audited(Event):
    """What the ranks' first batches say of how the data is split; `node` is empty."""

    attempt: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Paused(Event):
    """The controller itself did not run for `seconds`: its machine slept, or its process was stopped; `node` is
    empty. `ended`: the process had ended, and this one has taken the run over. `waited`: see LauncherPaused."""

    seconds: float
    slept: bool
    ended: bool = False
    waited: str = ""


@dataclass(frozen=True)
class Tick(Event):
    """Time goes on; `node` is empty."""


# A node may say these twice (the end is asked for again after a reconnect), and the second word may come late.
OF_AN_ATTEMPT = (Started, WorldSeen, Exit, Ended, Drained, Audited, SavingAnswer)


# -- actions -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """An order to a node's agent."""

    node: str
    order: Order


@dataclass(frozen=True)
class AttemptOver:
    """An attempt has ended everywhere: the controller judges it and answers with `retry` or `finish`."""

    attempt: int


@dataclass(frozen=True)
class Reach:
    """A node is reached again after `pause` seconds, with an agent of its own: its old one is lost or has died."""

    node: str
    pause: float = 0.0


Action = Send | Stamped[Fact] | AttemptOver | Reach

# -- the table -----------------------------------------------------------------------------------------

_ALWAYS: dict[type[Event], str] = {
    Stop: "ending.on_stop",
    Paused: "connections.on_paused",
    Silent: "connections.on_silent",
    Back: "connections.on_back",
    Lost: "connections.on_lost",
    Fault: "connections.on_fault",
    Hello: "connections.on_hello",
    TemplateReady: "preloading.on_template",
    ImportsTold: "preloading.on_imports",
}

# A node that stands by, in any state of the gang: whatever happens to it ends nothing.
SPARE_TABLE: dict[type[Event], str] = {
    Hello: "spares.on_hello",
    Shipped: "spares.on_shipped",
    FactsCollected: "spares.on_facts",
    Unreachable: "spares.on_unreachable",
    Fault: "spares.on_fault",
    Silent: "spares.on_silent",
    Back: "spares.on_back",
    Lost: "spares.on_lost",
}

TABLE: dict[State, dict[type[Event], str]] = {
    State.GATHERING: {
        **_ALWAYS,
        Tick: "gathering.on_tick",
        Shipped: "gathering.on_shipped",
        FactsCollected: "gathering.on_facts",
        Unreachable: "gathering.on_unreachable",
        UserSignal: "signals.on_early_signal",
    },
    State.LISTENING: {
        **_ALWAYS,
        Tick: "ending.on_tick_of_start",
        Listening: "rendezvous.on_listening",
        UserSignal: "signals.on_early_signal",
    },
    State.PROVING: {
        **_ALWAYS,
        Tick: "ending.on_tick_of_start",
        Probed: "rendezvous.on_probed",
        UserSignal: "signals.on_early_signal",
    },
    State.RUNNING: {
        **_ALWAYS,
        Stop: "saving.on_stop",
        SavingAnswer: "saving.on_answer",
        Tick: "running.on_tick",
        Started: "running.on_started",
        WorldSeen: "running.on_world",
        Report: "running.on_report",
        Exit: "running.on_exit",
        Ended: "ending.on_ended",
        Quiet: "hang_watch.on_quiet",
        Stacks: "hang_watch.on_stacks",
        Counters: "hang_watch.on_counters",
        Used: "pace.on_used",
        StepShown: "pace.on_step",
        EachSecond: "stragglers.on_pace",
        CallTimes: "stragglers.on_call_times",
        Audited: "running.on_audited",
        UserSignal: "signals.on_user_signal",
    },
    State.ENDING: {
        **_ALWAYS,
        Tick: "ending.on_tick",
        Started: "running.on_started",
        WorldSeen: "ignore",
        Report: "running.on_report",
        Exit: "running.on_exit",
        Ended: "ending.on_ended",
        Drained: "ending.on_drained",
        UserSignal: "signals.on_user_signal",
        SavingAnswer: "saving.on_answer",
        # late answers of a start that is being given up
        Shipped: "ignore",
        FactsCollected: "ignore",
        Listening: "ignore",
        Probed: "ignore",
        Unreachable: "gathering.on_unreachable",
        Stacks: "ignore",
        Counters: "ignore",
        Used: "ignore",
        StepShown: "ignore",
        CallTimes: "ignore",
        EachSecond: "ignore",
        Quiet: "ignore",
        Audited: "ignore",
    },
    State.OVER: {
        Stop: "ignore",  # an engine's SIGTERM comes to every node's task, to the last ones late
        WorldSeen: "ignore",
        Stacks: "ignore",
        Counters: "ignore",
        Used: "ignore",
        StepShown: "ignore",
        CallTimes: "ignore",
        EachSecond: "ignore",
        Quiet: "ignore",
        Audited: "ignore",
        SavingAnswer: "ignore",
        UserSignal: "ignore",
        Tick: "ignore",
        Paused: "ignore",
        Hello: "ignore",
        TemplateReady: "ignore",
        ImportsTold: "ignore",
        Ended: "ignore",
        Drained: "ignore",
        Back: "ignore",
        # of a start that was given up
        Shipped: "ignore",
        FactsCollected: "ignore",
        Listening: "ignore",
        Probed: "ignore",
        Unreachable: "ignore",
    },
}
