"""What messages of a coordinator do to a joined node: a real node, real sockets.

What its own orders are made of is in tests/plan/test_own_orders.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.hostile import Hostile, Joins

from allranks.protocol.frames import pack_json
from allranks.protocol.secure import HELLO

pytestmark = pytest.mark.processes

PROGRAM = "import time\nopen('up', 'w').close()\ntime.sleep(600)\n"


@pytest.fixture(scope="module")
def joins() -> Iterator[Joins]:
    made = Joins()
    yield made
    made.close()


@pytest.fixture
def hostile(joins: Joins, tmp_path: Path) -> Iterator[Callable[..., Hostile]]:
    made: list[Hostile] = []

    def make(*words: str, **more: Any) -> Hostile:
        (tmp_path / "work").mkdir(exist_ok=True)
        (tmp_path / "work" / "train.py").write_text(PROGRAM)
        made.append(Hostile(joins, tmp_path, *(words or ("--nproc", "1", "--", "train.py")), **more))
        return made[-1].accept()

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"type": "hello", "protocol": 1, "lease": 1e9, "have": {}}, "$.lease: expected a number"),
        ({"type": "exec", "argv": ["id"]}, 'expected a known word, got "exec"'),
    ],
    ids=["out of bounds", "unknown"],
)
def test_an_order_that_is_none_ends_the_node_and_nothing_of_it_was_done(hostile, message, said):
    """The bounds of every field are in tests/protocol/test_orders.py."""
    node = hostile().open()
    node.order(message)
    code, text = node.outcome()
    assert code == 4 and "this node refused an order of the coordinator: " in text and said in text
    assert "Traceback" not in text and not (node.work / "up").exists()
    node.wait(lambda: not node.alive(), "nothing of the node is left")


def test_a_start_runs_this_nodes_own_command(hostile, tmp_path):
    node = hostile().proved()
    argv = ["sh", "-c", f"touch {tmp_path}/pwned"]
    rank = {"rank": 1, "local_rank": 0, "argv": argv, "env": {"LD_PRELOAD": "/x"}, "workdir": "/", "files": {}}
    message = node.start()
    node.order({**message, "ranks": [rank], "make": [f"{tmp_path}/made"]})
    pid = node.until("started")["pid"]
    node.wait(lambda: (node.work / "up").exists(), "the own program runs")
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert b"RANK=1" in environ and not any(name.startswith(b"LD_PRELOAD") for name in environ)
    assert not (tmp_path / "pwned").exists() and not (tmp_path / "made").exists()


def test_a_release_takes_nothing_away_while_ranks_run(hostile):
    node = hostile().running()
    node.order({"type": "release"})
    assert "release before the ranks have ended" in node.until("fault")["message"]
    assert node.ranks()
    node.order({"type": "end", "grace": 0.0, "reason": "ctrl-c"})
    node.until("ended")
    node.wait(lambda: not node.ranks(), "its ranks are ended")


def test_a_hello_of_another_protocol_costs_the_connection_and_not_the_agent(hostile):
    """Also where more has come behind it."""
    node = hostile().running()
    (pid,) = (frame["pid"] for frame in node.frames if frame["type"] == "started")
    strange = {"type": "hello", "protocol": 2, "lease": 30.0, "have": {}}
    rest = pack_json({**strange, "protocol": 1}) + pack_json({"type": "ping", "sent": 1})
    node.open(mode="attach")
    node.bytes_for_agent(pack_json(strange) + rest)
    node.until("fault")
    node.open(mode="attach")
    node.order({**strange, "protocol": 1})
    hello = node.until("hello")
    assert (hello["dead"], hello["attempt"]["ranks"]["1"]["pid"]) == (False, pid)


def test_words_of_the_coordinator_are_shown_on_one_line_without_escapes(hostile):
    node = hostile()
    node.control({"type": "wait", "say": "\x1b[2J\x1b]0;owned\x07node 1\nis\rlate" + "x" * 10**6})
    node.control({"type": "over", "exit": 3, "message": "\x1b[31mred\nline"})
    code, text = node.outcome()
    assert code == 3 and "\x1b" not in text and "\x07" not in text and "node 1 is late" in text
    assert "[31mred line" in text and len(text) < 5000


def test_an_end_that_leaves_ranks_behind_ends_them(hostile):
    node = hostile().running()
    node.control({"type": "over", "exit": 0, "message": "all is well"})
    code, text = node.outcome()
    assert (code, "all is well" in text) == (0, True)
    node.wait(lambda: not node.ranks(), "its ranks are ended")


BROKEN = [
    b"C[]", b"C7", b"C{}", b"C" + b'{"a":' * 50_000, b'C{"type": null}', b'C{"type": "over", "exit": "0"}',
    b'C{"type": "over", "exit": 1e400}', b'C{"type": "open"}', b'C{"type": "open", "number": -1, "header": {}}',
    b"D", b"D\0\0\0\1" + b"\xff" * 64, b"D\0\0\0\1\0\0\0\x08J" + b"[" * 7,
]  # fmt: skip


def test_records_that_are_no_messages_cost_the_connection_and_not_the_ranks(hostile):
    """Each is answered by a new connection, over which the agent is there as it was."""
    node = hostile().running()
    (pid,) = (frame["pid"] for frame in node.frames if frame["type"] == "started")
    for record in BROKEN:
        node.accept() if record is not BROKEN[0] else None
        node.open(mode="attach")
        node.order({"type": "hello", "protocol": 1, "lease": 30.0, "have": {}})
        assert node.until("hello")["attempt"]["ranks"]["1"]["pid"] == pid
        number = node.number.to_bytes(4, "big")
        node.payload(record.replace(b"\0\0\0\1", number, 1) if record[:1] == b"D" else record)
        while node.read():
            pass
    assert node.process.poll() is None and os.path.exists(f"/proc/{pid}")
    assert "Traceback" not in node.said()


# -- another's answer ----------------------------------------------------------------------------------------------

ANSWERS: dict[str, bytes] = {
    "another-program": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "another-secret": HELLO + bytes(96),
    "another-version": b"ALLRANKS-JOIN 1\n" + bytes(64),
    "silence": b"",
}


def test_a_node_with_ranks_dials_on_whatever_answers(hostile):
    """The coordinator comes back after another program, another secret and another run have answered in its place."""
    node = hostile().running()
    (pid,) = (frame["pid"] for frame in node.frames if frame["type"] == "started")
    node.hang_up()
    for answer in ANSWERS.values():
        with node.accept_raw() as client:
            client.recv(4096)
            client.sendall(answer)
            client.shutdown(1)
            while client.recv(4096):
                pass
    node.accept().control({"type": "refused", "exit": 2, "message": "it belongs to another run"})
    while node.read():
        pass
    node.accept().open(mode="attach")
    node.order({"type": "hello", "protocol": 1, "lease": 30.0, "have": {}})
    assert node.until("hello")["attempt"]["ranks"]["1"]["pid"] == pid
    assert node.process.poll() is None


def test_another_runs_coordinator_does_not_prolong_the_lease(hostile):
    """It knows the secret and answers again and again: the ranks end with the lease all the same."""
    node = hostile("--nproc", "1", "--", "train.py", lease="2s").running()
    while node.process.poll() is None:
        try:
            node.listener.settimeout(1.0)
            node.accept().control({"type": "refused", "exit": 2, "message": "it belongs to another run"})
        except (OSError, AssertionError):
            continue
    code, text = node.outcome()
    assert code == 4 and "for the lease of 2 s: the ranks here are ended" in text
    node.wait(lambda: not node.ranks(), "its ranks are ended")


# -- commands and fetches beside the run ---------------------------------------------------------------------------

CALL = "0123456789abcdef" * 2
ALLOWED = ("--allow-exec", "--nproc", "1", "--", "train.py")


def begin_command(answer: Hostile, argv: list[str]) -> None:
    """A command over a connection that answers a call, as `allranks exec` would have it."""
    answer.greeted(uid="exec-1", node="node_01", run_tag="exec-1/node_01")
    rank = {"rank": 1, "local_rank": 0, "argv": argv, "env": {"ALLRANKS_MARK": "exec-1/node_01"},
            "workdir": str(answer.work), "files": {}}  # fmt: skip
    answer.order({"type": "start", "attempt": 0, "ranks": [rank]})


def test_a_node_that_does_not_consent_declines_a_call_and_trains_on(hostile):
    node = hostile().running()
    node.control({"type": "call", "token": CALL})
    declined = node.until_control("declined")
    assert (declined["token"], declined["message"]) == (CALL, "it joined without --allow-exec")
    node.listener.settimeout(2.0)
    with pytest.raises(TimeoutError):
        node.accept_raw()  # it has not dialled again
    assert node.ranks() and "--allow-exec" not in node.said()


@pytest.mark.parametrize("kind", ["open", "fetch"])
def test_without_a_call_no_order_brings_a_command_or_a_file(hostile, tmp_path, kind):
    """Even a node that consents does so over a connection of its own: on that of the run it refuses as ever."""
    node = hostile(*ALLOWED).greeted()
    if kind == "open":
        rank = {"rank": 1, "local_rank": 0, "argv": ["touch", f"{tmp_path}/pwned"], "env": {}, "workdir": "/",
                "files": {}}  # fmt: skip
        node.order({"type": "start", "attempt": 0, "ranks": [rank]})
    else:
        node.control({"type": "fetch", "number": 9, "header": {"mode": "fetch", "root": "/etc"}})
    code, text = node.outcome()
    assert code == 4 and "this node refused an order of the coordinator" in text
    assert not (tmp_path / "pwned").exists()


def test_a_node_that_consents_runs_a_command_beside_its_ranks(hostile, tmp_path):
    node = hostile(*ALLOWED).running()
    answer = node.answer_of(CALL)
    (hello,) = (control for control in answer.controls if control["type"] == "hello")
    assert (hello["call"], hello["rank"]) == (CALL, 1)
    begin_command(answer, ["/bin/sh", "-c", f"id -u > {tmp_path}/ran"])
    assert answer.until("exit")["code"] == 0
    assert (tmp_path / "ran").read_text() == f"{os.getuid()}\n"
    assert node.ranks() and "node 0 begins a command or a fetch here (--allow-exec)" in node.said()
    answer.order({"type": "end", "grace": 0.0, "reason": "exec"})
    answer.until("ended")
    answer.order({"type": "release"})
    answer.control({"type": "over", "exit": 0})
    while answer.read():
        pass
    assert node.ranks()


def test_a_command_ends_with_the_nodes_join(hostile):
    node = hostile(*ALLOWED).running()
    answer = node.answer_of(CALL)
    begin_command(answer, ["/bin/sh", "-c", "trap '' TERM; exec sleep 4711"])
    answer.until("started")
    node.control({"type": "over", "exit": 0, "message": "done"})
    code, _ = node.outcome()
    assert code == 0
    node.wait(lambda: not node.alive(), "the command is ended with the node")


def test_a_token_that_is_none_is_declined(hostile):
    node = hostile(*ALLOWED).greeted()
    node.control({"type": "call", "token": "../../x"})
    assert node.until_control("declined")["message"] == "the token of the call is not one"
