"""The gang's state machine: event sequences → actions, with time as a parameter.

A script has a step a line, and after `|` the actions it must give, in order: `setup>h1` is a message to h1
(`>*`: to all nodes, one after the other), other words are events of events.jsonl, `OVER` is the end of the attempt.
`hello h1,h2 | setup>@` is a step of h1, then one of h2, which gives each the message.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.campaign import examples

from allranks.cluster import Cluster, Node
from allranks.findings import Finding, Hang, Where
from allranks.gang.ending import END_PATIENCE
from allranks.gang.gang import Gang
from allranks.gang.gathering import GATHER_PATIENCE
from allranks.gang.members import of_deepspeed
from allranks.gang.places import RunContext
from allranks.gang.plugins import built_in
from allranks.gang.policy import Decision
from allranks.gang.rendezvous import PORT_REPEATS
from allranks.gang.resuming import spares_of
from allranks.gang.states import Action, Admit, AttemptOver, Audited, Event, NodeUnreachable, Reach, Send, State, Tick
from allranks.protocol.codec import decode
from allranks.protocol.foreign import ReportMessage
from allranks.protocol.messages import (
    AddressProbe,
    AttemptSummary,
    DrainedMessage,
    EndedMessage,
    ExitMessage,
    FactsMessage,
    FaultMessage,
    HelloMessage,
    ListeningMessage,
    PortFailure,
    ProbedMessage,
    StartedMessage,
)
from allranks.protocol.orders import ORDERS
from allranks.protocol.processes import RemainingProcess
from allranks.protocol.run_facts import (
    NAMES,
    AttemptStart,
    Fact,
    GateProved,
    NodeBack,
    NodeLost,
    NodeSilent,
    PlanMade,
    Stamped,
    StopAsked,
    SuitePassed,
    write_line,
)
from allranks.runs.documents import GOING_ON
from allranks.settings import RunSpec

PORT = 29500
BEGIN = 1000.0


def test_whoever_reads_a_run_knows_every_state_of_a_gang() -> None:
    """`proving` stood in status.json, and metrics and `diagnose` took it for no state of a run that goes on."""
    assert tuple(state.value for state in State if state is not State.OVER) == GOING_ON


def facts_of(index: int, **parts: Any) -> dict[str, Any]:
    """One interface on a common network: all that the gate needs to know."""
    item = {"address": f"10.0.0.{index + 1}", "prefix": 24, "family": 4, "scope": "global"}
    eth0 = {"name": "eth0", "up": True, "running": True, "loopback": False, "addresses": [item]}
    identity = {"boot_id": f"boot{index}", "netns": 1, "pidns": 1}
    return {"interfaces": [eth0], "identity": identity, "nccl": {"environ": {}}, **parts}


def reached(index: int, ok: bool = True) -> tuple[AddressProbe, ...]:
    probe = AddressProbe("10.0.0.1", ok, seconds=0.01, local_address=f"10.0.0.{index + 1}")
    return (probe if ok else probe._replace(error="timeout", text="no answer"),)


def unreachable(node: str) -> Finding:
    return Finding("ssh-unreachable", "fail", f"{node}: Connection refused", "Is it up?", Where(node=node))


# notes for `diagnose`, and one that every start on hosts has
EVIDENCE = ("outputs-temporary", "plan", "failed", "stop-asked", "init-timeout", "rank-entered", "rank-departed")


def known_of(gang: Gang) -> dict[str, object]:
    """What a gang knows that holds whoever controls it."""
    roster = gang.roster
    ranks = {
        rank.rank: (node.name, rank.local_rank, rank.state, rank.pid, rank.entered, rank.initialised_t, rank.exit)
        for node in roster.nodes.values()
        for rank in node.ranks.values()
        if rank.pid is not None
    }
    return {
        "attempt": roster.attempt,
        "ranks": ranks,
        "master": roster.master_addr if ranks and not roster.stop_reason else "",
        "nodes": {node.name: (node.state == "lost", node.ended, node.left) for node in roster.nodes.values()},
        "ending": roster.state in (State.ENDING, State.OVER),
        "stop": roster.stop_reason,
        "exits": roster.exits,
        "lost": roster.lost,
        "faults": roster.faults,
        "failed": (roster.failed_t, roster.failed_at),
        "initialised": (roster.initialised_t, roster.group_limit, roster.init_timeout_hit),
        "findings": sorted(str(f) for f in roster.findings if f.status in ("warn", "fail")),
        "departures": {rank.rank: rank.departure.failed for rank in roster.ranks() if rank.pid is not None},
        "testing": roster.testing,
        "regrows": gang.world.regrows,
        "verdict": roster.last_verdict,
        "hang": gang.hang_watch.hang,
    }


class Drive:
    """A gang with its clock; every step gives the actions as words and keeps what was sent."""

    def __init__(
        self, count: int = 3, nproc: int | None = 1, expected: int | None = None, spares: int = 0, **spec: Any
    ) -> None:
        self.spec = RunSpec.of(command=("train.py",), nproc=nproc, **{"preload": "never", **spec})
        every = tuple(Node(i, f"h{i}", f"h{i}", None, None, None, False) for i in range(count + spares))
        setting = RunContext("run-1", "uid-1", "token", "/work", "/runs/run-1/outputs", expected_world_size=expected)
        self.at, self.skew, self.node_skew = BEGIN, 0.0, 0.0
        self.gang = Gang(self.spec, Cluster(every[:count], "test", every[count:]), setting, self.at, self.now)
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.notes: list[Stamped[Fact]] = []
        self.overs: list[int] = []
        self.compares = True  # what it knows with its log, after each step
        self.roster = self.gang.roster
        self._perform(self.gang.begin())

    @property
    def hang(self) -> Hang | None:
        """The hang that has been concluded."""
        return self.gang.hang_watch.hang

    @property
    def names(self) -> list[str]:
        return list(self.roster.nodes)

    def _perform(self, actions: list[Action]) -> list[str]:
        words = []
        for action in actions:
            if isinstance(action, Send):
                assert self.roster.everyone[action.node].node_dir, "a message is for an agent that has spoken"
                self.sent.append((action.node, ORDERS.write(action.order)))
                words.append(f"{ORDERS.word(action.order)}>{action.node}")
            elif isinstance(action, Stamped):
                self.notes.append(action)
                name = NAMES[type(action.fact)]
                words += [name] if name not in EVIDENCE else []
            elif isinstance(action, Admit):
                words.append(f"admit>{action.node.name}")
            elif isinstance(action, Reach):
                words.append(f"reach>{action.node}" + (f" in {action.pause:g} s" if action.pause else ""))
            else:
                assert isinstance(action, AttemptOver)
                self.overs.append(self.roster.attempt)
                words.append("OVER")
        return words

    @property
    def now(self) -> float:
        """Unix time: that of the controller, whose clock may have been set by `skew`."""
        return self.at + self.skew

    @now.setter
    def now(self, value: float) -> None:
        self.at = value - self.skew

    def feed(self, fact: Event, node: str = "", t: float | None = None) -> list[str]:
        """A fact of now, by the clock of its node."""
        happened = (self.now if t is None else t) + (self.node_skew if node else 0.0)
        stamped = Stamped(node, happened, self.roster.attempt, fact)
        words = self._perform(self.gang.handle(stamped, self.at, self.now))
        if self.compares and not self.skew:  # a log is read by the clock of who reads it
            self.compare_with_its_log()
        return words

    def resumed(self) -> Gang:
        """The gang of another controller that has the log of this one."""
        roster = self.roster
        gang = Gang(self.spec, roster.cluster, roster.context, self.at, self.now)
        gang.resuming.resume(self.notes, self.at, self.now)
        return gang

    def compare_with_its_log(self) -> None:
        """A run is its log: what its facts say is what its gang knows."""
        assert known_of(self.resumed()) == known_of(self.gang)

    def last(self, kind: str) -> dict[str, Any]:
        """The newest message of a kind."""
        return next(m for _, m in reversed(self.sent) if m["type"] == kind)

    def said(self, event: str) -> list[dict[str, Any]]:
        lines = [write_line(note) for note in self.notes if NAMES[type(note.fact)] == event]
        of_stamp = ("t", "event", "attempt")
        return [{name: value for name, value in line.items() if name not in of_stamp} for line in lines]

    def times(self, event: str) -> list[float]:
        return [note.t for note in self.notes if NAMES[type(note.fact)] == event]

    # -- one method a word of the scripts ------------------------------------------------------------

    def hello(self, node: str, attempt: dict[str, Any] | None = None, **parts: Any) -> list[str]:
        decoded = decode(AttemptSummary, attempt) if attempt is not None else None
        return self.feed(HelloMessage(f"/tmp/allranks-0/{node}", node, attempt=decoded, **parts), node)

    def dead(self, node: str, how: str = "was killed by signal 9", attempt: dict[str, Any] | None = None) -> list[str]:
        return self.hello(node, attempt, dead=True, how=how)

    def facts(self, node: str, error: str = "") -> list[str]:
        return self.feed(FactsMessage(facts_of(int(node[1:])), error=error), node)

    def unreachable(self, node: str) -> list[str]:
        return self.feed(NodeUnreachable(unreachable(node)), node)

    def listening(self, node: str = "h0", error: str = "") -> list[str]:
        failure = PortFailure(PORT, error, "no") if error else None
        return self.feed(ListeningMessage(0 if error else PORT, failure), node)

    def probed(self, node: str, ok: str = "ok") -> list[str]:
        return self.feed(ProbedMessage(reached(int(node[1:]), ok == "ok")), node)

    def started(self, rank: str) -> list[str]:
        node = self.node_of(int(rank))
        return self.feed(StartedMessage(int(rank), 100 + int(rank), self.roster.attempt), node)

    def entered(self, rank: str) -> list[str]:
        return self.feed(ReportMessage("init-entered", int(rank)), self.node_of(int(rank)))

    def initialised(self, rank: str) -> list[str]:
        return self.feed(ReportMessage("initialised", int(rank)), self.node_of(int(rank)))

    def exit(self, rank: str, how: str, error: str = "", expected: bool = False) -> list[str]:
        """`code=N` or `signal=N`."""
        kind, number = how.split("=")
        document = {"message": {"message": error.replace("_", " ")}} if error else None
        code, signal = (int(number), None) if kind == "code" else (None, int(number))
        node = self.node_of(int(rank))
        end = ExitMessage(int(rank), self.roster.attempt, None, code, signal, expected, error=document)
        return self.feed(end, node)

    def ended(self, node: str, reason: str = "") -> list[str]:
        return self.feed(EndedMessage(self.roster.attempt, (), reason), node)

    def drained(self, node: str) -> list[str]:
        return self.feed(DrainedMessage(self.roster.attempt), node)

    def done(self, node: str) -> list[str]:
        return self.ended(node) + self.drained(node)

    def fault(self, node: str, kind: str = "start-failed") -> list[str]:
        return self.feed(FaultMessage(kind, "no"), node)

    def silent(self, node: str) -> list[str]:
        return self.feed(NodeSilent(), node)

    def back(self, node: str) -> list[str]:
        return self.feed(NodeBack(), node)

    def lost(self, node: str) -> list[str]:
        return self.feed(NodeLost(self.now - self.spec.limits.lease), node)

    def stop(self, grace: str = "30", reason: str = "ctrl-c") -> list[str]:
        return self.feed(StopAsked(reason, float(grace)))

    def tick(self, seconds: str = "0.2") -> list[str]:
        self.now += float(seconds)
        return self.feed(Tick())

    def retry(self, kind: str = "retry", pause: float = 0.0, **replace: str) -> list[str]:
        return self.follow(Decision(kind, "", replace, pause))

    def follow(self, decision: Decision) -> list[str]:
        """Begin the attempt that was decided on."""
        if decision.kind == "train":
            self.notes.append(Stamped("", self.now, self.roster.attempt, SuitePassed()))  # as the session writes it
        return self._perform(self.gang.retry(self.at, decision))

    # -- shortcuts -----------------------------------------------------------------------------------

    def node_of(self, rank: int) -> str:
        for name, node in self.roster.nodes.items():
            if rank in node.ranks:
                return name
        return self.names[-1]

    def gathered(self) -> Drive:
        for name in self.names:
            self.hello(name)
        for name in self.names:
            self.facts(name)
        assert self.roster.state is State.LISTENING
        return self

    def proved(self) -> Drive:
        """Through the gate: `start` has been sent."""
        self.listening()
        for name in self.names:
            self.probed(name)
        assert self.roster.state is State.RUNNING
        return self

    def running(self) -> Drive:
        if self.roster.state is State.GATHERING:
            self.gathered()
        self.proved()
        for rank in [r.rank for r in self.roster.ranks()]:
            self.started(str(rank))
        return self

    def through_the_end(self) -> Drive:
        for name in self.names:
            self.done(name)
        assert self.roster.state is State.OVER
        return self

    def again(self, rank: str) -> Drive:
        """A rank fails, every node ends, and the next attempt runs."""
        self.exit(rank, "code=1")
        self.through_the_end().retry()
        return self.running()


def play(script: str, drive: Drive | None = None, **spec: Any) -> Drive:
    """Runs a script and compares every step's actions."""
    drive = drive or Drive(**spec)
    for line in script.strip().splitlines():
        step, _, expected = line.partition("|")
        verb, *words = step.split()
        method: Callable[..., Any] = getattr(drive, verb)
        for one in words[0].split(",") if words else [""]:
            given = method(*filter(None, [one, *words[1:]]))
            if isinstance(given, Drive):
                continue
            wanted = []
            for word in expected.replace(">@", f">{one}").split():
                many = word.endswith(">*")
                wanted += [f"{word[:-1]}{name}" for name in drive.names] if many else [word]
            assert given == wanted, f"after {verb} {one} in state {drive.roster.state}"
    return drive


# -- the whole way -----------------------------------------------------------------------------------


def test_from_the_first_hello_to_the_end() -> None:
    drive = play("""
        hello h1,h0      | node-ready setup>@
        facts h1        | facts
        hello h2        | node-ready setup>h2
        facts h2        | facts
        facts h0        | facts listen>h0
        listening       | gate-listening probe>*
        probed h2,h0     |
        probed h1       | gate-proved start>*
        started 0,1,2    | rank-started
        entered 1       |
        initialised 0,1  | rank-initialised
        initialised 2   | rank-initialised all-initialised
        initialised 2   |
        tick            |
        exit 0,2 code=0  | rank-exit
        exit 1 code=0   | rank-exit ending end>*
        done h0,h1       | node-clean
        done h2          | node-clean OVER
        tick            |
    """)
    assert drive.roster.exits and drive.roster.failed_t is None
    (ending,) = drive.said("ending")
    assert (ending["reason"], ending["grace"]) == ("done", drive.spec.limits.grace)
    assert [m["attempt"] for _, m in drive.sent if m["type"] == "start"] == [0, 0, 0]
    assert [r["rank"] for _, m in drive.sent if m["type"] == "start" for r in m["ranks"]] == [0, 1, 2]
    assert (drive.roster.master_addr, drive.roster.master_port) == ("10.0.0.1", PORT)


def test_times_are_those_of_the_events() -> None:
    drive = Drive(count=1).running()
    drive.now = BEGIN + 50
    drive.feed(ReportMessage("initialised", 0), "h0", t=BEGIN + 7.5)
    assert drive.said("all-initialised") == [{"seconds": 7.5, "ranks": 1}]
    assert drive.times("all-initialised") == [BEGIN + 7.5]


# -- gathering ---------------------------------------------------------------------------------------

GATHERING = {
    "one of three is unreachable, the others answer": """
        hello h0         | node-ready setup>h0
        unreachable h1   | finding
        tick             |
        hello h2         | node-ready ending end>h0 end>h2
        done h0          | node-clean
        done h2          | node-clean OVER
    """,
    "one is unreachable, another never answers: it is given its patience": f"""
        hello h0         | node-ready setup>h0
        unreachable h1   | finding
        tick             |
        tick {GATHER_PATIENCE - 1} |
        tick 1           | ending end>h0
        done h0          | node-clean OVER
    """,
    "two are unreachable: both are named": """
        hello h0         | node-ready setup>h0
        unreachable h1   | finding
        tick 1           |
        unreachable h2   | finding ending end>h0
        done h0          | node-clean OVER
    """,
    "none answers": """
        unreachable h0,h1 | finding
        unreachable h2   | finding ending OVER
    """,
    "late word of a node while the others are being ended": """
        hello h0,h1      | node-ready setup>@
        stop 5           | ending end>h0 end>h1
        hello h2         | node-ready end>h2
        through_the_end  |
    """,
    "the look was lost with the channel: it is asked for again": """
        hello h0         | node-ready setup>h0
        hello h0         | setup>h0
        facts h0         | facts
        hello h0         |
    """,
    "an agent dies during the look": """
        hello h0,h1      | node-ready setup>@
        dead h1          | fault ending end>h0 end>h1
    """,
}


@pytest.mark.parametrize("script", GATHERING.values(), ids=GATHERING)
def test_gathering(script: str) -> None:
    play(script)


def test_all_unreachable_nodes_are_found() -> None:
    drive = play(GATHERING["two are unreachable: both are named"])
    assert [f.where.node for f in drive.roster.findings] == ["h1", "h2"]


def test_a_failed_prelude_ends_it() -> None:
    """The others get a moment, so that all on which it fails are named together."""
    drive = Drive()
    for name in drive.names:
        drive.hello(name)
    error = "line 1 of the prelude ended with code 1: module load cuda\nbash: line 1: module: command not found"
    assert drive.facts("h2", error) == ["facts", "finding"]
    assert drive.facts("h0") == ["facts"]
    words = drive.facts("h1", error)
    assert words[:3] == ["facts", "finding", "ending"]
    assert [f.where.node for f in drive.roster.findings] == ["h1", "h2"]
    assert drive.roster.findings[0].message == f"h1: {error}".replace("\n", ": ")


def test_a_failed_prelude_waits_for_no_slow_node() -> None:
    drive = Drive()
    for name in drive.names:
        drive.hello(name)
    drive.facts("h1", "the prelude ended with code 1")
    drive.now += GATHER_PATIENCE - 0.1
    assert drive.feed(Tick()) == []
    drive.now += 0.2
    assert drive.feed(Tick())[0] == "ending"
    assert "h1" in drive.roster.findings[0].message


def test_a_failed_check_ends_it() -> None:
    drive = Drive(count=2)
    setting = dataclasses.replace(drive.roster.context, checks=(built_in()["workdir"],))
    drive.roster.context = setting
    for name in drive.names:
        drive.hello(name)
    drive.facts("h0")
    lacking = facts_of(1, workdir={"path": "/work", "exists": False})
    words = drive.feed(FactsMessage(lacking), "h1")
    assert words == ["facts", "looked", "finding", "ending", "end>h0", "end>h1"]
    assert drive.roster.findings[0].where.node == "h1"
    assert drive.roster.plan is None


def test_the_first_of_virtual_nodes_looks_at_their_machine_for_all() -> None:
    drive = Drive(3, local=3)
    chosen = tuple(built_in()[name] for name in ("machine", "deepspeed_config", "shm"))
    drive.roster.context = dataclasses.replace(drive.roster.context, checks=chosen)
    for name in drive.names:
        drive.hello(name)
    asked = {node: list(order["checks"]) for node, order in drive.sent if order["type"] == "setup"}
    assert asked == {"h0": ["machine", "deepspeed_config"], "h1": [], "h2": []}
    seen = {"machine": {"model": "EPYC"}}
    drive.facts("h2")
    drive.feed(FactsMessage(facts_of(0, **seen)), "h0")
    assert drive.roster.state is State.GATHERING
    drive.facts("h1")
    assert drive.roster.state is State.LISTENING
    facts = {node.name: node.facts or {} for node in drive.roster.nodes.values()}
    assert {name: one["machine"] for name, one in facts.items()} == dict.fromkeys(drive.names, seen["machine"])
    assert facts["h1"]["interfaces"] != facts["h0"]["interfaces"], "what a node says of itself stays its own"


def test_a_world_size_of_the_environment_that_differs_is_a_warning() -> None:
    drive = Drive(expected=8).gathered()
    (finding,) = drive.roster.findings
    assert (finding.id, finding.status) == ("world-size-mismatch", "warn") and "8" in finding.message


# -- the gate ----------------------------------------------------------------------------------------

GATE = {
    "the port is taken": """
        gathered
        listening h0 EADDRINUSE | finding ending end>*
    """,
    "a node does not reach the master": """
        gathered
        listening        | gate-listening probe>*
        probed h0,h1     |
        probed h2 bad    | finding ending end>*
    """,
    "an answer before the question is out of order": """
        gathered
        probed h1        | note
        listening        | gate-listening probe>*
        listening        | note
    """,
    "stop during the proof; late answers are ignored": """
        gathered
        listening        | gate-listening probe>*
        stop 30          | ending end>*
        probed h0,h1,h2  |
    """,
    "the question was lost with the channel of the master": """
        gathered
        hello h0         | listen>h0
        hello h1         |
        listening        | gate-listening probe>*
        probed h0        |
        hello h0         |
        hello h2         | probe>h2
        probed h2        |
        probed h1        | gate-proved start>*
        hello h2         | start>h2
    """,
    "a node is lost during the proof": """
        gathered
        listening        | gate-listening probe>*
        silent h1        | node-silent
        back h1          | node-back
        silent h1        | node-silent
        lost h1          | node-lost ending end>h0 end>h2
    """,
}


@pytest.mark.parametrize("script", GATE.values(), ids=GATE)
def test_gate(script: str) -> None:
    play(script)


def test_the_port_is_named() -> None:
    drive = play(GATE["the port is taken"])
    assert (drive.roster.findings[0].id, drive.roster.findings[0].where.port) == ("port-in-use", PORT)


def test_an_output_directory_that_is_not_shared_is_a_warning() -> None:
    drive = Drive(count=2, output_dir="/shared/out").gathered()
    drive.listening()
    drive.probed("h0")
    drive.feed(ProbedMessage(reached(1), shared=False), "h1")
    assert drive.roster.state is State.RUNNING
    assert [f.id for f in drive.roster.findings] == ["output-dir-not-shared"]


def test_a_node_that_could_not_try_an_address_blames_no_link() -> None:
    drive = Drive(count=2).gathered()
    drive.listening()
    error = "the rendezvous check could not be started: Resource temporarily unavailable"
    assert drive.feed(ProbedMessage(error=error), "h1")[:2] == ["finding", "ending"]
    finding = drive.roster.findings[0]
    assert (finding.id, finding.where.node, finding.where.peer) == ("unknown", "h1", None)
    assert error in finding.message and "route" not in finding.remedy


def test_no_address_to_offer() -> None:
    drive = Drive(count=2, network="192.168.0.0/16").gathered()
    assert drive.listening()[:2] == ["finding", "ending"]
    assert drive.roster.findings[0].id == "no-interface"


# -- running -----------------------------------------------------------------------------------------

RUNNING = {
    "exit 0 early is no failure": """
        exit 1 code=0    | rank-exit
        tick 100         |
        exit 0 code=0    | rank-exit
        exit 2 code=0    | rank-exit finding ending end>*
    """,
    "an exception ends all": """
        exit 1 code=1    | rank-exit ending end>*
        exit 0 signal=15 | rank-exit
        ended h0,h1      | node-clean
        exit 2 signal=15 | rank-exit
        done h2          | node-clean
        drained h1       |
        drained h0       | OVER
    """,
    "after an abort the others have the time to raise": """
        exit 1 signal=6  | rank-exit
        exit 0 code=1    | rank-exit
        tick 0.2         |
        tick 0.4         | ending end>*
    """,
    "after an abort nothing is waited for once all have raised": """
        exit 1 signal=6  | rank-exit
        exit 0 code=1    | rank-exit
        exit 2 code=1    | rank-exit ending end>*
    """,
    "an exit is counted once": """
        exit 1 code=0    | rank-exit
        exit 1 code=1    |
    """,
    "silent and back": """
        silent h1        | node-silent
        silent h1        | node-silent
        back h1          | node-back
        back h1          |
        tick 1000        |
    """,
    "a lost node ends the others, and nothing more is expected of it": """
        silent h1        | node-silent
        lost h1          | node-lost ending end>h0 end>h2
        silent h1        |
        done h0          | node-clean
        done h2          | node-clean OVER
    """,
    "the last of those that are waited for is lost": """
        stop 30          | ending end>*
        done h0,h1       | node-clean
        lost h2          | node-lost OVER
    """,
    "an agent's fault ends all": """
        fault h2 supervisor-lost | fault ending end>*
    """,
    "stop twice: the second is shorter": """
        stop 30          | ending end>*
        tick 1           |
        stop 0           | ending end>*
        stop 0           |
        stop 60          |
    """,
    "a failure in the grace of a stop shortens nothing": """
        stop 30          | ending end>*
        exit 1 code=1    | rank-exit
        fault h1 supervisor-lost | fault
        lost h2          | node-lost
    """,
    "a node that never confirms its end": f"""
        stop 2           | ending end>*
        done h0,h2       | node-clean
        tick {END_PATIENCE} |
        tick 2           | OVER
    """,
    "a node whose output never comes to its end": """
        stop 2           | ending end>*
        done h0          | node-clean
        ended h1         | node-clean
        done h2          | node-clean
        tick 20          |
        tick 60          | OVER
    """,
    "the end is asked for again after a reconnect": """
        stop 30          | ending end>*
        ended h1         | node-clean
        hello h1         | end>h1
        drained h1       |
        hello h1         |
    """,
    "out of order": """
        facts h0         | note
        listening        | note
        probed h0        | note
        drained h0       | note
        unreachable h1   | note
    """,
    "a node that ended its ranks alone: its lease was over": """
        exit 1 signal=15 | rank-exit ending end>*
        ended h1 lease   | node-clean fault
        ended h1         |
    """,
    "the same, seen by the word of its end first": """
        ended h1 lease   | node-clean fault ending end>*
    """,
}


@pytest.mark.parametrize("script", RUNNING.values(), ids=RUNNING)
def test_running(script: str) -> None:
    play(script, Drive().running())


@pytest.mark.parametrize("name", [n for n in RUNNING if "lease" in n or "the same" in n])
def test_a_lease_that_ended_is_a_fault_of_that_node(name: str) -> None:
    drive = play(RUNNING[name], Drive().running())
    assert [(f.node, f.fact.id) for f in drive.roster.faults] == [("h1", "lease-over")]


def test_a_second_stop_keeps_the_first_reason() -> None:
    drive = Drive().running()
    drive.stop("30", "ctrl-c")
    drive.stop("0", "sigterm")
    assert drive.roster.stop_reason == "ctrl-c"
    assert [m["grace"] for _, m in drive.sent if m["type"] == "end"] == [30.0] * 3 + [0.0] * 3


def test_states_of_ranks_and_nodes() -> None:
    drive = Drive(count=3).running()
    drive.initialised("0")
    drive.exit("1", "code=0")
    drive.exit("2", "signal=9")
    drive.exit("0", "signal=15", expected=True)
    assert [r.state for r in drive.roster.ranks()] == ["killed", "exited", "failed"]
    drive.lost("h2")
    assert [n.state for n in drive.roster.nodes.values()] == ["running", "running", "lost"]
    assert [e.fact.rank for e in drive.roster.exits] == [1, 2, 0]


def test_what_could_not_be_ended_is_kept() -> None:
    drive = Drive(count=1).running()
    drive.stop("0")
    drive.feed(EndedMessage(0, (RemainingProcess(7, "D", "nfs"),)), "h0")
    assert drive.roster.nodes["h0"].left[0].pid == 7
    assert drive.said("node-clean")[0]["left"][0]["state"] == "D"


# -- during the start --------------------------------------------------------------------------------

STARTING = {
    "a rank that cannot be started": """
        started 0        | rank-started
        fault h1         | fault ending end>*
        started 2        | rank-started
        exit 0,2 signal=15 | rank-exit
    """,
    "a rank fails before the others have started": """
        started 1        | rank-started
        exit 1 code=1    | rank-exit ending end>*
        started 0,2      | rank-started
        ended h0         | node-clean
    """,
    "an exit may overtake the word of the start": """
        exit 1 code=1    | rank-exit ending end>*
    """,
    "the start was lost with the channel": """
        started 0        | rank-started
        hello h1         | start>h1
        started 1        | rank-started
    """,
}


@pytest.mark.parametrize("script", STARTING.values(), ids=STARTING)
def test_during_the_start(script: str) -> None:
    play(script, Drive().gathered().proved())


# -- the init timeout --------------------------------------------------------------------------------

TIMEOUT = {
    "some entered and one did not": """
        entered 0,1      |
        tick 19          |
        tick 2           | stacks>h2
        tick 1           |
        tick 1           | ending end>*
        tick 1           |
    """,
    "all entered and one does not come out": """
        entered 0,1,2    |
        initialised 0,1  | rank-initialised
        tick 21          | stacks>h2
        tick 2           | ending end>*
    """,
    "nobody ever calls init_process_group: a program without torch": """
        tick 21          |
        tick 10000       |
    """,
    "all initialised": """
        entered 0,1,2    |
        initialised 0,1  | rank-initialised
        initialised 2    | rank-initialised all-initialised
        tick 21          |
    """,
    "the one that did not come has ended well: nobody waits for it": """
        entered 0,1      |
        initialised 0,1  | rank-initialised
        exit 2 code=0    | rank-exit
        tick 21          |
    """,
}


@pytest.mark.parametrize("script", TIMEOUT.values(), ids=TIMEOUT)
def test_init_timeout(script: str) -> None:
    drive = play(script, Drive(init_timeout=20.0).running())
    assert drive.roster.init_timeout_hit is ("ending" in script)


def test_init_timeout_bounds_the_gate_too() -> None:
    drive = Drive(init_timeout=20.0).gathered()
    assert play("tick 21 | ending end>*", drive).roster.init_timeout_hit


def test_init_timeout_counts_anew_for_each_attempt() -> None:
    drive = Drive(init_timeout=20.0).running()
    drive.now += 100
    drive.again("0")
    drive.entered("0")
    assert drive.tick("19") == []
    assert drive.tick("2") == ["stacks>h1", "stacks>h2"]
    assert drive.tick("2")[0] == "ending"


# -- reconnects --------------------------------------------------------------------------------------


def summary(attempt: int, ending: bool = False, **ranks: int | None) -> dict[str, Any]:
    """What an agent says of its attempt: r3=None runs, r3=1 has ended with code 1."""
    found = {}
    for name, code in ranks.items():
        exit_ = None if code is None else {"rank": int(name[1:]), "attempt": attempt, "code": code, "t": BEGIN}
        found[name[1:]] = {"pid": 100 + int(name[1:]), "exit": exit_}
    return {"attempt": attempt, "ranks": found, "ending": ending, "ended": None}


def heard(drive: Drive, attempt: int = 0) -> list[list[str]]:
    """Every node is back with its rank."""
    return [drive.hello(name, summary(attempt, **{f"r{at}": None})) for at, name in enumerate(drive.names)]


def test_nothing_happened_while_nobody_listened() -> None:
    drive = Drive().running()
    assert drive.hello("h1", summary(0, r1=None)) == []
    assert drive.roster.state is State.RUNNING


def test_missed_start_and_exit_are_caught_up() -> None:
    drive = Drive().gathered().proved()
    assert drive.hello("h1", summary(0, r1=0)) == ["rank-started", "rank-exit"]
    assert drive.roster.state is State.RUNNING
    words = drive.hello("h2", summary(0, r2=1))
    assert words[:3] == ["rank-started", "rank-exit", "ending"]
    assert words.count("end>h2") >= 1
    assert [(e.fact.rank, e.fact.code) for e in drive.roster.exits] == [(1, 0), (2, 1)]
    assert drive.hello("h2", summary(0, r2=1)) == ["end>h2"]


def test_a_agent_that_ended_its_ranks_alone() -> None:
    drive = Drive().running()
    words = drive.hello("h1", summary(0, ending=True, r1=None))
    assert words[:2] == ["fault", "ending"]
    assert [(f.node, f.fact.id) for f in drive.roster.faults] == [("h1", "ended-alone")]


def test_a_node_that_was_done_has_not_ended_alone() -> None:
    """A controller that took over as the ranks ended failed the run: the one before it had ended the node."""
    drive = Drive().running()
    assert drive.hello("h1", summary(0, ending=True, r1=0)) == ["rank-exit"]
    assert (drive.roster.faults, drive.roster.state) == ([], State.RUNNING)
    drive.roster.is_adopted = True
    assert drive.drained("h1") == []
    assert drive.roster.state is State.RUNNING
    assert drive.hello("h2", summary(0, ending=True, r2=None))[:2] == ["fault", "ending"]


def test_the_hello_of_a_dead_agent() -> None:
    drive = Drive().running()
    words = drive.dead("h1", attempt=summary(0, ending=True, r1=None))
    assert words == ["fault", "ending", "end>h0", "end>h1", "end>h2"]
    assert ("h1", "agent-death") in [(f.node, f.fact.id) for f in drive.roster.faults]
    drive.dead("h1", attempt=summary(0, ending=True, r1=None))
    assert [f.fact.id for f in drive.roster.faults].count("agent-death") == 1


def test_a_agent_that_dies_after_its_ranks_have_ended() -> None:
    drive = Drive(count=2).running()
    drive.stop("5")
    drive.done("h0")
    assert "end>h1" in drive.dead("h1", attempt=summary(0, ending=True, r1=0))
    assert drive.done("h1") == ["node-clean", "OVER"]


# -- taking over -------------------------------------------------------------------------------------


def adopted(**ranks: tuple[int, ...]) -> Drive:
    """A gang that goes on from a log in which these ranks had started."""
    counts = {name: len(numbers) for name, numbers in ranks.items()}
    begun = (AttemptStart(), PlanMade(len(ranks), counts), GateProved("10.0.0.1", PORT, 0.1, counts))
    facts = [Stamped("", BEGIN, 0, fact) for fact in begun]
    facts += [Stamped(name, BEGIN, 0, StartedMessage(rank, 100 + rank)) for name in ranks for rank in ranks[name]]
    return taken_over(facts)


def taken_over(facts: Sequence[Stamped[Fact]]) -> Drive:
    """A gang that goes on from a log."""
    drive = Drive()
    drive.compares = False
    drive.gang.resuming.resume(facts, drive.at, drive.now)
    return drive


ALL = {"h0": (0,), "h1": (1,), "h2": (2,)}


def test_adopt_goes_on() -> None:
    drive = adopted(**ALL)
    assert heard(drive) == [["node-back"]] * 3
    assert drive.roster.state is State.RUNNING
    play(
        """
        tick 1          |
        exit 0,1 code=0  | rank-exit
        exit 2 code=0   | rank-exit finding ending end>*
        through_the_end |
    """,
        drive,
    )


def test_a_stop_that_was_asked_before_the_takeover_holds() -> None:
    """Else the ranks would go on that the user had stopped, and their ends would be charged to them."""
    before = Drive().running()
    before.stop("30", "stop")
    before.exit("0", "code=143", expected=True)
    drive = taken_over(before.notes)
    assert (drive.roster.state, drive.roster.stop_reason) == (State.ENDING, "stop")
    assert [end.fact.rank for end in drive.roster.exits] == [0]
    assert [words[-1] for words in heard(drive)] == ["end>h0", "end>h1", "end>h2"]
    drive.through_the_end()


def test_a_spare_stands_by_for_who_takes_over_as_long_as_it_is_of_use() -> None:
    drive = Drive(count=2, spares=3).running()
    for name in ("h2", "h3"):
        drive.hello(name)
        drive.facts(name)
    ready = [name for name, node in drive.roster.spares.items() if node.stands_by]
    assert ready == ["h2", "h3"]
    assert spares_of(drive.notes, ("h2", "h3", "h4")) == set(ready)
    for name in ready[:1]:
        drive.feed(NodeLost(drive.now), name)
    assert spares_of(drive.notes, ("h2", "h3", "h4")) == set(ready[1:])


def test_adopt_of_a_later_attempt_than_was_written_down() -> None:
    drive = adopted(**ALL)
    heard(drive, attempt=1)
    assert drive.roster.attempt == 1
    assert drive.exit("1", "code=1")[:2] == ["rank-exit", "ending"]


def test_adopt_of_a_run_whose_ranks_wait_for_a_template() -> None:
    """Agents have the order to start: the ranks of h1 run, the others follow."""
    drive = adopted(h0=(), h1=(), h2=())
    drive.hello("h0", {**summary(0), "awaited": [0]})
    drive.hello("h1", summary(0, r1=None))
    drive.hello("h2", {**summary(0), "awaited": [2]})
    assert (drive.roster.state, drive.roster.faults) == (State.RUNNING, [])
    assert [rank.pid for rank in drive.roster.ranks()] == [None, 101, None]
    assert drive.started("0") == ["rank-started"]
    assert drive.started("2") == ["rank-started"]
    for rank in "012":
        words = drive.exit(rank, "code=0")
    assert words[:3] == ["rank-exit", "finding", "ending"]


def test_adopt_of_a_run_that_had_not_started_its_ranks_ends() -> None:
    drive = adopted(h0=(), h1=(), h2=())
    drive.hello("h0", None)
    assert drive.roster.state is State.ENDING
    for name in ("h1", "h2"):
        assert drive.hello(name, None)[-1] == f"end>{name}"
    drive.through_the_end()
    assert drive.roster.faults


# -- retries -----------------------------------------------------------------------------------------


def test_a_retry_is_a_whole_new_attempt() -> None:
    drive = Drive().running()
    drive.exit("1", "code=1")
    drive.through_the_end()
    play(
        """
        retry           | attempt-start listen>h0
        listening       | gate-listening probe>*
        probed h0,h1     |
        probed h2       | gate-proved start>*
        started 0,1,2    | rank-started
        exit 0,1 code=0  | rank-exit
        exit 2 code=0   | rank-exit finding ending end>*
    """,
        drive,
    )
    assert drive.roster.attempt == 1 and len(drive.roster.exits) == 3
    tokens = [m["token"] for _, m in drive.sent if m["type"] == "listen"]
    assert len(set(tokens)) == 2
    starts = [m for _, m in drive.sent if m["type"] == "start"]
    assert [m["attempt"] for m in starts] == [0] * 3 + [1] * 3
    assert starts[-1]["ranks"][0]["env"]["TORCHELASTIC_RESTART_COUNT"] == "1"
    drive.through_the_end()
    assert drive.overs == [0, 1]


LATE = {
    "started": StartedMessage(1, 55, 0),
    "exit": ExitMessage(1, 0, code=1),
    "ended": EndedMessage(0, (), "already"),
    "drained": DrainedMessage(0),
    "audited": Audited(0, ()),
}


@pytest.mark.parametrize("late", LATE.values(), ids=LATE)
def test_a_late_word_of_an_attempt_that_is_over(late: Event) -> None:
    """The supervisor of a killed agent is asked for the end, and says a second time that its output is here."""
    drive = Drive().running()
    drive.exit("1", "code=1")
    drive.through_the_end()
    drive.retry()
    refused = {}
    for state in (State.LISTENING, State.PROVING, State.RUNNING):
        assert drive.roster.state is state
        refused[state] = [*drive.feed(late, "h1"), *drive.said("note")]
        if state is State.LISTENING:
            drive.listening()
        for name in drive.names if state is State.PROVING else ():
            drive.probed(name)
    assert refused == {State.LISTENING: [], State.PROVING: [], State.RUNNING: []}
    assert not drive.roster.nodes["h1"].ended and not drive.roster.nodes["h1"].drained


def taken(drive: Drive) -> Drive:
    drive.exit("0", "code=1", "EADDRINUSE:_address_already_in_use")
    return drive.through_the_end()


def test_the_port_that_somebody_else_took_first() -> None:
    """A repeat counts as no attempt for the program."""
    drive = taken(Drive().running())
    for _ in range(PORT_REPEATS):
        assert drive.gang.rendezvous.port_was_taken
        drive.retry("repeat")
        taken(drive.running())
        assert drive.last("start")["ranks"][0]["env"]["TORCHELASTIC_RESTART_COUNT"] == "0"
    assert not drive.gang.rendezvous.port_was_taken, "then it is a failure like any other"


@pytest.mark.parametrize(
    ("rank", "error", "is_stopped"),
    [("0", "EADDRINUSE", True), ("1", "EADDRINUSE", False), ("0", "ValueError:_bad_batch", False)],
)
def test_what_is_no_taken_port(rank: str, error: str, is_stopped: bool) -> None:
    drive = Drive().running()
    drive.exit(rank, "code=1", error)
    if is_stopped:
        drive.stop("0")
    assert not drive.through_the_end().gang.rendezvous.port_was_taken


@pytest.mark.parametrize("lame", ["agent-death", "supervisor-lost", "lost"])
def test_no_attempt_without_agent_and_supervisor_on_every_node(lame: str) -> None:
    drive = Drive().running()
    drive.lost("h1") if lame == "lost" else drive.fault("h1", lame)
    assert not drive.roster.can_retry
    drive = Drive().running()
    drive.exit("0", "code=1")
    assert drive.roster.can_retry


def test_a_fixed_port_is_not_repeated() -> None:
    assert not taken(Drive(master_port=PORT).running()).gang.rendezvous.port_was_taken


# -- launchers that stand for all ranks of a node ----------------------------------------------------


@pytest.mark.parametrize("launcher", ["torchrun", "command"])
def test_one_process_a_node(launcher: str) -> None:
    drive = Drive(count=2, nproc=2, launcher=launcher).gathered().proved()
    starts = [m for _, m in drive.sent if m["type"] == "start"]
    assert [[r["rank"] for r in m["ranks"]] for m in starts] == [[0], [2]]
    drive.started("0")
    drive.started("2")
    assert drive.exit("0", "code=0") == ["rank-exit"]
    assert drive.exit("2", "code=0")[:3] == ["rank-exit", "finding", "ending"]


# -- the table ---------------------------------------------------------------------------------------


def test_every_state_has_a_row_and_hears_stop_or_is_over() -> None:
    table = Drive().gang.table
    assert set(table) == set(State)
    assert all(StopAsked in table[s] for s in State if s is not State.OVER)


# -- any order at all --------------------------------------------------------------------------------

NODES = st.sampled_from(["h0", "h1", "h2", "h3"])  # h3 stands by at first
RANKS = st.integers(0, 3)


class AnyOrder(RuleBasedStateMachine):
    """Three nodes and a spare that say anything at any time: the gang never raises, keeps its promises, and can be
    ended."""

    def __init__(self) -> None:
        super().__init__()
        self.drive = Drive(spares=1, retries=9, init_timeout=60.0, lease=10.0)
        self.drive.compares = False  # at the end is enough
        self.stopped = False
        self.without: set[str] = set()  # nodes whose last word was that they run no attempt of ours
        self.checked = 0

    def summaries(self, number: int | None, code: int | None, ending: bool, node: str) -> dict[str, Any] | None:
        if number is None:
            return None
        ranks = {f"r{r}": code for r in self.drive.roster.everyone[node].ranks}
        return summary(number, ending, **ranks)

    @rule(node=NODES, number=st.sampled_from([None, 0, 1, 2]), code=st.sampled_from([None, 0, 1]), ending=st.booleans())
    def hello(self, node: str, number: int | None, code: int | None, ending: bool) -> None:
        attempt = self.summaries(number, code, ending, node)
        if number != self.drive.roster.attempt:
            self.without.add(node)
        self.drive.hello(node, attempt)
        self.check_starts()
        self.without.discard(node)

    @rule(node=NODES, number=st.sampled_from([None, 0, 1]), code=st.sampled_from([None, 0, 1]))
    def dead(self, node: str, number: int | None, code: int | None) -> None:
        self.drive.dead(node, "was killed by signal 9", attempt=self.summaries(number, code, True, node))

    @rule(node=NODES)
    def facts(self, node: str) -> None:
        if self.drive.roster.everyone[node].node_dir:  # an agent that has not spoken is not asked
            self.drive.facts(node)

    @rule()
    def all_gather(self) -> None:
        for node in self.drive.names:
            self.hello(node, None, None, False)
            self.drive.facts(node)

    @rule()
    def all_prove(self) -> None:
        self.drive.listening()
        for node in self.drive.names:
            self.drive.probed(node)

    @rule()
    def all_start(self) -> None:
        for rank in range(3):
            self.drive.started(str(rank))

    @rule()
    def all_end(self) -> None:
        for node in self.drive.names:
            self.drive.ended(node)
            self.drive.drained(node)

    @rule(node=NODES, error=st.sampled_from(["", "", "EADDRINUSE"]))
    def listening(self, node: str, error: str) -> None:
        self.drive.listening(node, error)

    @rule(node=NODES, ok=st.sampled_from(["ok", "ok", "bad"]))
    def probed(self, node: str, ok: str) -> None:
        self.drive.probed(node, ok)

    @rule(rank=RANKS, attempt=st.integers(0, 2), node=NODES)
    def started(self, rank: int, attempt: int, node: str) -> None:
        self.drive.feed(StartedMessage(rank, 7, attempt), node)

    @rule(rank=RANKS, what=st.sampled_from(["init-entered", "initialised", "destroyed"]), node=NODES)
    def report(self, rank: int, what: str, node: str) -> None:
        self.drive.feed(ReportMessage(what, rank), node)

    @rule(rank=RANKS, attempt=st.integers(0, 2), node=NODES, code=st.sampled_from([0, 0, 1]), expected=st.booleans())
    def exit(self, rank: int, attempt: int, node: str, code: int, expected: bool) -> None:
        self.drive.feed(ExitMessage(rank, attempt, code=code, signal=None, expected=expected), node)

    @rule(node=NODES, kind=st.sampled_from(["ended", "drained", "silent", "back", "lost", "unreachable", "fault"]))
    def word(self, node: str, kind: str) -> None:
        getattr(self.drive, kind)(node)

    @rule(seconds=st.sampled_from([0.2, 1.0, 7.0, 30.0, 90.0]))
    def tick(self, seconds: float) -> None:
        self.drive.tick(str(seconds))

    @rule(grace=st.sampled_from([0.0, 1.0, 30.0]))
    def stop(self, grace: float) -> None:
        self.stopped = self.stopped or self.drive.roster.state is not State.OVER
        self.drive.stop(str(grace))

    @precondition(lambda self: self.drive.roster.state is State.OVER and not self.stopped)
    @rule(kind=st.sampled_from(["retry", "repeat"]), pause=st.sampled_from([0.0, 0.0, 5.0]))
    def retry(self, kind: str, pause: float) -> None:
        gang = self.drive.gang
        if gang.roster.can_retry:
            self.drive.retry(kind, pause)
        elif gang.roster.plan is not None:
            free = list(gang.spares.ready)
            self.drive.retry(pause=pause, **{node: free.pop() if free else node for node in gang.roster.unusable_nodes})
            roster = gang.roster
            assert not set(roster.nodes) & (set(roster.spares) | set(roster.retired))
            assert len(roster.nodes) == 3
            assert sorted(r.rank for r in gang.roster.ranks()) == [0, 1, 2] or gang.roster.state is State.GATHERING

    def check_starts(self) -> None:
        """`start` goes to a node once an attempt, and again only to one that has just said that it has none."""
        fresh = [(n, m["attempt"]) for n, m in self.drive.sent[self.checked :] if m["type"] == "start"]
        before = [(n, m["attempt"]) for n, m in self.drive.sent[: self.checked] if m["type"] == "start"]
        for node, attempt in fresh:
            assert attempt == self.drive.roster.attempt
            assert (node, attempt) not in before or node in self.without
        assert len(fresh) == len(set(fresh))
        self.checked = len(self.drive.sent)

    @invariant()
    def starts_are_sent_once(self) -> None:
        self.check_starts()

    @invariant()
    def an_attempt_is_over_once(self) -> None:
        assert len(self.drive.overs) == len(set(self.drive.overs))
        assert (self.drive.roster.attempt in self.drive.overs) == (self.drive.roster.state is State.OVER)

    @invariant()
    def nothing_starts_after_a_stop(self) -> None:
        if self.stopped:
            assert self.drive.roster.state in (State.ENDING, State.OVER)

    @invariant()
    def release_is_not_the_machines_word(self) -> None:
        """The controller sends it after OVER, to nodes that have ended."""
        assert all(m["type"] != "release" for _, m in self.drive.sent)

    @invariant()
    def a_spare_gets_no_ranks(self) -> None:
        assert not any(node.ranks for node in self.drive.roster.spares.values())
        asked = {m["type"] for name, m in self.drive.sent if name in self.drive.roster.spares}
        assert asked <= {"setup", "ship"}

    @invariant()
    def after_its_end_an_attempt_gets_no_further_start(self) -> None:
        for node in self.drive.names:
            ended: set[int] = set()
            attempt = -1
            for name, message in self.drive.sent:
                if name != node:
                    continue
                if message["type"] == "start":
                    assert message["attempt"] not in ended
                    attempt = message["attempt"]
                elif message["type"] == "end" and attempt >= 0:
                    ended.add(attempt)

    def teardown(self) -> None:
        """Stop and enough time always lead to the end."""
        self.drive.compare_with_its_log()
        self.drive.stop("30")
        for _ in range(10):
            self.drive.tick("20")
        assert self.drive.roster.state is State.OVER


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=examples(40), stateful_step_count=40)


def test_a_lost_node_that_says_its_end_stays_lost() -> None:
    """Live it was ended then, in a gang resumed from the log lost: `compares` looks after each step."""
    drive = Drive(spares=1, retries=9, lease=10.0)
    drive.lost("h0")
    drive.ended("h0")
    assert drive.roster.nodes["h0"].state == "lost"


def test_outputs_that_may_be_lost_are_told_of_once() -> None:
    """Where a node keeps the program's files in /tmp: at the first start, and not where they have a lasting place."""
    drive = Drive(retries=1).running()
    (said,) = drive.said("outputs-temporary")
    assert said["nodes"] == {f"h{i}": f"/tmp/allranks-0/h{i}/outputs" for i in range(3)}
    drive.again("1")
    assert len(drive.said("outputs-temporary")) == 1
    assert Drive(output_dir="/shared/out").running().said("outputs-temporary") == []


def test_what_memory_goes_by_is_read_of_accelerates_configuration() -> None:
    """Where accelerate reads it: with DeepSpeed, and none of the keys that it never reads."""
    table = {
        "distributed_type": "DEEPSPEED", "deepspeed_config.zero_stage": "2",
        "deepspeed_config.gradient_accumulation_steps": "auto",
        "deepspeed_config.train_micro_batch_size_per_gpu": "4", "file": "ds.yaml",
    }  # fmt: skip
    assert of_deepspeed({"accelerate_config": table}) == {"zero_stage": 2}
    assert of_deepspeed({"accelerate_config": {**table, "distributed_type": "MULTI_GPU"}}) == {}
    assert of_deepspeed({"accelerate_config": None}) == {} and of_deepspeed({}) == {}
