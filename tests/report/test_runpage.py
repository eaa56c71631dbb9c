"""The page of a run: what it says, that it has an end; its excerpts of logs."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.run_directories import T, make

from allranks.cli.main import load
from allranks.cli.report import judged
from allranks.findings import Verdict
from allranks.protocol.codec import encode
from allranks.protocol.messages import StartedMessage
from allranks.protocol.run_facts import Stamped, StepsSeen
from allranks.report.excerpts import CONTEXT, excerpt, read_ends
from allranks.report.gather import gather
from allranks.report.record import Excerpt, LogName, Record
from allranks.report.redact import Redactor, redacted
from allranks.report.runpage import MOST_LINES, run_page
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import TimeLedger

NODES = {"h1": [0, 1], "h2": [2, 3]}
TOKEN = "hf_" + "a1B2" * 9


class Page(HTMLParser):
    """Texts by element, and the lines of logs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.tags = "", list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href", "xlink:href")]

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def page(run: Path, redactor: Redactor | None = None) -> Page:
    redactor = redactor or Redactor()
    record = redacted(gather(RunDirectory(run), judged), redactor)
    return Page(run_page(record, redactor.hidden))


def test_a_failed_run(tmp_path: Path) -> None:
    found = page(make(tmp_path / "r", NODES, {1: b"up\nTraceback (most recent call last):\nValueError: bad batch\n"}))
    words = " ".join(found.text.split())
    for said in ("failed r", "4 ranks on 2 nodes", "took 10.1 s", "exit 1", "program-exception",
                 "confidence 85%", "node h1 , rank 1", "rank 0 ended because of it", "fix <it>", "small /dev/shm",
                 "rank 1 on h1", "ValueError: bad batch", "train.py", "none (--hosts x)"):  # fmt: skip
        assert " ".join(said.split()).replace(" ,", ",") in words.replace(" ,", ","), said
    assert found.tags.count("script") == 1 and found.tags.count("svg") > 1


def test_a_run_that_ended_well(tmp_path: Path) -> None:
    words = page(make(tmp_path / "r", NODES, failing=None)).text
    assert "r is healthy: it ended well, and has no verdict" in words and "done" in words


def test_where_the_time_went(tmp_path: Path) -> None:
    """The result says it; of a run that has none yet, its events and the last state do."""
    run = RunDirectory(make(tmp_path / "r", NODES, failing=None))
    ledger = TimeLedger(200.0, start=50.0, useful=90.0, slow_share=None, computed_twice=60.0)
    document = run.read_document("result.json") or {}
    run.write_document("result.json", {**document, "goodput": ledger.goodput, "time_ledger": encode(ledger)})
    words = " ".join(page(run.path).text.split())
    assert "Goodput 45 % of 3 min 20 s." in words
    assert "computed twice 1 min 0 s 30 % Steps that" in words
    assert "waiting for stragglers unknown What" in words
    (run.path / "result.json").unlink()
    run.append(Stamped("", T + 6.0, 0, StepsSeen(0, T + 4.0, 2, T + 6.0)))
    run.append(Stamped("h1", T + 1.0, 0, StartedMessage(0, 7, 0)))
    assert "Goodput unknown" not in page(run.path).text


def test_secrets_are_not_in_the_page(tmp_path: Path) -> None:
    run = make(tmp_path / "r", NODES, {0: f"HF_TOKEN={TOKEN}\n".encode(), 1: f"x {TOKEN} y\n".encode()},
               message=f"rank 1 raised ValueError: {TOKEN}", command=["train.py", "--api-key", "hunter2hunter2"],
               source="host acme-gpu-1")  # fmt: skip
    redactor = Redactor(["acme-[a-z]+"])
    record = redacted(gather(RunDirectory(run), judged), redactor)
    text = run_page(record, redactor.hidden)
    assert TOKEN not in text and "hunter2" not in text and "acme" not in text
    assert "What was redacted" in text and "logs/node_00_h1/rank_000.log" in text


def test_evidence_stands_in_it(tmp_path: Path) -> None:
    run = make(tmp_path / "r", NODES)
    (run / "evidence" / "stacks").mkdir(parents=True)
    (run / "evidence" / "flight").mkdir()
    (run / "evidence" / "stacks" / "rank_001.txt").write_text("File train.py, line 3 in step\n")
    (run / "evidence" / "flight" / "rank_001.json").write_text('{"entries": [{"profiling_name": "nccl:all_reduce"}]}')
    (run / "evidence" / "link.txt").symlink_to("/etc/passwd")
    words = page(run).text
    assert "line 3 in step" in words and "nccl:all_reduce" in words and "root:" not in words


def test_the_links_of_the_newest_test_beside_it(tmp_path: Path) -> None:
    run = make(tmp_path / "r", NODES)
    link = {"kind": "link", "a": "h1", "b": "h2", "there": {"bandwidth": 1e9, "latency": 1e-4},
            "back": {"bandwidth": 2e8, "latency": 1e-4}}  # fmt: skip
    tests = (("test-new", T - 60, [link]), ("test-less", T - 90, []), ("test-old", T - 10**8, [link]))
    for name, started, rows in tests:
        (tmp_path / name).mkdir()
        document = {"suite": "pairs", "ok": False, "exit": 3, "nodes": ["h1", "h2"], "started": started, "links": rows,
                    "findings": [{"id": "link-slow", "status": "fail", "message": f"{name}: slow"}]}  # fmt: skip
        (tmp_path / name / "result.json").write_text(json.dumps(document))
    (tmp_path / "test-else").mkdir()
    other = {"suite": "sync", "ok": True, "exit": 0, "nodes": ["elsewhere"], "started": T, "links": []}
    (tmp_path / "test-else" / "result.json").write_text(json.dumps(other))
    words = page(run).text
    assert "Links (test-new)" in words and "row sends to column" in words and "test-new: slow" in words
    assert "test-less" not in words and "test-old" not in words and "elsewhere" not in words


def test_what_passed_with_a_warning_says_so(tmp_path: Path) -> None:
    """It was PASS."""
    run = make(tmp_path / "r", NODES)
    (tmp_path / "test-warned").mkdir()
    document = {"suite": "sync", "ok": True, "exit": 0, "nodes": ["h1", "h2"], "started": T - 60,
                "findings": [{"id": "mtu", "status": "warn", "message": "the MTU differs"}]}  # fmt: skip
    (tmp_path / "test-warned" / "result.json").write_text(json.dumps(document))
    shown = page(run).text
    assert "warned" in shown and "the MTU differs" in shown and "PASS" not in shown


def record(**more: Any) -> Record:
    return Record("r", "/r", "failed", Verdict(), **more)


@pytest.mark.parametrize("line", ["<" * 5000, '"' * 900, "x" * 90, "&" * 64_000])
def test_the_page_has_an_end(line: str) -> None:
    logs = tuple(
        Excerpt(LogName(f"logs/{i}.log", "h", i, 0), 10**9, 20_000, (line,) * 200, (line,) * 400) for i in range(96)
    )
    texts = {f"evidence/{i}.txt": line * 50 for i in range(48)}
    text = run_page(record(excerpts=logs, texts=texts))
    assert len(text) < 96 * MOST_LINES * (6 * 1000 + 100) + 6 * 600_000 + 500_000
    assert text.count('class="l"') == 96 * MOST_LINES


def test_what_is_left_out_is_counted() -> None:
    shown = Excerpt(LogName("f", "h", 0, 0), 10**9, 2002, ("a", "b"), ("y", "z"))
    found = Page(run_page(record(excerpts=(shown,)))).text
    assert "… 1,998 lines are left out" in found and "2002" in found
    no_end = Page(run_page(record(excerpts=(shown._replace(tail=()),)))).text
    assert "… 2,000 lines are left out" in no_end


LOG = LogName("logs/f.log", "h1", 0, 0)


def test_a_small_log_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "f.log"
    path.write_bytes(b"a\r\nb 1%\rb 100%\nno end")
    assert excerpt(LOG, path) == Excerpt(LOG, 21, 3, ["a", "b 100%", "no end"])
    path.write_bytes(b"")
    assert excerpt(LOG, path) == Excerpt(LOG, 0, 0, [])
    assert excerpt(LOG, tmp_path / "none") is None


@pytest.mark.parametrize("end", [b"", b"the last line has no end"])
def test_a_large_log_has_its_ends_with_the_right_numbers(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "f.log"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(1, 50_001)) + end)
    found = read_ends(LOG, path.open("rb"), 1000, 2000)
    assert found.total == 50_000 + bool(end)
    first = found.total - len(found.tail) + 1
    for number, line in [*enumerate(found.head, 1), *enumerate(found.tail, first)]:
        assert line == f"line {number}" or line == end.decode()
    assert 0 < sum(len(line) + 1 for line in found.tail[found.context :]) <= 2100
    assert sum(len(line) + 1 for line in found.tail) <= CONTEXT + 2000


def test_a_log_that_ends_in_a_long_progress_bar_has_its_last_state(tmp_path: Path) -> None:
    path = tmp_path / "f.log"
    path.write_bytes(b"start\n" + b"".join(b"\r%5d of 9000 batches" % number for number in range(9000)))
    found = read_ends(LOG, path.open("rb"), 1000, 2000)
    assert (found.total, found.tail, found.context) == (2, [" 8999 of 9000 batches"], 0)


def test_a_private_key_across_the_beginning_of_the_end(tmp_path: Path) -> None:
    body = [f"{i:04d}" + "KEYkey/+" * 7 for i in range(60)]
    key = "\n".join(["-----BEGIN PRIVATE KEY-----", *body, "-----END PRIVATE KEY-----"])
    path = tmp_path / "f.log"
    path.write_text("\n".join(["filler"] * 30_000 + [key] + ["after"] * 200) + "\n")
    found = read_ends(LOG, path.open("rb"), 100, 3000)
    assert any("KEYkey" in line for line in found.tail[found.context :])
    redactor = Redactor()
    shown = redacted(record(excerpts=(found,)), redactor).excerpts[0]
    assert not [line for line in (*shown.head, *shown.tail) if "KEYkey" in line]
    assert [h.kind for h in redactor.hidden] == ["private key"]


def test_a_page_of_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.out").write_text(
        f"[rank0]: up <b> {TOKEN}\n[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "t.py", line 3, in <module>\n'
        "[rank1]: ValueError: bad <i>batch</i>\n"
    )
    app = load("diagnose")
    done = CliRunner().invoke(app, ["a.out", "--html", "p.html", "--json"])
    assert json.loads(done.stdout)["cause"] == "program-exception"
    text = (tmp_path / "p.html").read_text()
    found = Page(text)
    assert "ValueError: bad <i>batch</i>" in found.text and "a.out" in found.text and TOKEN not in text
    assert text.count("<i>batch") == 0 and "up <b>" not in text
    done = CliRunner().invoke(app, ["-", "--html", "q.html"], input="ValueError: x\n")
    assert done.exit_code == 0 and "standard input" in (tmp_path / "q.html").read_text()
