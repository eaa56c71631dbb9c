"""A controller over agents that are played: they speak the real protocol from the hello to the release."""

import json

import pytest
from bench.launch import ground
from bench.simulate import calibration, one_nodes_facts, sample, simulated

pytestmark = pytest.mark.processes

NODES = 6
NPROC = 4


def test_a_rank_that_fails_ends_all_and_every_figure_is_there() -> None:
    with ground() as common:
        facts = one_nodes_facts(common.place())
        found = sample(common, facts, NODES, NPROC, steady=0.5)
    assert found["exit"] == 1
    assert 0 <= found["verdict"] <= found["over"]
    assert -1 < found["ended"] < found["over"] + 1, "by the clock of the node, as far as that is known"
    assert found["start"] > 0 and found["peak_mb"] > 0
    assert found["ps_lines"] == 2
    assert found["status_lines"] >= NODES


def test_played_agents_say_what_a_run_is_made_of() -> None:
    with ground() as common:
        facts = one_nodes_facts(common.place())
        with simulated(common, facts, NODES, NPROC, "trains") as run:
            run.until_events("all-initialised")
            run.fail(3, 3 * NPROC + 1)
            run.until_events("run-end")
            assert run.controller.wait(60) == 1
            result = json.loads((run.run_dir / "result.json").read_text())
            logs = list(run.run_dir.glob("logs/node_*/rank_*.log"))
            assert all(log.read_bytes().startswith(b"loading the model\n") for log in logs)
    assert (result["verdict"]["culprits"], len(logs)) == ([3 * NPROC + 1], NODES * NPROC)
    assert "n0003" in result["verdict"]["message"]


def test_ranks_that_sleep_are_compared_with_real_ones() -> None:
    with ground() as common:
        facts = one_nodes_facts(common.place())
        found = calibration(common, facts, 2, steady=0.5)
    assert found["start"] > 0 and found["peak_mb"] > 0
