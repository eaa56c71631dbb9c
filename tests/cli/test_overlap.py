"""The verb, on files."""

import gzip
import re
from pathlib import Path

import pytest
from tests.overlap.traces import as_text, kernel, nccl, step
from tests.shell import Shell

EVENTS = [step(1, 0, 1000), kernel(0, 600), nccl(500, 400, elements=1 << 20), step(2, 1000, 500), kernel(1000, 500)]


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    (tmp_path / "rank_00.json").write_text(as_text(EVENTS, 0))
    (tmp_path / "rank_01.json.gz").write_bytes(gzip.compress(as_text(EVENTS, 1).encode()))
    return tmp_path


def test_one_document(traces: Path, shell: Shell) -> None:
    told = shell("overlap", str(traces), "--json").document
    assert told["schema"] == 1 and told["exit"] == 0
    assert [rank["rank"] for rank in told["ranks"]] == [0, 1]
    assert [s["step"] for s in told["ranks"][1]["steps"]] == [1, 2]
    assert told["ranks"][1]["steps"][0]["both"] == pytest.approx(100e-6)
    assert told["collectives"][0]["size"] == 2 << 20 and told["collectives"][0]["exposed"] == pytest.approx(600e-6)


def test_text_begins_with_the_verdict(traces: Path, shell: Shell) -> None:
    lines = shell("overlap", str(traces / "rank_00.json"), str(traces / "rank_01.json.gz")).out.splitlines()
    assert lines[0].startswith("Communication is partly hidden: of 200 µs in a step of 750 µs")
    assert [line.split()[0] for line in lines[3:5]] == ["rank", "rank"]
    assert any(line.startswith("all_reduce") and "2 MB" in line for line in lines)


def test_the_page_stands_alone_and_escapes(traces: Path, shell: Shell) -> None:
    call = nccl(5, 5, "<script>alert(1)</script>", **{"Process Group Description": "<b>"})
    evil = [step(1, 0, 10), kernel(0, 5), call]
    (traces / "<i>.json").write_text(as_text(evil, None))
    assert shell("overlap", str(traces), "--html", str(traces / "page.html")).code == 0
    page = (traces / "page.html").read_text()
    assert "<svg" in page and page.count('class="computed"') == 3 and page.count('class="exposed"') == 3
    assert "<script" not in page and "<b>" not in page and "<i>" not in page and "&lt;i&gt;.json" in page
    assert "http" not in page.replace("http-equiv", "")
    assert "is exposed" in page


def test_a_bar_adds_up_to_the_step(traces: Path, shell: Shell) -> None:
    assert shell("overlap", str(traces / "rank_00.json"), "--html", str(traces / "page.html")).code == 0
    widths = re.findall(r'<rect class="\w+" x="[\d.]+" y="[\d.]+" width="([\d.]+)"', (traces / "page.html").read_text())
    assert sum(map(float, widths)) == pytest.approx(640, abs=0.1)


@pytest.mark.parametrize("words", [["no-such-file.json"], [], ["--bogus", "x.json"]])
def test_usage(words: list[str], shell: Shell) -> None:
    answer = shell("overlap", *words)
    assert answer.code == 2 and answer.err.startswith("allranks: ")


@pytest.mark.parametrize("text", ["", "hello", "{}", '{"traceEvents": []}', "\x1f\x8b"])
def test_what_is_no_trace_is_refused(text: str, tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "bad.json").write_bytes(text.encode("latin1"))
    answer = shell("overlap", str(tmp_path / "bad.json"), "--json")
    assert answer.code == answer.document["exit"] == 2


def test_an_empty_directory_is_refused(tmp_path: Path, shell: Shell) -> None:
    answer = shell("overlap", str(tmp_path))
    assert answer.code == 2 and f"{tmp_path}: no trace in it" in answer.err


def test_a_directory_without_a_trace_is_named_and_left_out(traces: Path, shell: Shell) -> None:
    (traces / "empty").mkdir()
    document = shell("overlap", str(traces / "empty"), str(traces), "--json").document
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]
    assert document["notes"] == [f"{traces / 'empty'}: no trace in it (*.json, *.json.gz)"]


def test_one_broken_file_does_not_hide_the_others(traces: Path, shell: Shell) -> None:
    packed = (traces / "rank_01.json.gz").read_bytes()
    (traces / "rank_01.json.gz").write_bytes(packed[: len(packed) // 2])
    (traces / "rank_02.json").write_text("nothing")
    told = shell("overlap", str(traces), "--json").document
    assert len(told["notes"]) >= 1 and "rank_02.json" in told["notes"][-1]
    assert told["ranks"][0]["rank"] == 0


def test_two_traces_of_a_rank_stay_apart(tmp_path: Path, shell: Shell) -> None:
    for name in ("early.json", "late.json"):
        (tmp_path / name).write_text(as_text(EVENTS, 0))
    names = [rank["name"] for rank in shell("overlap", str(tmp_path), "--json").document["ranks"]]
    assert names == ["rank 0 (early.json)", "rank 0 (late.json)"]
