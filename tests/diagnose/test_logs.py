"""Logs from files, directories, pipes and run directories: nothing lost at the seams, and where each line stands."""

import gzip
import io
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from bench.scan import SHAPES

from allranks.cli import main
from allranks.diagnose.logs.scan import KEEP, LITERALS, Filter, holding
from allranks.diagnose.verdict import judge_logs
from allranks.errors import UsageError
from allranks.runs import logdiagnosis

OOM = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def dull(count: int, seed: int = 1) -> list[str]:
    chance = random.Random(seed)
    return [
        f"gpu{chance.randrange(9)}:1:2 [{n % 8}] NCCL INFO Channel {n} : 0 1 0x{chance.randrange(1 << 40):x}"
        for n in range(count)
    ]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `allranks diagnose` prints."""
    assert main.run_verb("diagnose", words) == 0
    return capsys.readouterr().out


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("seed", range(6))
def test_parts_of_a_file_give_what_the_whole_gives(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    lines = dull(400, seed)
    for at in (0, 77, 200, 399):
        lines[at] = f"ValueError: number {at}"
    path = write(tmp_path / "a.log", *lines)
    size = path.stat().st_size
    whole = logdiagnosis.read_part(path, 0, size)
    cuts = sorted({0, size, *(chance.randrange(1, size) for _ in range(9))})
    found, before = [], 0
    for start, end in itertools.pairwise(cuts):
        part = logdiagnosis.read_part(path, start, end)
        found += [(before + n, line) for n, line in part.kept]
        before += part.lines
    assert found == whole.kept
    assert before == whole.lines == 400
    assert [n for n, _ in found] == [0, 77, 200, 399]


def test_large_logs_are_read_in_parallel_with_the_right_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logdiagnosis, "PART", 5000)
    path = write(tmp_path / "big.log", *dull(900), OOM, *dull(900))
    verdict = judge_logs(logdiagnosis.read_logs([path]))
    assert verdict.cause == "cuda-out-of-memory"
    assert verdict.finding.evidence[0].startswith(f"{path}:901: torch.OutOfMemoryError")


def test_a_line_longer_than_any_block_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logdiagnosis, "BLOCK", 100)
    monkeypatch.setattr(logdiagnosis, "LONGEST", 1000)
    path = write(tmp_path / "a.log", "ValueError: first", "x" * 5000, "ValueError: third")
    part = logdiagnosis.read_part(path, 0, path.stat().st_size)
    assert part.kept == [(0, b"ValueError: first"), (2, b"ValueError: third")]
    assert part.lines == 3


def test_a_shape_that_was_kept_often_enough_is_looked_at_no_more_and_others_are() -> None:
    scan = Filter()
    for block in range(3):
        scan.feed(f"RuntimeError: number {block}\n".encode() * KEEP + f"OSError: other {block}\n".encode())
    assert [number for number, line in scan.kept if line.startswith(b"OSError")] == [
        (KEEP + 1) * (block + 1) - 1 for block in range(3)
    ]
    assert len(scan.kept) == KEEP + 3


def test_a_shape_that_differs_in_numbers_only_is_not_lost() -> None:
    scan = Filter()
    scan.feed(b"OSError: [Errno 11] try again\n" * 3 + b"OSError: [Errno 28] No space left on device\n")
    assert any(b"Errno 28" in line for _, line in scan.kept)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if "GPU Direct" not in shape])
def test_what_nccl_says_of_a_sound_start_tells_nothing(shape: str) -> None:
    """A literal that stands in such lines costs a large log most of its time: each of them is then looked at."""
    line = "node0000:30000:30001 [0] NCCL INFO " + shape.format(c=1, r=2, g=3, p=4, q=5, n=6, x=7, y=8)
    found = holding([line.encode()], LITERALS)
    assert not found, [word for word in LITERALS if word in line.encode()]


def test_free_text_does_not_hide_what_matters() -> None:
    chance = random.Random(1)
    words = ["".join(chance.choices("ghijklmnopqrstuvwxyz", k=6)) for _ in range(3000)]
    scan = Filter()
    for _ in range(5):
        scan.feed("".join(" ".join(chance.choices(words, k=6)) + "\n" for _ in range(6000)).encode())
    scan.feed(OOM.encode() + b"\n")
    assert scan.kept[-1] == (30000, OOM.encode())


def test_a_log_without_an_end_of_line_and_with_odd_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"\xff\xfe progress\r 10%\r 20%\n" + OOM.encode())
    assert judge_logs(logdiagnosis.read_logs([path])).cause == "cuda-out-of-memory"


@pytest.mark.parametrize("content", [b"", b"\n", b"\n\n\n", b"no end of line"])
def test_logs_of_nothing_are_unknown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(content)
    verdict = judge_logs(logdiagnosis.read_logs([path]))
    assert verdict.cause == "unknown"
    assert verdict.finding.remedy


def test_a_pipe_is_read_as_a_file() -> None:
    evidence = logdiagnosis.read_stream(io.BytesIO(("\n".join(dull(50)) + "\n" + OOM).encode()))
    assert evidence.sightings[0].line.place == "-:51"


def test_a_compressed_log_unpacks_to_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each, and all in one call: small files can unpack to anything, and the reader must not go on for hours."""
    monkeypatch.setattr(logdiagnosis, "UNPACKED", 1 << 20)
    within = "step 1\n" * (100 << 10)
    for name in ("a", "b"):
        (tmp_path / f"{name}.log.gz").write_bytes(gzip.compress(f"{within}{OOM}\n".encode()))
    assert judge_logs(logdiagnosis.read_logs([tmp_path / "a.log.gz"])).cause == "cuda-out-of-memory"
    says = r"b\.log\.gz and the compressed logs before it unpack to more than 1 MB\nhint: "
    with pytest.raises(UsageError, match=says):
        logdiagnosis.read_logs(logdiagnosis.find_logs([str(tmp_path)]))
    bomb = tmp_path / "bomb.log.gz"
    bomb.write_bytes(gzip.compress(bytes(64 << 20)))
    assert bomb.stat().st_size < 100 << 10
    with pytest.raises(UsageError, match=r"bomb\.log\.gz unpacks to more than"):
        logdiagnosis.read_logs([bomb])


def test_a_directory_is_searched_for_text(tmp_path: Path) -> None:
    write(tmp_path / "a" / "rank_003.log", "CUDA error: device-side assert triggered")
    write(tmp_path / ".git" / "log", OOM)
    (tmp_path / "model.bin").write_text(OOM)
    (tmp_path / "core").write_bytes(b"\x7fELF\0\0" + OOM.encode())
    files = logdiagnosis.find_logs([str(tmp_path)])
    assert [f.name for f in files] == ["rank_003.log"]
    verdict = judge_logs(logdiagnosis.read_logs(files))
    assert (verdict.cause, verdict.finding.where.rank) == ("cuda-kernel-fault", 3)


def test_logs_of_several_nodes_are_put_in_order_of_time(tmp_path: Path) -> None:
    late = "2026-03-09 10:11:20 [rank0]: FileNotFoundError: [Errno 2] No such file or directory: 'a'"
    early = "2026-03-09 10:11:12 [rank1]: PermissionError: [Errno 13] Permission denied: 'b'"
    files = [write(tmp_path / "a.log", late), write(tmp_path / "b.log", early)]
    assert judge_logs(logdiagnosis.read_logs(files)).cause == "permission-denied"
    assert judge_logs(logdiagnosis.read_logs(files[::-1])).cause == "permission-denied"


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.log: no such file"):
        logdiagnosis.find_logs([str(tmp_path / "nowhere.log")])


def test_the_verb_prints_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "job.log", *dull(5), OOM)
    document = json.loads(printed(capsys, str(path), "--json"))
    assert (document["schema"], document["cause"], document["where"]) == (1, "cuda-out-of-memory", {"rank": 3})
    assert document["evidence"][0].startswith(f"{path}:6: ")


def test_the_verb_speaks_to_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "job.log", OOM)
    text = printed(capsys, str(path))
    assert text.startswith("VERDICT   rank 3: torch.OutOfMemoryError")
    assert f"{path}:1:" in text
    assert "  fix     " in text


def make_run(top: Path, verdict: dict[str, Any] | None, log: str, state: str = "failed") -> Path:
    run = top / "job-20260309-101112"
    write(run / "logs" / "node_00_h1" / "rank_000.log", log)
    documents = {"run": {"started": 1.0, "nodes": []}, "status": {"state": state}, "verdict": verdict,
                 "result": {"exit": 0 if state == "done" else 1}}  # fmt: skip
    for name, document in documents.items():
        if document is not None:
            (run / f"{name}.json").write_text(json.dumps({"schema": 1, **document}))
    return run


KEPT: dict[str, Any] = {
    "id": "node-network-down", "status": "fail", "where": {"node": "h2"}, "message": "h2 is gone", "remedy": "look",
    "evidence": ["x"], "cause": "node-network-down", "confidence": 0.9, "victims": [0], "attempt": 0,
    "detected_after_s": None, "runners_up": [],
}  # fmt: skip


def test_a_runs_own_verdict_stands_and_its_logs_run_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path, KEPT, OOM)
    document = json.loads(printed(capsys, "job-2026", "--runs-dir", str(tmp_path), "--json"))
    assert document["cause"] == "node-network-down"
    assert [other["id"] for other in document["runners_up"]] == ["cuda-out-of-memory"]


@pytest.mark.parametrize("kept", [None, {**KEPT, "cause": "unknown", "id": "unknown", "confidence": 0.2}])
def test_a_run_that_did_not_know_is_judged_by_its_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: dict[str, Any] | None
) -> None:
    run = make_run(tmp_path, kept, OOM)
    document = json.loads(printed(capsys, str(run), "--json"))
    assert (document["cause"], document["where"]) == ("cuda-out-of-memory", {"node": "h1", "rank": 3})


def test_a_run_that_ended_well_has_no_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path, None, OOM, state="done")
    document = json.loads(printed(capsys, str(run), "--json"))
    assert (document["cause"], document["status"]) == (None, "ok")
    assert "ended well" in document["message"]
    assert printed(capsys, str(run)) == f"{run.name} is healthy: it ended well, and has no verdict\n"


MANIFEST = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: train\nspec:\n  restartPolicy: OnFailure\n"


def test_a_manifest_is_said_to_be_one(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(MANIFEST)
    with pytest.raises(UsageError, match="a Kubernetes manifest, not a log"):
        logdiagnosis.read_logs([job])
    log = tmp_path / "job.log"
    log.write_text("step 1\n")
    _, logs, unread = logdiagnosis.read_log_files([job, log])
    assert (logs, list(unread)) == ([log], [job])
    job.write_text(MANIFEST + "status:\n  phase: Failed\n")  # what happened to it is worth reading
    _, _, unread = logdiagnosis.read_log_files([job])
    assert unread == {}


@pytest.mark.parametrize(
    ("interfaces", "named"),
    [
        ("[0]bond0:192.0.2.1<0> [1]br-05ab:172.19.0.1<0> [2]veth61:fe80::b878%veth61<0>", "NCCL_SOCKET_IFNAME=bond0 "),
        ("[0]docker0:172.18.0.1<0> [1]ens5:192.0.2.1<0>", "NCCL_SOCKET_IFNAME=ens5 "),
        ("[0]docker0:172.18.0.1<0>", "NCCL_SOCKET_IFNAME=IFACE "),  # never the one that is at fault
    ],
)
def test_the_fix_names_the_interface_beside_those_of_containers(interfaces: str, named: str) -> None:
    lines = (
        f"gpu01:4711:4801 [0] NCCL INFO NET/Socket : Using {interfaces}\n"
        "gpu01:4711:4801 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 192.0.2.9<41000> failed : "
        "Connection refused\n"
    )
    verdict = judge_logs(logdiagnosis.read_stream(io.BytesIO(lines.encode())))
    assert verdict.cause == "wrong-interface" and named in verdict.finding.remedy, verdict
