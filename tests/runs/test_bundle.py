"""The bundle: what is in it, that no secret is, that its names stay where they belong, that it has an end."""

import io
import json
import os
import re
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from tests.campaign import examples
from tests.report.test_redact import noise, secrets
from tests.run_directories import T, make

from allranks.cli.main import load
from allranks.cli.report import judged, known_secrets
from allranks.errors import UsageError
from allranks.report.bundle import Bundle, write_bundle
from allranks.report.redact import WINDOW, Redactor
from allranks.runs.directory import RunDirectory

NODES = {"h1": [0, 1], "h2": [2, 3]}
TOKEN = "hf_" + "a1B2" * 9


FILES = {
    "evidence/stacks/rank_000.txt": "File x, line 1\n",
    "evidence/flight/rank_000.json": '{"entries": []}',
    "evidence/errors/rank_001.json": '{"message": "m"}',
    "logs/node_00_h1/nccl_rank_000.log": "h1:1:2 [0] NCCL INFO Bootstrap: Using eth0\n",
    "logs/node_00_h1/node.log": "agent said\n",
    "outputs/rank_00_metrics.jsonl": '{"step": 1}\nnot json\n',
    "controller.log": "detached\n",
}


def bundle(run: Path, to: Path, patterns: tuple[str, ...] = (), known: tuple[str, ...] = ()) -> zipfile.ZipFile:
    write_bundle(RunDirectory(run), to, judged, lambda: Redactor(patterns, known))
    return zipfile.ZipFile(to)


def contents(found: zipfile.ZipFile) -> dict[str, str]:
    return {name.partition("/")[2]: found.read(name).decode() for name in found.namelist()}


def filled(directory: Path) -> Path:
    """A run with all that a run may have, and tests beside it."""
    run = make(directory / "r", NODES, {1: b"up\nTraceback (most recent call last):\nValueError: bad batch\n"})
    for name, text in FILES.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)
    test = directory / "test-1"
    stage = test / "stages" / "test-1-h1"
    stage.mkdir(parents=True)
    document = {"suite": "staged", "ok": False, "exit": 3, "nodes": ["h1"], "started": T - 60, "links": []}
    (test / "result.json").write_text(json.dumps(document))
    (stage / "result.json").write_text('{"exit": 3}')
    return run


def test_what_is_in_it(tmp_path: Path) -> None:
    found = contents(bundle(filled(tmp_path), tmp_path / "b.zip"))
    assert set(found) == {
        "summary.md", "verdict.json", "report.html", "redactions.json", "run/run.json",
        "run/result.json", "run/status.json", "run/verdict.json", "run/events.jsonl",
        "run/logs/node_00_h1/rank_000.log", "run/logs/node_00_h1/rank_001.log", "run/logs/node_01_h2/rank_002.log",
        "run/logs/node_01_h2/rank_003.log", "tests/test-1/result.json", "tests/test-1/stages/test-1-h1/result.json",
        *(f"run/{name}" for name in FILES),
    }  # fmt: skip
    assert f"- {len(found)} files. report.html is the page" in found["summary.md"]
    assert set(re.findall(r"see (\S+)", found["summary.md"])) <= set(found)
    assert json.loads(found["redactions.json"]) == {"schema": 1, "redacted": []}
    assert json.loads(found["verdict.json"])["cause"] == "program-exception"
    assert found["run/outputs/rank_00_metrics.jsonl"] == '{"step": 1}\nnot json\n'


def test_the_summary_can_be_pasted(tmp_path: Path) -> None:
    run = make(tmp_path / "r", NODES, message="rank 1 `raised`\n# <b>not a heading</b>\n```\n" + "x" * 999,
               command=["train.py", "```", "<script>"])  # fmt: skip
    (run / "result.json").write_text(json.dumps({
        "exit": 1, "attempts": [{}] * 3, "findings": [{"status": "warn", "message": f"f {i}\n"} for i in range(99)],
    }))  # fmt: skip
    lines = contents(bundle(run, tmp_path / "b.zip"))["summary.md"].splitlines()
    assert 15 < len(lines) <= 60 and max(map(len, lines)) < 1200
    assert [line for line in lines if line.startswith("#")] == [
        "# allranks: `r`", "## Run", "## Nodes", "## Findings", "## This bundle",
    ]  # fmt: skip
    assert lines.count("```") == 4 and not [line for line in lines if line.startswith("<")]
    assert any("and 93 more" in line for line in lines)


PLACES = ["run.json", "result.json", "status.json", "events.jsonl", "logs/node_00_h1/rank_000.log", *FILES,
          "../test-1/result.json", "../test-1/stages/test-1-h1/result.json"]  # fmt: skip


@settings(max_examples=examples(10), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.lists(st.tuples(st.sampled_from(PLACES), noise, secrets), min_size=4, max_size=8), st.integers(0, 1))
def test_a_planted_secret_is_in_no_file(
    tmp_path_factory: pytest.TempPathFactory, planted: list[tuple[str, str, tuple[str, str]]], filler: int
) -> None:
    directory = tmp_path_factory.mktemp("planted")
    run = filled(directory)
    for place, before, (text, secret) in planted:
        assume(secret not in before and len(set(secret)) > 4)
        path = run / place
        if place.endswith(".json"):
            document = json.loads(path.read_text())
            document.setdefault("planted", []).append({"note": f"{before} {text}"})
            path.write_text(json.dumps(document))
        elif place.endswith(".jsonl"):
            line = json.dumps({"t": T, "event": "note", "message": f"{before} {text}"})
            path.write_text(f"{path.read_text()}{line}\n")
        else:
            filling = f"{'y' * 997}\n".encode() * (filler * 1200)  # across the cut of a large log, and of chunks
            path.write_bytes(path.read_bytes() + filling + f"{before} {text}\n".encode() + filling[:70_001])
    found = contents(bundle(run, directory / "b.zip"))
    for _, _, (text, secret) in planted:
        for name, content in found.items():
            assert secret not in content and json.dumps(secret)[1:-1] not in content, (name, text)
    json.loads(found["run/run.json"]), json.loads(found["run/result.json"])


def test_the_list_says_where_and_never_what(tmp_path: Path) -> None:
    run = filled(tmp_path)
    told = f"a\nHF_TOKEN={TOKEN}\nb {TOKEN}\nacme-gpu named-value-1\n"
    (run / "logs" / "node_00_h1" / "rank_000.log").write_text(told)
    document = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**document, "spec": {"env": {"MY_SECRET": "hunter2"}}}))
    found = contents(bundle(run, tmp_path / "b.zip", ("acme-[a-z]+",), ("named-value-1",)))
    log = "run/logs/node_00_h1/rank_000.log"
    assert found[log] == "a\nHF_TOKEN=<redacted>\nb <redacted>\n<redacted> <redacted>\n"
    assert json.loads(found["redactions.json"])["redacted"] == [
        {"kind": "Hugging Face token", "file": log, "count": 2, "lines": [2, 3]},
        {"kind": "known value", "file": log, "count": 1, "lines": [4]},
        {"kind": "user's pattern", "file": log, "count": 1, "lines": [4]},
        {"kind": "named value", "file": "run/run.json", "count": 1, "lines": ["spec.env.MY_SECRET"]},
    ]
    assert "5 secrets were hidden" in found["summary.md"]


def test_names_stay_below_one_folder(tmp_path: Path) -> None:
    archive = zipfile.ZipFile(io.BytesIO(), "w")
    made = Bundle(archive, "r", Redactor(["acme"]))
    source = tmp_path / "f"
    source.write_text("x")
    for name in ("../../etc/passwd", "/abs", "a//b", "-rf", "a/../b", "C:\\x", "nul\n", "..", "é", "x" * 400,
                 "acme.log", "Abs", ".hidden", "a/.."):  # fmt: skip
        made.file(name, source)
    names = archive.namelist()
    assert len({n.lower() for n in names}) == len(names) == 14
    for name in names:
        words = name.split("/")
        assert words[0] == "r" and all(w and w[0] not in ".-" and len(w) <= 110 and w.isascii() for w in words), name
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/")
    assert not any("acme" in n for n in names)


def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    run = filled(tmp_path)
    secret = tmp_path / "outside"
    secret.write_text("outside\n")
    (run / "evidence" / "stacks" / "rank_009.txt").symlink_to(secret)
    (run / "logs" / "node_00_h1" / "rank_009.log").symlink_to(secret)
    (run / "outputs" / "rank_09_metrics.jsonl").symlink_to(secret)
    (run / "controller.log").unlink()
    (run / "controller.log").symlink_to(secret)
    os.mkfifo(run / "evidence" / "pipe.txt")
    found = contents(bundle(run, tmp_path / "b.zip"))
    assert not [name for name, text in found.items() if "outside" in text and name.startswith("run/")]


def test_large_logs_have_their_ends(tmp_path: Path) -> None:
    lines = [f"line {i} of the log".encode() for i in range(200_000)]
    others = {1: b"\0\1\2" * 99, 2: b"w" * 3_000_000, 3: b"a\r" * 600_000}
    run = make(tmp_path / "r", NODES, {0: b"\n".join(lines), **others})
    found = contents(bundle(run, tmp_path / "b.zip"))
    text = found["run/logs/node_00_h1/rank_000.log"]
    assert text.startswith("line 0 of the log\n") and text.endswith("line 199999 of the log\n")
    assert len(text) < 1_200_000
    [note] = set(text.splitlines()) - {line.decode() for line in lines}
    assert note.endswith(" lines are left out]")
    assert found["run/logs/node_00_h1/rank_001.log"] == "[no text]\n"
    assert len(found["run/logs/node_01_h2/rank_002.log"]) < 2 * WINDOW


def test_where_it_can_not_be_written(tmp_path: Path) -> None:
    run = make(tmp_path / "r", NODES)
    with pytest.raises(UsageError, match="Name another place with --output"):
        bundle(run, tmp_path / "none" / "b.zip")
    assert not list(tmp_path.glob("**/*.part"))
    path = tmp_path / "b.zip"
    path.symlink_to(tmp_path / "elsewhere")
    bundle(run, path)
    assert not path.is_symlink() and path.stat().st_mode & 0o777 == 0o600 and not (tmp_path / "elsewhere").exists()


def test_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOME_TOKEN", "value-of-this-environment")
    monkeypatch.setenv("SSH_KEY_FILE", "/etc/hosts")
    assert "value-of-this-environment" in known_secrets(os.environ)
    make(tmp_path / "runs" / "a-1", NODES, {0: b"value-of-this-environment\n"})
    app = load("report")
    done = CliRunner().invoke(app, ["a-1", "--json"])
    said = json.loads(done.stdout)
    assert said["page"] == "runs/a-1/report.html" and [h["kind"] for h in said["redacted"]] == ["known value"]
    assert "value-of-this" not in (tmp_path / "runs" / "a-1" / "report.html").read_text()
    done = CliRunner().invoke(app, ["a-1", "--bundle"])
    assert done.stdout.splitlines()[0] == "a-1-bundle.zip"
    assert done.stdout.splitlines()[1].startswith("1 secret was hidden (known value)")
    done = CliRunner().invoke(app, ["a-1", "--output", str(tmp_path)])
    assert done.exit_code == 0 and (tmp_path / "report.html").is_file()
