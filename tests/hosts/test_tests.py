"""`allranks test` on real hosts: what passes, and which node, link or rank is named for each fault."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.bed import Bed
from tests.hosts.bed.bed import Host
from tests.hosts.bed.commands import Unavailable
from tests.hosts.launching import PYTHON, Launch, program
from tests.hosts.waiting import BOUND, wait_until

pytestmark = pytest.mark.torch
SIZE = "4MB"
DOUBLE = Path(__file__).parents[1] / "fabric/double"


@pytest.fixture
def launch(bed4: Bed, tmp_path: Path) -> Launch:
    return Launch(bed4, tmp_path)


def ask(launch: Launch, *words: str) -> dict[str, Any]:
    """One test to its end: the JSON document."""
    hosts = ["--hosts", str(launch.bed.hostfile_names), "--python", PYTHON]
    done = launch.call("test", *hosts, "--json", *words, bound=BOUND)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"schema"')]
    assert lines, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(lines[-1])
    assert document["exit"] == done.returncode
    return document


def double(words: str) -> list[str]:
    """Options with which a rank misbehaves (`tests/fabric/double`)."""
    return ["--env", f"PYTHONPATH={DOUBLE}", "--env", f"TEST_DOUBLE={words}"]


def blamed(document: dict[str, Any]) -> list[list[str]]:
    """Nodes that the failures name."""
    found = []
    for finding in document["findings"]:
        where = finding["where"]
        if finding["status"] == "fail":
            found.append(sorted(n for n in (where.get("node"), where.get("peer")) if n) or list(where.get("nodes", [])))
    return found


@pytest.mark.slow
def test_four_hosts_with_two_ranks_each_pass(launch: Launch) -> None:
    document = ask(launch, "--nproc", "2", "--size", SIZE)
    assert document["ok"] and document["exit"] == 0 and blamed(document) == []
    assert document["meaning"].endswith("Look at the training code")
    tests = {row["test"]: row["status"] for row in document["collectives"]}
    assert set(tests.values()) <= {"pass", "skip"} and list(tests.values()).count("pass") >= 12, tests
    assert all(row["ranks"] == 8 for row in document["collectives"])
    assert any("ALL TESTS PASSED" in path.read_text() for path in launch.run_dir.glob("logs/node_00*/rank_000.log"))
    page = (launch.run_dir / "report.html").read_text()
    assert "all_gather" in page and "h4" in page
    assert launch.alive() == []


@pytest.mark.slow
def test_one_ranks_wrong_data_is_named(launch: Launch) -> None:
    wrong = double("rank=5,test=all_gather,what=zeros")
    document = ask(launch, "--nproc", "2", "--size", SIZE, *wrong, "--only", "barrier,all_gather")
    assert document["exit"] == 3
    (finding,) = [f for f in document["findings"] if f["status"] == "fail"]
    assert (finding["id"], finding["where"]["node"], finding["where"]["rank"]) == ("collective-wrong", "h3", 5)
    assert "expected" in finding["evidence"][0] and "found 0" in finding["evidence"][0]


@pytest.mark.slow
def test_a_host_cut_off_in_a_large_all_gather_is_named_within_the_limit(launch: Launch) -> None:
    """Between the first test and the next, which one rank begins late: the cable of a host is pulled meanwhile."""
    hosts = ["--hosts", str(launch.bed.hostfile_names), "--nodes", "3", "--python", PYTHON, "--nproc", "1"]
    words = ["--timeout", "8s", "--size", "64MB", "--lease", "20s", "--only", "barrier,all_gather,large_payloads"]
    late = double("rank=0,test=all_gather,what=late=6")
    with (launch.place / "stdout").open("w") as out, (launch.place / "stderr").open("w") as err:
        process = subprocess.Popen(launch.command("test", *hosts, "--json", *words, *late), stdout=out, stderr=err,
                                   env=launch.environment(), cwd=launch.work, stdin=subprocess.DEVNULL)  # fmt: skip
    log = "logs/node_00*/rank_000.log"
    wait_until(lambda: launch.runs.is_dir() and any("PASS barrier" in p.read_text() for p in launch.run_dir.glob(log)),
               BOUND, "the first test passed")  # fmt: skip
    began = time.monotonic()
    launch.bed.hosts[2].link_down()
    assert process.wait(BOUND) in (4, 5)
    assert time.monotonic() - began < 120, "the limit, the lease and the end, on a busy machine"
    document = json.loads([line for line in launch.stdout.splitlines() if line.startswith('{"schema"')][-1])
    assert "h3" in document["verdict"]["message"], document["verdict"]


@pytest.mark.slow
def test_a_killed_rank_is_named(launch: Launch) -> None:
    ends = double("rank=1,test=all_gather,what=exit")
    document = ask(launch, "--nodes", "2", "--nproc", "1", "--size", SIZE, *ends)
    assert document["exit"] in (3, 5) and "rank 1" in document["verdict"]["message"]
    assert document["verdict"]["where"]["node"] == "h2"


# -- pairs ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_pairs_of_a_clean_cluster_pass(launch: Launch) -> None:
    document = ask(launch, "--suite", "pairs")
    assert document["exit"] == 0 and blamed(document) == [], document["findings"]
    assert {(r["a"], r["b"]) for r in document["links"]} >= {("h1", "h2"), ("h3", "h4")} or document["links"]
    assert len({frozenset((r["a"], r["b"])) for r in document["links"]}) == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "names"),
    [
        (lambda one, other: one.rate("50mbit"), ["h2"]),
        (lambda one, other: one.loss(5), ["h2"]),
        (lambda one, other: one.delay(50), ["h2"]),
        (lambda one, other: one.rate_to(other, "50mbit"), ["h2", "h4"]),
        (lambda one, other: one.loss(5, peer=other), ["h2", "h4"]),
        (lambda one, other: one.delay_to(other, 50), ["h2", "h4"]),
    ],
    ids=["slow node", "lossy node", "late node", "slow link", "lossy link", "late link"],
)
def test_a_bad_node_or_link_is_named(launch: Launch, fault: Callable[[Host, Host], None], names: list[str]) -> None:
    try:
        fault(launch.bed.hosts[1], launch.bed.hosts[3])
    except Unavailable as reason:
        pytest.skip(str(reason))
    document = ask(launch, "--suite", "pairs")
    assert (document["exit"], blamed(document)) == (3, [names]), document["findings"]


@pytest.mark.slow
def test_a_dead_link_to_the_master_is_named_and_the_rest_is_measured(launch: Launch) -> None:
    launch.bed.hosts[0].loss(100, peer=launch.bed.hosts[2])
    document = ask(launch, "--suite", "pairs")
    assert (document["exit"], blamed(document)) == (3, [["h1", "h3"]]), document["findings"]
    assert len({frozenset((r["a"], r["b"])) for r in document["links"] if not r["dead"]}) == 5


# -- stages, and before a run --------------------------------------------------------------------------


@pytest.mark.slow
def test_stages_stop_at_the_pair_that_fails(launch: Launch) -> None:
    launch.bed.hosts[0].loss(100, peer=launch.bed.hosts[2])
    document = ask(launch, "--suite", "staged", "--nodes", "3", "--nproc", "1", "--only", "barrier,all_reduce")
    assert document["exit"] != 0 and not document["ok"]
    assert [s["name"] for s in document["stages"]] == ["each node alone", "pairs of nodes"]
    assert all(g["ok"] for g in document["stages"][0]["groups"])
    assert [g["nodes"] for g in document["stages"][1]["groups"] if not g["ok"]] == [["h1", "h3"]]
    assert "every node passes alone, but h1–h3 fails" in document["meaning"]
    assert "not your training code" in document["meaning"]


@pytest.mark.slow
def test_a_quick_test_before_the_program(launch: Launch) -> None:
    launch.start(program("tell.py"), "--test", "quick", "--nodes", "2", nproc=1).done()
    assert len(launch.events("test-passed")) == 1
    assert '"WORLD_SIZE": "2"' in launch.log(0, attempt=1)


def test_a_quick_test_that_fails_keeps_the_program_from_starting(launch: Launch) -> None:
    words = ["--test", "quick", "--nodes", "2", *double("rank=1,test=all_reduce,what=zeros")]
    result = launch.start(program("tell.py"), *words, nproc=1).result()
    assert result["exit"] == 3 and "all_reduce" in result["verdict"]["message"]
    assert not list(launch.run_dir.glob("logs/attempt_1"))
