"""The pictures of README and docs: a recorded terminal becomes a drawing, and what is committed is small and shown."""

import re

import pytest
from tests.pictures import (
    FAILURE_PAGE,
    FAILURE_WORDS,
    LIVE_VIEW,
    LIVE_VIEW_LABEL,
    MOST_BYTES,
    PICTURES,
    ROOT,
    PageWords,
    choose_screen,
    draw,
    lines_of,
    screens,
    wording,
)

TABLE = "local{} running 2 initialised {} 9.7 0 s ago"


def recorded(*tables: tuple[int, ...]) -> str:
    """A run's terminal: each table over the one before it, with a log line above."""
    parts = ["run       r\r\n"]
    rows = 0
    for number, steps in enumerate(tables):
        lines = [TABLE.format(node, step) for node, step in enumerate(steps)]
        up = f"\x1b[{rows}A\x1b[J" if rows else ""
        parts.append(f"{up}[local0 0] line {number}\r\n" + "".join(f"{line}\r\n" for line in lines))
        rows = len(lines)
    return "".join(parts) + f"\x1b[{rows}A\x1b[Jdone\r\n"


def test_a_screen_has_one_table_below_all_lines() -> None:
    shown = list(screens(recorded((1, 1), (2, 2))))
    assert shown[1] == ["run       r", "[local0 0] line 0", "[local0 0] line 1", TABLE.format(0, 2), TABLE.format(1, 2)]
    assert shown[-1] == ["run       r", "[local0 0] line 0", "[local0 0] line 1", "done"]


def test_the_screen_is_of_the_middle_of_the_run() -> None:
    lines = choose_screen(recorded((1, 1, 1, 1), (40, 29, 40, 40), (40, 31, 40, 40), (50, 50, 50, 50)))
    assert lines[-3] == TABLE.format(1, 31)
    with pytest.raises(SystemExit, match="no screen"):
        choose_screen(recorded((1, 1, 1, 1)))


def test_a_drawing_keeps_blanks_and_escapes_what_is_markup() -> None:
    drawing = draw(["a  <b>", "", "    c & d"], 'x"y')
    assert ">a\u00a0\u00a0&lt;b&gt;</text>" in drawing and ">c\u00a0&amp;\u00a0d</text>" in drawing
    assert 'aria-label="x&quot;y"' in drawing


def test_what_is_stored_is_as_it_would_be_drawn_today() -> None:
    """Whether a run shows the same lines is asked by tests/docs/test_pictures_drawn.py."""
    stored = (PICTURES / LIVE_VIEW).read_text()
    assert draw(lines_of(stored), LIVE_VIEW_LABEL) == stored, "`make pictures` draws it again"


def test_figures_and_widths_are_no_wording() -> None:
    first = ["all 8 ranks in 3.1 s", "first step after 4 s", "[local0 0] step 10 loss 3.50", "── 9 s ──"]
    second = ["all 8 ranks in 12 s", "[local0 0] step 10 loss 9.1", "[local0 0] step 20 loss 1", "── 10.5 s ─"]
    assert wording(first) == wording(second) == ["all N ranks in N s", "[localN N] step N loss N", "N s"]
    assert wording([*first, "a further line"]) != wording(first)


def test_the_words_of_a_page_are_its_style_its_sections_and_its_verdict() -> None:
    page = """<style>p {}</style><h1>r</h1><div id="verdict"><p class="text">rank 5 raised</p><table><tr>
    <th>fix</th><td>x</td></tr><tr><th>or</th></tr></table></div><h2>Findings</h2><h2>Timeline</h2>
    <p class="text">y</p><th>z</th>"""
    reader = PageWords()
    reader.feed(page)
    assert reader.words[1:] == ["rank N raised", "fix", "Timeline"]
    other = PageWords()
    other.feed(page.replace("p {}", "p { margin: 0 }"))
    assert reader.words[0] != other.words[0]


def test_the_pictures_are_small_and_shown() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")))
    for name in (LIVE_VIEW, FAILURE_PAGE):
        assert (PICTURES / name).stat().st_size <= MOST_BYTES
        assert len((PICTURES / FAILURE_WORDS).read_text().splitlines()) > 5
        assert re.search(rf"!\[[^\]]+\]\([^)]*pictures/{re.escape(name)}\)", pages), f"no page shows {name}"
