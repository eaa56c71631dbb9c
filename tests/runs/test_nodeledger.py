"""The memory of nodes: what counts against a machine, how machines are told apart, and the file."""

import json
import multiprocessing
import os
from pathlib import Path

import pytest
from tests.hosts.waiting import BOUND

from allranks.diagnose.causes import CAUSES
from allranks.findings import Finding, Verdict, Where
from allranks.protocol.facts import Identity
from allranks.runs import nodeledger
from allranks.runs.nodeledger import (
    FORGIVEN_AFTER,
    NodeRecord,
    add_records,
    blame,
    counts_against,
    forget_records,
    ledger_file,
    machine_of,
    read_ledger,
    records_of,
    remembered,
    suspects,
)

NOW = 1_795_000_000.0


def record(name: str, t: float, outcome: str = "ok", cause: str = "", machine: str = "", peer: str = "") -> NodeRecord:
    return NodeRecord(NOW + t, f"run{t:g}", "run", name, name, machine or f"m-{name}", outcome, cause, peer, "")


def verdict(cause: str, node: str, confidence: float = 0.9, peer: str | None = None) -> Verdict:
    return Verdict(Finding(message=f"{node} is bad", where=Where(node=node, peer=peer)), cause, confidence)


# -- what counts ---------------------------------------------------------------------------------------


def test_only_the_machine_and_its_links_are_at_fault() -> None:
    counting = {cause for cause in CAUSES if counts_against(cause)}
    assert counting == {
        "nccl-ib-error", "nccl-p2p-error", "nvlink-error", "fabric-manager", "cuda-device-unavailable",
        "gpu-hardware-error", "ecc-error", "gpu-fell-off-bus", "ssh-unreachable", "node-network-down", "slow-link",
        "mtu-or-packet-loss", "storage-error",
    }  # fmt: skip


@pytest.mark.parametrize("cause", ["program-exception", "internal-error", "straggler", "unknown", "segfault-native",
                                   "cuda-out-of-memory", "orphan-process", "rank-killed", "no-such-cause"])  # fmt: skip
def test_a_users_bug_never_counts(cause: str) -> None:
    assert blame([verdict(cause, "h1")], [Finding(cause, "fail", "m", where=Where(node="h1"))], ()) == {}


def test_an_unsure_verdict_does_not_count() -> None:
    assert blame([verdict("ecc-error", "h1", 0.4)], [], ()) == {}
    assert set(blame([verdict("ecc-error", "h1", 0.5)], [], ())) == {"h1"}


def test_both_ends_of_a_slow_link_are_noted_and_a_warning_is_enough() -> None:
    slow = Finding("slow-link", "warn", "h1 to h2 carries 3 MB/s\nmore", where=Where(node="h1", peer="h2"))
    blamed = blame([], [slow], ())
    assert {name: (one.id, one.where.peer) for name, one in blamed.items()} == {
        "h1": ("slow-link", "h2"), "h2": ("slow-link", "h1")}  # fmt: skip
    assert blamed["h2"].message == "h1 to h2 carries 3 MB/s"


def test_failed_checks_of_hardware_count_and_others_do_not() -> None:
    findings = [
        Finding("ib_ports", "fail", "port down", where=Where(node="h1"), check="ib_ports"),
        Finding("packages", "fail", "torch differs", where=Where(node="h2"), check="packages"),
        Finding("ib_ports", "warn", "slow", where=Where(node="h3"), check="ib_ports"),
    ]
    assert set(blame([], findings, {"ib_ports"})) == {"h1"}


def test_a_node_without_fault_is_neutral_where_the_run_failed() -> None:
    seen = {"h1": ("h1", Identity(machine_id="a"))}
    line = NodeRecord(NOW, "r", "run", "", outcome="other")
    records = records_of(seen, line, blame([verdict("ecc-error", "h2")], [], ()))
    assert [(r.name, r.outcome, r.cause) for r in records] == [("h1", "other", ""), ("h2", "failed", "ecc-error")]
    assert (len(records[0].machine), records[1].machine) == (16, "")


def test_hardware_comes_before_the_machine_id_and_neither_is_written() -> None:
    key = machine_of(Identity(machine_id="0123456789abcdef", hardware="4c4c4544-0000"))
    assert key == machine_of(Identity(machine_id="another", hardware="4c4c4544-0000"))
    assert key != machine_of(Identity(machine_id="0123456789abcdef"))
    assert "4c4c" not in key and machine_of(Identity()) == ""


# -- what is remembered --------------------------------------------------------------------------------


def suspicion(*records: NodeRecord) -> dict[str, str]:
    return {node.name: node.suspicion for node in remembered(records, NOW)}


def test_one_fault_raises_a_suspicion_with_its_reason() -> None:
    said = suspicion(record("h1", -7200, "failed", "ecc-error"), record("h1", -60), record("h2", -60))
    assert said == {"h1": "ecc-error 1 time, last 2 hours ago in run-7200, then 1 clean run", "h2": ""}


def test_three_clean_runs_clear_it_and_so_does_time() -> None:
    failed = record("h1", -7200, "failed", "ecc-error")
    clean = [record("h1", -60.0 + n) for n in range(3)]
    assert suspicion(failed, *clean[:2])["h1"] and not suspicion(failed, *clean)["h1"]
    assert not suspicion(record("h1", -FORGIVEN_AFTER - 1, "failed", "ecc-error"))["h1"]
    neutral = [record("h1", -60.0 + n, "other") for n in range(5)]
    assert suspicion(failed, *neutral)["h1"]


def test_one_slow_link_suspects_neither_end_and_a_second_one_the_common_end() -> None:
    def link(t: float, one: str, other: str) -> list[NodeRecord]:
        return [record(one, t, "failed", "slow-link", peer=other), record(other, t, "failed", "slow-link", peer=one)]

    assert not any(suspicion(*link(-50, "h1", "h2")).values())
    said = suspicion(*link(-50, "h1", "h2"), *link(-40, "h1", "h3"))
    assert [name for name, reason in said.items() if reason] == ["h1"]
    assert "(link to h3)" in said["h1"]


def test_a_machine_keeps_its_faults_under_another_name_and_a_new_one_begins_without() -> None:
    records = [
        record("old", -90, "failed", "ecc-error", machine="A"), record("renamed", -80, machine="A"),
        record("old", -70, machine="B"),
    ]  # fmt: skip
    nodes = {node.machine: node for node in remembered(records, NOW)}
    assert nodes["A"].suspicion and not nodes["B"].suspicion
    assert (nodes["A"].name, nodes["A"].known_by) == ("renamed", "machine")
    assert set(suspects(remembered(records, NOW))) == {"renamed"}


def test_machines_of_one_image_are_told_apart_by_their_host_names() -> None:
    both = [record("h1", -90, machine="X"), record("h2", -90, "failed", "ecc-error", machine="X")]
    alone = record("h2", -80, machine="X")
    nodes = {node.name: node for node in remembered([*both, alone], NOW)}
    assert set(nodes) == {"h1", "h2"} and nodes["h2"].known_by == "machine and host name"
    assert (nodes["h1"].suspicion, nodes["h2"].runs, bool(nodes["h2"].suspicion)) == ("", 2, True)


def test_a_node_that_was_not_reached_is_the_machine_that_had_its_name() -> None:
    unreached = NodeRecord(NOW - 10, "r", "run", "h1", "", "", "failed", "ssh-unreachable")
    (node,) = remembered([record("h1", -90, machine="A"), unreached], NOW)
    assert (node.machine, node.failures) == ("A", {"ssh-unreachable": 1})
    (stranger,) = remembered([unreached], NOW)
    assert stranger.known_by == "name"


# -- the file ------------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return ledger_file({"XDG_STATE_HOME": str(tmp_path / "state")})


def test_the_place_is_the_users_state() -> None:
    assert ledger_file({"HOME": "/home/u"}) == Path("/home/u/.local/state/allranks/nodes.jsonl")
    assert ledger_file({"HOME": "/home/u", "XDG_STATE_HOME": "/s"}) == Path("/s/allranks/nodes.jsonl")


def test_what_is_written_is_read_and_private(ledger: Path) -> None:
    records = [record("h1", 1.0, "failed", "ecc-error"), record("h2", 1.0)]
    assert add_records(ledger, records)
    assert read_ledger(ledger) == records
    assert (ledger.stat().st_mode & 0o777, ledger.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_damaged_lines_are_left_out_and_a_torn_one_takes_no_other_with_it(ledger: Path) -> None:
    add_records(ledger, [record("h1", 1.0)])
    with ledger.open("ab") as file:
        file.write(b'not json\n{"schema": 2, "t": 1}\n{"schema": 1, "t": "x", "name": "h"}\n\xff\xfe\n{"schema": 1, "t')
    add_records(ledger, [record("h2", 2.0)])
    assert [r.name for r in read_ledger(ledger)] == ["h1", "h2"]


def test_the_file_stays_small(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodeledger, "LIMIT", 20_000)
    for number in range(300):
        add_records(ledger, [record(f"h{number}", float(number))])
    assert ledger.stat().st_size <= 20_000
    assert read_ledger(ledger)[-1].name == "h299"


def _write_many(place: str, name: str) -> None:
    for number in range(25):
        assert add_records(Path(place), [record(name, float(number))])


def test_runs_that_end_at_once_lose_no_line(ledger: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(str(ledger), f"w{number}")) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(BOUND)
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert len(read_ledger(ledger)) == 100


def test_a_place_that_cannot_be_written_never_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not add_records(tmp_path / "file" / "nodes.jsonl", [record("h1", 1.0)])
    link = tmp_path / "allranks" / "nodes.jsonl"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "elsewhere")
    assert not add_records(link, [record("h1", 1.0)]) and not (tmp_path / "elsewhere").exists()
    os.mkfifo(tmp_path / "pipe")
    assert read_ledger(tmp_path / "pipe") == []


def test_forgetting_removes_what_is_named(ledger: Path) -> None:
    add_records(ledger, [record("h1", 1.0), record("h2", 1.0)])
    assert forget_records(ledger, lambda r: r.name == "h1") == 1
    assert [json.loads(line)["name"] for line in ledger.read_text().splitlines()] == ["h2"]
