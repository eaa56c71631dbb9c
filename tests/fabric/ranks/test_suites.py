"""The suites sync and bandwidth with real ranks on loopback: what passes, and that everything wrong is caught."""

import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fabric.gang import DOUBLE, Gang

from allranks.settings.runspec import TESTS_OF

pytestmark = pytest.mark.torch

Start = Callable[..., Gang]
BLOCKS = ["gather", "all_gather", "all_gather_into_tensor", "reduce_scatter", "all_to_all"]
OBJECTS = ["gather_object", "all_gather_object", "padded_tokens", "many_gathers"]
NAMES = ["barrier", "all_reduce", "broadcast", "reduce", *BLOCKS, "send_recv", *OBJECTS, "large_payloads",
         "node_groups", "across_groups", "fsdp_step"]  # fmt: skip
NOTHING = ("barrier", "all_reduce", "broadcast", "reduce", "gather", "all_gather", "all_gather_single", "gather_object",
           "all_gather_into_tensor", "reduce_scatter_single", "reduce_scatter_tensor", "all_to_all_single",
           "all_gather_object")  # fmt: skip


# -- what passes -----------------------------------------------------------------------------------


def test_every_test_passes(gang: Start) -> None:
    run = gang(4, 2, "--size", "100KB", "--nodes", "h1,h2", GLOO_SOCKET_IFNAME="lo")
    assert run.codes() == dict.fromkeys(range(4), 0), run.everything()
    assert [(row["test"], row["status"]) for row in run.rows()] == [(n, "pass") for n in ["process_group", *NAMES]]
    assert [line.split()[1] for line in run.out().splitlines() if line.startswith("PASS ")][1:] == NAMES
    assert [run.out(rank) for rank in (1, 2, 3)] == ["", "", ""], "rank 0 alone speaks"
    assert run.out().endswith("\nALL TESTS PASSED!\n")
    for row in run.rows():
        assert (row["schema"], row["ranks"], row["failures"], row["hang"]) == (1, 4, [], None)
    assert run.row("large_payloads")["detail"] == "1KB 16KB 100KB a rank"
    assert "2 replicas (nodes) × 2 shards" in run.line("fsdp_step")
    assert "2 groups of 2 ranks across nodes" in run.line("across_groups")
    assert "bfloat16" in run.line("all_reduce") and "50 batches" in run.line("many_gathers")
    (end,) = run.rows("end")
    assert (end["suite"], end["ok"], end["exit"]) == ("sync", True, 0)
    said = "\n".join(end["statement"])
    for words in ("4 ranks, 2 nodes (h1 2, h2 2)", "gloo on cpu", "torch 2", "1KB to 100KB", "float32, int64, bfloat16",
                  "GLOO_SOCKET_IFNAME=lo", "NCCL_SOCKET_IFNAME not set", "untested: speed"):  # fmt: skip
        assert words in said


def test_three_ranks_on_one_node_skip_what_needs_more(gang: Start) -> None:
    run = gang(3, 3, "--only", "across_groups,node_groups,fsdp_step,all_to_all,reduce_scatter,send_recv")
    assert set(run.codes().values()) == {0}, run.everything()
    assert run.line("across_groups").startswith("SKIP") and run.line("across_groups").endswith("one node")
    assert run.row("across_groups")["status"] == "skip"
    assert "1 replica × 3 shards" in run.line("fsdp_step")
    assert "untested: across_groups: one node" in run.out() and "not asked for (--only)" in run.out()


def test_one_rank_alone(gang: Start) -> None:
    run = gang(1, 1, "--size", "1KB")
    assert run.codes() == {0: 0}, run.everything()
    skipped = [row["test"] for row in run.rows() if row["status"] == "skip"]
    assert skipped == ["send_recv", "node_groups", "across_groups", "fsdp_step"]


def test_quick(gang: Start) -> None:
    run = gang(2, 1, "--quick")
    assert set(run.codes().values()) == {0}, run.everything()
    names = [row["test"] for row in run.rows()][1:]
    assert names == ["barrier", "all_reduce", "all_gather", "gather_object", "many_gathers", "large_payloads"]
    assert "4MB a rank" in run.line("large_payloads") and "1 batch" in run.line("many_gathers")


def test_a_payload_beyond_the_memory_is_refused(gang: Start) -> None:
    run = gang(2, 2, "--size", "1024TB", "--only", "barrier")
    assert set(run.codes().values()) == {0}, run.everything()
    (note,) = [line for line in run.out().splitlines() if line.startswith("note: ")]
    assert "1024TB refused: 2 ranks need 6144TB of memory" in note and note.endswith("used instead")
    assert note.replace("note:", "untested:") in run.out()


# -- what is wrong ---------------------------------------------------------------------------------


SLOW = [pytest.param(what, marks=pytest.mark.slow) for what in ("wrong_block", "off_by_one")]


@pytest.mark.parametrize("what", ["zeros", *SLOW])
def test_wrong_data_of_one_rank_fails_every_test_and_none_gets_out_of_step(gang: Start, what: str) -> None:
    run = gang(4, 2, "--size", "4KB", **{DOUBLE: f"rank=2,test=every,what={what}"})
    assert set(run.codes().values()) == {3}, run.everything()
    status = {row["test"]: row["status"] for row in run.rows()}
    carriers = NAMES[1:]
    assert {name: status[name] for name in carriers} == dict.fromkeys(carriers, "fail")
    assert status["barrier"] == "pass", "it carries no data"
    for name in ["all_gather", "all_gather_into_tensor", "gather", "all_to_all", "broadcast", "send_recv", *OBJECTS]:
        assert {failure["source"] for failure in run.row(name)["failures"]} == {2}, name
    if what != "off_by_one":  # a sum does not show whose share is one too large
        assert {failure["source"] for failure in run.row("all_reduce")["failures"]} == {2}
        assert "rank 2 had contributed" in run.line("all_reduce")
    failure = run.row("all_gather")["failures"][1]
    assert failure["rank"] == 1 and failure["expected"] != failure["found"] and failure["kind"] == "float32"
    assert run.row("gather")["failures"][0]["rank"] == 0 and len(run.row("gather")["failures"]) == 1
    (end,) = run.rows("end")
    assert not end["ok"] and end["exit"] == 3
    assert run.out().splitlines()[-1] == f"FIRST FAILURE in all_reduce: {run.row('all_reduce')['reason']}"


def test_collectives_that_do_nothing_fail(gang: Start) -> None:
    run = gang(2, 1, "--size", "1KB", sabotaged=NOTHING)
    assert set(run.codes().values()) == {3}, run.everything()
    status = {row["test"]: row["status"] for row in run.rows()}
    done_otherwise = {"send_recv", "fsdp_step", "node_groups"}
    assert {name for name, found in status.items() if found != "fail"} <= done_otherwise, status
    assert set(NAMES) <= set(status)


# -- who is missing: all at once, as they mostly wait ---------------------------------------------


def double(rank: int, test: str, what: str) -> dict[str, str]:
    return {DOUBLE: f"rank={rank},test={test},what={what}"}


@pytest.fixture(scope="module")
def gone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Gang]]:
    folder = tmp_path_factory.mktemp("gone")
    runs: dict[str, Gang] = {}

    def start(name: str, world: int, *words: str, limit: str = "60s", **more: Any) -> None:
        runs[name] = Gang(folder / name, world, 1, "--timeout", limit, *words, **more)

    start("killed", 3, "--only", "barrier,many_gathers", **double(0, "many_gathers", "late=15"))
    start("stopped", 2, "--only", "barrier,all_gather", limit="20s", **double(1, "all_gather", "hang"))
    start("first", 3, "--only", "barrier,broadcast", **double(1, "broadcast", "hang"))
    start("terminated", 2, "--only", "barrier,broadcast", **double(1, "broadcast", "hang"))
    signals = {"killed": (2, signal.SIGKILL), "stopped": (1, signal.SIGSTOP), "first": (0, signal.SIGKILL)}
    for name, (rank, number) in signals.items():
        runs[name].until("PASS barrier")
        runs[name].send(rank, number)
    runs["terminated"].until("PASS barrier")
    for rank in (0, 1):
        runs["terminated"].send(rank, signal.SIGTERM)
    start("hung", 3, "--only", "barrier,all_gather", limit="20s", **double(2, "all_gather", "hang"))
    start("ended", 3, "--only", "all_reduce", **double(1, "all_reduce", "exit"))
    start("cut", 2, "--only", "barrier,all_gather,send_recv", TEST_CUT="1")
    start("absent", 3, limit="20s", without=(2,))
    start("no_store", 2, limit="2s", without=(0,))
    start("measured", 2, "--suite", "bandwidth", "--quick", limit="20s", **double(1, "all_gather", "hang"))
    start("late", 3, "--only", "barrier,broadcast", **double(1, "broadcast", "late=4"))
    yield runs
    for run in runs.values():
        run.end()


def test_a_late_rank_is_named_and_passes(gone: dict[str, Gang]) -> None:
    run = gone["late"]
    assert set(run.codes().values()) == {0}, run.everything()
    late = run.row("broadcast")["late"]
    assert late["rank"] == 1 and late["seconds"] > 1
    assert run.line("broadcast").startswith("PASS") and "rank 1 came" in run.line("broadcast")


def test_a_rank_that_hangs_is_named_with_all_stacks(gone: dict[str, Gang]) -> None:
    run = gone["hung"]
    assert set(run.codes().values()) == {5}, run.everything()
    row = run.row("all_gather")
    assert row["status"] == "hang" and row["hang"]["missing"] == [2] and row["hang"]["arrived"] == [0, 1]
    assert "no end within 20 s: rank 2 had not arrived; ranks 0-1 in round 0" in run.line("all_gather")
    assert "behave" in row["hang"]["stacks"]["2"][-1] and "all_gather" in "".join(row["hang"]["stacks"]["0"])
    assert "rank 2 was in" in run.out() and "in each rank's stderr" in run.out()
    assert all("cases/rounds.py" in run.err(rank) for rank in range(3))
    (end,) = run.rows("end")
    assert end["exit"] == 5 and end["statement"][-1].startswith("FIRST FAILURE in all_gather: ")
    assert run.rows("end", 1) == run.rows("end", 2) == []


def test_a_rank_that_ends_is_named(gone: dict[str, Gang]) -> None:
    run = gone["ended"]
    assert run.codes() == {0: 5, 1: 7, 2: 5}, run.everything()
    hang = run.row("all_reduce")["hang"]
    assert 1 in hang["silent"] and hang["missing"] == [1]
    assert "no sign of life from rank" in run.line("all_reduce") and "gave up: RuntimeError" in run.line("all_reduce")


def test_a_broken_connection_is_said_with_ranks_and_error(gone: dict[str, Gang]) -> None:
    run = gone["cut"]
    assert run.codes() in ({0: 3, 1: 3}, {0: 5, 1: 5}), run.everything()
    row = run.row("all_gather")
    assert row["status"] in ("fail", "hang") and "RuntimeError: " in row["reason"] and "onnection" in row["reason"]
    assert {failure["rank"] for failure in row["failures"]} or "gave up" in row["reason"]
    assert [row["test"] for row in run.rows()] == ["process_group", "barrier", "all_gather"], "it stops there"
    assert "untested: send_recv: not reached" in run.out()


def test_a_rank_that_is_killed_at_work_is_named(gone: dict[str, Gang]) -> None:
    run = gone["killed"]
    assert run.codes() == {0: 5, 1: 5, 2: -9}, run.everything()
    assert 2 in run.row("many_gathers")["hang"]["silent"]


def test_a_stopped_rank_is_named(gone: dict[str, Gang]) -> None:
    run = gone["stopped"]
    assert run.codes(0) == {0: 5}, run.everything()
    assert run.row("all_gather")["hang"]["silent"] == [1]


def test_rank_0_that_is_killed_is_named_by_another(gone: dict[str, Gang]) -> None:
    run = gone["first"]
    assert run.codes(1, 2) == {1: 5, 2: 5}, run.everything()
    row = next(row for row in run.rows(rank=1) if row.get("hang"))  # the test that it was in when rank 0 went
    assert row["hang"]["missing"] == [0] and "rank 0, which holds it, has ended" in run.out(1)
    assert run.rows("end", 1)[0]["exit"] == 5


def test_a_rank_that_never_comes_is_named(gone: dict[str, Gang]) -> None:
    run = gone["absent"]
    assert run.codes() == {0: 5, 1: 5}, run.everything()
    assert 2 in run.row("process_group")["hang"]["silent"] and run.row("process_group")["hang"]["missing"] == [2]
    assert "rank 2 had not arrived" in run.line("process_group")


def test_without_rank_0_there_is_no_store(gone: dict[str, Gang]) -> None:
    run = gone["no_store"]
    assert run.codes() == {1: 5}, run.everything()
    assert "FAIL start: rank 1 does not reach the store at 127.0.0.1" in run.err(1)


def test_sigterm_in_a_collective_leaves_a_report(gone: dict[str, Gang]) -> None:
    run = gone["terminated"]
    assert run.codes() == {0: 143, 1: 143}, run.everything()
    assert "ended by SIGTERM" in run.line("broadcast") and run.row("broadcast")["hang"]["missing"] == [1]


def test_bandwidth_names_a_rank_that_hangs(gone: dict[str, Gang]) -> None:
    run = gone["measured"]
    assert set(run.codes().values()) == {5}, run.everything()
    assert "no end within 20 s at 64KB: rank 1 had not arrived" in run.line("all_gather")
    assert {row["collective"] for row in run.rows("bandwidth")} == {"all_reduce"}


def test_nccl_without_gpus_is_a_failure_that_says_so(gang: Start) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    run = gang(2, 1, "--backend", "nccl", "--quick")
    assert set(run.codes().values()) == {3}, run.everything()
    assert "ranks 0-1 see no GPU that NCCL can use, but --backend is nccl" in run.line("process_group")
    assert "not reached" in run.out() and "FIRST FAILURE in process_group: " in run.out()


def test_usage(gang: Start) -> None:
    run = gang(1, 1, "--only", "barrier,none_such")
    assert run.codes() == {0: 2}
    assert "test none_such not found, expected one of barrier, all_reduce" in run.err()


# -- bandwidth -------------------------------------------------------------------------------------


def test_bandwidth(gang: Start) -> None:
    run = gang(3, 3, "--suite", "bandwidth", "--size", "8KB")
    assert set(run.codes().values()) == {0}, run.everything()
    rows = run.rows("bandwidth")
    names = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "gather", "sendrecv"]
    assert [row["collective"] for row in rows] == [name for name in names for _ in range(3)]
    factors = {"all_reduce": 4 / 3, "broadcast": 1.0, "sendrecv": 1.0}
    for row in rows:
        assert row["schema"] == 1 and row["ranks"] == 3 and 5 <= row["rounds"] <= 50
        assert 0 < row["q1"] <= row["median"] <= row["q3"]
        assert row["algbw"] == pytest.approx(row["size"] / row["median"])
        assert row["busbw"] == pytest.approx(row["algbw"] * factors.get(row["collective"], 2 / 3))
    # Blocks of equal size: what three ranks can't share is left out.
    assert [row["size"] for row in rows if row["collective"] == "all_reduce"] == [1024, 4096, 8192]
    assert [row["size"] for row in rows if row["collective"] == "all_gather"] == [1020, 4092, 8184]
    (end,) = run.rows("end")
    assert end["suite"] == "bandwidth" and end["ok"]
    assert any("best busbw of all_reduce" in line and "on one node" in line for line in end["statement"])
    table = [line for line in run.out().splitlines() if "busbw" in line and "algbw" in line]
    assert len(table) == len(rows) and all(line.split()[0] in names for line in table)


def test_the_settings_name_the_tests_that_there_are() -> None:
    from allranks.fabric.ranks import bandwidth, cases  # noqa: PLC0415 - it imports torch

    assert TESTS_OF["sync"] == tuple(cases.TESTS) and TESTS_OF["bandwidth"] == bandwidth.COLLECTIVES


def test_a_quick_sweep_takes_no_memory_for_sizes_that_it_leaves_out() -> None:
    """Two buffers of --size, 512 MB, were filled within the time limit of the first collective."""
    from allranks.fabric.ranks.bandwidth import Sweep  # noqa: PLC0415 - it imports torch

    sizes = {"sizes": lambda quick, growth: list(quick)}
    lab = SimpleNamespace(quick=True, size=1 << 50, rank=0, world=2, device="cpu", **sizes)
    runner: Any = SimpleNamespace(report=None, lab=lab)
    sweep = Sweep(runner)
    sweep._prepare("all_reduce", 64 << 10)  # noqa: SLF001 - the rest of it needs a process group
    assert [buffer.nbytes for buffer in sweep.buffers] == [4 << 20] * 2
