"""What messages of a coordinator do to a joined node: a real node, real sockets.

What its own orders are made of is in tests/plan/test_own_orders.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.hostile import Hostile, Joins

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


# -- commands and fetches beside the run: what is allowed is in tests/hosts/test_join.py -----------------------------

@pytest.mark.parametrize("kind", ["open", "fetch"])
def test_without_a_call_no_order_brings_a_command_or_a_file(hostile, tmp_path, kind):
    """Even a node that consents does so over a connection of its own: on that of the run it refuses as ever."""
    node = hostile("--allow-exec", "--nproc", "1", "--", "train.py").greeted()
    if kind == "open":
        rank = {"rank": 1, "local_rank": 0, "argv": ["touch", f"{tmp_path}/pwned"], "env": {}, "workdir": "/",
                "files": {}}  # fmt: skip
        node.order({"type": "start", "attempt": 0, "ranks": [rank]})
    else:
        node.control({"type": "open", "number": 9, "header": {"mode": "fetch", "root": "/etc"}})
    code, text = node.outcome()
    assert code == 4 and "this node refused an order of the coordinator" in text
    assert not (tmp_path / "pwned").exists()
