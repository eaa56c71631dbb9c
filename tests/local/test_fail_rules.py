"""--fail-on: a rule that holds for what real ranks write ends their run, or warns."""

from pathlib import Path

import pytest
from tests.local.running import LocalRun

PROGRAM = """
import json, os, time
rank = int(os.environ["RANK"])
path = os.path.join(os.environ["ALLRANKS_OUTPUT_DIR"], f"rank_{rank:02d}_metrics.jsonl")
for step in range(1, 6000 if os.environ["WANTED"] == "stop" else 60):
    loss = float("nan") if rank == 1 and step >= 20 else 1 / step
    with open(path, "a") as file:
        print(json.dumps({"step": step, "loss": loss}), file=file)
    time.sleep(0.05)
"""


@pytest.mark.parametrize("wanted", ["stop", "warn"])
def test_a_loss_that_is_no_number(tmp_path: Path, wanted: str) -> None:
    options = ("--fail-on", "loss>1e9", "--fail-on", "loss=nan", "--on-rule", wanted, "--env", f"WANTED={wanted}")
    result = LocalRun(tmp_path, PROGRAM, *options).result()
    (found,) = [finding for finding in result["findings"] if finding["id"] == "metric-rule"]
    assert found["message"] == "loss of rank 1 is not a number at step 20 (on local1)"
    assert found["where"] == {"node": "local1", "rank": 1}
    assert found["evidence"][1] == "the last good loss of rank 1 is 0.0526 at step 19"
    if wanted == "warn":
        assert (result["exit"], result["verdict"], found["status"]) == (0, None, "warn")
        return
    verdict = result["verdict"]
    assert (result["exit"], verdict["cause"], verdict["culprits"]) == (1, "metric-rule", [1])
    assert verdict["where"]["rank"] == 1 and verdict["victims"] == [0]
