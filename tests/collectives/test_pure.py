"""What the collective tests compute without torch: data, sizes, factors, verdicts, environment, links, options."""

import ast
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allranks.collectives import data, factors, place, results, sizes
from allranks.collectives.hang import END, Hang, Place, describe, names, silent_ranks, split
from allranks.collectives.options import parse

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "allranks" / "collectives"
SUITE_OF_ANOTHER = {"pairs.py"}  # needs allranks.links; imported only for --suite pairs


# -- the files alone -------------------------------------------------------------------------------


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """The package that is imported, and whether it is the own one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            depth = len(path.relative_to(PACKAGE).parts)
            yield (node.module or "").split(".")[0], 0 < node.level <= depth


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_only_torch_and_the_standard_library_are_imported(path: Path) -> None:
    if path.name in SUITE_OF_ANOTHER:
        return
    foreign = [name for name, own in imports(path) if not own and name not in {*sys.stdlib_module_names, "torch"}]
    assert foreign == []
    assert "__file__" not in path.read_text(encoding="utf-8"), "it may lie in an archive"


def test_pairs_are_imported_by_that_suite_alone() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py") if path.name != "pairs.py")
    assert text.count("from .pairs import") == 1 and "import pairs" not in text


@pytest.mark.torch
def test_two_ranks_from_an_archive(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from tests.collectives.gang import GENEROUS, environment, free_port

    archive = tmp_path / "tests.zip"
    with zipfile.ZipFile(archive, "w") as bundle:
        bundle.writestr("allranks/__init__.py", "")
        for path in PACKAGE.rglob("*.py"):
            bundle.write(path, f"allranks/collectives/{path.relative_to(PACKAGE).as_posix()}")
    port = free_port()
    command = [sys.executable, "-m", "allranks.collectives", "--quick", "--out", "none"]
    ranks = []
    for rank in (0, 1):
        env = environment(rank, 2, 2, port, PYTHONPATH=str(archive), OMP_NUM_THREADS="1")
        ranks.append(subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True))
    outputs = [rank.communicate(timeout=GENEROUS)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert outputs[0].endswith("ALL TESTS PASSED!\n") and outputs[1] == ""
    assert list(tmp_path.iterdir()) == [archive], "--out none writes nothing"


@pytest.mark.parametrize(("env", "words"), [({}, "RANK, WORLD_SIZE"), ({"RANK": "x"}, "RANK='x' is no number")])
def test_usage_errors_come_before_torch(env: dict[str, str], words: str, tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')", encoding="utf-8")
    whole = {**kept, **env, "PYTHONPATH": f"{tmp_path}:{PACKAGE.parents[1]}"}
    done = subprocess.run([sys.executable, "-m", "allranks.collectives"], env=whole, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


# -- data ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "int64", "bfloat16"])
@pytest.mark.parametrize("ranks", [1, 2, 8, 61])
def test_sums_stay_exact(dtype: str, ranks: int) -> None:
    modulus = data.modulus_of(dtype, ranks)
    assert modulus is not None and data.is_prime(modulus)
    assert min(data.table(0, 0, modulus)) >= 1
    assert max(data.reduced("sum", list(range(ranks)), 3, modulus)) <= data.LIMITS[dtype]


def test_no_exact_sum_in_bfloat16_over_many_ranks() -> None:
    assert data.modulus_of("bfloat16", 200) is None


def test_blocks_differ_by_rank_round_and_place_and_are_never_zero() -> None:
    blocks = {(r, t): tuple(data.moved(r, t, i) for i in range(4)) for r in range(64) for t in range(60)}
    assert len(set(blocks.values())) == len(blocks) and all(0 not in block for block in blocks.values())
    assert all(len(set(block)) == len(block) for block in blocks.values())


@pytest.mark.parametrize("turn", [0, 1, 7])
def test_a_wrong_sum_names_the_rank(turn: int) -> None:
    ranks, modulus = list(range(16)), data.PRIME
    right = data.reduced("sum", ranks, turn, modulus)
    share = {rank: data.table(rank, turn, modulus) for rank in ranks}
    for rank in ranks:
        nothing = [a - b for a, b in zip(right, share[rank], strict=True)]
        assert (data.culprit(nothing, ranks, turn, modulus) or (None,))[0] == rank
        other = (rank + 1) % 16
        swapped = [a - b + c for a, b, c in zip(right, share[rank], share[other], strict=True)]
        found = data.culprit(swapped, ranks, turn, modulus)
        assert found == (rank, f"as if rank {rank} had contributed the data of rank {other}")
    assert data.culprit([value + 1 for value in right], ranks, turn, modulus) is None
    assert data.culprit([right[0] - share[3][0]], ranks, turn, modulus) is None, "one number proves nothing"


def test_a_shifted_sum_is_the_rest_of_the_whole() -> None:
    whole = data.reduced("sum", [0, 1, 2], 1, data.PRIME) * 2
    assert data.reduced("sum", [0, 1, 2], 1, data.PRIME, shift=100) == whole[100 : 100 + data.PERIOD]


def test_lengths_and_texts_differ_and_are_sometimes_empty() -> None:
    assert len({data.length(rank, 0) for rank in range(12)}) > 8 and 0 in {data.length(r, 0) for r in range(12)}
    assert len({data.text(rank, turn) for rank in range(12) for turn in range(12)}) == 144


# -- sizes, factors, links -------------------------------------------------------------------------


def test_memory() -> None:
    assert sizes.fitting(1 << 30, 8, None) == 1 << 30
    free = 10 << 30
    fitting = sizes.fitting(1 << 30, 8, free)
    assert fitting == 1 << 28 and sizes.fits(fitting, 8, free) and not sizes.fits(2 * fitting, 8, free)
    assert sizes.within(100, "max\n", "5\n") == 100 and sizes.within(100, "60\n", "50\n") == 10
    assert sizes.within(None, "60", "70") == 0
    assert sizes.refusal(1 << 30, 1, 5 << 20, "h1") == (
        "1GB refused: 1 rank needs 3GB of memory on h1, which has 5MB available")  # fmt: skip


def test_rates() -> None:
    found = factors.rates("all_reduce", 1000, 4, [1.0, 2.0, 3.0, 4.0, 5.0])
    assert found == {"median": 3.0, "q1": 2.0, "q3": 4.0, "algbw": 1000 / 3, "busbw": 1000 / 3 * 1.5}
    assert factors.factor("all_gather", 4) == 0.75 and factors.factor("sendrecv", 4) == 1.0


def test_which_interface_a_variable_means() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from allranks.collectives.link import matching

    names = ["lo", "eth0", "eth1", "ib0"]
    assert [matching(wanted, names) for wanted in ("eth", "=ib0", "=ib", "^eth", "ib,eth1", "none")] == [
        "eth0", "ib0", "", "ib0", "ib0", ""]  # fmt: skip


def test_the_slowest_link_is_compared() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from allranks.collectives.link import Link, compare

    links = [Link("lo", 0.0), Link("eth0", 1.25e9), Link("eth0", 12.5e9)]
    assert "50% of the nominal 1.25 GB/s of eth0" in compare(0.625e9, "64MB", links, [0, 1, 2])
    assert "no link between nodes" in compare(0.625e9, "64MB", links, [0, 0, 0])
    assert "no nominal rate" in compare(1.0, "64MB", [links[1], Link("eth0 says -1", 0.0)], [0, 1])


# -- verdicts --------------------------------------------------------------------------------------


def verdict(status: str = "pass", reason: str = "", arrived: float = 0.0, **failure: Any) -> dict[str, Any]:
    return {"status": status, "detail": "", "reason": reason, "failure": failure or None, "seconds": 0.1,
            "arrived": arrived}  # fmt: skip


def test_errors_are_said_with_their_ranks() -> None:
    lost = verdict("error", "RuntimeError: Connection closed by peer [10.0.0.2]")
    found = results.agree("gather", [lost, verdict(), lost, verdict("error", "RuntimeError: other")])
    assert found.status == "fail" and found.broken
    assert found.reason == ("on ranks 0 2: RuntimeError: Connection closed by peer [10.0.0.2]; "
                            "on rank 3: RuntimeError: other")  # fmt: skip
    assert [failure["rank"] for failure in found.failures] == [0, 2, 3]


def test_a_wrong_result_breaks_nothing_and_the_one_with_a_source_is_said() -> None:
    about: dict[str, Any] = {"round": 1, "kind": "float32", "index": 2, "expected": "5", "found": "0", "note": ""}
    bad = [verdict("fail", rank=1, source=None, **about), verdict("fail", rank=2, source=3, **about)]
    found = results.agree("gather", [verdict(), *bad, verdict()])
    assert (found.status, found.broken) == ("fail", False)
    assert found.reason == "on ranks 1 2: round 1 float32 element 2 of rank 3's block: expected 5, found 0"


def test_skipped_on_some_ranks_is_no_skip() -> None:
    assert results.agree("x", [verdict("skip", "why")] * 2)[:2] == ("x", "skip")
    found = results.agree("x", [verdict("skip", "why"), verdict()])
    assert found.status == "fail" and found.broken and "on rank 0: why" in found.reason


def test_lateness() -> None:
    assert results.late_rank([0.1, 0.2, 5.0, 0.1]) == {"rank": 2, "seconds": 4.9}
    assert results.late_rank([0.1, 0.2, 0.9, 0.1]) is None


def test_gloos_errors_lose_what_differs_by_rank() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from allranks.collectives.report import plain

    text = "[/__w/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.1]:3811: Connection reset by peer. This is typical"
    assert plain(RuntimeError(text)) == "RuntimeError: Read error [10.0.0.1]: Connection reset by peer"
    assert plain(ValueError()) == "ValueError"


def test_who_had_not_arrived() -> None:
    places = {0: Place(3, 2, 0.1, 5), 1: Place(3, 0, 0.1, 5), 2: Place(2, END, 0.1, 5), 3: None}
    assert split(places, 3) == ([0, 1], [2, 3])
    after = {rank: place and place._replace(beat=place.beat + (rank != 2)) for rank, place in places.items()}
    assert silent_ranks(places, after) == [2, 3]
    assert describe("no end", places, 3, [3]) == (
        "no end: ranks 2 3 had not arrived; rank 1 in round 0; rank 0 in round 2; "
        "no sign of life from rank 3 (ended or stopped)"
    )
    assert names([0, 1, 2, 5]) == "ranks 0-2 5"


def test_a_hang_is_written_whole() -> None:
    row = results.as_json(results.of_hang(Hang("x", "text", [0], [1], [1], {}, {"0": ["f:1 g"]})), 2)
    assert '"hang": {"test": "x"' in row and '"broken"' not in row and '"status": "hang"' in row


# -- options and environment -----------------------------------------------------------------------


def test_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ALLRANKS_OUTPUT_DIR", str(tmp_path))
    assert parse([], 3).out == str(tmp_path / "rank_03_metrics.jsonl")
    assert parse(["--out", "none"], 3).out == "" and parse(["--size", "1KB"], 0).size == 1024


def test_torchruns_environment_is_left_alone() -> None:
    env = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1", "SLURM_PROCID": "7"}
    assert place.contract(env) == {}


def test_slurm() -> None:
    env = {"SLURM_PROCID": "6", "SLURM_NTASKS": "7", "SLURM_LOCALID": "2", "SLURM_NODEID": "1",
           "SLURM_STEP_TASKS_PER_NODE": "4,3", "SLURM_STEP_NODELIST": "gpu[03-04,9]",
           "SLURM_JOB_ID": "123456"}  # fmt: skip
    assert place.contract(env) == {
        "RANK": "6", "WORLD_SIZE": "7", "LOCAL_RANK": "2", "GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "3",
        "MASTER_ADDR": "gpu03", "MASTER_PORT": "23456"}  # fmt: skip
    assert place.tasks_per_node("4(x2),3") == [4, 4, 3]
    assert [place.first_host(text) for text in ("a1,a2", "n[1,3]-ib,x", "solo")] == ["a1", "n1-ib", "solo"]


def test_open_mpi() -> None:
    env = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
           "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_PORT": "2000"}  # fmt: skip
    assert place.contract(env)["MASTER_ADDR"] == "127.0.0.1"
    with pytest.raises(ValueError, match="MASTER_ADDR not set"):
        place.contract({**env, "OMPI_COMM_WORLD_SIZE": "4"})
