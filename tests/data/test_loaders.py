"""Ten loaders that are wrong and six that are right, by whole epochs on virtual ranks and by their first batches."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.data.loader_names import RIGHT, WRONG
from tests.hosts.waiting import BOUND

ROOT = Path(__file__).resolve().parents[2]
MORE = ("augmented", "own_subset", "augmented_not_sharded")
WORDS = {
    "no_sampler": "all 4 ranks read the same samples: the loader is not sharded",
    "by_local_rank": "ranks 0-1 and 2-3 read the same samples: the loader shards by local rank",
    "sharded_twice": "sharded twice",
    "same_seed_replacement": "drawn with replacement from the same seed",
    "epoch_forgotten": "set_epoch is never called",
    "drop_last_differs": "drop_last is set on rank 0 and not on ranks 1-3",
    "workers_repeat": "each sample is read 2 times in a rank",
    "by_node_only": "the loader splits by node only",
    "rank_without_data": "rank 3 gets no data at all",
    "shuffled_per_rank": "shuffled differently",
}

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def audits() -> dict[str, dict[str, dict]]:
    """By `all` and by the first four batches, and by the name of the loader."""
    argv = [sys.executable, "-m", "tests.data.play", "4", "2", "all,4", *WRONG, *RIGHT, *MORE]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=BOUND)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def whole(audits: dict[str, dict[str, dict]]) -> dict[str, dict]:
    return audits["all"]


@pytest.fixture(scope="module")
def first(audits: dict[str, dict[str, dict]]) -> dict[str, dict]:
    return audits["4"]


def faults(document: dict) -> list[dict]:
    return [one for one in document["findings"] if one["status"] in ("fail", "warn")]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loader_is_named_by_its_whole_epoch(whole: dict, name: str) -> None:
    found = faults(whole[name])
    assert [one["id"] for one in found] == [WRONG[name]], found
    assert WORDS[name] in found[0]["message"]
    assert found[0]["remedy"]
    assert whole[name]["ok"] is False


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loader_is_named_by_its_first_batches(first: dict, name: str) -> None:
    found = faults(first[name])
    expected = "data-overlap" if name == "shuffled_per_rank" else WRONG[name]  # they share some samples, not all
    assert [one["id"] for one in found] == [expected], found
    assert WORDS[name] in found[0]["message"]


@pytest.mark.parametrize("name", [*RIGHT, "augmented", "own_subset"])
def test_a_right_loader_is_left_alone(whole: dict, first: dict, name: str) -> None:
    for document in (whole[name], first[name]):
        assert faults(document) == []
        assert {one["status"] for one in document["findings"]} == {"ok"}


def test_a_right_loader_is_seen_to_be_complete(whole: dict, first: dict) -> None:
    assert "data is split: 4 ranks read 96 samples" in whole["sharded_stream"]["findings"][0]["message"]
    assert "Together the samplers cover all 96" in first["distributed"]["findings"][0]["message"]


def test_padding_is_counted(whole: dict, first: dict) -> None:
    for document in (whole["distributed_padded"], first["distributed_padded"]):
        padding = [one for one in document["findings"] if one["id"] == "data-padding"]
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
