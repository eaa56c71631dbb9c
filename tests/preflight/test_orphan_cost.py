"""What the look at a node reads does not grow with what lies there: 200 nodes of one machine look at each other."""

import json
from pathlib import Path

import pytest
from tests.preflight.checks.recorded import RecordedHost

from allranks.preflight.checks import leftovers, limits

CASES = Path(__file__).parent / "checks"


class ListingHost(RecordedHost):
    """A recorded host that lists what was read of it."""

    def __init__(self, case, changed=()):
        path = CASES / case
        document = json.loads(path.read_text())
        recording = document["hosts"]["h1"]
        recording["files"].update(dict(changed))
        super().__init__(document["request"], recording, path.parent)
        self.paths_read = []

    def read(self, path, limit=65536):
        self.paths_read.append(path)
        return super().read(path, limit)

    def journals_read(self):
        return [path for path in self.paths_read if path.endswith("journal.jsonl")]


def test_only_the_journals_of_processes_that_carry_a_tag_are_read():
    others = {f"/tmp/allranks-1001/run{n}/n0/journal.jsonl": "{}\n" for n in range(50)}
    host = ListingHost("leftovers/a_live_run.json", others)
    assert leftovers.collect(host).runs == {}
    assert host.journals_read() == ["/tmp/allranks-1001/k3x9/n0/journal.jsonl"]


@pytest.mark.parametrize("tag", ["../../etc/x", "k3x9/../n0", "k3x9", "x//etc/passwd", "k3x9/n0/n1", "-x/n0", "k\n/n0"])
def test_a_tag_that_is_not_of_this_program_names_no_file(tag):
    environ = f"PATH=/usr/bin\0ALLRANKS_MARK={tag}\0RANK=0\0WORLD_SIZE=8\0MASTER_ADDR=h1\0"
    host = ListingHost("leftovers/a_live_run.json", {"/proc/500/environ": environ})
    assert list(leftovers.collect(host).runs) == [tag.partition("/")[0]]
    assert host.journals_read() == []


def test_what_dials_is_in_the_way_of_nothing():
    environ = "PATH=/usr/bin\0ALLRANKS_MARK=k3x8/dial_01\0"
    host = ListingHost("leftovers/a_live_run.json", {"/proc/500/environ": environ})
    assert leftovers.collect(host).runs == {}


def test_processes_are_not_counted_for_root_whom_no_limit_of_them_binds():
    host = ListingHost("limits/root_has_no_limit_of_processes.json", {"/proc/7/status": "Uid:\t0\t0\nThreads:\t9\n"})
    assert "nproc_used" not in limits.collect(host)
    assert "/proc/7/status" not in host.paths_read
