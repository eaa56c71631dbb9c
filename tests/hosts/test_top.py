"""allranks top --on HOST: the run directory is read over real ssh, and nothing of it stays here or there."""

import json
import time
from pathlib import Path

import pytest
from tests.cli.test_ps import make
from tests.hosts.bed import Bed
from tests.hosts.launching import Launch


@pytest.fixture
def launch(bed4: Bed, tmp_path: Path) -> Launch:
    return Launch(bed4, tmp_path)


def test_a_run_is_found_and_followed_on_another_host(launch: Launch, tmp_path: Path) -> None:
    there = tmp_path / "a place; with $(words)" / "runs"
    ended = make(there, "old", 900, exit_code=1)
    active = make(there, "new", 65)
    outputs = active.path / "outputs"
    outputs.mkdir()
    (outputs / "rank_00_metrics.jsonl").write_text('{"step": 41, "loss": 0.5}\n')
    active.append_line(
        {"t": 1.0, "event": "finding", "id": "slow-rank", "status": "warn", "message": "rank 1 comes late"}
    )
    env = {"TMPDIR": str(tmp_path / "scratch")}
    (tmp_path / "scratch").mkdir()

    def top(*words: str) -> dict[str, object]:
        done = launch.call("top", "--on", "h2", "--once", "--json", *words, env=env)
        assert done.returncode == 0, done.stderr
        document: dict[str, object] = json.loads(done.stdout)
        return document

    by_path = top(str(active.path))
    assert (by_path["run"], by_path["step"], by_path["loss"]) == (active.name, 40, 0.5)
    assert by_path["warnings"] == ["rank 1 comes late"]
    assert top("--runs-dir", str(there))["run"] == active.name, "the one that goes on comes first"
    by_name = top("old", "--runs-dir", str(there))
    assert (by_name["run"], by_name["state"]) == (ended.name, "failed")
    assert list((tmp_path / "scratch").iterdir()) == []
    started = time.monotonic()
    assert top(str(ended.path))["state"] == "failed"
    assert time.monotonic() - started < 60


def test_what_is_not_there_is_said(launch: Launch, tmp_path: Path) -> None:
    done = launch.call("top", "--on", "h2", "--once", "nothing-of-this-name")
    assert done.returncode == 2
    assert "no run 'nothing-of-this-name' on h2 (looked in" in done.stderr
    launch.bed.host("h3").link_down()
    done = launch.call("top", "--on", "h3", "--once")
    assert done.returncode == 4
    assert "h3" in done.stderr
