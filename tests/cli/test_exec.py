"""allranks exec on virtual nodes of this machine, and how outputs of nodes are folded."""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests import forked
from tests.hosts.waiting import BOUND

from allranks.cli.exec import groups_of, lines_of, node_code
from allranks.cluster import Node
from allranks.findings import Finding
from allranks.gang.execution import HEAD, TAIL, Executed, OutputExcerpt
from allranks.protocol.codec import encode
from allranks.runs.opening import controller_identity


def call(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return forked.call(["exec", *words], cwd=cwd, timeout=BOUND)


def executed(index: int, said: bytes, code: int | None = 0) -> Executed:
    result = Executed(Node(f"h{index}", f"h{index}", index), code=code)
    result.output.add(said)
    return result


# -- folding -------------------------------------------------------------------------------------------


def test_nodes_with_the_same_output_are_one_entry_in_the_order_of_the_list() -> None:
    results = [executed(1, b"a\n"), executed(2, b"b\n"), executed(3, b"a\n"), executed(4, b"a\n", code=2)]
    entries = [lines_of(members, end, colour=False) for (_, end), members in groups_of(results, None).items()]
    assert entries == [["h[1,3]: a"], ["h2: b"], ["h4: a", "h4: (exit 2)"]]


def test_output_in_other_pieces_is_the_same() -> None:
    pieces = executed(2, b"one ")
    pieces.output.add(b"line\n")
    assert len(groups_of([executed(1, b"one line\n"), pieces], None)) == 1


def test_the_middle_of_much_output_is_left_out_and_counted() -> None:
    output = OutputExcerpt()
    for _ in range(30):
        output.add(b"x" * (HEAD // 3) + b"\n")
    output.add(b"the end\n")
    assert (len(output.head), len(output.tail)) == (HEAD, TAIL)
    assert output.left_out == output.size - HEAD - TAIL
    assert output.tail.endswith(b"x\nthe end\n")
    few = OutputExcerpt()
    few.add(b"y" * (HEAD + TAIL))
    assert (few.left_out, len(few.head), few.tail) == (0, HEAD + TAIL, b"")


def test_what_differs_only_in_the_middle_is_not_the_same() -> None:
    one, other = executed(1, b""), executed(2, b"")
    for result, middle in ((one, b"a"), (other, b"b")):
        result.output.add(b"x" * HEAD + middle + b"y" * 3 * TAIL)
    assert one.output.head == other.output.head and one.output.tail == other.output.tail
    assert len(groups_of([one, other], None)) == 2


def test_what_is_printed_cannot_move_the_cursor() -> None:
    hostile = executed(1, b"\x1b[2Jgone\x07\r\nbin \xff\xfe\n")
    assert lines_of([hostile], "", colour=False) == ["h1: gone?", "h1: bin \ufffd\ufffd"]


def test_a_node_that_failed_is_worse_than_a_command_that_failed() -> None:
    lost = executed(3, b"", code=None)
    lost.failure = Finding("ssh-unreachable", "fail", "h3 did not answer")
    results = [executed(1, b""), executed(2, b"", code=7), lost]
    assert [node_code(result) for result in results] == [0, 1, 4]


# -- virtual nodes -------------------------------------------------------------------------------------


@pytest.mark.processes
def test_the_worst_exit_code_and_each_nodes_own(tmp_path: Path) -> None:
    done = call(tmp_path, "--local", "2", "--json", "--", "sh", "-c", "echo $ALLRANKS_MARK; exit 7")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert (report["exit"], [node["code"] for node in report["nodes"]]) == (1, [7, 7])
    tags = [node["output"].strip().rpartition("/")[2] for node in report["nodes"]]
    assert tags == ["node_00", "node_01"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.processes
def test_one_word_with_blanks_is_a_line_for_the_shell(tmp_path: Path) -> None:
    done = call(tmp_path, "--local", "1", "--env", "WORD=two words", 'printf "%s\\n" "$WORD" | tr a-z A-Z; pwd')
    assert (done.stdout, done.returncode) == (f"local0: TWO WORDS\nlocal0: {tmp_path}\n", 0)


@pytest.mark.processes
def test_what_the_command_leaves_behind_is_ended(tmp_path: Path) -> None:
    """A daemon in a session of its own, with a cleared environment, and the pipe still open."""
    daemon = f"env -i setsid sh -c 'echo $$ > {tmp_path}/pid; sleep 1000'"
    done = call(tmp_path, "--local", "1", f"{daemon} & until [ -s {tmp_path}/pid ]; do sleep .01; done")
    assert done.returncode == 0, done.stderr
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@pytest.mark.processes
def test_a_command_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    done = call(tmp_path, "--local", "2", "--timeout", "300ms", "--", "sh", "-c", "echo begun; sleep 1000")
    assert done.returncode == 1
    assert done.stdout == "local[0-1]: begun\nlocal[0-1]: (ended after --timeout 300ms)\n"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["no-such-program-here"], 4, "local0: it could not run no-such-program-here: No such file or directory"),
        (["--workdir", "/no/such/place", "true"], 4, "local0: it could not enter the working directory /no/such/place"),
        ([], 2, "the command is missing"),
        (["--timeout", "0", "true"], 2, "--timeout"),
    ],
)
def test_what_cannot_be_run_is_said(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    done = call(tmp_path, "--local", "1", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


@pytest.mark.processes
def test_a_dry_run_reaches_nobody_and_shows_no_secret(tmp_path: Path) -> None:
    words = ["--hosts", "nosuch[1-3].invalid", "--dry-run", "--", "curl", "--token=hunter2secret", "x"]
    done = call(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "hunter2secret" not in done.stdout
    assert done.stdout.splitlines()[0].endswith("on 3 nodes: nosuch[1-3].invalid")
    assert "exec /bin/sh -s" in done.stdout.splitlines()[1]
    assert os.listdir(tmp_path) == []
    refused = call(tmp_path, "--json", *words)
    assert refused.returncode == 2 and "hint: leave --json out" in refused.stderr


# -- the nodes of a run ----------------------------------------------------------------------------------

def save(place: Path, **document: Any) -> None:
    """A run of one node that is named r-1."""
    run = place / "runs" / "r-1"
    run.mkdir(parents=True)
    nodes = [{"name": "h1", "index": 0, "host": "h1"}]
    (run / "run.json").write_text(json.dumps({"run": "r-1", "uid": "r-1-x", "nodes": nodes, **document}))


JOINED_ELSEWHERE = {"source": "join", "controller": {"host": "node01", "pid": 7, "start_time": 1}}
JOINED_AND_DEAD = {"source": "join", "controller": {"host": platform.node(), "pid": 1 << 22, "start_time": 1}}


@pytest.mark.parametrize(
    ("document", "said", "hint"),
    [
        ({"source": "join"}, "the nodes of r-1 have left: they joined", "name the nodes with --hosts"),
        (
            JOINED_ELSEWHERE,
            "the nodes of r-1 joined, and node 0 alone reaches them, which is node01",
            "give the same command on node01",
        ),
        (JOINED_AND_DEAD, "the coordinator of r-1 (pid 4194304) has died", "name the nodes with --hosts"),
        ({"engine": {"engine": "kubernetes"}}, "the nodes of r-1 (kubernetes) are not reached", "use kubectl exec"),
        ({"slurm": {"job": "77"}}, "the nodes of r-1 (Slurm) are not reached", "use srun --overlap --jobid=77"),
    ],
)
def test_a_run_whose_nodes_are_out_of_reach_says_what_to_do(
    tmp_path: Path, document: dict[str, Any], said: str, hint: str
) -> None:
    save(tmp_path, **document)
    done = call(tmp_path, "--run", "r-1", "hostname")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and f"hint: {hint}" in done.stderr


def test_a_run_and_a_target_are_refused_together(tmp_path: Path) -> None:
    save(tmp_path)
    done = call(tmp_path, "--run", "r-1", "--hosts", "h1,h2", "hostname")
    assert done.returncode == 2
    assert "--run names the nodes, and --hosts too" in done.stderr


def test_no_secret_is_sent_to_joined_nodes_in_the_clear(tmp_path: Path) -> None:
    save(tmp_path, source="join", controller=encode(controller_identity()))
    done = call(tmp_path, "--run", "r-1", "--env", "WANDB_API_KEY=hunter2", "env")
    assert done.returncode == 2
    assert "--env WANDB_API_KEY: connections of joined nodes may not be encrypted" in done.stderr
    assert "hunter2" not in done.stderr
