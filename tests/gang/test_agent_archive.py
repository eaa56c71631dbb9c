"""What is sent to nodes is whole: each archive runs without the rest of allranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.interpreters import OLDEST

from allranks.gang.agent_archive import fabric_zip, node_zip


def test_the_collective_tests_run_from_their_archive_alone(tmp_path: Path) -> None:
    archive = tmp_path / "fabric.zip"
    archive.write_bytes(fabric_zip())
    done = subprocess.run([sys.executable, "-I", "-S", archive, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--out" in done.stdout


WHOLE = """
import sys
sys.path.insert(0, sys.argv[1])
from allranks.agent import agent, boot
loader = boot.__loader__
print(type(loader).__name__, len(loader.get_source("allranks.agent.boot")), hasattr(agent, "Agent"))
"""


@pytest.mark.parametrize(("python", "loader"), [(sys.executable, "ByteCode"), (OLDEST, "zipimporter")])
def test_a_node_loads_byte_code_of_its_own_python_and_else_the_sources(
    python: str | None, loader: str, tmp_path: Path
) -> None:
    if python is None:
        pytest.skip("no Python 3.8 is installed")
    archive = tmp_path / "node.zip"
    archive.write_bytes(node_zip())
    command = [python, "-I", "-S", "-c", WHOLE, archive]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    source = Path(__file__).parents[2] / "src/allranks/agent/boot.py"
    assert done.stdout.split() == [loader, str(len(source.read_text())), "True"], done.stderr
