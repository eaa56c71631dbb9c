"""The bandwidth for a prediction: a figure, or what a run of `allranks test` measured."""

from __future__ import annotations

from pathlib import Path

from allranks.errors import UsageError
from allranks.runs.directory import RunDirectory
from allranks.runs.tests import read_rows
from allranks.settings.units import size_of


def measured(text: str, runs_dir: str) -> float:
    """Bytes a second: `10GB`, or the best all_reduce bus bandwidth of a run, by its directory or name."""
    try:
        return float(size_of(text))
    except ValueError:
        pass
    run = RunDirectory.find(Path(runs_dir), text)
    rows = [row for row in read_rows(run).get("bandwidth", []) if row.get("collective") == "all_reduce"]
    rates = [float(row["busbw"]) for row in rows if isinstance(row.get("busbw"), (int, float)) and row["busbw"] > 0]
    if not rates:
        raise UsageError(f"--bandwidth {text}: no all_reduce was measured there; run allranks test --suite bandwidth")
    return max(rates)
