"""A rank that goes its own way while the others wait in a Gloo collective; test_hangs.py has the rest of them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from tests.hosts.bed import Bed
from tests.hosts.launching import Launch, program
from tests.hosts.provoking import explained
from tests.hosts.test_faults_start import nothing_left

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]
STRAGGLER, MISMATCH = "straggler", "collective-mismatch"


@pytest.fixture
def launch(bed2: Bed, tmp_path: Path) -> Launch:
    return Launch(bed2, tmp_path)


def apart(launch: Launch, *words: str, options: tuple[str, ...] = ("--hang-timeout", "6s")) -> Launch:
    """Four ranks, so that one can be told from the rest."""
    return launch.start(program("p_apart.py", *words), *options, nproc=2)


@pytest.mark.slow
def test_another_shape(bed2: Bed, launch: Launch) -> None:
    """Gloo ends the rank that is sent too much, and the others' recorders show who sent it."""
    apart(launch, "shapes", "1")
    says = ("bytes where the collective expects", "rank 1 on h1 called it unlike the others", "4,096 Float elements")
    explained(bed2, launch, "collective-shape-mismatch", ("h1", 1), *says)


UNLIKE = (
    "rank 2 on h2 has called a collective unlike the others: ranks 0, 1 and 3 call broadcast #4 of 64 Float elements "
    "and rank 2 calls broadcast #4 of 64 Int elements"
)


def test_another_type_that_gloo_lets_pass_ends_the_program_later(bed2: Bed, launch: Launch) -> None:
    """The odd rank raises; the others note what they have called before they are ended."""
    apart(launch, "type-raise", "2")
    says = (UNLIKE, "Then rank 2 on h2 raised ValueError: expected a weight of 1")
    verdict = explained(bed2, launch, "collective-shape-mismatch", ("h2", 2), *says, victims=[0, 1, 3])
    assert [finding["id"] for finding in verdict["runners_up"]] == ["program-exception"]


@pytest.mark.slow
def test_another_type_that_gloo_lets_pass_is_a_warning_where_the_run_ends_well(bed2: Bed, launch: Launch) -> None:
    result = apart(launch, "type", "2").result()
    assert (result["exit"], result["verdict"]) == (0, None)
    (finding,) = result["findings"]
    assert (finding["id"], finding["status"]) == ("unlike-shapes", "warn")
    assert (finding["where"]["node"], finding["where"]["rank"]) == ("h2", 2)
    assert finding["message"].startswith(UNLIKE) and "may be wrong" in finding["message"]
    assert f"with a warning: {UNLIKE}" in json.loads(launch.call("diagnose", "--json").stdout)["message"]
    nothing_left(bed2, launch)


@pytest.mark.slow
def test_one_wrong_peer_in_a_ring_of_sends_and_receives(bed2: Bed, launch: Launch) -> None:
    """Gloo's recorder has no sends: the frames in which ranks wait name their peers."""
    apart(launch, "ring", "2")
    says = ("rank 2 is in recv from rank 3, which has not called the send", "rank 2 on h2 at p_apart.py:")
    explained(bed2, launch, MISMATCH, ("h2", 2), *says, victims=[0, 1, 3], code=5)


@pytest.mark.slow
def test_one_wrong_peer_in_a_ring_of_batched_sends_and_receives(bed2: Bed, launch: Launch) -> None:
    """`work.wait()` leaves no frame: the ranks count what they have begun."""
    apart(launch, "batch", "2")
    says = ("rank 2 is in recv from rank 3, which has not called the send", "rank 2 on h2 at p_apart.py:")
    explained(bed2, launch, MISMATCH, ("h2", 2), *says, victims=[0, 1, 3], code=5)


@pytest.mark.slow
def test_a_rank_that_destroys_its_process_group_and_goes_on(bed2: Bed, launch: Launch) -> None:
    apart(launch, "destroy", "2")
    says = ("rank 2 on h2 called destroy_process_group (p_apart.py:", "went on without the others")
    explained(bed2, launch, "rank-exited-early", ("h2", 2), *says, victims=[0, 1, 3])


@pytest.mark.slow
def test_a_rank_that_destroys_its_process_group_and_calls_once_more(bed2: Bed, launch: Launch) -> None:
    apart(launch, "destroy-and-call", "2")
    says = ("raised ValueError: Default process group", "it had called destroy_process_group (p_apart.py:")
    explained(bed2, launch, "program-exception", ("h2", 2), *says, victims=[0, 1, 3])


@pytest.mark.slow
def test_a_rank_out_of_data_that_waits_for_the_others(bed2: Bed, launch: Launch) -> None:
    apart(launch, "short", "1")
    says = ("rank 1 on h1 is out of data and waits in barrier (p_apart.py:", "still in all_reduce (p_apart.py:")
    explained(bed2, launch, "uneven-data", ("h1", 1), *says, victims=[0, 2, 3], code=5)


@pytest.mark.slow
def test_a_rank_out_of_data_that_ends(bed2: Bed, launch: Launch) -> None:
    apart(launch, "short-end", "1")
    explained(bed2, launch, "uneven-data", ("h1", 1), "rank 1 on h1 had finished", victims=[0, 2, 3])


@pytest.mark.slow
def test_a_rank_that_reads_a_fifo(bed2: Bed, launch: Launch) -> None:
    """The file is named."""
    apart(launch, "read", "2")
    name = launch.work / "queue.bin"
    says = ("rank 2 on h2 is at p_apart.py", "in read_queue", f"reading {name}")
    explained(bed2, launch, STRAGGLER, ("h2", 2), *says, victims=[0, 1, 3], code=5)


# -- slow, not hung --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_long_save_within_the_time_limit_raises_no_alarm(bed2: Bed, launch: Launch) -> None:
    apart(launch, "save", "0", options=("--hang-timeout", "60s", "--env", "SAVE_SECONDS=12"))
    result = launch.result()
    assert (result["exit"], result["verdict"], result["findings"]) == (0, None, [])
    assert not launch.events("hang-suspected")
    nothing_left(bed2, launch)


@pytest.mark.slow
def test_a_save_beyond_the_time_limit_is_told_of_and_goes_on(bed2: Bed, launch: Launch) -> None:
    """It moves bytes: slow, not stuck. The straggler is named, the others are not, and the run ends well."""
    apart(launch, "save", "0", options=("--hang-timeout", "6s", "--env", "SAVE_SECONDS=15"))
    result = launch.result()
    assert (result["exit"], result["verdict"]) == (0, None)
    told = [f for f in result["findings"] if f["id"] == STRAGGLER]
    assert told and (told[0]["where"]["node"], told[0]["where"]["rank"]) == ("h1", 0)
    assert "rank 0 on h1 is busy at p_apart.py" in told[0]["message"]
    assert "it reads or writes" in told[0]["message"]
    print(f"PROVOKED {STRAGGLER} (finding) | {told[0]['message']} | {result['timing']['total']:.1f}")
    nothing_left(bed2, launch)
