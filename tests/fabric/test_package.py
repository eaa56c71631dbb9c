"""The package's files alone: what they import, that they run from the archive that nodes get, usage errors."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fabric.gang import environment
from tests.hosts.waiting import BOUND
from tests.ports import free_port

from allranks.gang.agent_archive import fabric_zip

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "allranks" / "fabric"
SHIPPED = {"allranks.exitcodes", "allranks.findings", "allranks.program", "allranks.text", "allranks.protocol.codec",
           "allranks.protocol.interface_names", "allranks.protocol.jsontext"}  # fmt: skip


def imports(path: Path) -> Iterator[str]:
    """The modules that a file names, but those of the package itself."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                yield node.module or ""
            else:
                assert node.level <= len(path.relative_to(PACKAGE).parts), f"{path} reaches out of the package"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_only_torch_the_standard_library_and_what_ships_are_imported(path: Path) -> None:
    allowed = {*sys.stdlib_module_names, "torch"}
    foreign = [name for name in imports(path) if name.split(".")[0] not in allowed and name not in SHIPPED]
    assert foreign == []
    assert "__file__" not in path.read_text(encoding="utf-8"), "it may lie in an archive"


def test_it_is_source_for_the_oldest_python() -> None:
    """Python 3.8, the oldest that torch 2.1 supports."""
    vermin = pytest.importorskip("vermin")
    config = vermin.Config()
    for path in sorted(PACKAGE.rglob("*.py")):
        visitor = vermin.visit(path.read_text(encoding="utf-8"), config)
        _, version = visitor.minimum_versions()
        assert version is not None and version <= (3, 8), f"{path}: {version}"


def test_no_generic_of_collections_is_made_at_run_time() -> None:
    """`Mapping[str, int]` of collections.abc, `list[int]` as an alias: Python 3.8 has neither; vermin misses them."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        plain = {"list", "dict", "tuple", "set", "frozenset", "type"}
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module == "collections.abc":
                plain.update(alias.name for alias in node.names)
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
                generic = node.value.value
                assert not (isinstance(generic, ast.Name) and generic.id in plain), (path, node.lineno)


@pytest.mark.torch
@pytest.mark.parametrize("suite", ["sync", pytest.param("pairs", marks=pytest.mark.slow)])
def test_two_ranks_from_the_archive(tmp_path: Path, suite: str) -> None:
    archive = tmp_path / "fabric.zip"
    archive.write_bytes(fabric_zip())
    port = free_port()
    command = [sys.executable, str(archive), "--suite", suite, "--quick", "--out", "none"]
    ranks = []
    for rank in (0, 1):
        env = environment(rank, 2, 1 if suite == "pairs" else 2, port, OMP_NUM_THREADS="1")
        env.pop("PYTHONPATH", None)
        ranks.append(subprocess.Popen([command[0], "-P", *command[1:]] if sys.version_info >= (3, 11) else command,
                                      env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True))  # fmt: skip
    outputs = [rank.communicate(timeout=BOUND)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert outputs[0].endswith("PASSED!\n") and outputs[1] == ""
    assert list(tmp_path.iterdir()) == [archive], "--out none writes nothing"


@pytest.mark.parametrize(("env", "words"), [
    ({}, "RANK and WORLD_SIZE not set: start every rank with allranks, torchrun, srun or mpirun"),
    ({"RANK": "x", "WORLD_SIZE": "1", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, "RANK=x: set a whole number"),
])  # fmt: skip
def test_usage_errors_come_before_torch(env: dict[str, str], words: str, tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')", encoding="utf-8")
    whole = {**kept, **env, "PYTHONPATH": f"{tmp_path}:{PACKAGE.parents[1]}"}
    done = subprocess.run([sys.executable, "-m", "allranks.fabric"], env=whole, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr
