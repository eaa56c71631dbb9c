"""Whether a failed run is tried again: the table by cause, and what the attempts before say."""

from typing import Any

import pytest

from allranks.diagnose.causes import CAUSES, Charge
from allranks.findings import Finding, Verdict, Where
from allranks.gang.policy import LIVED, ROWS, TABLE, Decision, Means, Tried, decide, row_of


def tried(
    cause: str, message: str = "", where: Where | None = None, step: int | None = 5, attempt: int = 0, **parts: Any
) -> Tried:
    finding = Finding(cause, "fail", message or f"something said {cause}", "", where or Where())
    return Tried(Verdict(finding, cause, 0.9, attempt=attempt), step, **parts)


def on(*attempts: Tried, retries: int = 3, **means: Any) -> Decision:
    return decide(attempts, Means(retries, **means))


H2 = Where(node="h2")
LOST = tried("node-network-down", where=H2, unusable_nodes=("h2",))
RAISED = "rank 1 on h2 raised {} (train.py:41 in step, pid 77)"


def test_every_charge_has_a_row_and_a_cause() -> None:
    assert set(TABLE) == set(Charge) == {cause.charge for cause in CAUSES.values()} | {Charge.SITE}
    assert {row.again for row in ROWS.values()} == {"never", "always", "hang", "progress"}


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("bad-launch-arguments", "finish"), ("missing-module", "finish"), ("cuda-out-of-memory", "finish"),
        ("host-out-of-memory", "finish"), ("disk-full", "finish"), ("unused-parameters-ddp", "finish"),
        ("cuda-kernel-fault", "finish"), ("checkpoint-unreadable", "finish"),
        ("slurm-cancelled", "finish"), ("straggler", "finish"),
        ("node-network-down", "retry"), ("gpu-hardware-error", "retry"), ("nccl-ib-error", "retry"),
        ("peer-died", "retry"), ("slurm-preempted-or-timeout", "retry"),
        ("segfault-native", "retry"), ("port-in-use", "retry"), ("unknown", "retry"),
        ("rank-killed", "retry"), ("rank-exited-early", "retry"), ("data-not-split", "finish"),
        ("internal-error", "finish"),
    ],
)  # fmt: skip
def test_by_cause(cause: str, kind: str) -> None:
    decision = on(tried(cause))
    assert decision.kind == kind, decision
    assert decision.reason and "\n" not in decision.reason


@pytest.mark.parametrize(
    ("message", "row"),
    [
        (RAISED.format("ValueError: bad batch"), "program"),
        (RAISED.format("RuntimeError: The size of tensor a (3) must match"), "program"),
        (RAISED.format("ConnectionError: HTTPSConnectionPool(host='hub')"), "outside"),
        (RAISED.format("requests.exceptions.ReadTimeout: read timed out"), "outside"),
        (RAISED.format("TimeoutError: [Errno 110] Connection timed out"), "outside"),
        (RAISED.format("OSError: [Errno 116] Stale file handle: '/data/x'"), "outside"),
        (RAISED.format("OSError: [Errno 5] Input/output error"), "outside"),
        (RAISED.format("HTTPError: 503 Server Error: Service Unavailable for url"), "outside"),
        (RAISED.format("KeyError: 'Connection'"), "program"),
        ("rank 1 on h2 ended with code 9 (pid 77), its last line: saving", "exit"),
    ],
)
def test_an_exception_is_the_programs_unless_it_speaks_of_the_outside(message: str, row: str) -> None:
    assert row_of(tried("program-exception", message)).name == row


def test_a_mismatch_that_torch_raised_is_the_programs() -> None:
    cause = "collective-mismatch"
    assert row_of(tried(cause, "every rank raised RuntimeError: Detected mismatch")).name == "program"
    assert row_of(tried(cause, "rank 1 on h1 is in another collective")).name == "hang"


def test_a_hang_is_tried_again_only_where_that_was_asked_for() -> None:
    hang = tried("unknown", hung=True)
    assert on(hang).kind == "finish" and "--on-hang restart" in on(hang).reason
    assert on(hang, on_hang="restart").kind == "retry"
    assert on(hang, tried("unknown", hung=True, attempt=1), on_hang="restart").kind == "finish", "at the same step"


def test_retries_are_counted() -> None:
    attempts = [tried("segfault-native", step=10 * n, attempt=n) for n in range(3)]
    assert on(*attempts[:2], retries=2).kind == "retry"
    last = on(*attempts, retries=2)
    assert last == Decision("finish", "the 2 retries are used up")
    assert on(attempts[0], retries=0) == Decision("finish", "no retry was asked for (--retries)")


@pytest.mark.parametrize(
    ("attempts", "why"),
    [
        ([tried("program-exception", RAISED.format("KeyError: 'x'"))],
         "the program's own fault comes again at the same place"),
        ([tried("segfault-native", step=3), tried("segfault-native", step=3, attempt=1)],
         "segfault-native came again at step 3. Another attempt would end there too"),
        ([tried("segfault-native", step=3), tried("segfault-native", step=9, attempt=1)], ""),
        ([tried("node-unreachable")], ""),
        ([tried("unknown", hung=True)], ""),  # nobody knows
    ],
)  # fmt: skip
def test_what_a_scheduler_need_not_try_again(attempts: list[Tried], why: str) -> None:
    assert on(*attempts, retries=0).hopeless == why
    assert on(*attempts, retries=9).hopeless in (why, "")


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        ((3, 3), "finish"),
        ((3, 4), "retry"),
        ((4, 3), "retry"),  # it ended elsewhere: not deterministic
        ((3, 4, 3), "finish"),
        ((None, None), "finish"),
        ((None, 3), "retry"),
    ],
)
def test_the_same_cause_at_the_same_step(steps: tuple[int | None, ...], kind: str) -> None:
    attempts = [tried("segfault-native", step=s, attempt=n, seconds=20) for n, s in enumerate(steps)]
    decision = on(*attempts)
    assert decision.kind == kind, decision
    if kind == "finish":
        assert "segfault-native came again" in decision.reason


def test_without_a_step_to_see_a_long_life_is_progress() -> None:
    long = [tried("peer-died", step=None, attempt=n, seconds=LIVED) for n in range(2)]
    assert on(*long).kind == "retry"


def test_nodes_that_fail_one_after_the_other_are_faults_of_their_own() -> None:
    first = tried("gpu-hardware-error", where=H2, step=None)
    assert on(first, tried("gpu-hardware-error", where=Where(node="h3"), step=None, attempt=1)).kind == "retry"
    assert on(first, tried("gpu-hardware-error", where=H2, step=None, attempt=1)).kind == "finish"


def test_unknown_needs_some_progress() -> None:
    stuck = tried("unknown", step=None)
    assert on(stuck).kind == "finish" and "--step-pattern" in on(stuck).reason
    for forward in ({"initialised": True}, {"seconds": LIVED}, {}):
        assert on(tried("unknown", step=None if forward else 1, **forward)).kind == "retry"


# -- who takes whose place -----------------------------------------------------------------------------


def test_a_blamed_node_is_replaced_where_a_spare_is_there() -> None:
    blamed = tried("gpu-hardware-error", where=H2)
    decision = on(blamed, spares={"h5": None, "h6": None})
    assert decision.replace == {"h2": "h5"}
    assert decision.reason == "the node is at fault, not the program. h2 was replaced by h5 in attempt 1"
    assert on(blamed).replace == {} and on(blamed).kind == "retry", "without one it gets another chance"


def test_a_lost_node_must_be_replaced_or_is_reached_again() -> None:
    assert on(LOST, spares={"h5": None}).replace == {"h2": "h5"}
    alone = on(LOST)
    assert (alone.kind, alone.replace) == ("retry", {"h2": "h2"})
    assert "The run has no spares (--spares 0): allranks connects to h2 again" in alone.reason
    assert "No spare is left: allranks connects to h2 again" in on(LOST, asked_spares=1).reason


def test_a_node_that_was_waited_for_in_vain_takes_no_further_retry() -> None:
    parts: dict[str, Any] = {"ran": False, "unusable_nodes": ("h2",), "stayed_away": ("h2",), "step": None}
    away = tried("ssh-unreachable", where=H2, attempt=1, **parts)
    assert on(LOST, away, node_wait=300.0) == Decision("finish", "h2 did not come back within 5m (--node-wait)")
    assert on(LOST, away, node_wait=300.0, spares={"h5": None}).replace == {"h2": "h5"}


def test_a_killed_agent_is_no_failure_of_the_program() -> None:
    message = "the allranks agent on h2 was killed by SIGKILL"
    dead = tried("agent-killed", message, H2, step=None, unusable_nodes=("h2",))
    assert on(dead).replace == {"h2": "h2"}


def test_the_first_spare_with_room_enough() -> None:
    lost = tried("node-network-down", unusable_nodes=("h1", "h2"))
    decision = on(lost, spares={"h5": 4, "h6": 8, "h7": None}, ranks={"h1": 8, "h2": 4})
    assert decision.replace == {"h1": "h6", "h2": "h5"}
    assert on(lost, spares={"h5": 1}, ranks={"h1": 8, "h2": 4}).replace == {"h1": "h1", "h2": "h2"}


def test_a_lost_node_beside_the_programs_own_exception() -> None:
    both = tried("program-exception", RAISED.format("ValueError: x"), unusable_nodes=("h3",))
    assert on(both, spares={"h5": None}).kind == "finish"


# -- before ranks were started -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("ssh-unreachable", "retry"), ("name-resolution", "retry"), ("master-unreachable", "retry"),
        ("port-in-use", "retry"), ("node-network-down", "retry"), ("rendezvous-timeout", "retry"),
        ("ssh-auth", "finish"), ("ssh-hostkey", "finish"), ("port-blocked", "finish"), ("disk-full", "finish"),
        ("environment-mismatch", "finish"), ("too-many-open-files", "finish"), ("wrong-interface", "finish"),
        ("bad-launch-arguments", "finish"), ("unknown", "finish"),
    ],
)  # fmt: skip
def test_a_first_start_is_tried_again_where_the_cause_may_pass(cause: str, kind: str) -> None:
    decision = on(tried(cause, where=H2, ran=False, step=None))
    assert decision.kind == kind, decision
    assert decision.pause == (2.0 if kind == "retry" else 0.0)


def test_what_a_check_refused_is_not_tried_again() -> None:
    for cause in ("gpu-hardware-error", "name-resolution", "mtu-or-packet-loss"):
        decision = on(tried(cause, where=H2, ran=False, step=None, refused=True), spares={"h5": None})
        assert decision.kind == "finish" and "a check of the nodes failed" in decision.reason


def unreached(attempt: int) -> Tried:
    """A start in which h2 did not answer."""
    return tried("ssh-unreachable", where=H2, ran=False, unusable_nodes=("h2",), step=None, attempt=attempt)


def test_starts_that_fail_alike_are_tried_again_after_longer_pauses() -> None:
    starts = [unreached(n) for n in range(8)]
    decisions = [on(*starts[: n + 1], retries=7) for n in range(8)]
    assert [d.pause for d in decisions] == [2.0, 5.0, 10.0, 20.0, 30.0, 30.0, 30.0, 0.0]
    assert [d.replace for d in decisions[:7]] == [{"h2": "h2"}] * 7
    again = "The run has no spares (--spares 0): allranks connects to h2 again. The next attempt begins in 2 s"
    assert decisions[0].reason.endswith(again)
    assert decisions[7].reason.startswith("the 7 retries are used up")


def test_a_pause_begins_anew_after_ranks_ran() -> None:
    ran = tried("node-network-down", where=H2, unusable_nodes=("h2",), attempt=2)
    starts = [unreached(n) for n in (0, 1)]
    last = tried("ssh-unreachable", where=H2, ran=False, unusable_nodes=("h2",), step=None, attempt=3)
    assert on(*starts, ran, retries=9).pause == 0.0
    assert on(*starts, ran, last, retries=9).pause == 2.0


def test_a_node_that_is_dead_at_the_start_gives_its_place() -> None:
    dead = tried("ssh-unreachable", where=H2, ran=False, step=None, unusable_nodes=("h2",))
    assert on(dead, spares={"h5": None}) == Decision(
        "retry", "the node is at fault, not the program. h2 was replaced by h5 in attempt 1", {"h2": "h5"}
    )
    two = tried("ssh-unreachable", where=H2, ran=False, step=None, unusable_nodes=("h2", "h3"))
    assert on(two, spares={"h5": None}).replace == {"h2": "h5", "h3": "h3"}
    assert on(two, spares={"h5": None}).pause == 2.0
    locked = tried("ssh-auth", where=H2, ran=False, step=None, unusable_nodes=("h2",))
    assert on(locked, spares={"h5": None}).kind == "finish", "that is set wrongly"


def test_a_gate_that_closes_at_a_further_attempt_blames_its_node() -> None:
    first = tried("peer-died")
    gate = tried("port-blocked", where=H2, ran=False, step=None, attempt=1)
    assert on(first, gate, spares={"h5": None}).replace == {"h2": "h5"}
    assert on(first, gate).kind == "finish"
