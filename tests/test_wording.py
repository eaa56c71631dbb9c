"""How findings, verdicts and errors are worded: the rules of tests/wording.py, and commands for this machine."""

from dataclasses import replace
from typing import Any

import pytest
from tests import wording
from tests.diagnose.incidents import rank_end
from tests.facts import fact

from allranks.cluster.nodes import JOINED, Cluster, Node
from allranks.diagnose.candidate import Candidate
from allranks.diagnose.incident import Incident
from allranks.diagnose.verdict import judge
from allranks.findings import Finding, Logins, Where, typed_here
from allranks.report.sentences import closing_lines, event_line
from allranks.runs.documents import result_record


@pytest.mark.parametrize(
    "text",
    [
        "ending the other 1 ranks",
        "h1 has room for 1 ranks now",
        "… and 1 more nodes",
        "2 places (?)",
        "every rank refused the arguments of the program: ",
        "rank 1 ended with code 2:",
        "the port is held by",
        "h1 has no address ()",
        "192.168.1.10 (192.168.1.10) did not answer",
        "hosts.txt has 1 host; set --nodes from 1 to 1",
    ],
)
def test_the_rules_see_what_they_are_for(text: str) -> None:
    assert wording.fault(text)
    assert wording.fault_of_place("see why: ssh local0 'sudo dmesg'")


@pytest.mark.parametrize(
    "text",
    [
        "rank 1 waits in all_reduce (train.py:3 in step)",
        "ended with code 1, its last line: 11 files",
        "call init_process_group() first",
        "within the 1 s that it had",
        "NCCL_SOCKET_IFNAME=eth0 is set on h1",
    ],
)
def test_the_rules_let_through_what_is_right(text: str) -> None:
    assert not wording.fault(text)


@pytest.mark.parametrize(
    ("remedy", "here"),
    [
        ("ssh here0 'sudo dmesg -T | tail -n 200'", "sudo dmesg -T | tail -n 200"),
        ("look: ssh here0 nvidia-smi -L; or --nproc 1", "look: nvidia-smi -L; or --nproc 1"),
        ("show them with `ssh here0 ip -br addr` and choose", "show them with `ip -br addr` and choose"),
        ("ssh here0 ip link; ssh h2 ip link", "ip link; ssh h2 ip link"),
        ("ssh here01 'a b'", "ssh here01 'a b'"),
        ("""ssh here0 'echo '"'"'a b'"'"''""""", "echo 'a b'"),
        ("ssh here0 \"ls 'a b'\"", "ls 'a b'"),
        ("in a job: ssh n1 'sudo dmesg | tail'", "in a job: srun -N 1 -w n1 sh -c 'sudo dmesg | tail'"),
        ("in a job: ssh n1 nvidia-smi -L; or --nproc 1", "in a job: srun -N 1 -w n1 nvidia-smi -L; or --nproc 1"),
        ("in a job: ssh here0 ip link; ssh n1 uptime", "in a job: ip link; srun -N 1 -w n1 uptime"),
    ],
)
def test_commands_for_this_machine_and_for_a_slurm_job_need_no_ssh(remedy: str, here: str) -> None:
    finding = Finding("disk-full", "fail", "full", remedy)
    assert typed_here(finding, Logins(frozenset({"here0"}), is_slurm=remedy.startswith("in a job"))).remedy == here
    assert typed_here(finding, Logins()) == finding


def test_ssh_and_ping_get_what_the_list_has_for_a_node() -> None:
    nodes = (Node(0, "h1", "10.0.0.1"), Node(1, "h2", "10.0.0.2", "ubuntu", 2222), Node(2, "h3", "h3"))
    remedy = "`ping h1; ping h2; ssh h2 uptime`, ssh h3 'a b', ssh h1 ip link"
    silent = Finding("node-network-down", "fail", "h2 is silent", remedy)
    finding = typed_here(silent, Cluster(nodes, "hosts.txt").logins)
    assert finding.remedy == (
        "`ping 10.0.0.1; ping 10.0.0.2; ssh -p 2222 ubuntu@10.0.0.2 uptime`, ssh h3 'a b', ssh 10.0.0.1 ip link"
    )
    assert Cluster(nodes, JOINED).logins == Logins(frozenset())


def test_no_verdict_says_ssh_for_a_node_of_this_machine() -> None:
    check = Finding(
        "gpu-fell-off-bus", "fail", "a GPU is gone", "ssh here 'sudo dmesg -T | grep -i xid'", Where("here")
    )
    far = Incident(0, 1, {"here": (0,)}, findings=(check,))
    verdict = judge(far)
    assert verdict is not None and verdict.finding.remedy == check.remedy
    verdict = judge(replace(far, logins=Logins(frozenset({"here"}))))
    assert verdict is not None and verdict.finding.remedy == "sudo dmesg -T | grep -i xid"


EVENTS_OF_ONE: list[dict[str, Any]] = [
    {"event": "ending", "reason": "failure", "ranks": 1, "grace": 1.0},
    {"event": "ending", "reason": "stop", "ranks": 1, "grace": 30.0},
    {"event": "all-initialised", "ranks": 1, "seconds": 1.0},
    {"event": "test-passed", "ranks": 1, "seconds": 1.0},
    {"event": "signal", "signal": "SIGUSR1", "ranks": 1},
    {"event": "tree", "files": 1, "bytes": 1, "root": "/p", "left_out": ["model.pt"]},
    {"event": "node-clean", "node": "h1", "left": [{"pid": 7, "state": "D", "command": "x"}]},
]


@pytest.mark.parametrize("event", EVENTS_OF_ONE, ids=lambda event: event["event"])
def test_lines_of_events_count_one_as_one(event: dict[str, Any]) -> None:
    line = event_line(fact({"root": "/p", "sha256": "", **event}), 1)
    assert line is not None and wording.fault(line) == ""


def test_the_end_of_a_run_counts_one_as_one() -> None:
    result = {
        "exit": 1,
        "directory": "runs/a",
        "timing": {"total": 1.0},
        "attempts": [{}],
        "unfetched": {"h1": {"fetched_bytes": {"x": 1}, "node_dir": "/tmp/x"}},
        "dropped": {"h1": {"0": 1}},
    }
    assert [found for line in closing_lines(result_record(result)) if (found := wording.fault(line))] == []


def test_refused_arguments_without_the_reason_end_no_sentence_with_a_colon() -> None:
    """argparse prints its usage first: the reason may have scrolled out of what was kept of the log."""
    ends = tuple(rank_end(rank, "h1", 2, None, 20.0, False, tail="usage: t.py [-h] --lr LR\n") for rank in (0, 1))
    verdict = judge(Incident(0, 2, {"h1": (0, 1)}, ends))
    assert verdict is not None and verdict.cause == "bad-launch-arguments"
    assert verdict.finding.message == "every rank refused the arguments of the program"


def test_findings_without_a_node_are_quoted_not_counted() -> None:
    """Findings on links have two nodes and name them; there is no `2 places (?)`."""
    findings = tuple(Finding("port-blocked", "fail", f"h1 does not reach {node}") for node in ("h2", "h3"))
    verdict = judge(Incident(0, 2, {"h1": (0,), "h2": (1,)}, findings=findings))
    assert verdict is not None
    assert verdict.finding.message == "h1 does not reach h2; h1 does not reach h3"
    assert verdict.finding.remedy


def test_a_master_that_nobody_reaches_itself_included_is_one_sentence() -> None:
    findings = tuple(
        Finding("port-blocked", "fail", f"{node} cannot reach 10.0.0.1 port 29500 on h1: no answer", "open it",
                Where(node=node, peer="h1", port=29500))
        for node in ("h1", "h2", "h3", "h4")
    )  # fmt: skip
    ranks = {f.where.node or "": (rank,) for rank, f in enumerate(findings)}
    verdict = judge(Incident(0, 4, ranks, findings=findings))
    assert verdict is not None
    assert verdict.finding.message == "h1, h2, h3 and h4 cannot reach 10.0.0.1 port 29500 on h1: no answer"


def test_every_failure_of_the_world_size_has_a_fix() -> None:
    assert Candidate("world-size-mismatch", 0.9, "m").finding().remedy
