"""The node directory belongs to its user alone: what another user could have prepared there is refused."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.agent import node_directory
from allranks.agent.node_directory import NoNodeDir, find, make

OWN = f"allranks-{os.getuid()}"


@pytest.fixture
def base() -> Iterator[Path]:
    """A short path: a Unix socket in a node directory has room for 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="nd-") as path:
        yield Path(path)


def test_no_other_user_may_enter_or_read(base: Path) -> None:
    path = Path(make(str(base), "run-1", "node_00"))
    made = [base / OWN, path.parent, path, *path.iterdir()]
    assert {stat.S_IMODE(entry.stat().st_mode) for entry in made} == {0o700}
    assert find(str(base), "run-1", "node_00") == str(path)


def by_mode(place: Path) -> None:
    (place / OWN).mkdir()
    (place / OWN).chmod(0o777)


def by_link(place: Path) -> None:
    (place / "elsewhere").mkdir(mode=0o700)
    (place / OWN).symlink_to(place / "elsewhere")


def by_file(place: Path) -> None:
    (place / OWN).write_text("")


def by_owner(place: Path) -> None:
    (place / OWN).mkdir(mode=0o700)
    os.chown(place / OWN, 20200, 20200)


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (by_mode, "may be entered by others"),
        (by_link, "symbolic link"),
        (by_file, "is not a directory"),
        pytest.param(
            by_owner, "belongs to user 20200", marks=pytest.mark.skipif(os.getuid() != 0, reason="chown needs root")
        ),
    ],
)
def test_a_directory_that_another_user_could_have_made_is_refused(prepare, reason, base: Path) -> None:
    prepare(base)
    with pytest.raises(NoNodeDir, match=reason):
        make(str(base), "run-1", "node_00")
    assert find(str(base), "run-1", "node_00") is None


def test_the_next_base_is_taken(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = base / "a", base / "b"
    first.mkdir()
    second.mkdir()
    by_mode(first)
    monkeypatch.setattr(node_directory, "bases", lambda wanted: [str(first), str(second)])
    assert make(None, "run-1", "node_00").startswith(str(second))
