"""The page of a test: what it says, that nothing from other machines runs in it, that it has an end."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from allranks.fabric.metric_rows import CollectiveRow, LateRank, LinkRow, RankError, SuiteHang, Way, WrongElement
from allranks.findings import Finding, Where
from allranks.protocol.codec import decode_parts, encode
from allranks.report import linkmaps, testpage
from allranks.runs.documents import SuiteResult

EVIL = "<script>alert(1)</script>"
VOID = {"meta", "br", "hr", "img", "link", "input"}
TESTS = encode([
    CollectiveRow("all_reduce", "pass", "float32 int64", 0.0123, late=LateRank(3, 1.4), ranks=4),
    CollectiveRow("broadcast", "fail", "", 0.2, "on rank 2: wrong",
                  (WrongElement(2, 1, "float32", 7, "5", "0", 1), RankError(3, "RuntimeError: no")), ranks=4),
    CollectiveRow("barrier", "hang", "", 60.0, "rank 3 had not arrived", ranks=4,
                  hang=SuiteHang("barrier", "", (0, 1, 2), (3,), (), {3: ("train.py:7 step",)})),
    CollectiveRow("gpu_direct", "skip", reason="no GPU"),
])  # fmt: skip


class Page(HTMLParser):
    """The page as a browser would take it: elements, attributes, the words of each table cell; unclosed tags fail."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.words.setdefault(tag, []).append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"{tag} at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        for tag in set(self._open):
            self.words[tag][-1] += data

    def of_class(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for _, attrs in self.elements if name in (attrs.get("class") or "").split()]

    def text(self) -> str:
        return " ".join(self.words["body"][0].split())


def html(document: dict[str, Any]) -> str:
    return testpage.test_page(decode_parts(SuiteResult, document))


def page(**document: Any) -> Page:
    text = html(document)
    found = Page(text)
    assert_harmless(found, text)
    return found


def assert_harmless(found: Page, text: str) -> None:
    """Nothing runs and nothing is fetched."""
    assert not {"script", "link", "iframe", "img", "object"} & {tag for tag, _ in found.elements}
    for _, attrs in found.elements:
        assert not [name for name in attrs if name.startswith("on") or name in ("src", "href", "xlink:href")]
    assert "url(" not in text and "@import" not in text and "default-src 'none'" in text
    text.encode("utf-8")


def bandwidth_rows(collectives: tuple[str, ...] = ("all_reduce", "all_gather")) -> list[dict[str, Any]]:
    return [
        {"collective": name, "size": size, "ranks": 4, "median": 1e-3, "q1": 0.8e-3, "q3": 2e-3,
         "algbw": size / 1e-3, "busbw": 1.5 * size / 1e-3, "rounds": 20}
        for name in collectives for size in (1 << 10, 1 << 20, 1 << 28)
    ]  # fmt: skip


def link(a: str, b: str, rate: float = 1e9, trip: float = 1e-4, dead: str = "") -> dict[str, Any]:
    way = Way(rate, trip, 2 * trip)
    row = LinkRow(a, b, dead=dead) if dead else LinkRow(a, b, 0, way, way)
    return dict(encode(row))


def links(count: int) -> list[dict[str, Any]]:
    names = [f"h{i}" for i in range(1, count + 1)]
    return [link(a, b) for at, a in enumerate(names) for b in names[at + 1 :]]


def test_a_run_that_passed_says_so_in_words_and_colour() -> None:
    found = page(run="test-1", suite="sync", ok=True, exit=0, nodes=["h1", "h2"], ranks=4, started=1795259813.4)
    assert found.words["title"] == ["PASS test-1"] and found.words["h1"] == ["PASStest-1"]
    assert len(found.of_class("verdict")) == len(found.of_class("ok")) == 1
    assert "suite sync; 4 ranks on 2 nodes; started 2026-11-21 11:16:53 UTC; exit 0" in found.text()
    assert "Nothing was found at fault." in found.text()


def test_a_failure_without_a_finding_does_not_look_like_success() -> None:
    found = page(run="test-1", ok=False, exit=5)
    assert found.words["title"] == ["FAIL test-1"] and not found.of_class("ok")
    assert "Nothing was found" not in found.text() and "no finding says why" in found.text()
    assert page(exit=3).words["title"] == ["FAIL test"] and page().words["title"] == ["FAIL test"]


def test_findings_come_first_and_failures_before_the_rest() -> None:
    given = [Finding("node-slow", "unknown", "h2 may be slow"),
             Finding("link-dead", "fail", "the link h1–h3 is dead", "ssh h1 'ip a'\nssh h3 'ip a'", Where(node="h1"),
                     ("h1–h3: 3 of 3 failed",))]  # fmt: skip
    found = page(ok=False, findings=[dict(encode(f)) for f in given], collectives=TESTS)
    text = found.text()
    assert text.index("is dead") < text.index("may be slow") < text.index("all_reduce")
    assert "ssh h1 'ip a'\nssh h3 'ip a'" in found.words["code"]
    assert "h1–h3: 3 of 3 failed" in found.words["details"][0] and "open" not in dict(found.elements)["details"]


def test_every_test_has_its_result_and_what_is_known_of_it() -> None:
    found = page(ok=False, collectives=TESTS)
    assert {"PASS", "FAIL", "HANG", "skip"} <= set(found.words["td"])
    details = found.words["details"]
    assert "rank 3 came 1.4 s late" in details[0]
    assert "rank 2, round 1, float32, element 7, from rank 1: expected 5, found 0" in details[1]
    assert "rank 3: RuntimeError: no" in details[1]
    assert "had not arrived: rank 3" in details[2] and "train.py:7 step" in details[2]
    assert "no GPU" in found.words["td"] and "12.3 ms" in found.words["td"]


def test_rates_have_a_table() -> None:
    found = page(ok=True, bandwidth=bandwidth_rows())
    assert found.words["td"][:8] == ["1KB", "4", "1 ms", "800 µs", "2 ms", "1.02 MB/s", "1.54 MB/s", "20"]


@pytest.mark.parametrize("row", [
    {}, {"size": 0, "busbw": 1.0}, {"size": 10, "busbw": -1}, {"size": float("nan"), "busbw": 1.0},
    {"size": "10", "busbw": 1.0}, {"size": 10, "busbw": float("inf")}, {"size": 10**400, "busbw": 1.0},
])  # fmt: skip
def test_rows_that_are_no_measurement_do_no_harm(row: dict[str, Any]) -> None:
    page(bandwidth=[{**bandwidth_rows()[0], **row}])


def test_links_are_drawn_in_the_order_of_the_run_and_a_retest_counts() -> None:
    rows = [*links(4)[:-1], link("h3", "h4", rate=1e7), link("h2", "h3", dead="timed out")]
    again = [{**link("h3", "h4"), "again": True}]
    drawn = linkmaps.link_map([*rows, *again], ["h4", "h3", "h2", "h1", "h9"])
    assert drawn.splitlines()[1:4] == ["      1  2  3  4", "h4 1    ░░ ░░ ░░", "h3 2 ░░    ×× ░░"]
    assert drawn in html({"links": [*rows, *again], "nodes": ["h4", "h3", "h2", "h1"]})


@pytest.mark.parametrize("row", [
    {}, {"a": "h1"}, {"a": "h1", "b": "h2", "there": {"bandwidth": "x"}}, {"a": "h1", "b": "h2", "round": [1]},
    {"a": "h1", "b": "h2", "there": [1]}, {"a": "h1", "b": "h2", "round": "x"}, {"a": "h1", "b": "h1"},
    {"a": "h1", "b": "h2", "there": {"bandwidth": 10**400}},
])  # fmt: skip
def test_rows_that_are_no_link_are_left_out(row: dict[str, Any]) -> None:
    assert linkmaps.link_map([row], ["h1", "h2"]) == ""
    assert linkmaps.link_map([row, *links(3)], []) == linkmaps.link_map(links(3), [])


def test_stages_statement_environment() -> None:
    stages = [{"name": "each node alone", "groups": [{"nodes": ["h1"], "ok": True, "seconds": 3.1}], "meaning": ""},
              {"name": "pairs of nodes", "meaning": "h3–h4 fails: the link",
               "groups": [{"nodes": ["h1", "h2"], "ok": True, "seconds": 3.1},
                          {"nodes": ["h3", "h4"], "ok": False, "seconds": 9.0}]}]  # fmt: skip
    found = page(run="t", suite="staged", ok=False, exit=3, nodes=["h1", "h2"], stages=stages,
                 statement=["line one", "line two"])  # fmt: skip
    opened = ["open" in attrs for tag, attrs in found.elements if tag == "details"]
    assert opened == [False, True] and "h3–h4 fails: the link" in found.text()
    assert found.words["td"][3:9] == ["FAIL", "9 s", "h3, h4", "PASS", "3.1 s", "h1, h2"]
    assert "line one\nline two" in found.words["pre"]
    rows = list(zip(found.words["th"], found.words["td"][9:], strict=True))
    assert rows == [("run", "t"), ("suite", "staged"), ("nodes", "h1, h2"), ("exit", "3")]


def hostile(text: str) -> dict[str, Any]:
    """A document with this text wherever a text may stand."""
    where = {"node": text}
    failures = (WrongElement(1, 0, text, 3, text, text), RankError(2, text))
    hang = SuiteHang(text, text, (), (3,), (), {3: (text,)})
    return {
        "run": text, "suite": text, "ok": False, "exit": 3, "nodes": [text, "h2"], "ranks": 4, "started": 1e9,
        "findings": [{"id": text, "status": text, "where": where, "message": text, "remedy": text, "evidence": [text]}],
        "collectives": encode([CollectiveRow(text, text, text, 1.0, text, failures, LateRank(2, 2.0), hang)]),
        "bandwidth": bandwidth_rows((text,)),
        "links": [link(text, "h2"), link(text, "h3", dead=text)],
        "stages": [{"name": text, "groups": [{"nodes": [text], "ok": False, "seconds": 2.0}], "meaning": text}],
        "statement": [text],
    }  # fmt: skip


@pytest.mark.parametrize("text", [EVIL, "\"><img src=x onerror='alert(1)'>", "' onload='x", "</style></title>" + EVIL])
def test_nothing_that_others_say_runs(text: str) -> None:
    raw = html(hostile(text))
    found = Page(raw)
    assert_harmless(found, raw)
    assert found.text().count(text) > 20 and EVIL not in raw
    assert found.words["title"][0] == f"FAIL {text}"


def test_what_cannot_be_written_is_replaced() -> None:
    raw = html(hostile("a\x00\x1b[31m\udcffz"))
    raw.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f]", raw) and "a\ufffd\ufffd[31m\ufffdz" in raw


@pytest.mark.parametrize("part", [None, 3, "text", {}, [None], ["text"], [[]], [{}]])
def test_parts_that_are_not_as_expected_do_not_break_it(part: object) -> None:
    whole = hostile("x")
    for key in whole:
        page(**{**whole, key: part})
    for key in ("failures", "late", "hang"):
        page(collectives=[{"test": "t", "status": "fail", key: part}])


def test_the_text_has_an_end() -> None:
    long = "x" * 100_000
    given = hostile(long)
    for key in ("findings", "collectives", "bandwidth", "stages", "statement"):
        given[key] = given[key] * 3000
    given["nodes"] = [f"node-{i}" for i in range(3000)]
    given["findings"][0]["evidence"] = [long] * 1000
    given["collectives"][0]["failures"] = encode([RankError(1, long)] * 1000)
    rest = {key: value for key, value in given.items() if key not in ("findings", "collectives")}
    assert len(html(rest)) < 5_000_000
    text = html({"findings": given["findings"][:2], "collectives": given["collectives"][:2]})
    assert len(text) < 1_000_000 and "and 960 more" in text
