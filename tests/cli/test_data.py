"""allranks data plan and audit, as a person types them; and audit() inside a program."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from tests import forked
from tests.hosts.waiting import BOUND

from allranks.data import audit
from allranks.fabric.metric_rows import BandwidthRow
from allranks.protocol.codec import encode

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
LOADERS = "tests/data/loaders.py"


def allranks(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    return forked.call(["data", *words], cwd=cwd, env=env, timeout=BOUND)


def test_plan() -> None:
    words = ["--samples", "32217", "--batch", "1", "--gpus-per-node", "8", "--nodes", "1,2,8"]
    words += ["--epochs", "5", "--step-time", "2s"]
    done = allranks("plan", *words)
    assert done.returncode == 0, done.stderr
    for text in ("4,027", "4,028", "2,013", "2,014", "503", "504", "11.2 h", "5.6 h", "1.4 h", "7.99x"):
        assert text in done.stdout
    down = json.loads(allranks("plan", *words, "--drop-last", "--json").stdout)
    assert [row["steps"] for row in down["plan"]] == [4027, 2013, 503]


def test_plan_explains_what_a_run_showed() -> None:
    done = allranks("plan", "--samples", "32217", "--nodes", "2", "--observed-steps", "32217")
    assert done.returncode == 3
    assert "not sharded: every rank reads everything" in done.stdout
    document = json.loads(allranks("plan", "--samples", "32217", "--observed-steps", "4028", "--json").stdout)
    assert document["ok"] is True and document["observed"]["fits"] is True


def test_plan_with_the_bandwidth_of_a_test_run(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "test-20260101-000000"
    (run / "outputs").mkdir(parents=True)
    (run / "run.json").write_text('{"schema": 1}')
    sizes = ((1 << power, power * 1e8) for power in (20, 28))
    rows = [BandwidthRow("all_reduce", size, 16, 0.1, 0.1, 0.1, rate / 2, rate, rounds=5) for size, rate in sizes]
    lines = [json.dumps(encode(row)) for row in rows]
    (run / "outputs" / "rank_00_metrics.jsonl").write_text("\n".join(lines))
    words = ["plan", "--samples", "32000", "--nodes", "1,2", "--step-time", "2s", "--model-bytes", "2.8GB", "--json"]
    document = json.loads(allranks(*words, "--bandwidth", str(run)).stdout)
    due = 2 * 15 / 16 * int(2.8 * 2**30) / 2.8e9
    assert document["plan"][1]["exchange_s"] == pytest.approx(due)
    assert "2 (R-1)/R" in document["formula"]


@pytest.mark.parametrize(
    "words",
    [["plan"], ["plan", "--samples", "0"], ["plan", "--samples", "5", "--nodes", "one"], ["audit"], ["guess"],
     ["plan", "--samples", "5", "--pad", "--drop-last"], ["plan", "--samples", "5", "--step-time", "soon"],
     ["plan", "--samples", "5", "--bandwidth", "no-such-run"], ["audit", "--loader", "nothing"],
     ["audit", "--loader", "a:b", "--world-size", "0"], ["audit", "--loader", "a:b", "--python", "/no/python"], []],
)  # fmt: skip
def test_usage(words: list[str], tmp_path: Path) -> None:
    done = allranks(*words, cwd=tmp_path)
    assert done.returncode == 2, done
    assert done.stderr.startswith("allranks: ") and "Traceback" not in done.stderr


@pytest.mark.torch
def test_audit_of_16_ranks_on_two_nodes() -> None:
    done = allranks("audit", "--loader", f"{LOADERS}:by_local_rank", "--world-size", "16")
    assert done.returncode == 3, done.stderr
    assert "FAIL ranks 0-7 and 8-15 read the same samples: the loader shards by local rank" in done.stdout
    assert re.search(r"^\s+15\s+3\s+12\s+12\s+12\s+1$", done.stdout, re.MULTILINE)


@pytest.mark.torch
def test_audit_of_a_right_loader_by_module_name() -> None:
    done = allranks("audit", "--loader", "tests.data.loaders:distributed", "--world-size", "3", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["ok"] and document["schema"] == 1 and len(document["coverage"]) == 4


@pytest.mark.slow
@pytest.mark.torch
def test_audit_of_64_ranks() -> None:
    words = ["--loader", f"{LOADERS}:distributed", "--world-size", "64", "--json"]
    document = json.loads(allranks("audit", *words).stdout)
    assert document["ok"], document["findings"]
    assert {one["id"] for one in document["findings"]} == {"data-audit", "data-padding"}
    assert document["coverage"][-1]["repeated"] == 32


@pytest.mark.torch
def test_a_loader_that_raises() -> None:
    done = allranks("audit", "--loader", f"{LOADERS}:raises")
    assert done.returncode == 1
    assert "RuntimeError: no such corpus" in done.stderr  # alone or as a rank: they are asked side by side
    assert "the loader raised alone:" in done.stderr or "the loader raised as rank " in done.stderr
    missing = allranks("audit", "--loader", f"{LOADERS}:nobody")
    assert missing.returncode == 1 and "has no attribute 'nobody'" in missing.stderr


@pytest.mark.torch
def test_audit_inside_a_program() -> None:
    import torch
    from torch.utils.data import DataLoader

    before = DataLoader.__iter__
    found = audit(DataLoader(torch.arange(10), 3))
    assert found.ok and str(found) == "ok: one rank reads 10 samples in the epoch"
    assert DataLoader.__iter__ is before
