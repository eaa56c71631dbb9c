"""--sync, the end: what the program wrote into its tree is kept and named, the rest goes."""

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.tree_archives import Member, link, listing, order_of, tar_of

from allranks.agent import node_directory as nodedir
from allranks.agent import receiver
from allranks.agent.receiver import has_results, unpack
from allranks.protocol.codec import decode
from allranks.protocol.orders import ShipOrder

pytestmark = pytest.mark.processes


@pytest.fixture
def landed() -> Iterator[Path]:
    """A node directory as a run has it, with a tree unpacked in it. Its path is short: it would hold sockets."""
    with tempfile.TemporaryDirectory(prefix="tree-", dir="/tmp") as base:
        yield unpacked(Path(nodedir.make(base, "run-1", "node_00")))


def unpacked(place: Path) -> Path:
    data = tar_of(Member("train.py", b"x = 1\n"), Member("lib/model.py", b"y = 2\n"), link("way", "lib"))
    (place / "tree.tar.gz").write_bytes(data)
    answer = unpack(str(place / "tree.tar.gz"), str(place / "tree"), decode(ShipOrder, order_of(data)))
    assert answer.files == 3, answer
    (place / "spool" / "a0_rank_0").write_text("log")
    (place / "node.log").write_text("log")
    return place


def write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("the program's")


CHANGES: dict[str, tuple[Callable[[Path], Any], bool]] = {
    "a new file": (lambda tree: write(tree / "checkpoint.pt"), True),
    "a new file in a new directory": (lambda tree: write(tree / "out/deep/log.txt"), True),
    "an empty new file": (lambda tree: (tree / "DONE").touch(), True),
    "a changed file": (lambda tree: write(tree / "train.py"), True),
    "a file changed to the same size": (lambda tree: (tree / "train.py").write_text("x = 2\n"), True),
    "a new link": (lambda tree: (tree / "latest").symlink_to("train.py"), True),
    "a deleted file": (lambda tree: (tree / "train.py").unlink(), False),
    "an empty new directory": (lambda tree: (tree / "logs").mkdir(), False),
    "byte code": (lambda tree: write(tree / "lib/__pycache__/model.cpython-313.pyc"), False),
    "nothing": (lambda tree: None, False),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_what_the_program_wrote_is_kept(kind: str, landed: Path) -> None:
    """Of what it deleted or what is empty nothing would be lost."""
    change, kept = CHANGES[kind]
    change(landed / "tree")
    after = listing(landed / "tree")
    assert has_results(str(landed)) is kept
    assert nodedir.kept_outputs(str(landed)) == (str(landed / "tree") if kept else None)
    nodedir.remove(str(landed))
    if not kept:
        assert list(landed.parents[2].iterdir()) == [], "nor is anything above it left"
        return
    assert not (landed / "node.log").exists() and not (landed / "spool").exists()
    nodedir.remove(str(landed))  # `allranks attach` may find the directory again
    assert listing(landed / "tree") == after


def test_outputs_and_tree_are_named_by_what_holds_both(landed: Path) -> None:
    write(landed / "outputs/latest.pt")
    assert nodedir.kept_outputs(str(landed)) == str(landed / "outputs")
    write(landed / "tree/checkpoint.pt")
    assert nodedir.kept_outputs(str(landed)) == str(landed)
    nodedir.remove(str(landed))
    assert {"outputs", "tree"} <= set(os.listdir(landed)) <= {"outputs", "tree", "tree.json"}


def test_a_half_unpacked_tree_is_no_result(landed: Path) -> None:
    (landed / "tree.json").unlink()
    assert not has_results(str(landed))
    nodedir.remove(str(landed))
    assert not landed.exists()


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_a_manifest_that_cannot_be_read_keeps_the_tree(text: str, landed: Path) -> None:
    (landed / "tree.json").write_text(text)
    assert has_results(str(landed))


def test_a_file_that_goes_while_it_is_looked_at(landed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process that is being ended still deletes does not hide the results."""
    write(landed / "tree/a.tmp")
    write(landed / "tree/z.pt")
    real = os.lstat

    def lstat(path: Any, **words: Any) -> os.stat_result:
        if str(path).endswith("a.tmp"):
            raise FileNotFoundError(errno.ENOENT, "gone", path)
        return real(path, **words)

    monkeypatch.setattr(receiver.os, "lstat", lstat)
    assert has_results(str(landed))
