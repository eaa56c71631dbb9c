"""What stands between another launcher and the runner: files of a rank, who is alone, the order of the words."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.agent.test_runner import reported
from tests.hosts.waiting import BOUND

pytestmark = pytest.mark.processes

LAUNCHED = Path(__file__).parents[2] / "src" / "allranks" / "agent" / "runner_launched.py"
SAY = """import json, os, sys
names = ("TORCHELASTIC_ERROR_FILE", "NCCL_DEBUG_FILE", "ALLRANKS_STACKS_FILE")
print(json.dumps([sys.argv, __name__, sys.flags.optimize, os.getpid(), [os.environ.get(n) for n in names]]))
"""


def run(place: Path, *words: str, flags: tuple[str, ...] = (), **env: str) -> tuple[list[Any], list[Any], int]:
    """What the program saw, what was reported, and the process that was started."""
    (place / "say.py").write_text(SAY)
    base = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE") and not k.startswith("ALLRANKS_")}
    with reported(place / "report.sock") as reports:
        base.update(ALLRANKS_REPORT_SOCKET=str(place / "report.sock"), ALLRANKS_FIRST_RANK="2")
        process = subprocess.Popen([sys.executable, *flags, str(LAUNCHED), *words], env={**base, **env}, cwd=place,
                                   stdout=subprocess.PIPE, text=True)  # fmt: skip
        said = process.communicate(timeout=BOUND)[0]
        assert process.returncode == 0
    return json.loads(said), reports, process.pid


def test_a_rank_gets_its_own_files(tmp_path: Path) -> None:
    stacks = tmp_path / "stacks_{rank}"
    files = f"TORCHELASTIC_ERROR_FILE=/n/e_{{rank}}.json|NCCL_DEBUG_FILE=/n/n_{{rank}}|ALLRANKS_STACKS_FILE={stacks}"
    env = {"RANK": "7", "WORLD_SIZE": "8", "ALLRANKS_PLANNED": "8", "ALLRANKS_RANK_FILES": files}
    said, reports, pid = run(
        tmp_path, "say.py", "a b", flags=("-O",), NCCL_DEBUG_FILE="mine", TORCHELASTIC_ERROR_FILE="agent's", **env
    )
    assert said[0] == ["say.py", "a b"] and said[1:4] == ["__main__", 1, pid], "the same process, flags and words"
    assert said[4] == ["/n/e_007.json", "mine", str(tmp_path / "stacks_007")]
    assert [(r["event"], r["rank"], r["pid"]) for r in reports] == [("launched", 7, pid)]


def test_cpus_that_are_not_there_any_more(tmp_path: Path) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "1", "ALLRANKS_CPUS": "4094|4095"}
    assert run(tmp_path, "say.py", **env)[0][0] == ["say.py"]


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        (["--local_rank=1", "say.py", "--lr", "3"], ["say.py", "--local_rank=1", "--lr", "3"]),
        (["--local-rank=1", "-m", "say", "x"], ["say.py", "--local-rank=1", "x"]),
        (["-m", "say"], ["say.py"]),
    ],
)
def test_the_launchers_own_argument_comes_after_the_program(words: list[str], argv: list[str], tmp_path: Path) -> None:
    said = run(tmp_path, *words, RANK="0", WORLD_SIZE="1")[0]
    assert [Path(said[0][0]).name, *said[0][1:]] == argv


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"ALLRANKS_PLANNED": "4", "WORLD_SIZE": "4"}, (2, 1)),  # accelerate launch --cpu: no rank at all
        ({"ALLRANKS_PLANNED": "4", "RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),  # each node by itself
        ({"ALLRANKS_PLANNED": "4", "RANK": "3", "WORLD_SIZE": "4"}, None),
        ({"ALLRANKS_PLANNED": "4", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, None),
        ({"ALLRANKS_PLANNED": "1"}, None),
        ({}, None),
    ],
)
def test_who_would_train_alone(env: dict[str, str], expected: tuple[int, int] | None, tmp_path: Path) -> None:
    _, reports, pid = run(tmp_path, "say.py", **env)
    alone = [(r["event"], r["pid"], r["rank"], r["world_size"]) for r in reports if r["event"] != "launched"]
    assert alone == ([("alone", pid, *expected)] if expected else [])
