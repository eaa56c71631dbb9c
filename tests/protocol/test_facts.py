"""The facts of a node: what an agent writes is what the plan and the checks read."""

import os
from typing import Any

import pytest

from allranks.agent.node_check import collect
from allranks.plan.network import share_network
from allranks.preflight.typed_facts import Facts
from allranks.protocol.codec import decode, encode
from allranks.protocol.facts import Gpus, Identity, Interpreter
from allranks.protocol.jsontext import DecodeError
from allranks.protocol.orders import SetupOrder
from allranks.protocol.plan_facts import NodeFacts, check_facts, read_facts

VIEWS = ("workdir", "script", "interpreter", "gpus", "identity", "nccl", "disk", "shm", "mem", "own_name")


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    order = {"command": ["train.py"], "workdir": "/tmp", "data_paths": ["/tmp"], "environ": dict(os.environ)}
    return collect(decode(SetupOrder, order))


def without_null(part: Any) -> Any:
    return {k: v for k, v in part.items() if v is not None} if isinstance(part, dict) else part


def test_the_records_have_every_field_that_an_agent_writes(facts: dict[str, Any]) -> None:
    check_facts(facts)
    plan = read_facts(facts)
    views = Facts(facts)
    for name in set(NodeFacts._fields) & set(facts):
        assert without_null(encode(getattr(plan, name))) == without_null(facts[name]), name
    for name in VIEWS:
        assert without_null(encode(getattr(views, name))) == without_null(facts[name]), name
    assert encode(views.interfaces) == facts["interfaces"] and encode(views.data) == facts["data"]


@pytest.mark.parametrize("part", [{"error": "OSError: x"}, {"error": "x", "path": 5}, None])
def test_a_part_that_failed_is_as_its_default(part: object) -> None:
    facts = dict.fromkeys(("interfaces", "mem", "identity", "nccl"), part)
    check_facts(facts)
    assert read_facts(facts) == NodeFacts()
    why = {"error": "no answer"}
    read = read_facts({"gpus": why, "interpreter": why})
    assert (read.gpus, read.interpreter) == (Gpus(error="no answer"), Interpreter(error="no answer"))
    assert Facts({"gpus": why}).gpus == Gpus() and Facts({"identity": part}).identity == Identity()


@pytest.mark.parametrize(
    "facts",
    [
        {"interfaces": {}},
        {"interfaces": [{"name": "eth0", "addresses": [{"address": "10.0.0.1", "prefix": 99, "family": 4}]}]},
        {"gpus": {"count": "two"}},
        {"nccl": {"conf": {"/etc/nccl.conf": 5}}},
        {"interpreter": {"path": ["python3"]}},
    ],
)
def test_facts_that_the_plan_cannot_read(facts: dict[str, Any]) -> None:
    with pytest.raises(DecodeError, match=r"^\$\.facts\."):
        check_facts(facts)


def test_users_of_one_machine_share_its_network() -> None:
    """Only boot_id and netns say so: a node may well be another user's, or have no machine-id."""
    ann = NodeFacts(identity=Identity("boot", "machine", 1, 2, 1000, "ann"))
    bob = NodeFacts(identity=Identity("boot", None, 1, 3, 1001, "bob"))
    assert share_network({"a": ann, "b": bob})
    assert not share_network({"a": ann, "b": NodeFacts(identity=Identity("boot", "machine", 5, 2, 1000, "ann"))})
