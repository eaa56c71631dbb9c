"""The page of a run in headless Chromium: it shows what it has to, and nothing from a log runs in it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import run_directories
from tests.browser import chromium

pytestmark = pytest.mark.skipif(chromium.find() is None, reason="no Chromium: `make browser` installs it (300 MB)")

ATTACKS = [
    "<script>alert('log')</script>",
    "</script><script>alert('close')</script>",
    "<img src=x onerror=alert('img')>",
    "\"'><svg onload=alert('svg')>",
    "--><script>alert('comment')</script>",
    "</title></style><script>alert(1)</script>",
    "{{ 7 * 7 }} {% raw %} javascript:alert(2)",
    "]]><script>alert(3)</script>",
    "&lt;script&gt;alert(4)&lt;/script&gt;",
    "\u2028alert(5)\u2029",
    "<iframe srcdoc='<script>parent.alert(6)</script>'>",
    "<a href='http://example.invalid/'>x",
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    found = chromium.Chromium(tmp_path_factory.mktemp("chromium"))
    yield found
    found.close()


def page_of(run: Path) -> Path:
    done = subprocess.run([sys.executable, "-m", "allranks", "report", str(run)], capture_output=True, text=True,
                          env={**os.environ, "ALLRANKS_RUNS_DIR": str(run.parent)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    return run / "report.html"


def test_what_a_person_sees(browser: chromium.Chromium, tmp_path: Path) -> None:
    logs = {r: b'step 1\nrank %d reads shard\nneedle <b> & "%d"\n' % (r, r) for r in range(4)}
    browser.open(page_of(run_directories.make(tmp_path / "r", {"h1": [0, 1], "h2": [2, 3]}, logs)))
    assert browser.said == []
    text = browser.text()
    assert text.index("FAILED") < text.index("rank 1 raised ValueError: bad batch") < text.index("Timeline")
    assert "program-exception" in text and "fix <it>" in text and "small /dev/shm" in text
    assert browser.value("document.querySelector('#verdict').getBoundingClientRect().bottom < 700")
    for rank in range(4):
        titles = "[...document.querySelectorAll('svg.timeline rect.rank title')]"
        bars = f"{titles}.filter(t => t.textContent.startsWith('rank {rank}:'))"
        assert browser.value(f"{bars}.length") == 2  # started, initialised
        assert browser.value(f"{bars}.every(t => t.parentNode.getBoundingClientRect().width > 1)")
    words = "[...document.querySelectorAll('svg.timeline text')].map(t => t.textContent)"
    assert {"first step", "all initialised", "master reached", "h1", "rank 3"} <= set(browser.value(words))


def seen_lines(browser: chromium.Chromium) -> list[str]:
    lines = "[...document.querySelectorAll('.l')]"
    return list(browser.value(f"{lines}.filter(l => l.checkVisibility()).map(l => l.textContent)"))


def search(browser: chromium.Chromium, text: str) -> None:
    box = f"box = document.getElementById('search'); box.value = {json.dumps(text)}"
    browser.value(f"{box}; box.dispatchEvent(new Event('input'))")


def test_the_search_box_filters(browser: chromium.Chromium, tmp_path: Path) -> None:
    logs = {r: b'step 1\nrank %d reads shard\nNeedle <b> & "%d"\n' % (r, r) for r in range(4)}
    browser.open(page_of(run_directories.make(tmp_path / "r", {"h1": [0, 1], "h2": [2, 3]}, logs)))
    search(browser, "needle <b> & ")
    assert seen_lines(browser) == ['3Needle <b> & "1"', '3Needle <b> & "0"', '3Needle <b> & "2"', '3Needle <b> & "3"']
    assert browser.value("document.getElementById('found').textContent") == "4 lines"
    search(browser, "rank 2 reads")
    assert seen_lines(browser) == ["2rank 2 reads shard"]
    assert browser.value("[...document.querySelectorAll('details.log')].filter(l => l.checkVisibility()).length") == 1
    search(browser, "nothing of the kind")
    assert seen_lines(browser) == []
    search(browser, "")
    assert len(seen_lines(browser)) == 6  # of the two logs that are open
    assert browser.said == []


def test_nothing_from_outside_runs(browser: chromium.Chromium, tmp_path: Path) -> None:
    everything = " ".join(ATTACKS)
    logs = {r: ("\n".join(ATTACKS) + "\n").encode() for r in range(4)}
    nodes = {everything[:80].replace("/", "\u2044"): [0, 1], "<script>alert(7)<_script>": [2, 3]}
    run = run_directories.make(
        tmp_path / "r", nodes, logs, message=everything, command=["train.py", *ATTACKS], source=everything,
        workdir=everything, versions={everything: everything},
        spec={"env": {everything: everything}, "prelude": everything},
    )  # fmt: skip
    (run / "evidence" / "stacks").mkdir(parents=True)
    (run / "evidence" / "stacks" / "rank_000.txt").write_text("\n".join(ATTACKS))
    page = page_of(run)
    browser.open(page)
    assert browser.said == []
    assert [url for url in browser.requests if not url.startswith("file:")] == []
    assert browser.value("document.querySelectorAll('script').length") == 1
    assert browser.value("document.querySelectorAll('img, iframe, a, object, link').length") == 0
    search(browser, "<script>alert('log')</script>")
    assert seen_lines(browser)[0].endswith("<script>alert('log')</script>")
    assert browser.said == []


def test_the_policy_stops_a_script_that_was_let_in(browser: chromium.Chromium, tmp_path: Path) -> None:
    """The second wall: were a name not escaped, its script would have another hash."""
    page = page_of(run_directories.make(tmp_path / "r", {"h1": [0, 1]}))
    let_in = "</h1><script>alert(1)</script><img src=x onerror='alert(2)'>"
    page.write_text(page.read_text().replace("</h1>", let_in, 1))
    browser.open(page)
    assert not [said for said in browser.said if said.startswith("dialog")]
    assert [said for said in browser.said if "Content Security Policy" in said]
