"""allranks nodes, and the nodes that `run --avoid` puts last."""

import time
from pathlib import Path

import pytest
from tests.shell import Shell

from allranks.engines.reachable_nodes import find_cluster
from allranks.runs.nodeledger import NodeRecord, add_records, ledger_file
from allranks.settings import RunSpec


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four nodes of one run of three hours ago, in which h2 was at fault."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = ledger_file({"XDG_STATE_HOME": str(tmp_path)})
    t = time.time() - 3 * 3600
    records = [NodeRecord(t, "run-1", "run", f"h{n}", f"h{n}", f"{n:016}", "other") for n in range(1, 5)]
    records[1] = records[1]._replace(outcome="failed", cause="ecc-error", message="GPU 3 of h2")
    add_records(file, records)
    return file


def test_nodes_are_shown_with_faults_and_the_reason(ledger: Path, shell: Shell) -> None:
    answer = shell("nodes")
    lines = answer.out.splitlines()
    assert answer.code == 0 and lines[0].split() == ["node", "runs", "last", "seen", "faults", "suspected"]
    (line,) = [line.split() for line in lines if line.startswith("h2 ")]
    assert line == ["h2", "1", "3", "hours", "ago", "ecc-error", "1", "yes"]
    assert lines[-1] == "suspected  h2: ecc-error 1 time, last 3 hours ago in run-1, then 0 clean runs"
    assert shell("nodes", "-q") == (0, "h2\n", "")


def test_json_and_forgetting(ledger: Path, shell: Shell) -> None:
    document = shell("nodes", "--json").document
    assert (document["schema"], len(document["nodes"])) == (1, 4)
    assert [node["name"] for node in document["nodes"] if node["suspicion"]] == ["h2"]
    assert shell("nodes", "--forget", "h2") == (0, "forgot 1 record of h2\n", "")
    assert [node["name"] for node in shell("nodes", "--json").document["nodes"]] == ["h1", "h3", "h4"]
    again = shell("nodes", "--forget", "h2")
    assert again.code == 2 and "no run has seen such a node" in again.err


def test_without_a_memory_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "none"))
    assert shell("nodes").out.startswith("no run has noted a node in ")


def named(avoid: bool = True, **values: object) -> tuple[list[str], list[str], tuple[str, ...]]:
    cluster = find_cluster(RunSpec.of(hosts="h1,h2,h3,h4", avoid=avoid, **values), int(str(values.get("spares", 0))))  # type: ignore[arg-type]
    return [n.name for n in cluster.nodes], [n.name for n in cluster.spares], cluster.avoided


def test_a_suspect_is_left_to_the_spares(ledger: Path) -> None:
    nodes, spares, avoided = named(spares=1)
    assert (nodes, spares) == (["h1", "h3", "h4"], ["h2"])
    assert avoided == ("--avoid: h2 is a spare (ecc-error 1 time, last 3 hours ago in run-1, then 0 clean runs)",)
    assert named(avoid=False, spares=1) == (["h1", "h2", "h3"], ["h4"], ())


def test_a_suspect_is_left_out_where_enough_others_are_listed(ledger: Path) -> None:
    nodes, _, avoided = named(nodes=3)
    assert nodes == ["h1", "h3", "h4"] and "h2 is left out" in avoided[0]


def test_where_nobody_else_is_left_the_suspect_works_and_that_is_said(ledger: Path) -> None:
    nodes, _, avoided = named()
    assert nodes == ["h1", "h3", "h4", "h2"]
    assert "h2 works all the same, as no other node is left for it" in avoided[0]


def test_a_dry_run_shows_it(ledger: Path, shell: Shell) -> None:
    words = ["run", "--hosts", "h1,h2,h3,h4", "--spares", "1", "--retries", "1", "--avoid", "--dry-run"]
    out = shell(*words, "train.py").out
    assert "spare h2: " in out and "--avoid: h2 is a spare (ecc-error" in out
    document = shell(*words, "--json", "train.py").document
    assert [node["name"] for node in document["spares"]] == ["h2"] and len(document["avoided"]) == 1
