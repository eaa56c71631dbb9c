"""--sync, the node's side: an archive arrives in pieces and is unpacked, wherever the connection breaks."""

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.test_checks_real import mounted
from tests.agent.tree_archives import Member, Node, listing, order_of, tar_of
from tests.interpreters import OLDEST

from allranks.agent.receiver import has_results
from allranks.gang.channel import CHUNK, WINDOW, Shipper
from allranks.gang.working_tree import Archive, pack_tree
from allranks.protocol.frames import Decoder
from allranks.settings import RunSpec

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
SPEC = RunSpec.of(command=("hostname",))


@pytest.fixture
def node_dir(tmp_path: Path) -> Path:
    place = tmp_path / "outer" / "node_00"
    for name in ("spool", "outputs"):
        (place / name).mkdir(parents=True)
    return place


def announced(node_dir: Path, pieces: int) -> tuple[bytes, dict[str, Any], Node]:
    """An archive, its order, and a node that has had that."""
    data = tar_of(Member("data.bin", os.urandom(pieces * 1000)))
    order = order_of(data)
    node = Node(node_dir)
    node.ship(order)
    return data, order, node


def test_pieces_in_order_are_acknowledged(node_dir: Path) -> None:
    data, order, node = announced(node_dir, 3)
    assert node.said == [{"type": "got", "bytes": 0, "begin": True}]
    node.chunk(0, data[:1000])
    node.chunk(1000, data[1000:2500])
    assert [(m["type"], m["bytes"], m["begin"]) for m in node.said[1:]] == [("got", 1000, False), ("got", 2500, False)]
    node.chunk(2500, data[2500:])
    assert len(node.said) == 3, "nothing is said until it is unpacked"
    node.work()
    assert node.last == {"type": "shipped", "path": str(node_dir / "tree"), "sha256": order["sha256"], "files": 1}
    assert sorted(os.listdir(node_dir)) == ["outputs", "spool", "tree", "tree.json"]


@pytest.mark.parametrize("is_asked_early", [False, True])
def test_a_tree_whose_unpacking_the_end_of_an_attempt_has_killed_comes_again(
    node_dir: Path, is_asked_early: bool
) -> None:
    data, order, node = announced(node_dir, 3)
    node.chunk(0, data)
    (node_dir / "tree").mkdir()
    (node_dir / "tree" / "half").touch()
    node.receiver.interrupt()
    if is_asked_early:
        node.ship(order)
        assert len(node.said) == 1, "nothing is said before the task has ended"
    node.kill()
    if not is_asked_early:
        node.ship(order)
    assert node.last == {"type": "got", "bytes": 0, "begin": True}
    node.chunk(0, data)
    node.work()
    assert node.last["sha256"] == order["sha256"] and node.last["files"] == 1
    assert os.listdir(node_dir / "tree") == ["data.bin"]


def test_an_unpacking_that_dies_on_its_own_is_a_failure(node_dir: Path) -> None:
    data, _, node = announced(node_dir, 3)
    node.receiver.interrupt()  # an end before all is here kills no unpacking
    node.chunk(0, data)
    node.kill()
    assert node.last["error"] == "unpacking the tree ended without a result"


def test_pieces_that_come_twice_or_out_of_order(node_dir: Path) -> None:
    data, order, node = announced(node_dir, 5)
    node.chunk(2000, data[2000:3000])  # too early
    node.chunk(0, data[:1000])
    node.chunk(0, data[:1000])  # again
    node.chunk(500, data[500:1500])  # overlapping
    assert [m["bytes"] for m in node.said] == [0, 1000]
    node.ship(order)  # the connection broke: announced again
    assert node.last == {"type": "got", "bytes": 1000, "begin": True}
    node.chunk(1000, data[1000:])
    node.chunk(1000, data[1000:])
    node.chunk(0, data)
    node.work()
    assert (node.last["sha256"], len(node.tasks)) == (order["sha256"], 0)


def test_a_break_while_it_is_unpacked_and_after(node_dir: Path) -> None:
    """Announced again: the answer comes when there is one, and is the same ever after."""
    data, order, node = announced(node_dir, 1)
    node.chunk(0, data)
    said = len(node.said)
    node.ship(order)
    assert len(node.said) == said and len(node.tasks) == 1
    node.work()
    answer = node.last
    (node_dir / "tree/result.txt").write_text("the program's")
    node.ship(order)
    assert node.last == answer and not node.tasks
    assert (node_dir / "tree/result.txt").exists()


def test_more_than_was_announced(node_dir: Path) -> None:
    data, order, node = announced(node_dir, 1)
    node.chunk(0, data + b"x")
    assert "more arrived than was announced" in node.last["error"] and not node.tasks
    assert sorted(os.listdir(node_dir)) == ["outputs", "spool"]
    node.chunk(0, data)
    node.ship(order)
    assert [m["type"] for m in node.said] == ["got", "shipped", "shipped"]


def test_a_damaged_archive(node_dir: Path) -> None:
    data = tar_of(*(Member(f"f{n}", os.urandom(1000)) for n in range(50)))
    node = Node(node_dir)
    node.ship(order_of(data))
    node.chunk(0, data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    node.work()
    assert "arrived damaged" in node.last["error"]
    assert sorted(os.listdir(node_dir)) == ["outputs", "spool"]


def test_no_room_is_said_before_anything_travels(node_dir: Path) -> None:
    node = Node(node_dir)
    node.ship(order_of(b"x" * 100, size=1 << 60))
    (answer,) = node.said
    assert answer["errno"] == errno.ENOSPC
    assert answer["error"].startswith("No space left on device (") and "MB free" in answer["error"]
    assert sorted(os.listdir(node_dir)) == ["outputs", "spool"]
    node.chunk(0, b"x" * 100)
    node.ship(order_of(b"x" * 100, size=1 << 60))
    assert node.said == [answer, answer]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB and few inodes."""
    with mounted(tmp_path / "small", "size=1m,nr_inodes=40,mode=700") as place:
        yield place


@pytest.mark.parametrize(("arrived", "room"), [(1000, 0), (None, 8192)], ids=["while it arrives", "while unpacked"])
def test_a_disk_that_fills_up(small: Path, arrived: int | None, room: int) -> None:
    data = tar_of(Member("d/a", os.urandom(300 << 10)))
    node = Node(small)
    node.ship(order_of(data, files=1, size=300 << 10))
    node.chunk(0, data[:arrived])
    (small / "filler").write_bytes(bytes(os.statvfs(small).f_bavail * 4096 - room))
    if arrived:
        node.chunk(arrived, data[arrived:])
    else:
        node.work()
    assert node.last["errno"] == errno.ENOSPC and not node.tasks
    assert os.listdir(small) == ["filler"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tree with all that may travel."""
    place = tmp_path / "source"
    (place / "lib/deep").mkdir(parents=True)
    (place / "train.py").write_text("import lib\n")
    (place / "run.sh").write_text("#!/bin/sh\n")
    (place / "run.sh").chmod(0o755)
    (place / "lib/empty.py").touch()
    (place / "lib/deep" / ("n" * 200 + ".py")).write_text("long name\n")
    (place / "lib/data.bin").write_bytes(os.urandom(2 * WINDOW + 17))
    for name in (b"line\nbreak", b" space ", b"-dash", b"caf\xe9", "caf\u00e9".encode()):
        Path(os.fsdecode(os.path.join(os.fsencode(place), name))).write_bytes(name)
    (place / "link").symlink_to("lib/data.bin")
    (place / "lib/up").symlink_to("../train.py")
    (place / "dir").symlink_to("lib")
    (place / "lib/deep/top").symlink_to("../..")
    (place / os.fsdecode(b"link\xff")).symlink_to(os.fsdecode(b"caf\xe9"))
    (place / "gone").symlink_to("lib/gone")
    return place


class Wire:
    """A channel that keeps what was queued."""

    def __init__(self) -> None:
        self.decoder, self.queued = Decoder(), bytearray()

    def send_bytes(self, frames: bytes) -> None:
        self.queued += frames

    def take(self) -> list[Any]:
        data, self.queued = bytes(self.queued), bytearray()
        return self.decoder.feed(data)


def ship(archive: Archive, node: Node, order: dict[str, Any], break_after: int | None = None) -> int:
    """Controller and node until all is there; gives the number of frames. May lose the connection once."""
    shipper, wire, frames = Shipper(archive), Wire(), 0
    node.ship(order)
    heard = 0
    while not node.tasks:
        for word in node.said[heard:]:
            shipper.go_on(0, word["bytes"], bool(word.get("begin")), wire)  # type: ignore[arg-type]
        heard = len(node.said)
        arrived = wire.take()
        assert arrived, "neither side has anything to send"
        assert sum(len(f.data) for f in arrived) <= WINDOW, "all before is acknowledged"
        for number, frame in enumerate(arrived):
            frames += 1
            node.receiver.chunk(frame)
            if frames == break_after:
                heard, wire = len(node.said), Wire()  # the rest and all words about it are lost
                node.ship(order)
                assert number + 1 < len(arrived)
                break
    return frames


def message(archive: Archive) -> dict[str, Any]:
    tree = archive.tree
    return {"type": "ship", "sha256": tree.sha256, "packed": tree.packed, "bytes": tree.bytes, "files": tree.files}


@pytest.mark.parametrize("break_after", [None, 2])
def test_the_same_tree_arrives(source: Path, node_dir: Path, break_after: int | None) -> None:
    archive, node = pack_tree(SPEC, str(source)), Node(node_dir)
    assert ship(archive, node, message(archive), break_after) == -(-archive.tree.packed // CHUNK)
    node.work()
    assert (node.last["sha256"], node.last["files"]) == (archive.tree.sha256, archive.tree.files)
    assert listing(node_dir / "tree") == listing(source)
    assert not has_results(str(node_dir))


def test_below_is_there_although_it_is_empty(source: Path, node_dir: Path) -> None:
    subprocess.run(["git", "init", "-q", str(source)], check=True)
    (source / "empty").mkdir()
    archive, node = pack_tree(SPEC, str(source / "empty")), Node(node_dir)
    ship(archive, node, message(archive))
    node.work()
    assert "error" not in node.last
    assert os.path.isdir(archive.tree.workdir(str(node_dir)))


OLD_NODE = """
import base64, json, os, sys
sys.path.insert(0, {source!r})
from allranks.protocol.frames import TREE, OutputFrame, Stream
from allranks.agent.receiver import TreeReceiver, has_results
from allranks.protocol.codec import decode, encode
from allranks.protocol.orders import ShipOrder
from allranks.agent import node_directory as nodedir
order = json.loads({order!r})
said, tasks = [], []
receiver = TreeReceiver({node_dir!r}, said.append, lambda *words: tasks.append(words))
receiver.ship(decode(ShipOrder, order))
with open({archive!r}, "rb") as file:
    offset = 0
    for data in iter(lambda: file.read(70000), b""):
        receiver.chunk(OutputFrame(Stream(TREE, 0, 0), offset, data))
        offset += len(data)
(work, done), = tasks
done(work.function(), "")
before = has_results({node_dir!r})
with open(os.path.join({node_dir!r}, "tree", "lib", "empty.py"), "w") as file:
    file.write("x")
print(json.dumps([sys.version_info[:2], encode(said[-1]), before, nodedir.kept_outputs({node_dir!r})]))
"""


@pytest.mark.skipif(OLDEST is None, reason="needs Python 3.8")
@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_the_same_under_python_3_8(source: Path, node_dir: Path, tmp_path: Path, locale: str) -> None:
    archive = pack_tree(SPEC, str(source))
    (tmp_path / "archive").write_bytes(archive.read(0, archive.tree.packed))
    code = OLD_NODE.format(source=str(ROOT / "src"), order=json.dumps(message(archive)), node_dir=str(node_dir),
                           archive=str(tmp_path / "archive"))  # fmt: skip
    environment = {"PATH": os.defpath, "LC_ALL": locale, "PYTHONCOERCECLOCALE": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([str(OLDEST), "-X", "utf8=0", "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    version, answer, before, kept = json.loads(done.stdout)
    assert version == [3, 8]
    assert (answer.get("error"), answer["sha256"], answer["files"]) == (None, archive.tree.sha256, archive.tree.files)
    assert (before, kept) == (False, str(node_dir / "tree"))
    (source / "lib/empty.py").write_text("x")
    assert listing(node_dir / "tree") == listing(source)
