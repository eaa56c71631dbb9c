"""allranks explain: the page of every cause and check, the nearest of a wrong name, and where a verdict names it."""

import re
import shlex
from pathlib import Path

import pytest
from tests.shell import Shell

import allranks
from allranks.diagnose.causes import CAUSES
from allranks.findings import Finding, Verdict, explain_command
from allranks.gang.members import STANDS_BY, RankState
from allranks.gang.plugins import built_in
from allranks.report.explained import STATES, explained, text_of
from allranks.report.sentences import verdict_lines
from allranks.runs.documents import GOING_ON, ORPHANED, OVER


def test_a_name_is_that_of_one_page() -> None:
    assert not set(CAUSES) & set(built_in())


@pytest.mark.parametrize("name", [*CAUSES, *built_in()])
def test_every_page_has_all_that_the_tables_say_and_fits(name: str) -> None:
    page = explained(name, built_in())
    assert page is not None
    text = text_of(page, 80)
    assert text.startswith(f"{name} ({page.kind})\n")
    assert "{" not in text.replace("sysctl/{kernel,fs,net,vm}", "").replace("net/*/{speed,mtu,operstate}", "")
    words = " ".join(text.split())
    cause = CAUSES.get(name)
    said = (cause.remedy().split(". ")[0],) if cause else (built_in()[name].title, *built_in()[name].about)
    assert all(" ".join(part.split()) in words for part in said)
    assert all(len(line) <= 80 or " " not in line.strip() for line in text.splitlines())


def test_the_command_prints_the_page(shell: Shell) -> None:
    answer = shell("explain", "port-blocked")
    assert answer.code == 0
    page = explained("port-blocked", {})
    assert page is not None and answer.out == text_of(page, 100) + "\n"
    document = shell("explain", "own_name", "--json").document
    assert (document["schema"], document["name"], document["kind"]) == (1, "own_name", "check")
    assert [section["heading"] for section in document["sections"]] == ["How it judges", "When", "Options"]


@pytest.mark.parametrize(
    ("typed", "meant"), [("port-bloked", "port-blocked"), ("ownname", "own_name"), ("gpu-ecc", "gpu_ecc")]
)
def test_a_wrong_name_gets_the_nearest(typed: str, meant: str, shell: Shell) -> None:
    answer = shell("explain", typed)
    assert answer.code == 2
    assert answer.err == f"allranks: {typed}: unknown cause, check or state\nhint: allranks explain {meant}\n"


def test_without_a_name_all_are_listed(shell: Shell) -> None:
    answer = shell("explain")
    listed = {line.split()[0] for line in answer.out.splitlines() if line.startswith("  ")}
    assert listed == {*CAUSES, *built_in(), *STATES}
    assert [page["name"] for page in shell("explain", "--json").document["pages"]] == [*CAUSES, *built_in(), *STATES]


@pytest.mark.parametrize("cause", CAUSES)
def test_a_verdict_names_the_command_that_explains_it(cause: str, shell: Shell) -> None:
    verdict = Verdict(Finding(cause, "fail", "h1 failed"), cause, 1.0)
    assert verdict.explain == explain_command(cause)
    assert verdict_lines(verdict)[-1] == f"  more    {verdict.explain}"
    assert shell(*shlex.split(verdict.explain)[1:]).code == 0


def test_a_document_that_was_written_to_elsewhere_leads_to_no_command() -> None:
    for cause in (None, "", "a b; rm", "x\ny", "--json"):
        assert explain_command(cause) == ""
        assert not [line for line in verdict_lines(Verdict(cause=cause)) if "more" in line]


def test_each_state_of_a_run_a_node_and_a_rank_is_explained(shell: Shell) -> None:
    """`status` says "lost" or "orphaned", and `explain lost` knew no such word."""
    package = Path(allranks.__file__).parent / "gang"
    assigned = {
        found for path in package.glob("*.py") for found in re.findall(r'\.state = "([a-z]+)"', path.read_text("utf-8"))
    }
    assert {*assigned, *GOING_ON, *OVER, ORPHANED, STANDS_BY, RankState(0, 0).state} <= {*STATES}
    assert "nothing was heard from its node for the whole lease" in " ".join(shell("explain", "lost").out.split())
