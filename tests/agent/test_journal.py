"""A line that a full disk cut short takes nothing of the next one with it."""

import subprocess
import sys
from pathlib import Path

import pytest

from allranks.agent.journal import AgentDeath, Journal, read_journal
from allranks.protocol.foreign import ReportMessage
from allranks.protocol.messages import StartedMessage
from allranks.protocol.processes import AgentBegun

pytestmark = pytest.mark.processes

# RLIMIT_FSIZE cuts a write as a full disk does (write(2)); Python ignores SIGXFSZ.
PROGRAM = """
import resource, sys
from allranks.agent.journal import AgentDeath, Journal, DroppedBytes
journal = Journal(sys.argv[1])
journal.note(DroppedBytes({"0/0/0": 1}, 1.0))
resource.setrlimit(resource.RLIMIT_FSIZE, (60, resource.RLIM_INFINITY))
journal.note(DroppedBytes({"0/0/0": 2}, 2.0))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal = Journal(sys.argv[1]) if "again" in sys.argv else journal
journal.note(AgentDeath("ended", 3.0))
"""


@pytest.mark.parametrize("words", [[], ["again"]])
def test_the_entry_after_a_cut_one_is_read(words: list[str], tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), *words], check=True)
    past = read_journal(str(tmp_path))
    assert past.dropped == {"0/0/0": 1}
    assert past.death is not None and past.death.t == 3.0
    assert b"}{" not in (tmp_path / "journal.jsonl").read_bytes()


def test_a_program_that_reports_without_end_takes_nothing_from_who_comes_after_the_agent(tmp_path: Path) -> None:
    """16,384 reports made 201 MB, of which the first 64 were read."""
    journal = Journal(str(tmp_path))
    journal.note(AgentBegun(1, ((1, 2),), ("a", "b", "c"), 1.0))
    report = ReportMessage("leaving", 3, threads=("t" * 200,) * 64)
    for _ in range(2000):
        journal.keep(report)
    path = tmp_path / "journal.jsonl"
    assert path.stat().st_size < 1000
    with path.open("ab") as file:  # as an older agent has left it
        file.write((b"x" * 1023 + b"\n") * (66 << 10))
    journal.keep(StartedMessage(3, 77, 1))
    journal.note(AgentDeath("was killed", 9.0))
    past = read_journal(str(tmp_path))
    assert past.begun is not None and past.death is not None
    assert past.attempt.ranks[3].pid == 77


def test_ranks_of_an_attempt_before_are_none_of_the_last_one(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    for message in (StartedMessage(0, 70, 1), StartedMessage(0, 80, 2), StartedMessage(1, 71, 1)):
        journal.keep(message)
    attempt = read_journal(str(tmp_path)).attempt
    assert (attempt.attempt, {rank: one.pid for rank, one in attempt.ranks.items()}) == (2, {0: 80})
