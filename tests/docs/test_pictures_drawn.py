"""The pictures of README and docs show what a run shows today: drawn again from a real run, and compared."""

from pathlib import Path

import pytest
from tests.browser.chromium import find
from tests.pictures import (
    FAILURE_WORDS,
    LIVE_VIEW,
    MOST_BYTES,
    PICTURES,
    lines_of,
    photograph,
    show_run,
    wording,
    words_of_page,
)

pytestmark = [pytest.mark.docs, pytest.mark.torch]
STALE = "the picture shows something else than a run: `make pictures` draws it again"


def test_pictures_are_of_today(tmp_path: Path) -> None:
    shown = show_run(tmp_path)
    stored = (PICTURES / LIVE_VIEW).read_text()
    assert wording(lines_of(shown.live_view)) == wording(lines_of(stored)), STALE
    assert words_of_page(shown.page) == (PICTURES / FAILURE_WORDS).read_text(), STALE
    if find() is not None:
        picture = photograph(shown.page, tmp_path / "profile")
        assert picture[8:12] == b"WEBP" and len(picture) <= MOST_BYTES
