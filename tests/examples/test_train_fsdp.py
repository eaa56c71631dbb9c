"""The FSDP example: every way of sharding trains alike, and a checkpoint outlives a change of ranks."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.examples.ranks import EXAMPLES, FSDP, FsdpRanks, fsdp_words, metrics, module_of
from tests.hosts.waiting import BOUND

pytestmark = pytest.mark.torch
CLOSE = 1e-4  # of a loss near 5: sums in another order


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> FsdpRanks:
    """Six steps of four ranks, a checkpoint after the third."""
    return FsdpRanks(tmp_path_factory.mktemp("straight"), 4, "training.max_steps=6", "checkpoint.every=3").done()


@pytest.fixture(scope="module")
def resumed(straight: FsdpRanks, tmp_path_factory: pytest.TempPathFactory) -> FsdpRanks:
    """Steps four to six of two ranks, from what four had saved; the global batch is the same."""
    out = tmp_path_factory.mktemp("resumed")
    shutil.copytree(straight.out / "checkpoints" / "step_000003", out / "checkpoints" / "step_000003")
    profiling = ("profiling.enabled=true", "profiling.wait=0", "profiling.warmup=1", "profiling.active=2")
    return FsdpRanks(out, 2, "training.max_steps=6", "training.batch_size=4", *profiling).done()


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return module_of(FSDP)


# -- training


def test_it_learns_and_tells_each_rank_s_share(straight: FsdpRanks) -> None:
    losses = straight.losses()
    assert list(losses) == [1, 2, 3, 4, 5, 6]
    assert 5.3 < losses[1] < 5.8, "near log 256: it knows nothing yet"
    assert losses[6] < losses[1] - 0.3
    assert all(straight.losses(rank) == losses for rank in range(4))
    own = [straight.metrics(rank)[0]["rank_loss"] for rank in range(4)]
    assert len(set(own)) == 4 and sum(own) / 4 == pytest.approx(losses[1], abs=CLOSE)
    assert "full_shard: 1 x 4 (copies x shards), ranks [[0, 1, 2, 3]]" in straight.said()


@pytest.mark.parametrize(
    ("strategy", "mesh"),
    [pytest.param("shard_grad_op", "1 x 4 (copies x shards), ranks [[0, 1, 2, 3]]", marks=pytest.mark.slow),
     ("hybrid_shard", "2 x 2 (copies x shards), ranks [[0, 1], [2, 3]]"),
     pytest.param("none", "4 x 1 (copies x shards), ranks [[0], [1], [2], [3]]", marks=pytest.mark.slow)],
    ids=["shard_grad_op", "hybrid_shard", "none"],
)  # fmt: skip
def test_every_strategy_gives_the_same_losses(strategy: str, mesh: str, straight: FsdpRanks, tmp_path: Path) -> None:
    """Ranks 0 and 1 are on one node, 2 and 3 on the other: hybrid_shard shards inside, copies across."""
    run = FsdpRanks(tmp_path, 4, f"fsdp.sharding_strategy={strategy}", "training.max_steps=3", per_node=2).done()
    assert f"{strategy}: {mesh}" in run.said()
    assert run.losses() == pytest.approx(straight.losses(until=3), abs=CLOSE)


@pytest.mark.slow
def test_accumulation_and_recomputing_change_nothing(straight: FsdpRanks, tmp_path: Path) -> None:
    run = FsdpRanks(tmp_path, 2, "training.gradient_accumulation=2", "fsdp.activation_checkpointing=true",
              "fsdp.sharding_strategy=hybrid_shard", "training.max_steps=3", per_node=1).done()  # fmt: skip
    assert "2 x 1 (copies x shards), ranks [[0], [1]]" in run.said()
    assert run.losses() == pytest.approx(straight.losses(until=3), abs=CLOSE)


@pytest.mark.slow
def test_bfloat16_comes_near(straight: FsdpRanks, tmp_path: Path) -> None:
    run = FsdpRanks(tmp_path, 2, "fsdp.mixed_precision=bf16", "fsdp.cpu_offload=true", "training.batch_size=4",
              "training.max_steps=2").done()  # fmt: skip
    expected = straight.losses(until=2)
    assert run.losses() == pytest.approx(expected, abs=0.05)
    assert run.losses()[1] != pytest.approx(expected[1], abs=1e-7), "it was not bfloat16 at all"


# -- checkpoints


def test_two_ranks_go_on_where_four_stopped(straight: FsdpRanks, resumed: FsdpRanks) -> None:
    assert "resumes" in resumed.said() and "at step 3" in resumed.said()
    expected = {step: loss for step, loss in straight.losses().items() if step > 3}
    assert resumed.losses() == pytest.approx(expected, abs=CLOSE)
    assert (resumed.out / "checkpoints" / "step_000006" / ".metadata").exists()


@pytest.mark.slow
def test_sigterm_to_one_rank_ends_all_with_a_checkpoint(tmp_path: Path) -> None:
    run = FsdpRanks(tmp_path, 2, "training.max_steps=100000")
    run.until_step(2)
    os.kill(run.processes[1].pid, signal.SIGTERM)
    run.done()
    last = max(run.losses())
    assert max(run.losses(1)) == last < 100000
    assert (tmp_path / "checkpoints" / f"step_{last:06d}" / ".metadata").exists()


@pytest.mark.slow
def test_a_half_written_checkpoint_is_passed_over(resumed: FsdpRanks, tmp_path: Path) -> None:
    """.metadata is written last: a folder without it isn't whole."""
    shutil.copytree(resumed.out / "checkpoints", tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / "step_000009").mkdir()
    run = FsdpRanks(tmp_path, 1, "training.max_steps=6").done()
    assert "step_000006 at step 6" in run.said() and "all 6 steps are done" in run.said()


# -- traces


def test_overlap_reads_its_traces(resumed: FsdpRanks) -> None:
    """Real traces: both ranks, the two steps asked for, the collectives of FSDP with their sizes."""
    command = [sys.executable, "-m", "allranks", "overlap", str(resumed.out), "--json"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=BOUND).stdout)
    assert [rank["rank"] for rank in told["ranks"]] == [0, 1]
    for rank in told["ranks"]:
        assert rank["device"] == "cpu" and rank["notes"] == [] and len(rank["steps"]) == 2
        for step in rank["steps"]:
            assert 0 < step["computing"] < step["seconds"] and 0 < step["communicating"] < step["seconds"]
            parts = step["computing"] + step["exposed"] + step["copying"] + step["idle"]
            assert parts == pytest.approx(step["seconds"])
    found = {(group["name"], group["size"]): group["count"] for group in told["collectives"]}
    # A block of width 32: 12 x 32 x 32 weights and 13 x 32 of norms and biases, in fp32, half of them on each rank.
    block = 4 * (12 * 32 * 32 + 13 * 32)
    assert found["all_gather", block // 2] == 2 * 2 * 2 * 2, "two blocks, forward and backward, two steps, two ranks"
    assert told["verdict"].startswith("Communication is ")


# -- under allranks


@pytest.mark.slow
def test_two_virtual_nodes_of_two_ranks(straight: FsdpRanks, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "allranks", "run", "--local", "2", "--nproc", "2", "--no-check", "--output-dir",
               str(tmp_path / "out"), "--", str(FSDP), *fsdp_words("fsdp.sharding_strategy=hybrid_shard",
                                                                "training.max_steps=2")]  # fmt: skip
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=BOUND)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "hybrid_shard: 2 x 2 (copies x shards), ranks [[0, 1], [2, 3]]" in done.stdout
    files = sorted((tmp_path / "out").rglob("rank_*_metrics.jsonl"))
    assert [path.name for path in files] == [f"rank_{rank:02d}_metrics.jsonl" for rank in range(4)]
    losses = {line["step"]: line["loss"] for line in metrics(files[3].parent, 3)}
    assert losses == pytest.approx(straight.losses(until=2), abs=CLOSE)


# -- settings


def test_the_file_names_every_setting_and_its_default(script: ModuleType) -> None:
    assert script.settings((EXAMPLES / "fsdp.yaml").read_text(), []) == script.DEFAULTS == script.settings("", [])


def test_the_file_is_read_without_pyyaml(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (EXAMPLES / "fsdp.yaml").read_text().replace("max_steps: 60", "max_steps: 61").replace('dir: ""', "dir: a/b")
    expected = script.settings(text, [])
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert script.settings(text, []) == expected
    assert (expected["training"]["max_steps"], expected["checkpoint"]["dir"]) == (61, "a/b")


@pytest.mark.parametrize(
    ("text", "change", "words"),
    [("model: {layers: 3}", "", "no setting model.layers"), ("", "fsdp.mixed_precision=fp8", "auto, bf16 or fp32"),
     ("", "fsdp.sharding_strategy=zero3", "not one of full_shard"), ("", "training.lr=fast", "training.lr: 'fast'"),
     ("", "lr=1", "not SECTION.KEY=VALUE"), ("", "model.num_heads=5", "multiple"),
     ("", "profiling.enabled=maybe", "profiling.enabled"), ("- model", "", "sections"), ("model: 3", "", "sections")],
)  # fmt: skip
def test_wrong_settings_are_named(script: ModuleType, text: str, change: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        script.settings(text, [change] if change else [])


def test_settings_on_the_command_line_go_over_the_file(script: ModuleType) -> None:
    found = script.settings("training:\n  lr: 1e-3\n  max_steps: 5\n", ["training.max_steps=7", "checkpoint.resume=no"])
    assert (found["training"]["lr"], found["training"]["max_steps"]) == (1e-3, 7)
    assert found["checkpoint"]["resume"] is False


def test_the_order_of_samples_does_not_depend_on_the_ranks(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    data = script.Batches(32, 0)

    def of(world: int, size: int, first: int) -> list[tuple[int, ...]]:
        monkeypatch.setattr(script.dist, "get_world_size", lambda: world)
        found = []
        for rank in range(world):
            monkeypatch.setattr(script.dist, "get_rank", lambda rank=rank: rank)
            found += [tuple(row) for row in data.batch(first, size).tolist()]
        return sorted(found)

    last = data.windows - 3  # over the end of an epoch
    for first in (0, 8, last):
        assert of(4, 2, first) == of(2, 4, first) == of(1, 8, first)
    assert of(4, 2, 0) != of(4, 2, 8)


def test_hybrid_needs_to_know_the_nodes(tmp_path: Path) -> None:
    run = FsdpRanks(tmp_path, 2, "fsdp.sharding_strategy=hybrid_shard", "training.max_steps=1", LOCAL_WORLD_SIZE="")
    assert 0 not in run.codes()
    assert "hybrid_shard needs as many ranks on each node" in run.said(0) + run.said(1)
