"""allranks top: a run at a glance, drawn again each second until its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from allranks.engines import settle
from allranks.exitcodes import DONE
from allranks.protocol.codec import document_line
from allranks.report.fullscreen import FullScreen, is_interactive
from allranks.report.nodetable import without_clock
from allranks.report.terminal import shows_colour
from allranks.report.topview import ASCII, TopSnapshot, top_lines
from allranks.runs.documents import ORPHANED, OVER, RunProgress
from allranks.runs.watching import RunWatch

from .chosen_run import find_run

KEYS_AT_END = "q"
FOOTER = "q ends this view, the run goes on"
TICK = 0.25  # seconds between two looks at the window's size
PRINTED_LINES = 150  # where standard output is not a terminal: a hundred nodes whole, of more the worst
PRINTED_WIDTH = 160


def command(run: str | None, on: str | None, once: bool, interval: float, runs_dir: str | None, json_: bool) -> int:
    """Show a run: once, as JSON lines, or in the whole terminal until a key ends it."""
    directory = find_run(run, runs_dir, on)
    settle(directory, time.time())
    watch = RunWatch(directory)
    if json_:
        return _print_json(watch, once, interval)
    if once or not is_interactive():
        shown = snapshot(watch, time.time())
        lines = top_lines(shown, watch.events, PRINTED_WIDTH, PRINTED_LINES, _colour(), footer="")
        print("\n".join(_printable(lines)))
        return DONE
    with FullScreen(sys.stdout, sys.stdin) as screen:
        _draw_until_left(watch, screen, interval)
    return DONE


def _print_json(watch: RunWatch, once: bool, interval: float) -> int:
    while True:
        shown = snapshot(watch, time.time())
        print(document_line(shown), flush=True)
        if once or shown.state in (*OVER, ORPHANED):
            return DONE
        time.sleep(interval)


def _draw_until_left(watch: RunWatch, screen: FullScreen, interval: float) -> None:
    next_look = 0.0
    size = (0, 0)
    shown: TopSnapshot | None = None
    try:
        while True:
            now = time.monotonic()
            is_due = now >= next_look
            if is_due:
                shown = snapshot(watch, time.time())
                next_look = time.monotonic() + interval
            if (is_due or screen.size != size) and shown is not None:
                size = screen.size
                screen.draw(_printable(top_lines(shown, watch.events, *size, _colour(), FOOTER)))
            if KEYS_AT_END in screen.key(TICK).lower():
                return
    except KeyboardInterrupt:
        return


def snapshot(watch: RunWatch, now: float) -> TopSnapshot:
    """Look at a run. `now`: unix seconds."""
    condition = watch.look()
    report = condition.report(watch.run, now)
    progress = RunProgress.of(report.nodes)
    started = watch.run.started
    elapsed = max(0.0, now - started) if started else None
    if condition.result is not None:
        elapsed = condition.result.timing.total
    is_over = condition.state in (*OVER, ORPHANED)
    if is_over:
        report = replace(report, nodes=tuple(map(without_clock, report.nodes)))
    return TopSnapshot(
        **vars(report),
        elapsed_s=round(elapsed, 3) if elapsed is not None else None,
        step=progress.step,
        total_steps=progress.total,
        rate=None if is_over else progress.rate,
        eta_s=None if is_over else progress.seconds_left,
        loss=watch.loss,
        warnings=watch.warnings,
    )


def _colour() -> bool:
    return shows_colour(sys.stdout)


def _printable(lines: Sequence[str]) -> list[str]:
    if (sys.stdout.encoding or "").lower().replace("-", "") in ("utf8", "utf16"):
        return list(lines)
    return [line.translate(ASCII) for line in lines]
