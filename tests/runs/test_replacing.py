"""One way to replace a file: new, of a name that nobody knows before, 0600."""

import os
import stat

from allranks.cli.report import _write
from allranks.findings import Verdict
from allranks.report.record import Record
from allranks.report.redact import Redactor
from allranks.runs.regular import replacing


def test_a_page_follows_no_planted_link(tmp_path):
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


def test_a_planted_link_in_its_own_place_is_replaced(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "x"
    victim.write_text("mine")
    path.symlink_to(victim)
    with replacing(path) as file:
        file.write(b"new")
    assert (victim.read_text(), path.read_text()) == ("mine", "new")
