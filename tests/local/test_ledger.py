"""The ledger of real runs against what their ranks have logged: what is lost to a fault of known length.

The cases with torch and on hosts are a benchmark: `python -m bench ledger`. A loaded machine slows the start and the
end of processes, so what lies between them is compared with the same logs, not with the seconds that were asked for.
"""

from pathlib import Path

import pytest
from tests.hosts.bed import missing
from tests.local.running import LocalRun
from tests.measured_time import PROGRAM, deviations, read_moments, true_parts

from allranks.runs.directory import RunDirectory


def test_each_part_is_what_the_ranks_say(tmp_path: Path) -> None:
    """A slow start, a kill with lost steps, a rank that ignores SIGTERM for a while, and a second attempt."""
    words = "--steps 40 --each 0.15 --slow-start 3 --save-every 10 --kill-at 27 --slow-end 4"
    argv = [str(tmp_path), *words.split()]
    code = f"import runpy, sys\nsys.argv[1:] = {argv!r}\nrunpy.run_path({str(PROGRAM)!r})\n"
    run = LocalRun(tmp_path, code, "--retries", "1", "--grace", "30s")
    document = run.result()
    assert document["exit"] == 0
    attempts = read_moments(tmp_path)
    assert [min(moments.steps) for moments in attempts] == [0, 20]
    events, _ = RunDirectory(run.directory).read_lines()
    true = true_parts(events[0]["t"], attempts, (run.directory / "result.json").stat().st_mtime)
    assert true["teardown"] > 4 and true["start"] > 6 and true["useful"] > 5
    off = deviations(document["time_ledger"], true)
    ledger = document["time_ledger"]
    # Steps are looked at once a second, by a controller that may be late: no part of several seconds is lost or moved.
    assert max(off.values()) <= 3 and ledger["computed_twice"] > 0, (off, ledger, true)
    assert document["goodput"] == pytest.approx(ledger["useful"] / ledger["wall"], abs=1e-3)
    assert ledger["slow_share"] is None


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason="needs hosts")
def test_the_benchmark_of_the_ledger_meets_its_aims() -> None:
    """Kills, hangs and slow ends of known length, with torch, on virtual nodes and over ssh."""
    from bench import ledger  # noqa: PLC0415  (only this test needs the benchmarks)

    report = ledger.run(quick=True)
    missed = [row.label for row in report.rows if row.met is False]
    assert not missed and len(report.rows) == 4 * 2 * len(ledger.CASES), report
