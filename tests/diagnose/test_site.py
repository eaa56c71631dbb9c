"""A site's own signatures: they beat ours, may name a new cause, and are refused where they could take for ever."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.cli import main
from allranks.diagnose.causes import CAUSES, Cause
from allranks.diagnose.logs.scan import Filter
from allranks.diagnose.signatures import row_of_exception, site
from allranks.diagnose.signatures.row import Row
from allranks.diagnose.verdict import judge_logs
from allranks.errors import ConfigError
from allranks.gang.policy import ROWS
from allranks.runs.logdiagnosis import read_logs

FEED = {
    "id": "rack-feed",
    "pattern": r"PDU trip on rack (?P<node>\w+)",
    "cause": "rack-power",
    "means": "the rack lost one of its feeds",
    "fix": "Call the facilities desk, and take {node} out",
}
QUOTA = {"id": "quota", "text": "lfs quota hard limit", "cause": "disk-full", "fix": "Run `lfs quota -u $USER`"}
TOML = "[[signature]]\n" + "".join(f"{key} = '{value}'\n" for key, value in FEED.items())
LOG = "PDU trip on rack r17 at 10:11\n[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n"


@pytest.fixture(autouse=True)
def none_before_and_after() -> Iterator[None]:
    site.use((), ())
    yield
    site.use((), ())


def decoded(*tables: dict[str, str]) -> tuple[list[Row], list[Cause]]:
    return site.decode({"signature": list(tables)}, "signatures.toml")


def test_a_signature_beats_ours_and_fills_in_its_places(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(LOG)
    assert judge_logs(read_logs([log])).cause == "cuda-out-of-memory"
    site.use(*decoded(FEED))
    verdict = judge_logs(read_logs([log]))
    assert verdict.cause == "rack-power" and verdict.finding.where.node == "r17"
    assert verdict.finding.remedy == "Call the facilities desk, and take r17 out"
    assert [finding.id for finding in verdict.runners_up] == ["cuda-out-of-memory"]


def test_the_scan_of_a_large_log_keeps_its_lines() -> None:
    site.use(*decoded(FEED))
    scan = Filter()
    dull = "".join(f"step {n} loss 0.{n:06d}\n" for n in range(500))
    scan.feed((dull + "PDU trip on rack r17\n" + dull).encode())
    assert scan.kept == [(500, b"PDU trip on rack r17")]


def test_the_exception_of_a_rank_is_read_by_it_too() -> None:
    site.use(*decoded(QUOTA))
    row = row_of_exception("OSError", "lfs quota hard limit reached for /scratch")
    assert row is not None and (row.cause, row.fix) == ("disk-full", QUOTA["fix"])


def test_a_new_cause_is_there_while_its_signatures_are() -> None:
    site.use(*decoded(FEED, QUOTA))
    assert CAUSES["rack-power"].meaning == FEED["means"]
    assert CAUSES["disk-full"].fix != QUOTA["fix"], "a cause of ours stays as it is"
    site.use((), ())
    assert "rack-power" not in CAUSES and "disk-full" in CAUSES


@pytest.mark.parametrize(("charge", "again"), [({}, "progress"), ({"charge": "node"}, "always")])
def test_the_charge_of_a_new_cause_decides_about_another_attempt(charge: dict[str, str], again: str) -> None:
    site.use(*decoded({**FEED, **charge}))
    row = ROWS[CAUSES["rack-power"].charge]
    assert row.again == again and "nothing says why" not in row.why


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "a b"}, "id 'a b' is not a label"),
        ({"cause": "Rack Power"}, "cause 'Rack Power' is not a label"),
        ({"colour": "red"}, "unknown key colour, expected id, text, pattern, cause, fix, means, charge"),
        ({"charge": "rack"}, "charge 'rack' is none of settings, program"),
        ({"charge": "node", "cause": "disk-full"}, "charge is of a new cause, and disk-full is one of ours"),
        ({"fix": " "}, "fix must be a text"),
        ({"text": "PDU trip"}, "give text or pattern"),
        ({"pattern": "(a+)+ tripped"}, "stands inside another one"),
        ({"pattern": r"(\w)\1 tripped"}, "back references"),
        ({"pattern": "(?i)tripped"}, "a pattern takes no flags"),
        ({"pattern": "tripped ("}, "is not a valid pattern"),
        ({"pattern": "* tripped"}, "is not a valid pattern"),
        ({"pattern": "(feed|fan tripped)"}, "at least 4 characters of plain text"),
        ({"pattern": "(feed tripped)?"}, "at least 4 characters of plain text"),
        ({"pattern": r"\w+ \d+"}, "at least 4 characters of plain text"),
        ({"pattern": "tripped|x"}, "at least 4 characters of plain text"),
        ({"pattern": "tripped" + "a*b" * 9}, "more than 6 repetitions"),
        ({"pattern": "tripped" * 99}, "more than 400 characters"),
    ],
)
def test_what_is_refused_is_named(change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as refused:
        decoded(QUOTA, {**FEED, **change})
    assert str(refused.value).startswith("signatures.toml, signature 2: ")


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (r"(?P<gpu>\d+) (?P<what>feed tripped)", "3 feed tripped"),
        (r"(rack (?:feed )tripped)", "rack feed tripped"),
        (r"\x52ack-feed", "Rack-feed"),
        (r"rack\u002dfeed", "rack-feed"),
        (r"[]a]feed [^]] tripped", "]feed 7 tripped"),
        (r"feed \\1 tripped", "feed \\1 tripped"),
    ],
)
def test_a_pattern_as_python_writes_it_finds_its_line(pattern: str, line: str) -> None:
    """Its plain text is looked for first: taken from a wrong place, no line would ever have it."""
    (row,), _ = decoded({**FEED, "pattern": pattern})
    assert row.find(line) is not None


def test_an_id_is_there_once_and_a_file_has_tables_alone() -> None:
    with pytest.raises(ConfigError, match="the id rack-feed is there twice"):
        decoded(FEED, FEED)
    with pytest.raises(ConfigError, match="expected tables"):
        site.decode({"signatures": []}, "signatures.toml")


def test_each_alternative_has_plain_text_of_its_own() -> None:
    (row,), _ = decoded({**FEED, "pattern": "PDU trip|(?:feed) [AB] lost on (?P<node>r\\d+)"})
    assert row.needs == ("PDU trip", " lost on ")


def test_diagnose_and_explain_read_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.log").write_text(LOG)
    file = tmp_path / "mine.toml"
    file.write_text(TOML)
    assert main.run_verb("diagnose", ["-q", "--signatures", str(file), str(tmp_path / "job.log")]) == 0
    assert capsys.readouterr().out == "rack-power\n"
    config = tmp_path / "config" / "allranks"
    config.mkdir(parents=True)
    file.rename(config / "signatures.toml")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert main.run_verb("diagnose", ["-q", str(tmp_path / "job.log")]) == 0
    assert capsys.readouterr().out == "rack-power\n"
    assert main.run_verb("explain", ["rack-power"]) == 0
    printed = capsys.readouterr().out
    assert "facilities desk" in printed and "PDU trip on rack" in printed and "Signatures of this site" in printed


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_verb("diagnose", ["--signatures", str(tmp_path / "none.toml"), str(tmp_path)]) == 2
    assert "none.toml: No such file" in capsys.readouterr().err
