"""Nodes import beforehand what their ranks will need, spares too: scripts as in test_gang.py."""

from typing import Any

import pytest
from tests.gang.test_gang import Drive, play
from tests.gang.test_spares import lost, ready, standing_by

from allranks.protocol.messages import TemplateMessage
from allranks.protocol.processes import ImportRecord
from allranks.protocol.run_facts import NodeSilent

IMPORTS = ImportRecord({"torch": "/site-packages/torch/__init__.py"}, {"A": None}, {}, 3.0)


def sent(drive: Drive, kind: str) -> list[tuple[str, dict[str, Any]]]:
    return [(node, order) for node, order in drive.sent if order["type"] == kind]


def test_nodes_import_while_the_rendezvous_is_checked() -> None:
    drive = play(
        """
        hello h0        | node-ready setup>h0
        hello h1        | node-ready setup>h1
        facts h0        | facts
        facts h1        | facts listen>h0 preload>h0 preload>h1
        listening       | gate-listening probe>*
        probed h0       |
        probed h1       | gate-proved start>*
        """,
        Drive(2, nproc=2, preload="auto"),
    )
    started = dict(sent(drive, "start"))
    for node, order in sent(drive, "preload"):
        first = started[node]["ranks"][0]
        assert order["rank"]["argv"] == first["argv"] and order["rank"]["workdir"] == first["workdir"]
        differing = {name for name, value in first["env"].items() if order["rank"]["env"].get(name) != value}
        assert differing <= {"MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}
        assert order["preload"] == started[node]["preload"] == "auto" and order["imports"] is None


def test_a_further_attempt_asks_no_node_again() -> None:
    drive = ready(2, spares=0, preload="auto")
    drive.exit("0", "code=1")
    assert len(sent(drive, "preload")) == 2
    assert [order["template"] for _, order in sent(drive, "start")] == [True, True]


@pytest.mark.parametrize(
    "spec", [{"preload": "never"}, {"launcher": "torchrun"}, {"wrap": "nice"}, {"prelude": "module load x"}]
)
def test_what_was_asked_for_forbids_it(spec: dict[str, Any]) -> None:
    drive = Drive(2, **{"preload": "auto", **spec}).running()
    assert sent(drive, "preload") == []
    assert {order["preload"] for _, order in sent(drive, "start")} == {"never"}


@pytest.mark.parametrize("preload", ["auto", "retries"])
def test_a_spare_imports_what_a_node_has_and_takes_its_place(preload: str) -> None:
    drive = ready(2, spares=2, preload=preload)
    assert "h2" not in [node for node, _ in sent(drive, "preload")]
    assert drive.feed(TemplateMessage("ready", 0), "h1") == ["imports>h1"]
    assert drive.feed(TemplateMessage("ready", 0), "h0") == [], "one answer serves all"
    assert drive.feed(IMPORTS, "h1") == ["preload>h2", "preload>h3"]
    order = drive.last("preload")
    assert order["imports"]["modules"] == dict(IMPORTS.modules)
    assert order["rank"]["env"]["ALLRANKS_MARK"].endswith("/node_03")
    assert drive.feed(TemplateMessage("ready", 0), "h0") == []
    before = len(sent(drive, "preload"))
    lost(drive, "h1")
    drive.retry(h1="h2")
    assert len(sent(drive, "preload")) == before, "it has a template already"


def test_a_spare_that_is_ready_later_imports_too() -> None:
    drive = Drive(2, spares=1, retries=1, preload="auto").running()
    drive.feed(TemplateMessage("ready", 0), "h0")
    assert drive.feed(IMPORTS, "h0") == []
    standing_by(drive, "h2")
    assert sent(drive, "preload")[-1][0] == "h2"


def test_a_node_that_has_lost_its_template_has_nothing_for_a_spare() -> None:
    drive = ready(2, spares=1, preload="auto")
    drive.feed(TemplateMessage("ready", 0), "h0")
    assert drive.feed(ImportRecord(), "h0") == []
    assert drive.feed(TemplateMessage("ready", 0), "h1") == ["imports>h1"], "the next is asked"


def test_without_retries_no_spare_imports() -> None:
    drive = ready(2, spares=1, retries=0, preload="auto")
    assert drive.feed(TemplateMessage("ready", 0), "h0") == []


def test_what_is_asked_for_beside_does_not_hide_the_request_that_was_lost() -> None:
    drive = Drive(1, preload="auto")
    play("hello h0 | node-ready setup>h0\nfacts h0 | facts listen>h0 preload>h0", drive)
    drive.feed(NodeSilent(), "h0")
    assert drive.hello("h0")[-1] == "listen>h0"
