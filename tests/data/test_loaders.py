"""Ten loaders that are wrong and six that are right, by whole epochs on virtual ranks and by their first batches."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hosts.waiting import BOUND

ROOT = Path(__file__).resolve().parents[2]
WRONG = {
    "no_sampler": ("data-not-sharded", "all 4 ranks read the same samples: the loader is not sharded"),
    "by_local_rank": ("data-same-samples", "ranks 0-1 and 2-3 read the same samples: the loader shards by local rank"),
    "sharded_twice": ("data-sharded-twice", "sharded twice"),
    "same_seed_replacement": ("data-not-sharded", "drawn with replacement from the same seed"),
    "epoch_forgotten": ("data-set-epoch", "set_epoch is never called"),
    "drop_last_differs": ("uneven-data", "drop_last is set on rank 0 and not on ranks 1-3"),
    "workers_repeat": ("data-workers-repeat", "each sample is read 2 times in a rank"),
    "by_node_only": ("data-same-samples", "the loader splits by node only"),
    "rank_without_data": ("uneven-data", "rank 3 gets no data at all"),
    "shuffled_per_rank": ("data-not-sharded", "shuffled differently"),
}
RIGHT = (
    "distributed", "distributed_padded", "batch_sampler", "sharded_stream", "stream_with_workers", "single_rank",
    "augmented", "own_subset",
)  # fmt: skip

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def audits() -> dict[str, dict[str, dict]]:
    """By `all` and by the first four batches, and by the name of the loader."""
    argv = [sys.executable, "-m", "tests.data.play", "4", "2", "all,4", *WRONG, *RIGHT, "augmented_not_sharded"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=BOUND)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def whole(audits: dict[str, dict[str, dict]]) -> dict[str, dict]:
    return audits["all"]


def faults(document: dict) -> list[dict]:
    return [one for one in document["findings"] if one["status"] in ("fail", "warn")]


@pytest.mark.parametrize("batches", ["all", "4"])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loader_is_named(audits: dict[str, dict[str, dict]], name: str, batches: str) -> None:
    expected, words = WRONG[name]
    if (name, batches) == ("shuffled_per_rank", "4"):
        expected = "data-overlap"  # they share some samples, not all
    document = audits[batches][name]
    found = faults(document)
    assert [one["id"] for one in found] == [expected], found
    assert words in found[0]["message"] and found[0]["remedy"]
    assert document["ok"] is False


@pytest.mark.parametrize("batches", ["all", "4"])
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_loader_is_left_alone(audits: dict[str, dict[str, dict]], name: str, batches: str) -> None:
    assert {one["status"] for one in audits[batches][name]["findings"]} == {"ok"}


def test_a_right_loader_is_seen_to_be_complete(audits: dict[str, dict[str, dict]]) -> None:
    stream, distributed = audits["all"]["sharded_stream"], audits["4"]["distributed"]
    assert "data is split: 4 ranks read 96 samples" in stream["findings"][0]["message"]
    assert "Together the samplers cover all 96" in distributed["findings"][0]["message"]


def test_padding_is_counted(audits: dict[str, dict[str, dict]], whole: dict) -> None:
    for documents in audits.values():
        padding = [one for one in documents["distributed_padded"]["findings"] if one["id"] == "data-padding"]
        assert [one["message"].split(" at ")[0] for one in padding] == ["3 padded samples"]
    assert not [one for one in whole["distributed"]["findings"] if one["id"] == "data-padding"]


def test_augmentation_hides_nothing(whole: dict) -> None:
    assert [one["id"] for one in faults(whole["augmented_not_sharded"])] == ["data-not-sharded"]


def test_the_table_says_who_read_what(whole: dict) -> None:
    *ranks, total = whole["by_node_only"]["coverage"]
    assert [(row["rank"], row["node"], row["samples"], row["shared"]) for row in ranks] == [
        (0, "0", 48, 48), (1, "0", 48, 48), (2, "1", 48, 48), (3, "1", 48, 48),
    ]  # fmt: skip
    assert (total["data"], total["missing"], total["distinct"]) == (96, 0, 96)
