"""A page that shows something else than its commands print is found, with the line and a diff."""

from pathlib import Path

import pytest
from tests.docs import blocks
from tests.docs.blocks import Page, read
from tests.docs.places import Place, run_page

PAGE = """\
# A page
<!-- file: greet.sh -->
```bash
#!/bin/bash
echo "hello $1, $(cat name)"
```
<!-- before: echo you > name -->
<!-- after: rm name -->
```console
$ ./greet.sh 4
hello 4, you
$ printf 'one\\ntwo\\nthree\\n' > many; \\
  cat many
one
…
three
```
<!-- not run: it would fail -->
```console
$ false
```
Text.

```console
$ ls
greet.sh
many
```
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    monkeypatch.setattr(blocks, "ROOT", tmp_path)
    return written(tmp_path, PAGE)


def written(directory: Path, text: str) -> Page:
    path = directory / f"page{len(list(directory.glob('page*')))}.md"
    path.write_text(text)
    return read(path)


def test_a_page_that_is_right_has_no_drift(page: Page, tmp_path: Path) -> None:
    assert [block.language for block in page.blocks] == ["bash", "console", "console", "console"]
    assert [block.reason_not_run for block in page.consoles] == [None, "it would fail", None]
    assert list(run_page(page, Place(tmp_path))) == []


@pytest.mark.parametrize(
    ("right", "wrong", "line", "difference"),
    [
        ("hello 4, you", "hello 5, you", 10, "-hello 5, you\n+hello 4, you"),
        ("three\n```", "four\n```", 12, "-four"),
        ("many\n```", "```", 25, "+many"),
        ("$ ls\n", "$ exit 3\n$ ls\n", 25, "exit 3"),
    ],
)
def test_a_drift_is_given_with_its_line(
    page: Page, tmp_path: Path, right: str, wrong: str, line: int, difference: str
) -> None:
    other = written(tmp_path, PAGE.replace(right, wrong))
    (found,) = run_page(other, Place(tmp_path))
    assert found.startswith(f"{other.name}:{line}: $ ")
    assert difference in found


def test_what_goes_on_in_the_place_is_found_and_ended(page: Page, tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.run("sleep 600 > /dev/null 2>&1 & echo started").lines == ["started"]
    assert len(place.processes()) == 1
    place.end_all()
    assert place.processes() == []
