"""Where fetched files land: nothing that a node names leads out of the directory, and pieces go on."""

import hashlib
import os
from pathlib import Path

import pytest

from allranks.runs.fetched import Landing, NotAPath, is_wanted, merge, part_name, parts_of


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/.", "a\0b", "a\nb", "\x1b[2J", "x" * 256,
     "a/" * 3000 + "b", "\udcff"],
)  # fmt: skip
def test_a_path_that_could_lead_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(NotAPath):
        parts_of(path)


def test_a_pattern_is_for_names_and_with_a_slash_for_paths() -> None:
    paths = ["model.pt", "ckpt/step_1/model.pt", "ckpt/step_1/log.txt", "odd.pt.d/x"]
    assert [p for p in paths if is_wanted(p, "*.pt")] == paths[:2]
    assert [p for p in paths if is_wanted(p, "ckpt/*")] == paths[1:3]
    assert [p for p in paths if is_wanted(p, "step_1")] == paths[1:3]
    assert [p for p in paths if is_wanted(p, None)] == paths


def arrives(landing: Landing, path: str, offset: int, data: bytes, whole: bytes) -> bool:
    """This from its offset on, of a file that is `whole` where it comes from."""
    arriving = landing.open(path, offset)
    arriving.add(data)
    return arriving.finish(len(whole), hashlib.sha256(whole).hexdigest())


def test_what_was_cut_off_goes_on_and_is_compared_as_a_whole(tmp_path: Path) -> None:
    landing = Landing(tmp_path / "top")
    first = landing.open("a/b.bin", 0)
    first.add(b"one ")
    first.close()
    assert landing.present("a/b.bin") == (4, False)
    assert not (tmp_path / "top" / "a" / "b.bin").exists()
    assert arrives(landing, "a/b.bin", 4, b"two", b"one two")
    assert (tmp_path / "top" / "a" / "b.bin").read_bytes() == b"one two"
    assert landing.present("a/b.bin") == (7, True)
    assert (tmp_path / "top" / "a" / "b.bin").stat().st_mode & 0o777 == 0o600


def test_a_file_that_has_grown_goes_on_and_one_that_differs_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"abc")
    landing = Landing(tmp_path)
    assert arrives(landing, "log", 3, b"def", b"abcdef") and (tmp_path / "log").read_bytes() == b"abcdef"
    assert not arrives(landing, "log", 6, b"", b"ABCDEF")
    assert os.listdir(tmp_path) == []


def test_links_in_the_directory_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    top = tmp_path / "top"
    top.mkdir()
    (top / "door").symlink_to(outside)
    (top / part_name("file")).symlink_to(outside / "stolen")
    landing = Landing(top)
    for path in ("door/x", "file"):
        with pytest.raises(OSError, match=r".*"):
            landing.open(path, 0)
    (top / "target").symlink_to(outside / "also")
    assert arrives(landing, "target", 0, b"x", b"x")
    assert (top / "target").read_bytes() == b"x" and not (top / "target").is_symlink()
    assert os.listdir(outside) == []


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / part_name("file"))
    with pytest.raises(OSError, match="another kind"):
        Landing(tmp_path).open("file", 0)


def test_the_longest_name_has_room_for_its_piece(tmp_path: Path) -> None:
    assert arrives(Landing(tmp_path), "x" * 255, 0, b"1", b"1")
    assert os.listdir(tmp_path) == ["x" * 255]


def written(top: Path, files: dict[str, str]) -> tuple[Path, list[str]]:
    for path, text in files.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(text)
    return top, list(files)


def test_files_of_different_names_are_together_and_those_that_differ_are_named(tmp_path: Path) -> None:
    first = written(tmp_path / "a", {"ck/0": "x", "same": "s", "log": "1", "odd": "file"})
    second = written(tmp_path / "b", {"ck/1": "y", "same": "s", "log": "2", "odd/inner": "directory"})
    tree = tmp_path / "tree"
    for _ in range(2):
        assert merge([first, second], tree) == ["log", "odd/inner"]
        there = {str(path.relative_to(tree)): path.read_text() for path in tree.rglob("*") if path.is_file()}
        assert there == {"ck/0": "x", "ck/1": "y", "same": "s", "log": "1", "odd": "file"}
    (tmp_path / "a/log").unlink()
    (tmp_path / "a/log").write_text("newer")
    merge([first, second], tree)
    assert (tree / "log").read_text() == "newer"
