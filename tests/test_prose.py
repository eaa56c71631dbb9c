"""The design's rules of prose hold over messages, help and pages: what broke them before may only become less.

Each figure is the number of sentences that still break a rule (more than 25 words, a semicolon, two colons, a word
that the design bans). Lower a figure when you mend a package. Never raise one: rewrite the sentence. Pages have none.
"""

from collections import Counter

import pytest
from tests.prose import Breach, breaches_of, is_code, page_breaches, remark_breaches, source_breaches

SOURCE_LIMITS = {
}


def check(breaches: list[Breach], limits: dict[str, int]) -> None:
    counts = Counter(breach.place for breach in breaches)
    worse = {place for place, count in counts.items() if count > limits.get(place, 0)}
    listed = [f"{breach.place}: {breach.rule}: {breach.sentence}" for breach in breaches if breach.place in worse]
    assert not listed, "\n".join(listed)


def test_messages_and_help() -> None:
    check(source_breaches(), SOURCE_LIMITS)


def test_pages() -> None:
    check(page_breaches(), {})


def test_docstrings_and_comments() -> None:
    check(remark_breaches(), {})


@pytest.mark.parametrize(
    ("sentence", "rules"),
    [
        ("h1 does not reach h2:29500", []),
        ("run `a; b` on h1", []),
        ("h1 does not answer; look at it", ["semicolon"]),
        ("h1: eth0: the link is down", ["colons"]),
        ("there is no such host, and nobody knows it", ["banned"]),
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
