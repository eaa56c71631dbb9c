"""A rank that goes its own way while the others wait in a Gloo collective; test_hangs.py has the rest of them."""

import json

import pytest
from tests.hosts.bed import Bed
from tests.hosts.launching import Launch, program
from tests.hosts.provoking import explained
from tests.hosts.test_faults_start import nothing_left

pytestmark = pytest.mark.torch
STRAGGLER, MISMATCH = "straggler", "collective-mismatch"


def apart(launch: Launch, *words: str, options: tuple[str, ...] = ("--hang-timeout", "6s")) -> Launch:
    """Four ranks, so that one can be told from the rest."""
    return launch.start(program("p_apart.py", *words), *options, nproc=2)


UNLIKE = (
    "rank 2 on h2 has called a collective unlike the others: ranks 0, 1 and 3 call broadcast #4 of 64 Float elements "
    "and rank 2 calls broadcast #4 of 64 Int elements"
)


def test_another_type_that_gloo_lets_pass_ends_the_program_later(launch: Launch) -> None:
    """The odd rank raises; the others note what they have called before they are ended."""
    apart(launch, "type-raise", "2")
    says = (UNLIKE, "Then rank 2 on h2 raised ValueError: expected a weight of 1")
    verdict = explained(launch, "collective-shape-mismatch", ("h2", 2), *says, victims=[0, 1, 3])
    assert [finding["id"] for finding in verdict["runners_up"]] == ["program-exception"]


@pytest.mark.slow
def test_another_type_that_gloo_lets_pass_is_a_warning_where_the_run_ends_well(bed2: Bed, launch: Launch) -> None:
    result = apart(launch, "type", "2").done()
    (finding,) = result["findings"]
    assert (finding["id"], finding["status"]) == ("unlike-shapes", "warn")
    assert (finding["where"]["node"], finding["where"]["rank"]) == ("h2", 2)
    assert finding["message"].startswith(UNLIKE) and "may be wrong" in finding["message"]
    assert f"with a warning: {UNLIKE}" in json.loads(launch.call("diagnose", "--json").stdout)["message"]
    nothing_left(bed2, launch)


H1_RANK, H2_RANK = ("h1", 1), ("h2", 2)  # the culprit
WRONG_PEER = ("rank 2 is in recv from rank 3, which has not called the send", "rank 2 on h2 at p_apart.py:")
# What the odd rank does, the cause, who it is, what the verdict says, and the exit code.
APART = [
    # Gloo ends the rank that is sent too much, and the others' recorders show who sent it.
    ("shapes", "collective-shape-mismatch", H1_RANK, ("bytes where the collective expects",
     "rank 1 on h1 called it unlike the others", "4,096 Float elements"), 1),
    # Gloo's recorder has no sends: the frames in which ranks wait name their peers. `work.wait()` leaves no frame, and
    # the ranks count what they have begun.
    ("ring", MISMATCH, H2_RANK, WRONG_PEER, 5),
    ("batch", MISMATCH, H2_RANK, WRONG_PEER, 5),
    ("destroy", "rank-exited-early", H2_RANK, ("rank 2 on h2 called destroy_process_group (p_apart.py:",
     "went on without the others"), 1),
    ("destroy-and-call", "program-exception", H2_RANK, ("raised ValueError: Default process group",
     "it had called destroy_process_group (p_apart.py:"), 1),
    ("short", "uneven-data", H1_RANK, ("rank 1 on h1 is out of data and waits in barrier (p_apart.py:",
     "still in all_reduce (p_apart.py:"), 5),
    ("short-end", "uneven-data", H1_RANK, ("rank 1 on h1 had finished",), 1),
    ("read", STRAGGLER, H2_RANK, ("rank 2 on h2 is at p_apart.py", "in read_queue", "reading {work}/queue.bin"), 5),
]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "cause", "odd", "says", "code"), APART, ids=[row[0] for row in APART])
def test_a_rank_apart(
    launch: Launch, what: str, cause: str, odd: tuple[str, int], says: tuple[str, ...], code: int
) -> None:
    apart(launch, what, str(odd[1]))
    victims = None if what == "shapes" else [rank for rank in range(4) if rank != odd[1]]
    told = (words.format(work=launch.work) for words in says)
    explained(launch, cause, odd, *told, victims=victims, code=code)


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
    result = launch.done()
    told = [f for f in result["findings"] if f["id"] == STRAGGLER]
    assert told and (told[0]["where"]["node"], told[0]["where"]["rank"]) == ("h1", 0)
    assert "rank 0 on h1 is busy at p_apart.py" in told[0]["message"]
    assert "it reads or writes" in told[0]["message"]
    print(f"PROVOKED {STRAGGLER} (finding) | {told[0]['message']} | {result['timing']['total']:.1f}")
    nothing_left(bed2, launch)
