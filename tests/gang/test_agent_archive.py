"""What is sent to nodes is whole: each archive runs without the rest of allranks."""

import ast
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.interpreters import OLDEST

from allranks.gang.agent_archive import HOME, node_zip


def test_every_module_that_a_node_may_load_is_in_the_archive() -> None:
    """Also those that are loaded late: what is left out would be missed by the few runs that need it."""
    with zipfile.ZipFile(io.BytesIO(node_zip())) as archive:
        sources = {name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")}
    shipped = {name[: -len(".py")].removesuffix("/__init__").replace("/", ".") for name in sources}
    known = {"allranks." + ".".join(p.relative_to(HOME).with_suffix("").parts) for p in HOME.rglob("*.py")}
    wanted = set()
    for name, source in sources.items():
        package = name.split("/")[:-1]
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                module = ".".join(filter(None, [*above, node.module or ""]))
                wanted |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    assert wanted & known - shipped == set()


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
