"""The node directory belongs to its user alone: what another user could have prepared there is refused."""

import os
import shutil
import stat
import subprocess
import tempfile
import time
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


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (by_mode, "may be entered by others"),
        (lambda place: ((place / "x").mkdir(mode=0o700), (place / OWN).symlink_to(place / "x")), "symbolic link"),
        (lambda place: (place / OWN).write_text(""), "is not a directory"),
        pytest.param(
            lambda place: ((place / OWN).mkdir(mode=0o700), os.chown(place / OWN, 20200, 20200)),
            "belongs to user 20200",
            marks=pytest.mark.skipif(os.getuid() != 0, reason="chown needs root"),
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


@pytest.mark.skipif(shutil.which("systemd-tmpfiles") is None, reason="no systemd-tmpfiles here")
def test_a_cleaner_of_old_files_leaves_a_directory_that_is_held(base: Path) -> None:
    path = Path(make(str(base), "run-1", "node_00"))
    (path / "runner.py").write_text("")
    conf = base / "clean.conf"
    conf.write_text(f"e {base / OWN} - - - 1us\n")

    def clean() -> None:
        subprocess.run(["systemd-tmpfiles", "--clean", str(conf)], check=True, capture_output=True)

    held = node_directory.hold(str(path))
    assert held is not None
    clean()
    assert (path / "runner.py").exists() and (path / "spool").is_dir()
    os.close(held)
    clean()
    assert not (path / "runner.py").exists(), "it would have been removed"


def test_what_was_removed_is_written_again(base: Path) -> None:
    path = make(str(base), "run-1", "node_00")
    for name in ("runner.py", "fabric.zip", "node.log"):
        (Path(path) / name).write_text(name)
    upkeep = node_directory.Upkeep(path)
    assert upkeep.restore() == []
    (Path(path) / "runner.py").unlink()
    (Path(path) / "node.log").unlink()
    (Path(path) / "spool").rmdir()
    assert upkeep.restore() == ["spool", "runner.py"]
    assert (Path(path) / "runner.py").read_text() == "runner.py"


def test_times_are_renewed_each_hour(base: Path) -> None:
    path = make(str(base), "run-1", "node_00")
    upkeep = node_directory.Upkeep(path)
    for place in (path, f"{path}/spool"):
        os.utime(place, (1e9, 1e9))
    upkeep.look(time.monotonic())
    assert os.stat(path).st_mtime == 1e9
    upkeep.look(time.monotonic() + node_directory.RENEWED)
    assert min(os.stat(place).st_mtime for place in (path, f"{path}/spool")) > 1.7e9
