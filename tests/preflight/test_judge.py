"""What a node sends, or a check of another package does, never ends the judge: that check is unknown."""

import base64
import types
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from allranks.gang.plugins import built_in
from allranks.preflight.check import Check, read_check
from allranks.preflight.judge import judge

BOMB = 64 << 20  # bytes of a listing that is packed in 64 KB


def said(check: Check, *of_nodes: Any) -> list[tuple[str, str]]:
    documents = {f"h{number}": {check.name: facts} for number, facts in enumerate(of_nodes)}
    return [(finding.status, finding.message) for finding in judge({}, documents, [check])]


def listing(names: str, digest: str) -> dict[str, Any]:
    return {"/data": {"kind": "directory", "count": 1, "digest": digest, "names": names}}


def packed(size: int) -> str:
    return base64.b64encode(zlib.compress(b"[" + b" " * size + b"]")).decode()


@pytest.mark.parametrize("names", [lambda: "!!!", lambda: "aGk=", lambda: packed(BOMB)], ids=["text", "raw", "bomb"])
def test_a_listing_that_is_none(names: Callable[[], str]) -> None:
    """Not base64, not packed, and too large when it is unpacked. It is made late: every worker imports this file."""
    ((status, message),) = said(built_in()["data_listing"], listing(names(), "a"), listing(names(), "b"))
    assert status == "unknown" and message.startswith("could not read what the nodes have sent: ")


@pytest.mark.parametrize(
    ("check", "facts"),
    [
        ("disk_space", [{"paths": ["/tmp"], "data": False, "total": 0, "free": 1}]),
        ("disk_space", [{"paths": [], "data": False, "total": 8, "free": 0}]),
        ("gpu_nvlink", {"links": {"x": ["m", 0, []], "y": ["m", 4, []], "z": ["m", 4, []]}}),
    ],
)
def test_values_that_no_node_of_ours_sends(check: str, facts: Any) -> None:
    statuses = said(built_in()[check], facts, facts)
    assert statuses[0][0] == "unknown" and statuses[0][1].startswith("could not judge what the nodes have sent: ")


def test_a_check_that_has_a_defect_is_named_with_the_place() -> None:
    module = types.ModuleType("site")
    exec("ID, GROUP, LEVEL = 'site', 'host', 'quick'\ndef judge(request, facts):\n    return [][0]\n", vars(module))
    why = r"could not judge what the nodes have sent: IndexError: list index out of range (<string>:3)"
    assert said(read_check(module), {}) == [("unknown", why)]


def test_a_check_that_no_node_could_carry_out_judges_nothing() -> None:
    module = types.ModuleType("site")
    collect = "def collect(host):\n    return None\n"
    judge_all = "def judge(request, facts):\n    return [][max(facts)]\n"
    exec("ID, GROUP, LEVEL = 'site', 'host', 'quick'\n" + collect + judge_all, vars(module))
    assert said(read_check(module), {"error": "no sh"}) == [("unknown", "could not look at h0: no sh")]
