"""--bind: real ranks, and what they start, run on the CPUs that were chosen for them."""

import os
from pathlib import Path

import pytest
from tests.local.running import LocalRun

from allranks.text import format_ranges

PROGRAM = """
import os, subprocess, sys
look = "import os; print(*sorted(os.sched_getaffinity(0)))"
child = subprocess.run([sys.executable, "-c", look], stdout=subprocess.PIPE, check=True, universal_newlines=True)
with open("cpus-" + os.environ["RANK"], "w") as file:
    print(*sorted(os.sched_getaffinity(0)), file=file)
    print(child.stdout.strip(), os.environ["ALLRANKS_CPUS"], sep="\\n", file=file)
"""
MINE = sorted(os.sched_getaffinity(0))

pytestmark = pytest.mark.skipif(len(MINE) < 2, reason="two CPUs are needed")


@pytest.mark.parametrize(
    "options", [(), pytest.param(("--launcher", "torchrun"), marks=[pytest.mark.torch, pytest.mark.slow])]
)
def test_ranks_and_their_children_have_cores_of_their_own(tmp_path: Path, options: tuple[str, ...]) -> None:
    run = LocalRun(tmp_path, PROGRAM, "--bind", "cores", "--nproc", "2", *options, nodes=1)
    assert run.result()["exit"] == 0, run.stderr
    seen = [(run.work / f"cpus-{rank}").read_text().split("\n") for rank in range(2)]
    own = [[int(cpu) for cpu in lines[0].split()] for lines in seen]
    assert sorted(own[0] + own[1]) == MINE and all(own)
    for lines, mine in zip(seen, own, strict=True):
        assert lines[1:3] == [lines[0], format_ranges(mine)]
    (bound,) = run.events("bound")
    assert (bound["rule"], bound["gpus"], "why" in bound) == ("cores", 0, False)
    assert bound["cpus"] == {str(rank): format_ranges(own[rank]) for rank in range(2)}


def test_more_ranks_than_cores_are_warned_of(tmp_path: Path) -> None:
    ranks = str(len(MINE) + 1)
    run = LocalRun(tmp_path, PROGRAM, "--bind", "cores", "--nproc", ranks, nodes=1)
    result = run.result()
    assert result["exit"] == 0
    (found,) = [finding for finding in result["findings"] if finding["id"] == "bind"]
    said = "--bind cores does not hold for all ranks of local0: NUMA node 0 has fewer cores to use than ranks"
    assert found["message"] == said
    assert found["remedy"] == "hint: --bind numa"
