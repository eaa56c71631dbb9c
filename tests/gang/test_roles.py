"""Which role starts when, and what the end of one means for the others."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gang.test_gang import Drive, facts_of

from allranks.cluster import Cluster, Node
from allranks.gang.roles import Conductor, EndRole, parts_of
from allranks.gang.states import LooksComing, LookWanted, MayStart, RoleSeen
from allranks.protocol.attempts import AttemptEnd
from allranks.protocol.messages import ExitMessage, FactsMessage, HelloMessage
from allranks.protocol.run_facts import (
    Fact,
    FailureNoted,
    GateProved,
    HangSuspected,
    LookedRank,
    RoleLooked,
    RoleReady,
)
from allranks.settings import RunSpec
from allranks.settings.runspec import Role

PROVED = GateProved("10.0.0.1", 1, 0.1, {})
READY = RoleReady(0.1)
FAILED = AttemptEnd(0, "failed", decision="finish")
DONE = AttemptEnd(0, "done", decision="finish")


def role(name: str, *after: str, **keys: Any) -> Role:
    return Role(name, ("x",), **{"after": after, "ends": "run" if after else "never", **keys})


def say(conductor: Conductor, *facts: tuple[str, Fact]) -> list[str]:
    """What follows on facts, in words."""
    words = []
    for name, fact in facts:
        for role_name, decision in conductor.take(name, fact):
            assert isinstance(decision, (MayStart, EndRole))
            words.append(f"start {role_name}" if isinstance(decision, MayStart) else f"end {role_name}")
    return words


def two(**keys: Any) -> Conductor:
    conductor = Conductor([role("server", **keys), role("trainer", "server")])
    assert say(conductor, ("trainer", PROVED)) == []
    assert say(conductor, ("server", PROVED)) == ["start server"]
    return conductor


def test_a_role_starts_once_all_addresses_are_known_and_those_before_it_are_ready() -> None:
    conductor = two()
    assert say(conductor, ("server", READY), ("server", READY)) == ["start trainer"]
    assert say(conductor, ("trainer", READY), ("trainer", DONE)) == ["end server"]
    assert conductor.failed == []


def test_a_failed_role_ends_the_others_after_they_may_have_failed_too() -> None:
    conductor = two()
    say(conductor, ("server", READY))
    ((ended, end),) = conductor.take("server", FailureNoted())
    assert isinstance(end, EndRole) and ended == "trainer" and end.delay > 0
    assert say(conductor, ("trainer", FailureNoted()), ("trainer", FAILED)) == []
    assert say(conductor, ("server", FAILED)) == []
    assert conductor.failed == ["server"]


def test_a_lost_connection_waits_for_the_end_of_its_server() -> None:
    """A server closes its port, and its process ends later: its end is the cause, and the others are ended at once."""
    conductor = two()
    say(conductor, ("server", READY))
    ((_, soon),) = conductor.take("server", FailureNoted())
    conductor = two()
    say(conductor, ("server", READY), ("trainer", ExitMessage(0, code=1, error={"message": "ConnectionResetError: x"})))
    ((_, later),) = conductor.take("trainer", FailureNoted())
    assert isinstance(soon, EndRole) and isinstance(later, EndRole) and later.delay > 2 * soon.delay
    assert conductor.take("server", FailureNoted()) == [] and conductor.take("server", FAILED) == []
    assert conductor.failed == ["trainer"]


def test_a_role_that_stands_still_hears_what_the_others_do() -> None:
    conductor = two()
    say(conductor, ("server", READY))
    look = RoleLooked((LookedRank(0, "h1"),))
    assert conductor.take("server", look) == []
    assert conductor.take("trainer", HangSuspected(5.0)) == [
        ("trainer", LooksComing(("server",))), ("server", LookWanted()),
    ]  # fmt: skip
    assert conductor.take("server", look) == [("trainer", RoleSeen("server", look))]


def test_a_restarted_role_ends_nothing_until_its_retries_are_used_up() -> None:
    conductor = two(on_failure="restart")
    again = AttemptEnd(0, "failed", decision="retry")
    assert say(conductor, ("server", READY), ("server", FailureNoted()), ("server", again)) == ["start trainer"]
    assert say(conductor, ("server", READY), ("server", FAILED)) == ["end trainer"]


def test_a_role_that_was_ended_by_a_failure_does_not_end_the_one_that_failed_as_if_all_were_done() -> None:
    """The run would have ended with 0: a server that takes longer to end than its trainer was stopped as it failed."""
    conductor = two()
    assert say(conductor, ("server", READY), ("server", FailureNoted())) == ["start trainer", "end trainer"]
    assert say(conductor, ("trainer", AttemptEnd(0, "stopped", decision="finish"))) == []


@pytest.mark.parametrize(("was_ready", "ends"), [(True, []), (False, ["end trainer"])])
def test_an_ignored_failure_counts_where_others_wait_for_the_role(was_ready: bool, ends: list[str]) -> None:
    conductor = two(on_failure="ignore")
    if was_ready:
        say(conductor, ("server", READY))
    assert say(conductor, ("server", FailureNoted()), ("server", FAILED)) == ends


def test_all_roles_that_end_the_run_have_to_be_done() -> None:
    conductor = Conductor([role("a", ends="run"), role("b", ends="run"), role("c", ends="any")])
    assert say(conductor, *((name, PROVED) for name in "abc")) == ["start a", "start b", "start c"]
    assert say(conductor, ("a", DONE), ("c", DONE)) == []
    assert say(conductor, ("b", DONE)) == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([PROVED, READY, FailureNoted(), FAILED, DONE]))))
def test_no_role_starts_twice_or_after_the_end(facts: list[tuple[str, Fact]]) -> None:
    conductor = Conductor([role("a"), role("b", "a"), role("c", "b", on_failure="ignore")])
    words = say(conductor, *facts)
    starts = [word for word in words if word.startswith("start")]
    assert len(starts) == len(set(starts))
    if "end c" in words:
        assert "start c" not in words[words.index("end c") :]


def test_a_role_on_one_node_has_an_address_that_other_nodes_reach() -> None:
    """Alone in its world it would have had 127.0.0.1, and the trainer elsewhere a refused connection."""
    drive = Drive(1)
    drive.roster.role = role("server")
    facts = facts_of(0)
    own = {"address": "127.0.0.1", "prefix": 8, "family": 4, "scope": "host"}
    loopback = {"name": "lo", "up": True, "running": True, "loopback": True, "addresses": [own]}
    drive.feed(HelloMessage("/tmp/allranks-0/h0", "h0"), "h0")
    drive.feed(FactsMessage({**facts, "interfaces": [loopback, *facts["interfaces"]]}), "h0")
    drive.listening()
    assert drive.last("probe")["addresses"] == ["10.0.0.1"]


def test_shared_nodes_have_an_agent_for_each_role() -> None:
    nodes = tuple(Node(index, f"h{index}", f"h{index}") for index in range(3))
    roles = (role("server", nodes=1), role("trainer", "server"), role("eval", with_="trainer"))
    parts = parts_of(RunSpec().with_roles(roles), Cluster(nodes, "--hosts"))
    names = {part.role.name: [(node.index, node.name, node.host) for node in part.cluster.nodes] for part in parts}
    assert names == {
        "server": [(0, "h0", "h0")],
        "trainer": [(1, "h1", "h1"), (2, "h2", "h2")],
        "eval": [(3, "h1-eval", "h1"), (4, "h2-eval", "h2")],
    }
