"""Which role waits for which, by the connections of their ranks and what these do."""

from dataclasses import replace

import pytest

from allranks.diagnose.hangs.between_roles import RoleStandstill, between_roles, look_at
from allranks.diagnose.hangs.doing import ActivityKind, Doing
from allranks.diagnose.hangs.stacks import Frame
from allranks.findings import Hang
from allranks.protocol.run_facts import LookedRank, RoleLooked
from allranks.protocol.samples import RankSocket, StackSample

HERE, THERE = "10.0.0.2:40000", "10.0.0.1:8000"
SOCKET = Frame("/x/socket.py", 1, "readinto")
READING = Doing(ActivityKind.ELSEWHERE, at=Frame("/w/grpo.py", 7, "step"), stack=(SOCKET,))
BARRIER = Doing(ActivityKind.WAITING, "barrier", Frame("/w/grpo.py", 9, "step"))
STUCK = LookedRank(0, "h1", at="serve.py:8 in generate", quiet=60.0, sockets=((THERE, HERE),))
OWN = Hang("straggler", "rank 0 on h2 is at grpo.py:7", "", 0.85, (0,), (1,))
STILL = RoleStandstill(
    "trainer",
    OWN,
    {0: READING, 1: BARRIER},
    {0: StackSample(0, sockets=(RankSocket(HERE, THERE),)), 1: StackSample(1)},
    {0: "h2", 1: "h3"},
    60.0,
)


def test_a_rank_that_reads_from_a_server_waits_for_it() -> None:
    hang, _ = between_roles(STILL, {"rollout": RoleLooked((STUCK,))})
    assert hang is not None and (hang.cause, hang.of_role, hang.culprits) == ("straggler", "rollout", (0,))
    assert hang.message == (
        "rollout keeps trainer waiting: rank 0 of rollout on h1 stands at serve.py:8 in generate, "
        "and rank 0 of trainer on h2 waits for an answer of rollout at grpo.py:7 in step"
    )


def test_both_sides_in_collectives_wait_for_each_other() -> None:
    """The trainer's own rank 1 was named: it has not called what is a collective with the server."""
    still = replace(STILL, doings={0: replace(BARRIER, call="broadcast"), 1: BARRIER}, hang=OWN._replace(culprits=(1,)))
    hang, _ = between_roles(still, {"rollout": RoleLooked((STUCK._replace(call="all_gather"),))})
    assert hang is not None and hang.cause == "roles-deadlock"
    assert "waits in broadcast at grpo.py:9 in step, and rank 0 of rollout on h1 waits in all_gather" in hang.message


@pytest.mark.parametrize("look", [STUCK._replace(works=True), STUCK._replace(quiet=3.0)])
def test_a_server_at_work_is_no_hang(look: LookedRank) -> None:
    hang, at_work = between_roles(STILL, {"rollout": RoleLooked((look,))})
    assert hang is None and at_work.endswith("rank 0 of rollout on h1 is at work: no hang")


@pytest.mark.parametrize(
    "still",
    [
        replace(STILL, hang=None, doings={1: BARRIER}),
        replace(STILL, doings={0: Doing(ActivityKind.STOPPED), 1: BARRIER}),
        replace(STILL, doings={0: Doing(ActivityKind.ELSEWHERE, why="sleeping"), 1: BARRIER}),
        replace(STILL, hang=OWN._replace(nodes=("h2", "h3"))),
        replace(STILL, hang=OWN._replace(culprits=(1,))),
    ],
)
def test_a_standstill_of_the_roles_own_stays_as_it_is(still: RoleStandstill) -> None:
    """A connection that is kept open says nothing where a rank sleeps, is stopped, or waits for one of its own role."""
    assert between_roles(still, {"rollout": RoleLooked((STUCK,))}) == (still.hang, "")


STACKS = """\
Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 415 in select
  File "/w/serve.py", line 20 in <module>

Thread 0x00007f0000000002 (most recent call first):
  File "/w/serve.py", line 8 in generate
  File "/usr/lib/python3.11/http/server.py", line 424 in handle
"""


def test_the_thread_of_a_server_that_works_is_named_not_the_one_that_accepts() -> None:
    sample = StackSample(0, STACKS, state="S")
    assert look_at("h1", sample, sample, 4.0, 9.0).at == "serve.py:8 in generate"
    in_collective = STACKS.replace('/w/serve.py", line 8 in generate', '/torch/distributed/d.py", line 3 in broadcast')
    syncing = sample._replace(text=in_collective)
    assert look_at("h1", syncing, syncing, 4.0, 9.0).call == "broadcast"
    blind = look_at("h1", StackSample(0), StackSample(0, error="no py-spy"), 4.0, 9.0)
    assert blind.does == "could not be looked at: no py-spy"
