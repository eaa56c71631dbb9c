"""The ledger of a run's time in words: a line for the end of a run, rows for its page (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from allranks.runs.documents import TimeLedger
from allranks.text import format_elapsed, format_percent

LEAST = 0.01  # of the wall time: smaller parts are left out of the line
UNKNOWN = "unknown, fewer than two steps recognised (--step-pattern)"


class Part(NamedTuple):
    """A part of the ledger: its field, its name in a sentence, and what it is."""

    field: str
    name: str
    meaning: str


PARTS = (
    Part("scheduler", "waiting for the scheduler", "From the request for nodes until they are there."),
    Part("preflight", "preflight and rendezvous", "Until the first rank starts, with collective tests before it."),
    Part("imports", "imports before ranks start", "Nodes imported what their ranks are then forked with (--preload)."),
    Part("start", "start", "From the first rank's process to the first step: imports, init, loading of a checkpoint."),
    Part("useful", "useful steps", "From the first step to the last, each step once."),
    Part("slow_share", "waiting for stragglers", "What the other ranks waited for slow ones during useful steps."),
    Part("computed_twice", "computed twice", "Steps that an attempt before had computed already."),
    Part("without_steps", "in the program", "The program ran, and showed no step."),
    Part("hang", "hang", "From the last sign of progress until the hang was noticed, or was over."),
    Part("after_last_step", "after the last step", "An interrupted step, the last save, the end of the program."),
    Part("teardown", "teardown", "From the failure, the stop or the last rank's end until all ranks are ended."),
    Part("restart", "restart", "From the end of an attempt's ranks to the start of the next one's."),
    Part("unaccounted", "unaccounted", "No event says what happened."),
)


def goodput_line(ledger: TimeLedger, attempts: int) -> str:
    """Say what share of the time was useful, and where the rest went; empty where no step tells.

    Without a step it is said of runs that have lost time for sure: several attempts, or a hang.
    """
    goodput = ledger.goodput
    if goodput is None and attempts < 2 and not ledger.hang:
        return ""
    words = goodput_words(goodput)
    lost = []
    for part in PARTS:
        seconds: float | None = getattr(ledger, part.field)
        if seconds and part.field != "useful" and seconds >= LEAST * ledger.wall:
            lost.append(f"{format_elapsed(seconds)} {part.name}")
    return f"{words}: {', '.join(lost)}" if lost else words


def goodput_words(goodput: float | None) -> str:
    """Write a goodput for a table: `87 %`, or that it is unknown."""
    return UNKNOWN if goodput is None else format_percent(goodput)


def ledger_rows(ledger: TimeLedger) -> Sequence[tuple[Part, str, float | None]]:
    """Give each part with its time and its share of the wall time, unknown ones too. Without time there are none."""
    if ledger.wall <= 0:
        return []
    rows: list[tuple[Part, str, float | None]] = []
    for part in PARTS:
        seconds: float | None = getattr(ledger, part.field)
        if seconds is None:
            rows.append((part, "unknown", None))
        elif seconds > 0 or part.field in ("useful", "unaccounted"):
            rows.append((part, format_elapsed(seconds), min(1.0, seconds / ledger.wall)))
    return rows
