"""The rules of prose hold over messages, help, docstrings, comments and pages. tests/prose.py has them."""

import pytest
from tests.prose import (
    BANNED,
    MOST_WORDS,
    Breach,
    breaches_of,
    is_code,
    page_breaches,
    remark_breaches,
    source_breaches,
)

RULES = f"""at most {MOST_WORDS} words a sentence, no semicolon, one colon, none of {BANNED.pattern}.
Rewrite:
"""


def check(breaches: list[Breach]) -> None:
    assert not breaches, RULES + "\n".join(f"{breach.place}: {breach.rule}: {breach.sentence}" for breach in breaches)


def test_messages_and_help() -> None:
    check(source_breaches())


def test_pages() -> None:
    check(page_breaches())


def test_docstrings_and_comments() -> None:
    check(remark_breaches())


@pytest.mark.parametrize(
    ("sentence", "rules"),
    [
        ("h1 does not reach h2:29500", []),
        ("run `a; b` on h1", []),
        ("h1 does not answer; look at it", ["semicolon"]),
        ("h1: eth0: the link is down", ["colons"]),
        ("there is no such host, and everyone knows it", ['banned "is no"']),
        ("one " * 26, ["words"]),
    ],
)
def test_a_rule_that_is_broken_is_named(sentence: str, rules: list[str]) -> None:
    assert [breach.rule for breach in breaches_of(sentence, "page")] == rules


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("if true; then\n  exit 1\nfi", True),
        ("trap 'echo ended; exit' TERM", True),
        ("import sys; sys.path.insert(0, '%s'); start()", True),
        ("the run is done; look at its logs", False),
        ("RANK=3: set a number; or none", False),
    ],
)
def test_code_is_no_prose(text: str, code: bool) -> None:
    assert is_code(text) is code
