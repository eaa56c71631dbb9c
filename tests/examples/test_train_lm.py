"""The example: what the demo promises of it, with real ranks."""

import functools
import operator
import os
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest
from tests.examples.ranks import EXAMPLES, Ranks, metrics, module_of
from tests.hosts.waiting import BOUND

SCRIPT = EXAMPLES / "train_lm.py"
SMALL = ["--batch", "2", "--context", "32", "--layers", "1", "--width", "32"]
pytestmark = pytest.mark.torch


def ranks_of(out: Path, *options: str, world: int = 2) -> Ranks:
    """Start ranks of the example with a small model."""
    return Ranks(SCRIPT, out, "--out", str(out), *SMALL, *options, world=world)


def losses(out: Path, rank: int = 0) -> list[tuple[int, float, float]]:
    return [(line["step"], line["loss"], line["rank_loss"]) for line in metrics(out, rank)]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Twenty steps of two ranks without a break."""
    out = tmp_path_factory.mktemp("straight")
    return out, ranks_of(out, "--steps", "20").finish()


def test_losses_fall_and_are_told(straight):
    out, said = straight
    first, last = metrics(out)[0], metrics(out)[-1]
    assert 5.3 < first["loss"] < 6.0, "near log 256: it knows nothing yet"
    assert last["loss"] < 4.2
    assert f"step 1/20 loss {first['loss']:.4f}" in said and f"step 20/20 loss {last['loss']:.4f}" in said
    assert set(first) == {"step", "loss", "rank_loss", "tokens_per_s", "t"}


def test_ranks_train_on_different_data_and_agree_on_the_mean(straight):
    one, other = (losses(straight[0], rank) for rank in (0, 1))
    assert [line[:2] for line in one] == [line[:2] for line in other]
    assert all(mine[2] != theirs[2] for mine, theirs in zip(one, other, strict=True))
    assert [line[1] for line in one] == pytest.approx([(a[2] + b[2]) / 2 for a, b in zip(one, other, strict=True)])


@pytest.mark.slow
def test_same_seed_gives_the_same_losses_and_another_does_not(straight, tmp_path):
    for workers in ("0", "2"):
        ranks_of(tmp_path / workers, "--steps", "20", "--workers", workers).finish()
        assert losses(tmp_path / workers) == losses(straight[0])
    ranks_of(tmp_path / "other", "--steps", "2", "--seed", "1").finish()
    assert losses(tmp_path / "other") != losses(straight[0])[:2]


@pytest.mark.slow
def test_resumed_run_equals_the_straight_one(straight, tmp_path):
    first = ranks_of(tmp_path / "a", "--steps", "10").finish()
    assert f"saved {tmp_path / 'a/checkpoints/latest.pt'} at step 10" in first
    # Only rank 0 needs the checkpoint: rank 1's folder lies elsewhere, as on a node of its own.
    folder = ["--checkpoint-dir", str(tmp_path / "a/checkpoints")]
    said = ranks_of(tmp_path / "b", "--steps", "20", *folder).finish()
    assert "at step 10" in said.splitlines()[0]
    assert losses(tmp_path / "a") + losses(tmp_path / "b") == losses(straight[0])
    again = ranks_of(tmp_path / "b", "--steps", "20", *folder).finish()
    assert "all 20 steps are done" in again


@pytest.mark.slow
def test_resume_never_starts_anew(straight, tmp_path):
    for _ in range(2):
        ranks_of(tmp_path, "--steps", "3", "--resume", "never").finish()
        assert losses(tmp_path) == losses(straight[0])[:3]


def test_sigterm_to_one_rank_saves_and_ends_all_in_order(tmp_path):
    ranks = ranks_of(tmp_path, "--steps", "100000", "--step-delay", "0.02")
    ranks.until_step(2)
    os.kill(ranks.processes[1].pid, signal.SIGTERM)
    said = ranks.finish()
    steps = [metrics(tmp_path, rank)[-1]["step"] for rank in (0, 1)]
    assert steps[0] == steps[1] < 100000
    assert f"at step {steps[0]}" in said.splitlines()[-1]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["latest.pt"]


@pytest.mark.slow
def test_alone_without_any_environment(tmp_path):
    clean = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    command = [sys.executable, str(SCRIPT), *SMALL, "--steps", "2"]
    done = subprocess.run(command, env=clean, cwd=tmp_path, capture_output=True, text=True, timeout=BOUND)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line["step"] for line in metrics(tmp_path / "outputs")] == [1, 2]


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return module_of(SCRIPT)


def test_shards_are_disjoint_change_with_the_epoch_and_can_begin_anywhere(module):
    class Numbers(module.Dataset):  # type: ignore[name-defined]
        def __len__(self):
            return 40

        def __getitem__(self, index):
            return index

    def take(rank, begin, count):
        stream = module.batches(Numbers(), Namespace(seed=0, batch=5, workers=0), rank, 2, begin)
        return [next(stream).tolist() for _ in range(count)]

    epochs = [[functools.reduce(operator.iadd, take(rank, 4 * epoch, 4), []) for rank in (0, 1)] for epoch in (0, 1)]
    for one, other in epochs:
        assert sorted(one + other) == list(range(40))
    assert epochs[0] != epochs[1]
    assert take(1, 0, 11)[6:] == take(1, 6, 5)


def test_sources_are_sorted_and_leave_out_what_differs_between_machines(module, tmp_path):
    for name in ("b.py", "a.py", "a/z.py", "test/t.py", "site-packages/s.py", "_sysconfigdata_x.py", "n.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    found = [str(path.relative_to(tmp_path)) for path in module.sources(tmp_path)]
    assert found == ["a/z.py", "a.py", "b.py"]
    corpus = module.Corpus(64)
    assert len(corpus.text) == module.CORPUS_BYTES and corpus[len(corpus) - 1].shape == (65,)
