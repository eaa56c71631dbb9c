"""The order of explanation: clocks, consequences, what all share, what a user's stop hides."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.campaign import examples
from tests.diagnose.incidents import fault, lost, rank_end

from allranks.diagnose.causes import CAUSES, likeliest
from allranks.diagnose.exceptions import ExceptionLink, Raised
from allranks.diagnose.incident import Incident, RankEnd
from allranks.diagnose.recorded import fold
from allranks.diagnose.rules.failures import FailureRole, failures
from allranks.diagnose.verdict import judge
from allranks.diagnose.words import last_lines, name_ranks, numbers
from allranks.findings import Finding, Verdict, Where
from allranks.protocol.codec import encode
from allranks.protocol.run_facts import NodeFactsKept, Stamped

T = 1_800_000_000.0
NODES = {"h1": (0, 1), "h2": (2, 3)}
RESET = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:24371."
NCCL = "NCCL communicator was aborted on rank 0. ncclRemoteError: A call failed possibly due to a network error"


def error(kind: str, text: str, *chain: tuple[str, str], **rest: Any) -> dict[str, Any]:
    own = {"type": kind, "text": text, "file": "/job/train.py", "line": 41, "function": "step", "traceback": "",
           "chain": [{"type": k, "text": t} for k, t in chain], **rest}  # fmt: skip
    return {"message": {"message": f"{kind}: {text}"}, "allranks": own}


def node_of(rank: int) -> str:
    return "h1" if rank < 2 else "h2"


def raised(rank: int, t: float, kind: str, text: str, *chain: tuple[str, str], expected: bool = False) -> RankEnd:
    return rank_end(rank, node_of(rank), 1, None, T + t, expected, error=error(kind, text, *chain))


def lost_peer(rank: int, t: float) -> RankEnd:
    return raised(rank, t, "RuntimeError", RESET)


def signalled(rank: int, t: float, signal: int, expected: bool = False, **rest: Any) -> RankEnd:
    return rank_end(rank, node_of(rank), None, signal, T + t, expected, **rest)


def coded(rank: int, t: float, code: int, tail: str = "", expected: bool = False) -> RankEnd:
    return rank_end(rank, node_of(rank), code, None, T + t, expected, tail=tail)


def incident(*exits: RankEnd, **rest: Any) -> Incident:
    given = {"attempt": 0, "world_size": 4, "ranks_by_node": NODES, "started_t": T, "master": "h1", **rest}
    return Incident(exits=exits, **given)


def verdict(*exits: RankEnd, **rest: Any) -> Verdict:
    found = judge(incident(*exits, **rest))
    assert found is not None
    return found


ENDLESS = "9" * 5000
DDP = "DDP expects same model across all ranks, but Rank {} has {} params, while rank {} has inconsistent {} params."


@pytest.mark.parametrize(
    "text",
    [
        f"Ranks 2, {ENDLESS} failed to pass monitoredBarrier in 1000 ms",
        DDP.format(1, ENDLESS, 0, 42),
        DDP.format(1, 41, 0, ENDLESS),
        f'Traceback (most recent call last):\n  File "/job/train.py", line {ENDLESS}, in step\nValueError: no',
        f'Current thread 0x01 (most recent call first):\n  File "/job/train.py", line {ENDLESS} in step',
        f"CUDA out of memory. Tried to allocate 2.00 GiB. GPU {ENDLESS} has a total capacity of 80.00 GiB",
        f"HIP out of memory. Tried to allocate 2.00 GiB. Process {ENDLESS} has 2.00 GiB memory in use",
    ],
)
def test_a_number_without_end_is_none(text: str) -> None:
    """Python refuses to read more than 4,300 digits: what a rank printed was an internal error."""
    ends = (raised(1, 5, "RuntimeError", text), coded(1, 5, 1, text), signalled(1, 5, 6, tail=text))
    for end in ends:
        assert verdict(end, lost_peer(0, 6)).cause != "internal-error"
    assert judge(incident(faults=(fault("h1", "start-failed", f"rank {ENDLESS} could not start", T),))) is not None


def test_ranks_that_only_together_have_models_of_two_sizes() -> None:
    """torch raises where two differ, but a program may print anything."""
    texts = [DDP.format(1, 10, 0, 10), DDP.format(2, 12, 3, 12)]
    found = verdict(*(raised(rank, 5, "RuntimeError", text) for rank, text in enumerate(texts, 1)))
    assert "rank 0 has 10, rank 1 has 10, rank 2 has 12 and rank 3 has 12" in found.finding.message


@pytest.mark.parametrize("early", [9, 1])
def test_all_zero_is_no_failure_though_one_comes_early(early: float) -> None:
    assert judge(incident(coded(1, early, 0), *(coded(r, 9, 0) for r in (0, 2, 3)))) is None


@pytest.mark.parametrize("ahead", [0.0, 0.005, 0.05, 2.0])
def test_a_consequence_never_wins_by_being_earlier(ahead: float) -> None:
    found = verdict(lost_peer(0, 5 - ahead), raised(3, 5, "ValueError", "bad batch"), signalled(1, 5.3, 15, True))
    assert found.finding.where == Where(node="h2", rank=3)
    assert found.finding.message == "rank 3 on h2 raised ValueError: bad batch (train.py:41 in step)"
    assert found.victims == (0, 1)


def test_the_culprits_process_and_gpu_are_named_where_they_are_known() -> None:
    failed = raised(3, 5, "ValueError", "bad batch")
    assert verdict(failed, pids={3: 4242}, gpus={3: 1}).finding.where == Where("h2", rank=3, pid=4242, gpu=1)
    assert verdict(replace(failed, fact=failed.fact._replace(pid=77))).finding.where == Where("h2", rank=3, pid=77)


@pytest.mark.parametrize(
    "text",
    [
        RESET,
        NCCL,
        "[/x/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.1]:1: Connection reset by peer",
        "[/x/gloo/transport/tcp/pair.cc:640] writev [10.0.0.1]:1: Broken pipe",
        "[/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete",
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
        "[PG ID 0 Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE)",
    ],
)
def test_what_transports_say_of_a_peer_is_a_consequence(text: str) -> None:
    found = verdict(raised(0, 4.9, "RuntimeError", text), signalled(3, 5, 9))
    assert found.finding.where.rank == 3 and "SIGKILL" in found.finding.message


LATER = raised(3, 6, "ValueError", "lost the others")
ABORTED = f"terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  {RESET}\n"
OWN_RESET = "[Errno 104] Connection reset by peer"


@pytest.mark.parametrize(
    ("exits", "culprit"),
    [
        pytest.param((signalled(0, 4.9, 6, tail=ABORTED), signalled(3, 5, 11)), 3, id="an abort over a lost peer"),
        pytest.param((raised(2, 5, "ConnectionResetError", OWN_RESET), lost_peer(0, 5.01)), 2, id="a reset of its own"),
        pytest.param((coded(0, 5, 7), LATER), 0, id="an unexplained end that came clearly first"),
        pytest.param((coded(0, 5.98, 7), LATER), 3, id="one that came first within the clocks' error"),
    ],
)
def test_who_is_at_fault(exits: tuple[RankEnd, ...], culprit: int) -> None:
    assert verdict(*exits).finding.where.rank == culprit


def test_the_earliest_of_several_roots_wins_and_the_others_are_named() -> None:
    found = verdict(raised(3, 7, "ValueError", "late"), signalled(0, 5, 11))
    assert found.cause == "segfault-native" and found.finding.where.rank == 0
    assert [f.message.split(" (")[0] for f in found.runners_up] == ["rank 3 on h2 raised ValueError: late"]


def test_within_the_clocks_error_what_is_recognised_comes_first() -> None:
    strange = raised(0, 5, "RuntimeError", "worker pool is broken")
    full = raised(3, 5.01, "OSError", "[Errno 28] No space left on device")
    assert verdict(strange, full).cause == "disk-full"
    assert verdict(strange, replace(full, t=T + 5.5)).cause == "program-exception"


def test_ended_by_allranks_but_raised_before() -> None:
    """The slow exit of the culprit: its peers fell first, and it was reaped after the gang was being ended."""
    slow = raised(3, 5, "ValueError", "bad batch", expected=True)
    found = verdict(lost_peer(0, 5.01), slow, signalled(1, 5.4, 15, True), detected_t=T + 5.1)
    assert found.finding.where.rank == 3 and found.detected_after_s == 0.1


def test_what_ranks_raise_while_they_are_ended_is_no_cause() -> None:
    handler = raised(3, 5.3, "Preempted", "saving on SIGTERM", expected=True)
    found = verdict(lost_peer(0, 5.01), handler, detected_t=T + 5.1)
    assert found.cause == "unknown" and found.victims == (0, 3)
    assert found.finding.message.startswith("nothing here is sure enough. Most likely peer-died: rank 0 on h1 lost")
    assert [f.id for f in found.runners_up][:1] == ["peer-died"] and likeliest(found) == "peer-died"


def test_only_ended_ranks_give_no_cause() -> None:
    found = verdict(signalled(0, 5, 15, True), signalled(3, 5, 9, True))
    assert found.cause == "unknown" and found.confidence < 0.5


def test_an_empty_queue_explains_nothing() -> None:
    (failure,) = failures(incident(raised(0, 5, "RuntimeError", RESET, ("Empty", ""))))
    assert failure.role is FailureRole.CONSEQUENCE


def everywhere(count: int) -> list[RankEnd]:
    return [raised(r, 5 + r / 100, "KeyError", f"'rank{r}_label_0x{r}f'") for r in range(count)]


def test_most_ranks_and_the_rest_ended_first() -> None:
    found = verdict(*everywhere(3), signalled(3, 5.2, 15, True))
    assert found.finding.where == Where() and "3 of 4 ranks, as the rest were ended first" in found.finding.message


def test_two_ranks_of_two_nodes_are_both_named() -> None:
    found = verdict(*(raised(r, 5, "ValueError", "x") for r in (1, 2)), lost_peer(0, 5.1), lost_peer(3, 5.1))
    assert found.finding.message.startswith("rank 1 on h1 and rank 2 on h2 raised ValueError: x")
    assert found.victims == (0, 3)


def test_a_single_rank_world_is_named() -> None:
    found = verdict(raised(0, 5, "ValueError", "x"), world_size=1, ranks_by_node={"h1": (0,)})
    assert found.finding.where == Where(node="h1", rank=0)


def test_a_stop_is_no_failure() -> None:
    ended = [signalled(0, 5, 15, True), coded(1, 5, 1, expected=True), lost_peer(2, 5.0), coded(3, 5, 143)]
    assert judge(incident(*ended, stop_reason="ctrl-c")) is None


def test_a_failure_before_the_stop_is_one() -> None:
    found = judge(incident(raised(3, 5, "ValueError", "x"), stop_reason="ctrl-c", detected_t=T + 5.1))
    assert found is not None and found.finding.where.rank == 3


def test_stopped_while_a_node_could_not_be_reached() -> None:
    down = Finding("ssh-unreachable", "fail", "h2: no answer", where=Where(node="h2"))
    assert judge(incident(findings=(down,), stop_reason="ctrl-c")) is None
    assert judge(incident(findings=(down,), stop_reason="ctrl-c", detected_t=T + 1)) is not None


def test_a_lost_node_explains_what_follows() -> None:
    gone = lost("h2", T + 70, T + 10)
    after = verdict(lost_peer(0, 12), raised(1, 13, "OSError", "[Errno 5] Input/output error"), lost=(gone,))
    assert after.cause == "node-network-down" and after.victims == (0, 1)


def test_a_finding_explains_a_timeout() -> None:
    finding = Finding("hostname-resolves-to-loopback", "fail", "h1 is 127.0.1.1 to itself", where=Where(node="h1"))
    late = verdict(findings=(finding,), init_timeout_hit=True, init_entered=frozenset({0}), detected_t=T + 600)
    assert late.cause == "hostname-resolves-to-loopback" and [f.id for f in late.runners_up] == ["rendezvous-timeout"]


def test_many_nodes_that_fail_alike_stay_one_sentence() -> None:
    names = [f"n{i}" for i in range(40)]
    finding = [Finding("ssh-auth", "fail", f"{n}: root@{n}: Permission denied", f"ssh-copy-id {n}", Where(node=n))
               for n in names]  # fmt: skip
    found = verdict(findings=tuple(finding))
    assert found.finding.message.endswith("n11 and 28 more: Permission denied")
    assert found.finding.remedy.count("ssh-copy-id") == 40


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("ssh: Could not resolve hostname {}: Name or service not known",
         "h1 and h2: ssh: Could not resolve the node's name: Name or service not known"),
        ("ssh: connect to host {} port 22: Connection refused",
         "h1 and h2: ssh: connect to the node port 22: Connection refused"),
    ],
)  # fmt: skip
def test_what_ssh_says_of_several_nodes_is_a_sentence(said: str, sentence: str) -> None:
    """It read `Could not resolve hostname the node`."""
    nodes = ("h1", "h2")
    faults = tuple(Finding("ssh-unreachable", "fail", f"{n}: {said.format(n)}", where=Where(node=n)) for n in nodes)
    assert verdict(findings=faults).finding.message == sentence


def test_torchelastics_own_error_file() -> None:
    message = {"message": "ValueError: bad: batch", "extraInfo": {"py_callstack": "Traceback", "timestamp": "1"}}
    assert Raised.from_error_file({"message": message}) == Raised("ValueError", "bad: batch", traceback="Traceback")
    assert Raised.from_error_file({"message": "two words: x"}) == Raised("Exception", "two words: x")
    assert Raised.from_error_file({}) is None
    assert Raised.from_error_file({"allranks": {"type": "E", "chain": [3, {"type": "F"}], "line": "x"}}) == Raised(
        "E", "", chain=(ExceptionLink("F"),)
    )


def test_the_last_words_of_a_rank_are_not_torchs_greeting() -> None:
    idle = "[W1121 18:42:17.07 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3\n"
    assert last_lines("step 1\n\n" + idle + "10%\r20%\n" + idle, 2) == ("step 1", "20%")
    assert last_lines(idle) == ()
    addresses = "".join(f"[rank2]: frame #{at}: c10::f() + 0x9d (0x7f in libc10.so)\n" for at in range(9))
    assert last_lines(f"terminate called\n{addresses}") == ("terminate called",), "addresses say nothing"


def test_a_traceback_in_the_middle_of_a_log_is_no_cause() -> None:
    log = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: retried\n' + "step\n" * 9
    message = verdict(coded(3, 5, 1, log)).finding.message
    assert message == "rank 3 on h2 ended with code 1, its last line: step"


def test_numbers_and_names() -> None:
    assert numbers([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7 and 8"
    assert numbers([]) == ""
    assert name_ranks(incident(), [0, 2, 3]) == "rank 0 on h1 and ranks 2 and 3 on h2"
    wide = incident(ranks_by_node={f"n{i}": (i,) for i in range(9)})
    assert name_ranks(wide, range(9)) == "ranks 0-8 (on 9 nodes)"


def test_verdict_json() -> None:
    document = encode(verdict(signalled(0, 5, 11), raised(3, 6, "ValueError", "x"), detected_t=T + 5.2, attempt=2))
    assert document["cause"] == document["id"] == "segfault-native"
    assert (document["attempt"], document["detected_after_s"], document["victims"]) == (2, 0.2, [3])
    assert document["runners_up"][0]["where"] == {"node": "h2", "rank": 3}


TEXTS = st.sampled_from(["", "bad", "a\nb", RESET, NCCL, "{x} %s", "CUDA out of memory", "can't open file 'a{}'"])
TAILS = st.sampled_from(["", "x\n", "usage: a\na: error: no {b}\n", "python: can't open file '/{x}.py': [Errno 2] No\n",
                         "terminate called without an active exception\n", "DistNetworkError\n"])  # fmt: skip
ERRORS = st.none() | st.builds(error, st.sampled_from(["ValueError", "OSError", "Empty", "KeyboardInterrupt"]), TEXTS)
TIMES = st.floats(T, T + 10)
EXITS = st.builds(
    lambda rank, end, t, expected, ooms, error, tail: rank_end(
        rank, node_of(rank), end[0], end[1], t, expected, oom_kills=ooms, error=error, tail=tail),
    st.integers(0, 3), st.sampled_from([(code, None) for code in (0, 1, 2, 127, 137)]
                                       + [(None, signal) for signal in (6, 7, 9, 15, 40)]),
    TIMES, st.booleans(), st.integers(0, 1), ERRORS, TAILS,
)  # fmt: skip
FAULTS = st.builds(fault, st.sampled_from(["h1", "h2"]), st.sampled_from(["start-failed", "agent-death",
                   "lease-over", "protocol", "boot", "node-dir", "new-kind"]), TEXTS, TIMES | st.just(0.0))  # fmt: skip
RANKS = st.frozensets(st.integers(0, 3))


@settings(max_examples=examples(70))
@given(st.lists(EXITS, max_size=4, unique_by=lambda e: e.rank), st.lists(FAULTS, max_size=2), RANKS, RANKS,
       st.booleans(), st.none() | TIMES, st.sampled_from([None, None, "ctrl-c"]))  # fmt: skip
def test_any_incident_gets_a_sound_verdict(
    exits: list[RankEnd], faults: list[Any], entered: frozenset[int], done: frozenset[int], over: bool,
    detected: float | None, stop: str | None,
) -> None:  # fmt: skip
    given = incident(*exits, faults=tuple(faults), init_entered=entered, initialised=done & entered,
                     init_timeout_hit=over, detected_t=detected, stop_reason=stop)  # fmt: skip
    found = judge(given)
    assert found == judge(replace(given, exits=tuple(reversed(exits))))
    if found is None:
        assert stop or (not faults and not over and not any(e.failed for e in exits))
        return
    assert found.cause in CAUSES and found.finding.remedy
    assert "\n" not in found.finding.message and len(found.finding.message) < 700
    assert len(found.finding.evidence) <= 3 and 0 < found.confidence <= 1
    assert found.finding.where.rank not in found.victims


SLURM = {"h1": "slurm", "h2": "slurm"}
PODS = {"h1": "kubernetes", "h2": "kubernetes"}


@pytest.mark.parametrize(
    ("schedulers", "jobs", "is_joined", "named", "not_named"),
    [
        (SLURM, {"h1": "88123", "h2": "88124"}, True, "`sacct -j 88124 ", "kubectl"),
        (PODS, {"h1": "w-0", "h2": "w-1"}, True, "`kubectl describe pod w-1`", "sacct"),
        ({"h1": "none", "h2": "none"}, {}, True, "journalctl", "ask the scheduler"),
        ({}, {}, True, "ask the scheduler where there is one: `sacct", "(of a run"),  # nodes of an older version
        (SLURM, {"h2": "7"}, False, "", "sacct"),  # reached over ssh
    ],
)
def test_a_fix_on_joined_nodes_names_the_scheduler_that_they_have(
    schedulers: dict[str, str], jobs: dict[str, str], is_joined: bool, named: str, not_named: str
) -> None:
    found = verdict(signalled(2, 9, 9), is_joined=is_joined, schedulers=schedulers, jobs=jobs)
    assert found.cause == "rank-killed", found
    assert named in found.finding.remedy and not_named not in found.finding.remedy, found.finding.remedy


def test_a_job_that_a_node_names_stands_in_no_command_unless_it_is_a_name() -> None:
    said = [NodeFactsKept(scheduler="slurm", job="1; rm -rf /"), NodeFactsKept(scheduler="slurm", job="88123")]
    read = fold([Stamped(f"h{at}", T, None, fact) for at, fact in enumerate(said, 1)], 0, ("h1", "h2"))
    assert (read.schedulers, read.jobs) == ({"h1": "slurm", "h2": "slurm"}, {"h2": "88123"})
