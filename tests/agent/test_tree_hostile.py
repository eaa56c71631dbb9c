"""--sync, the node's side: what an archive may not do."""

from __future__ import annotations

import gzip
import os
import tarfile
from pathlib import Path

import pytest
from tests.agent.tree_archives import Member, land, link, listing, make_node_dir, order_of, tar_of

pytestmark = pytest.mark.processes

EVIL = b"evil"


@pytest.fixture
def node_dir(tmp_path: Path) -> Path:
    return make_node_dir(tmp_path)


HOSTILE: dict[str, list[Member]] = {
    "absolute name": [Member("/tmp/allranks-evil", EVIL)],
    "parent": [Member("../victim", EVIL)],
    "parent in the middle": [Member("a/../../../victim", EVIL)],
    "parent at the end": [Member("a/..", EVIL)],
    "dot": [Member("./a", EVIL)],
    "double slash": [Member("a//b", EVIL)],
    "no name": [Member("", EVIL)],
    "absolute directory": [Member("/tmp/allranks-evil", kind=tarfile.DIRTYPE)],
    "directory above": [Member("../made", kind=tarfile.DIRTYPE)],
    "absolute link": [link("a", "/etc")],
    "link to above": [link("a", "../victim")],
    "link far above": [link("a/b", "../../victim")],
    "link without a target": [link("a", "")],
    "link named as above": [link("../a", "victim")],
    "file through a link": [link("way", ".."), Member("way/victim", EVIL)],
    "file through a link inside": [Member("d/x"), link("way", "d"), Member("way/y", EVIL)],
    "file over a link": [link("way", "../victim"), Member("way", EVIL)],
    "link over a file": [Member("way", EVIL), link("way", "other")],
    "link through a link": [link("way", ".."), link("way/victim", "x")],
    "link that leaves through a link": [Member("d/e/x"), link("d/e/up", ".."), link("out", "d/e/up/../../../victim")],
    "link that leaves in two": [Member("d/x"), link("one", "d"), link("d/two", "../one/../../victim")],
    "directory over a link": [link("way", ".."), Member("way", kind=tarfile.DIRTYPE), Member("way/victim", EVIL)],
    "hard link": [Member("a", EVIL), Member("b", kind=tarfile.LNKTYPE, to="a")],
    "hard link outside": [Member("b", kind=tarfile.LNKTYPE, to="../victim")],
    "character device": [Member("null", kind=tarfile.CHRTYPE, devmajor=1, devminor=3)],
    "block device": [Member("disk", kind=tarfile.BLKTYPE, devmajor=8, devminor=0)],
    "pipe": [Member("pipe", kind=tarfile.FIFOTYPE)],
    "same name twice": [Member("a", b"first"), Member("a", EVIL)],
    "same link twice": [Member("x"), link("a", "x"), link("a", "x")],
    "file as directory": [Member("a"), Member("a/b", EVIL)],
    "directory as file": [Member("a/b"), Member("a", EVIL)],
    "a name too long": [Member("n" * 300, EVIL)],
}  # fmt: skip


BAD_NAMES = {kind for kind in HOSTILE if kind.startswith(("absolute", "parent", "dot", "double", "no name"))}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(kind: str, node_dir: Path) -> None:
    outer = node_dir.parent
    before = listing(outer)
    data = tar_of(Member("good.py", b"x = 1\n"), *HOSTILE[kind])
    answer = land(node_dir, data, order_of(data))
    assert (answer["type"], answer["path"]) == ("shipped", str(node_dir / "tree"))
    assert answer["error"] and "sha256" not in answer and "Traceback" not in answer["error"]
    assert kind not in BAD_NAMES or "leads elsewhere" in answer["error"]
    assert listing(outer) == before
    assert not os.path.lexists("/tmp/allranks-evil")


@pytest.mark.parametrize("kind", ["setuid", "world-writable"])
def test_no_more_permissions_than_ours(kind: str, node_dir: Path) -> None:
    data = tar_of(Member("a/b", b"x", mode=0o6777 if kind == "setuid" else 0o666))
    assert land(node_dir, data, order_of(data))["files"] == 1
    mode = (node_dir / "tree/a/b").stat().st_mode & 0o7777
    assert mode == (0o700 if kind == "setuid" else 0o600)
    assert (node_dir / "tree/a").stat().st_mode & 0o7777 == 0o700


def test_more_files_than_announced(node_dir: Path) -> None:
    data = tar_of(Member("a"), Member("b"), link("c", "a"))
    answer = land(node_dir, data, order_of(data, files=2))
    assert "more files than was announced" in answer["error"]
    assert not (node_dir / "tree").exists()


def test_more_bytes_than_announced(node_dir: Path) -> None:
    data = tar_of(Member("a", bytes(600)), Member("b", bytes(600)))
    answer = land(node_dir, data, order_of(data, size=1199))
    assert "larger than was announced" in answer["error"]
    assert not (node_dir / "tree").exists()


def test_a_sparse_file_that_pretends_to_be_large(node_dir: Path) -> None:
    """The PAX form: the member is a plain file, its real size stands in a header."""
    member = Member("a", b"1\n0\n1\n" + bytes(506) + b"x", pax_headers={
        "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a", "GNU.sparse.realsize": str(1 << 40),
    })  # fmt: skip
    data = tar_of(member, format=tarfile.PAX_FORMAT)
    answer = land(node_dir, data, order_of(data))
    assert "larger than was announced" in answer["error"]
    assert not (node_dir / "tree").exists()


@pytest.mark.parametrize("kind", ["changed", "cut", "no tar", "no gzip"])
def test_a_damaged_archive(kind: str, node_dir: Path) -> None:
    """A changed byte is seen by its sha256; what was made badly on purpose by the reader."""
    data = tar_of(*(Member(f"f{n}", os.urandom(1000)) for n in range(50)))
    order = order_of(data)
    if kind == "changed":
        data = data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]
    else:
        data = {"cut": data[: len(data) // 2], "no tar": gzip.compress(os.urandom(2000)), "no gzip": bytes(5000)}[kind]
        order = order_of(data)
    answer = land(node_dir, data, order)
    assert ("arrived damaged" if kind == "changed" else "the archive is refused") in answer["error"]
    assert sorted(os.listdir(node_dir)) == ["outputs", "spool"]
