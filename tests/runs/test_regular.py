"""Files of a run are replaced as a whole or not at all, and a line that was cut stays apart from the next."""

import os
import resource
import stat
from pathlib import Path

import pytest

from allranks.cli.report import _write
from allranks.findings import Verdict
from allranks.report.record import Record
from allranks.report.redact import Redactor
from allranks.runs.logdiagnosis import scan
from allranks.runs.regular import append, open_dense, replacing


def test_a_file_is_replaced_with_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "figures"
    file.write_bytes(b"old")
    with replacing(file, 0o640) as stream:
        stream.write(b"new")
        assert file.read_bytes() == b"old", "others see the old one until all is written"
    assert file.read_bytes() == b"new" and stat.S_IMODE(file.stat().st_mode) == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["figures"]


def test_what_cannot_be_written_leaves_the_old_file_alone_in_its_place(tmp_path: Path) -> None:
    file = tmp_path / "figures"
    file.write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="too large"), replacing(file) as stream:
            stream.write(bytes(1 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"figures": b"old"}


def test_a_line_behind_one_that_was_cut_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    assert append(file, b"one\n") == 4
    with file.open("ab") as stream:
        stream.write(b"tw")
    assert append(file, b"three\n") == len(file.read_bytes())
    assert file.read_bytes() == b"one\ntw\nthree\n" and stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "of_another", tmp_path / "lines"
    target.write_bytes(b"")
    os.symlink(target, link)
    with pytest.raises(OSError, match="symbolic links"):
        append(link, b"one\n")
    with replacing(link) as stream:
        stream.write(b"two\n")
    assert target.read_bytes() == b"" and link.read_bytes() == b"two\n" and not link.is_symlink()


def test_a_page_follows_no_planted_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    page = tmp_path / "shared" / "r.html"
    page.parent.mkdir()
    (page.parent / ".r.html.part").symlink_to(victim)
    (page.parent / f".r.html.{os.getpid()}.part").symlink_to(victim)
    _write(Record("run", "runs/run", "failed", Verdict()), page, Redactor())
    assert victim.read_text() == "mine"
    assert page.read_text().startswith("<!")
    assert stat.S_IMODE(page.stat().st_mode) == 0o600


def test_a_hole_of_terabytes_is_not_read(tmp_path: Path) -> None:
    """One frame at offset 8 TiB made `logs`, `report` and `diagnose` read for hours."""
    path = tmp_path / "rank_000.log"
    path.write_bytes(b"first\n")
    with path.open("r+b") as file:
        file.seek(8 << 40)
        file.write(b"\nlast\n")
    with open_dense(path) as dense:
        size = dense.seek(0, os.SEEK_END)
        assert size < 1 << 20
        dense.seek(0)
        assert dense.read(6) == b"first\n"
        assert [line.strip(b"\0") for line in dense.read().splitlines()] == [b"", b"last"]
        dense.seek(size - 5)
        assert dense.read(100) == b"last\n"
    (part,) = [part for _, parts in scan([path]) for part in parts]
    assert part.lines == 3


def test_a_file_without_holes_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)) * 100)
    with open_dense(path) as dense:
        assert dense.read() == path.read_bytes()
