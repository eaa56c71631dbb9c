"""The earliest unfinished collective and who is not in it: from dumps as torch 2.13 writes them."""

from typing import Any

import pytest
from tests.diagnose.hangs.test_attribute import NAMES, at, in_collective, seen

from allranks.diagnose.hangs.attribute import MISMATCH, STRAGGLER, attribute
from allranks.diagnose.hangs.doing import Doing
from allranks.diagnose.hangs.frontier import Account, CollectiveFault, account
from allranks.diagnose.hangs.recorder import RankRecording, read_recording
from allranks.findings import Hang

WAITS = seen(in_collective())
SPINS = seen(at(61, "item"), cpu=4.9)  # a rank of NCCL: the GPU is waited for anywhere
ALL = (0, 1, 2, 3)


def entry(seq: int, done: bool, what: str = "all_reduce", backend: str = "gloo", shape: tuple[int, ...] = (1000,),
          group: str = "0", dtype: str = "Float", **more: Any) -> dict[str, Any]:  # fmt: skip
    """One entry of `_dump_fr_trace_json`; Gloo retires what is done, NCCL completes it."""
    nccl = backend != "gloo"
    return {"collective_seq_id": seq, "profiling_name": f"{backend}:{what}", "process_group": [group, "undefined"],
            "input_sizes": [list(shape)], "input_dtypes": [dtype], "is_p2p": False, "retired": done,
            "state": "completed" if done and nccl else "started" if nccl else "scheduled", **more}  # fmt: skip


def answer(*entries: dict[str, Any], groups: dict[str, tuple[int, ...]] | None = None) -> dict[str, Any]:
    """What the helper of a rank answers."""
    named = [{"name": name, "desc": "default_pg" if name == "0" else "undefined", "ranks": list(ranks)}
             for name, ranks in (groups or {"0": ALL}).items()]  # fmt: skip
    recorders: dict[str, Any] = {}
    for item in entries:
        recorders.setdefault(item["profiling_name"].partition(":")[0], {"entries": []})["entries"].append(item)
    return {"groups": named, "recorders": recorders or {"gloo": {"entries": []}}}


def recorder(ranks: tuple[int, ...], *entries: tuple[int, bool]) -> dict[str, Any]:
    """All reduces of the default group, by number and whether they are done."""
    return answer(*(entry(seq, done) for seq, done in entries), groups={"0": ranks})


def read(*found: dict[str, Any]) -> list[RankRecording]:
    return [read_recording(rank, item) for rank, item in enumerate(found)]


def judged(*found: dict[str, Any]) -> Account:
    result = account(read(*found))
    assert result is not None
    return result


def hang(doing: list[Doing], *found: dict[str, Any], ended: tuple[int, ...] = ()) -> Hang:
    by_rank = {rank: item for rank, item in enumerate(doing) if rank not in ended}
    result = attribute(by_rank, ended, NAMES, read(*found))
    assert result is not None
    return result


STUCK = answer(entry(16, True), entry(17, False))
BEHIND = answer(entry(16, True))


def test_gloos_asynchronous_calls_are_waited_for_in_native_code() -> None:
    """`work.wait()` leaves no frame of torch: the rank sleeps at a lock, and its recorder has something unfinished."""
    at_wait = seen(at(61), wchan="futex_wait_queue")
    asleep = seen(at(41), wchan="hrtimer_nanosleep")
    inside, behind = recorder(ALL, (3, True), (4, False)), recorder(ALL, (3, True))
    found = hang([at_wait, at_wait, asleep, at_wait], inside, inside, behind, inside)
    assert (found.cause, found.culprits, found.victims) == (STRAGGLER, (2,), (0, 1, 3))
    assert "ranks 0, 1 and 3 wait in all_reduce (data.py:61 in load)" in found.message
    idle = attribute(dict.fromkeys(ALL, at_wait), (), NAMES, read(behind, behind, behind, behind))
    assert idle is None, "a lock of the program's own"


def test_nothing_is_unfinished() -> None:
    assert account(read(BEHIND, BEHIND)) is None and account([]) is None


def test_a_rank_that_gives_no_dump_is_the_one_that_is_missing() -> None:
    found = judged(STUCK, STUCK, {"error": "its flight recorder could not answer: no answer within 3 s"}, STUCK)
    assert (found.case, found.culprits) == (CollectiveFault.MISSING, (2,))
    assert found.lines[1] == "rank 2: its flight recorder could not answer: no answer within 3 s"


def test_of_a_rank_that_was_not_asked_nothing_follows() -> None:
    """A launcher of other makers: the agent knows the first rank of each node."""
    found = account([read_recording(0, STUCK), read_recording(2, STUCK)])
    assert found is not None and (found.case, found.culprits) == (CollectiveFault.TOGETHER, ())


PAIRS = {"0": ALL, "1": (0, 1), "2": (2, 3), "3": (1, 2)}


def member(rank: int, *entries: dict[str, Any]) -> dict[str, Any]:
    return answer(*entries, groups={name: ranks for name, ranks in PAIRS.items() if rank in ranks})


# Tensor-parallel pairs in two pipeline stages, and the data-parallel group across each stage.
STAGES = {"0": tuple(range(8)), "1": (0, 1), "2": (2, 3), "3": (4, 5), "4": (6, 7), "5": (0, 1, 2, 3),
          "6": (4, 5, 6, 7), "7": (0, 4), "8": (1, 5), "9": (2, 6), "10": (3, 7)}  # fmt: skip


def staged(rank: int, *entries: dict[str, Any]) -> dict[str, Any]:
    numbered = [{**item, "record_id": order} for order, item in enumerate(entries)]
    return answer(*numbered, groups={name: ranks for name, ranks in STAGES.items() if rank in ranks})


def in_stages(**entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The eight ranks of the stages; those that are not named have called nothing."""
    return [staged(rank, *entries.get(f"rank_{rank}", [])) for rank in range(8)]


def moved(group: str, way: str, done: bool = False, size: int = 1000) -> dict[str, Any]:
    """A send or a receive of NCCL, which names ranks within the group."""
    out = {"output_sizes": [[size]], "output_dtypes": ["Float"]}
    return entry(0, done, way, "nccl", group=group, is_p2p=True, shape=(size,), **out)


def called(group: str, *numbers: int) -> list[dict[str, Any]]:
    return [entry(number, False, backend="nccl", group=group) for number in numbers]


def in_ring(called: int, **transfer: Any) -> dict[str, Any]:
    """A rank with Gloo, whose recorder has no sends: the frame that it waits in names the peer."""
    found = answer(*(entry(seq, seq <= 3) for seq in range(1, called + 1)))
    return {**found, "transfers": [{"group": "0", **transfer}] if transfer else []}


AT_LOCK = seen(at(61, "swap"), wchan="futex_wait_queue")  # in `work.wait()`, which has no frame


def posting(called: int, sends: dict[int, int], receives: dict[int, int], *waits: tuple[int, bool]) -> dict[str, Any]:
    """A rank with Gloo that has begun so many isend to and irecv from each peer; `waits`: the newest, not done."""
    counts = {(peer, True): total for peer, total in sends.items()}
    counts |= {(peer, False): total for peer, total in receives.items()}
    rows = [{"group": "0", "peer": peer, "is_send": way, "tag": 0, "total": n} for (peer, way), n in counts.items()]
    transfers = [{"group": "0", "peer": peer, "is_send": way, "number": counts[peer, way]} for peer, way in waits]
    calls = answer(*(entry(seq, seq <= 3) for seq in range(1, called + 1)))
    return {**calls, "posted": rows, "transfers": transfers}


def test_one_wrong_peer_in_a_ring_that_waits_for_what_it_has_begun() -> None:
    """Rank 2 receives from 3 in the third round. Sends are done when they are copied, so only their numbers tell."""
    ring = [posting(4, {(rank + 1) % 4: 3}, {(rank - 1) % 4: 3}) for rank in range(4)]
    ring[2] = posting(3, {3: 3}, {1: 2, 3: 1}, (3, False))
    found = hang([WAITS, WAITS, AT_LOCK, WAITS], *ring)
    assert (found.cause, found.culprits, found.victims) == (MISMATCH, (2,), (0, 1, 3))
    assert "rank 2 is in recv from rank 3, which has not called the send" in found.message


def test_what_a_rank_has_begun_and_does_not_wait_for_holds_nobody() -> None:
    """Rank 0 has an early receive from 1 open; all stand in an all_reduce but 3, which sleeps elsewhere."""
    early = posting(4, {}, {1: 1}, (1, False))
    others = [posting(4, {}, {}), posting(4, {}, {}), posting(3, {}, {})]
    found = hang([WAITS, WAITS, WAITS, seen(at(41), wchan="hrtimer_nanosleep")], early, *others)
    assert (found.cause, found.culprits) == (STRAGGLER, (3,))
    assert "recv" not in found.message


def test_a_send_that_was_received_is_not_missed_though_nobody_has_waited_for_it() -> None:
    """Rank 0 waits for its second receive, which 1 has not sent; its first send has come through long ago."""
    first = posting(3, {1: 1}, {1: 2}, (1, True), (1, False))
    found = hang([AT_LOCK, WAITS], first, posting(4, {0: 1}, {0: 1}))
    assert "recv from rank 1" in found.message and "send to" not in found.message


def test_a_peer_that_receives_from_any_rank_is_not_accused() -> None:
    first = posting(3, {1: 1}, {}, (1, True))
    found = hang([AT_LOCK, WAITS], first, posting(4, {}, {-1: 1}))
    assert "send to rank 1" not in found.message


def test_a_batch_of_transfers_ends_with_its_last_entry() -> None:
    """The operations of batch_isend_irecv never change their state; the entry behind them does."""
    batch = [entry(0, False, way, "nccl", group="7", is_p2p=True, p2p_seq_id=3) for way in ("send 0->1", "recv 0<-1")]
    end = entry(0, True, "coalesced", "nccl", group="7", is_p2p=True, p2p_seq_id=3)
    rest = [staged(rank) for rank in range(1, 8)]
    assert account(read(staged(0, *batch, end), *rest)) is None
    assert account(read(staged(0, *batch), *rest)) is None, "a dump of what is active lacks an end that is done"
    assert judged(staged(0, *batch, {**end, "state": "scheduled", "retired": False}), *rest).culprits == (4,)


@pytest.mark.parametrize("backend", ["nccl", "rccl", "xccl"])
def test_a_device_that_does_not_come_through_what_the_others_have(backend: str) -> None:
    """1 has called all that 0 has, and more than 0; its device stands at what 0 has come through."""
    behind = answer(*(entry(seq, False, backend=backend) for seq in (5, 6, 7)), groups={"0": (0, 1)})
    ahead = answer(*(entry(seq, False, backend=backend) for seq in (6, 7)), groups={"0": (0, 1)})
    found = judged(ahead, behind)
    assert (found.case, found.culprits) == (CollectiveFault.STUCK, (1,))
    assert found.message == "rank 1 is still in all_reduce #5 of 3.91 KB, which rank 0 has come through"
    found_with_stacks = hang([SPINS, SPINS], ahead, behind)
    assert (found_with_stacks.cause, found_with_stacks.culprits) == (STRAGGLER, (1,))


THROUGH, STANDS = answer(entry(5, True)), answer(entry(5, False))
CROSSED = {"1": (0, 1, 2), "4": (0, 1, 2)}
ONE, OTHER = (answer(entry(seq, False, group=group), groups=CROSSED) for seq, group in ((4, "1"), (6, "4")))
GATHER, REDUCE = answer(entry(17, False, "all_gather", shape=(256, 1024))), answer(entry(17, False, shape=(1024, 1024)))
# Queued ahead, as with NCCL: three are unfinished, the first is what holds.
AHEAD = answer(*(entry(seq, False, backend="nccl") for seq in (5, 6, 7)))
MISSING, DIFFERENT, ORDER = CollectiveFault.MISSING, CollectiveFault.DIFFERENT, CollectiveFault.ORDER
TOGETHER, BEHIND_OTHERS = CollectiveFault.TOGETHER, CollectiveFault.BEHIND
SCENARIOS: dict[str, tuple[list[dict[str, Any]], CollectiveFault, tuple[int, ...], str]] = {
    "a rank that has not called it": (
        [STUCK, STUCK, STUCK, BEHIND], MISSING, (3,),
        "ranks 0-2 are in all_reduce #17 of 3.91 KB, rank 3 has not called it"),
    "another operation at the same number": (
        [GATHER, GATHER, GATHER, REDUCE], DIFFERENT, (3,),
        "ranks 0-2 are in all_gather #17 of 1 MB and rank 3 is in all_reduce #17 of 4 MB"),
    "another shape": ([STUCK, answer(entry(17, False, shape=(999,))), STUCK, STUCK], DIFFERENT, (1,), ""),
    "another type": ([STUCK, answer(entry(17, False, dtype="Half")), STUCK, STUCK], DIFFERENT, (1,), ""),
    **{f"{what} of {backend} may be uneven": (
        [answer(entry(17, False, what, backend, (size,))) for size in (1, 2, 3, 4)], TOGETHER, (), "")
       for backend, what in (("gloo", "all_to_all"), ("gloo", "gather"), ("gloo", "scatter"), ("nccl", "all_gather"))},
    "the earliest counts": (
        [AHEAD, AHEAD, answer(entry(4, True, backend="nccl")), AHEAD], MISSING, (2,),
        "ranks 0, 1 and 3 are in all_reduce #5 of 3.91 KB, rank 2 has not called it"),
    "two halves blame nobody": ([STUCK, STUCK, *[answer(entry(17, False, "barrier"))] * 2], DIFFERENT, (), ""),
    "all are in it alike": ([STUCK] * 4, TOGETHER, (), ""),
    "a broadcast's source is through before the others are": (
        [answer(entry(17, True, "broadcast")), *[answer(entry(17, False, "broadcast"))] * 3], TOGETHER, (), ""),
    "NCCL retires what has timed out": (
        [*[answer(entry(5, False, backend="nccl", retired=True))] * 3, answer(entry(4, True, backend="nccl"))],
        MISSING, (3,), ""),
    "ranks wait for each other in two groups": ([ONE, OTHER], ORDER, (), ""),
    "in a circle the one that most wait for": ([ONE, ONE, OTHER], ORDER, (2,), ""),
    "the few that have not come through Gloo are behind, or a link to them is": (
        [THROUGH, STANDS, THROUGH, THROUGH], BEHIND_OTHERS, (1,), ""),
    "most of the ranks prove nothing": ([THROUGH, STANDS, STANDS, STANDS], TOGETHER, (), ""),
    "what is queued ahead in another group blames nobody": (
        [answer(*called("0", 5), *called("1", 9), groups={"0": (0, 1), "1": (0, 1)}),
         answer(*called("0", 5), groups={"0": (0, 1), "1": (0, 1)})], TOGETHER, (), ""),
    "0 waits for 1, 1 for 2 in another group, 2 for 3 in a third, and 3 does nothing": (
        [member(0, entry(4, False, group="1")), member(1, entry(2, False, group="3")),
         member(2, entry(9, False, group="2")), member(3, entry(8, True, group="2"))], MISSING, (3,),
        "rank 2 is in all_reduce #9 of 3.91 KB of group (ranks 2 and 3), rank 3 has not called it"),
    "a receive without its send": (
        in_stages(rank_0=[moved("7", "recv 0<-1")]), MISSING, (4,),
        "rank 0 is in recv from rank 4 of group (ranks 0 and 4), which has not called the send"),
    "a receive meets another one": (
        in_stages(rank_0=[moved("7", "recv 0<-1")], rank_4=[moved("7", "recv 1<-0")]), ORDER, (), ""),
    "a receive meets its send": (
        in_stages(rank_0=[moved("7", "send 0->1")], rank_4=[moved("7", "recv 1<-0")]), TOGETHER, (), ""),
    "a send whose receive is called waits for what its peer waits for": (
        in_stages(rank_0=[moved("7", "send 0->1")], rank_4=[*called("3", 9), moved("7", "recv 1<-0")]),
        MISSING, (5,), ""),
    "in a ring 2 receives from 3, which sends to 0: 1 cannot send to it, and the others wait in what comes then": (
        [in_ring(4), in_ring(3, peer=2, is_send=True), in_ring(3, peer=3, is_send=False), in_ring(4)], ORDER, (2,),
        "rank 2 is in recv from rank 3, which has not called the send; "
        "ranks 0 and 3 are in all_reduce #4 of 3.91 KB, ranks 1 and 2 have not called it"),
    "the ring goes round once more behind rank 2, which receives from 3": (
        [in_ring(3, peer=peer, is_send=way) for peer, way in ((1, True), (2, True), (3, False), (2, False))],
        ORDER, (2,), ""),
    "rank 2 sends to 0 instead of 3": (
        [in_ring(3, peer=peer, is_send=way) for peer, way in ((3, False), (2, True), (0, True), (2, False))],
        ORDER, (2,), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_is_wrong_and_who_is_at_fault(name: str) -> None:
    dumps, case, culprits, says = SCENARIOS[name]
    found = judged(*dumps)
    assert (found.case, found.culprits) == (case, culprits), found.message
    assert says in ("", found.message)


def test_culprits_in_several_groups_are_all_named() -> None:
    """4 and 7 do nothing, each in a pair of its own; the other stage waits for tensors, two of them from victims."""
    first_stage = {f"rank_{rank}": [moved(str(7 + rank), "recv 0<-1")] for rank in range(4)}
    found = judged(*in_stages(**first_stage, rank_5=called("3", 41, 42), rank_6=called("4", 41, 42)))
    assert (found.case, found.culprits) == (MISSING, (4, 7))
    assert "rank 4 has not called it" in found.message and "rank 7 has not called it" in found.message


def test_a_receive_of_another_size_than_its_send() -> None:
    receives = [moved("7", "recv 1<-0", size=500)]
    found = judged(*in_stages(rank_0=[moved("7", "send 0->1")], rank_4=receives))
    assert (found.case, found.culprits, found.is_shape) == (DIFFERENT, (), True)
    assert found.message == "rank 0 sends 1,000 Float elements to rank 4, which receives 500 Float elements"


def test_an_order_that_crosses_is_no_fault_of_one_rank() -> None:
    found = hang([WAITS, WAITS], ONE, OTHER)
    assert (found.cause, found.culprits) == (MISMATCH, ()) and "ranks wait for each other: " in found.message
    assert "rank 0 is in all_reduce #4" in found.message and "rank 1 is in all_reduce #6" in found.message


def test_a_rank_behind_on_gloo_is_no_mismatch_though_the_others_stand_at_the_next_line() -> None:
    ahead = answer(entry(5, True), entry(6, False))
    further = seen(in_collective(line=61))
    found = hang([further, WAITS, further, further], ahead, STANDS, ahead, ahead)
    assert (found.cause, found.culprits) == (STRAGGLER, (1,))
    assert "a link to it may be at fault as well" in found.message


@pytest.mark.parametrize(
    "other",
    [{"dtype": "Half"}, {"shape": (999,)}, {"output_sizes": [[999]], "output_dtypes": ["Float"]},
     {"output_sizes": [[1000]], "output_dtypes": ["Half"]}],
)  # fmt: skip
def test_a_mismatch_that_has_passed_counts_where_nothing_else_explains(other: dict[str, Any]) -> None:
    """Gloo lets shorter tensors and other types pass; shapes and types of the results count, too."""
    out: dict[str, Any] = {"output_sizes": [[1000]], "output_dtypes": ["Float"]}
    alike, odd = answer(entry(5, True, **out)), answer(entry(5, True, **{**out, **other}))
    found = judged(alike, alike, odd, alike)
    assert (found.case, found.culprits, found.is_shape) == (DIFFERENT, (2,), True)
    assert "rank 2 has called all_reduce #5" in found.message
    late = judged(answer(entry(5, True, **out), entry(6, False)), odd, answer(entry(6, False)), answer(entry(6, False)))
    assert (late.case, late.culprits) == (MISSING, (1,)), "who is missing comes first"


def test_a_sleeper_is_blamed_and_not_a_mismatch_that_has_passed() -> None:
    odd = answer(entry(16, True, dtype="Half"))
    found = hang([WAITS, WAITS, seen(at(41)), WAITS], BEHIND, BEHIND, BEHIND, odd)
    assert (found.cause, found.culprits) == (STRAGGLER, (2,))


def test_what_has_passed_with_other_numbers_of_a_group_made_again() -> None:
    """The group was destroyed and made again under its name: of two calls with one number the newer counts."""
    again = answer(entry(5, True, record_id=1, dtype="Half"), entry(5, True, record_id=9))
    assert account(read(again, THROUGH, again, THROUGH)) is None


def test_a_result_that_fits_none_of_its_inputs() -> None:
    """As torch's analyser: the result of an all_reduce has the shape of its input, on all ranks alike."""
    odd = answer(entry(5, False, output_sizes=[[999]], output_dtypes=["Float"]))
    found = judged(odd, odd, odd, odd)
    assert (found.case, found.culprits, found.is_shape) == (DIFFERENT, (), True)
    assert "1,000 Float elements into 999 Float elements" in found.message


def test_sends_and_unknown_groups_are_passed_over() -> None:
    assert account(read(answer(entry(1, False, is_p2p=True), entry(2, False, group="gone")))) is None


def test_a_rank_elsewhere_is_named_and_the_collective_is_the_evidence() -> None:
    found = hang([WAITS, WAITS, seen(at(41)), WAITS], STUCK, STUCK, BEHIND, STUCK)
    assert (found.cause, found.culprits) == (STRAGGLER, (2,))
    assert found.evidence[0].startswith("flight recorder: ranks 0, 1 and 3 are in all_reduce #17")


def test_of_several_elsewhere_the_one_that_is_missing() -> None:
    """Rank 3 belongs to no group that anybody waits in."""
    groups = {"0": ALL, "1": (0, 1, 2)}
    waits = answer(entry(5, False, group="1"), groups=groups)
    idle = answer(groups=groups)
    found = hang([WAITS, WAITS, seen(at(41)), seen(at(7))], waits, waits, idle, answer(groups={"0": ALL}))
    assert found.culprits == (2,)


def test_all_that_are_missing_are_named_whatever_each_does() -> None:
    """Two ranks keep the others waiting: one sleeps, the other computes."""
    found = hang([WAITS, seen(at(41)), WAITS, seen(at(7), cpu=4.9)], STUCK, BEHIND, STUCK, BEHIND)
    assert (found.cause, found.culprits, found.victims, found.slow) == (STRAGGLER, (1, 3), (0, 2), False)
    assert "rank 1 on h1 is at data.py:41" in found.message and "rank 3 on h2 is busy at data.py:7" in found.message


def test_stacks_alike_and_recorders_that_differ() -> None:
    found = hang([WAITS] * 4, STUCK, STUCK, STUCK, REDUCE)
    assert (found.cause, found.culprits, found.victims) == ("collective-shape-mismatch", (3,), (0, 1, 2))
    assert "rank 3 is in all_reduce #17 of 4 MB" in found.message and "rank 3 on h2 unlike most" in found.message


def test_a_mismatch_says_where_the_culprit_and_the_others_stand() -> None:
    found = hang([WAITS, WAITS, WAITS, seen(in_collective(line=88))], STUCK, STUCK, STUCK, REDUCE)
    assert found.message.endswith(
        ". In the program stand rank 3 on h2 at train.py:88 in step and ranks 0 and 1 on h1 and rank 2 on h2 "
        "at train.py:60 in step"
    )


def test_all_alike_stays_unexplained_and_says_where() -> None:
    found = hang([WAITS] * 4, STUCK, STUCK, STUCK, STUCK)
    assert found.cause == "unknown" and "all_reduce #17" in found.evidence[0]


def test_nccl_ranks_that_wait_for_the_gpu() -> None:
    """No stack shows a collective and all spin; the recorders tell who waits and who does not."""
    waits = answer(entry(17, False, backend="nccl"))
    found = hang([SPINS, SPINS, seen(at(41)), SPINS], waits, waits, answer(entry(16, True, backend="nccl")), waits)
    assert (found.cause, found.culprits, found.victims) == (STRAGGLER, (2,), (0, 1, 3))
    assert "wait in all_reduce" in found.message


def test_a_stopped_rank_is_stopped_whatever_the_recorders_say() -> None:
    silent = {"error": "its flight recorder could not answer: no answer within 3 s (the process is in state T)"}
    found = hang([WAITS, seen(in_collective(), state="T"), WAITS, WAITS], STUCK, silent, STUCK, STUCK)
    assert found.culprits == (1,) and "is stopped" in found.message
    assert found.evidence[-1].startswith("rank 1: its flight recorder could not answer")


def test_an_ended_rank() -> None:
    found = hang([WAITS] * 4, STUCK, STUCK, STUCK, ended=(3,))
    assert found.culprits == (3,) and "ended with code 0" in found.message
