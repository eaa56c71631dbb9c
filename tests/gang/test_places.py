"""The gang with --sync: the tree is on a node before the node is looked at. Scripts as in test_gang.py."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.gang.test_gang import Drive, play

from allranks.gang.places import workdir_on
from allranks.protocol.messages import ShippedMessage
from allranks.protocol.run_facts import WorkingTree
from allranks.text import name_with

TREE = WorkingTree("/home/me/project", 12, 3456, "ab" * 32, ("big.pt",), below="jobs", packed=789)
PATH = "/tmp/allranks-0/{}/tree"


class ShipDrive(Drive):
    """A gang that ships TREE."""

    def __init__(self, count: int = 2, tree: WorkingTree | None = TREE, **spec: Any) -> None:
        super().__init__(count, **spec)
        self.roster.context = dataclasses.replace(self.roster.context, tree=tree)
        self.notes.clear()
        self._perform(self.gang.begin())

    def shipped(
        self, node: str, error: str = "", errno: str = "", sha256: str = TREE.sha256, files: str = "12"
    ) -> list[str]:
        text, number = error.replace("_", " "), int(errno) if errno else None
        return self.feed(ShippedMessage(PATH.format(node), sha256, int(files), text, number), node)

    def synced(self) -> ShipDrive:
        for name in self.names:
            self.hello(name)
            self.shipped(name)
        return self


def test_first_the_tree_then_the_look() -> None:
    drive = play(
        """
        hello h1,h0      | node-ready ship>@
        shipped h1      | tree-arrived setup>h1
        facts h1        | facts
        shipped h0      | tree-arrived setup>h0
        facts h0        | facts listen>h0
        listening       | gate-listening probe>*
        probed h0       |
        probed h1       | gate-proved start>*
        """,
        ShipDrive(),
    )
    assert drive.said("tree") == [{"root": TREE.root, "files": 12, "bytes": 3456, "sha256": TREE.sha256,
                                   "left_out": ["big.pt"], "limit": 0}]  # fmt: skip
    assert drive.last("ship") == {"type": "ship", "sha256": TREE.sha256, "packed": 789, "bytes": 3456, "files": 12}
    looked = {node: m["workdir"] for node, m in drive.sent if m["type"] == "setup"}
    assert looked == {name: f"/tmp/allranks-0/{name}/tree/jobs" for name in ("h0", "h1")}
    started = {node: {r["workdir"] for r in m["ranks"]} for node, m in drive.sent if m["type"] == "start"}
    assert started == {name: {workdir} for name, workdir in looked.items()}
    assert [f["path"] for f in drive.said("tree-arrived")] == [PATH.format("h1"), PATH.format("h0")]


def test_workdir_is_the_position_in_the_tree() -> None:
    """--workdir inside the tree is in `below` already."""
    drive = ShipDrive(workdir="jobs")
    assert workdir_on(drive.spec, drive.roster.context, "/n") == "/n/tree/jobs"


@pytest.mark.parametrize(("errno", "kind"), [("28", "disk-full"), ("122", "disk-full"), ("13", "tree-not-shipped"),
                                             ("17", "tree-not-shipped"), ("", "tree-not-shipped")])  # fmt: skip
def test_a_node_that_could_not_take_it(errno: str, kind: str) -> None:
    drive = play(
        f"""
        hello h0,h1      | node-ready ship>@
        shipped h0                   | tree-arrived setup>h0
        shipped h1 it_is_bad {errno} | finding ending end>*
        facts h0                     |
        """,
        ShipDrive(),
    )
    (finding,) = drive.roster.findings
    assert (finding.id, finding.status, finding.where.node) == (kind, "fail", "h1")
    assert "h1" in finding.message and finding.message.endswith(": it is bad")
    assert PATH.format("h1") in finding.message
    assert finding.remedy
    drive.through_the_end()
    assert drive.roster.exits == [] and drive.overs == [0]


@pytest.mark.parametrize(("sha256", "files"), [("cd" * 32, "12"), (TREE.sha256, "11"), ("", "0")])
def test_another_tree_than_was_sent(sha256: str, files: str) -> None:
    drive = ShipDrive()
    drive.hello("h0")
    given = drive.shipped("h0", sha256=sha256, files=files)
    assert given == ["finding", "ending", "end>h0"]
    (finding,) = drive.roster.findings
    assert finding.id == "tree-not-shipped"
    arrived = name_with(f"{files} files", sha256[:12])
    assert f"{arrived} arrived, 12 ({TREE.sha256[:12]}) were sent" in finding.message


def test_a_broken_connection_asks_again_for_what_is_open() -> None:
    drive = play(
        """
        hello h0        | node-ready ship>h0
        silent h0       | node-silent
        hello h0        | node-back ship>h0
        hello h0        | ship>h0
        shipped h0      | tree-arrived setup>h0
        shipped h0      |
        hello h0        | setup>h0
        shipped h0      |
        facts h0        | facts
        hello h0        |
        hello h1        | node-ready ship>h1
        shipped h1      | tree-arrived setup>h1
        facts h1        | facts listen>h0
        """,
        ShipDrive(),
    )
    assert drive.roster.nodes["h0"].synced


def test_with_a_node_that_cannot_be_reached_nothing_more_is_asked() -> None:
    play(
        """
        hello h0        | node-ready ship>h0
        unreachable h1  | finding
        shipped h0      | tree-arrived
        hello h2        | node-ready ending end>h0 end>h2
        shipped h2      |
        """,
        ShipDrive(count=3),
    )


def test_the_next_attempt_runs_in_the_same_tree() -> None:
    drive = ShipDrive().synced()
    for name in drive.names:
        drive.facts(name)
    drive.running()
    drive.exit("1", "code=1")
    drive.through_the_end()
    drive.sent.clear()
    drive.retry()
    drive.proved()
    kinds = [m["type"] for _, m in drive.sent]
    assert "ship" not in kinds and "setup" not in kinds
    assert drive.last("start")["ranks"][0]["workdir"] == "/tmp/allranks-0/h1/tree/jobs"
