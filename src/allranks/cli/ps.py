"""allranks ps: the runs of this place, or of all runs directories that are known, a line each."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from allranks.exitcodes import DONE
from allranks.protocol.codec import document_line
from allranks.report.runtable import brief_lines
from allranks.report.terminal import STATE_STYLES, paint, shows_colour, window_size
from allranks.runs.brief import RunBrief, is_over, read_brief
from allranks.runs.directory import RunDirectory
from allranks.runs.known_directories import known_runs_directories, runs_elsewhere
from allranks.text import count_of

from .chosen_run import list_runs, runs_directory

MOST_ELSEWHERE = 8  # runs on other machines that are named


def command(all_: bool, number: int, quiet: bool, runs_dir: str | None, json_: bool) -> int:
    """List runs: those that go on, and the newest that are over."""
    directories = [runs_directory(runs_dir)]
    if all_:
        here = {path.resolve() for path in directories}
        elsewhere = [path for path in known_runs_directories(os.environ) if path.resolve() not in here]
        directories += reversed(elsewhere)
    listings = {directory: _list_directory(directory, number) for directory in directories}
    runs = [brief for listing in listings.values() for brief in listing.runs]
    if json_:
        print(document_line(RunList(runs, sum(listing.left_out for listing in listings.values()))))
        return DONE
    if quiet:
        for run in runs:
            print(run.run)
        return DONE
    width, _ = window_size(sys.stdout, 0, 0)  # 0: no terminal, any width
    blocks = [
        "\n".join(_listing_lines(directory, listing, width, names_directory=all_))
        for directory, listing in listings.items()
        if listing.runs or not all_
    ]
    blocks += _elsewhere(directories, runs)
    print("\n\n".join(blocks) or "no runs are known: each run's directory is noted when it begins")
    return DONE


class RunList(NamedTuple):
    """What `ps --json` prints: the newest run first. `left_out` counts older runs that are over."""

    runs: Sequence[RunBrief]
    left_out: int


def _list_directory(directory: Path, number: int) -> RunList:
    shown: list[RunDirectory] = []
    ended = 0
    for run in reversed(list_runs(directory)):
        if is_over(run):
            ended += 1
            if ended > number:
                continue
        shown.append(run)
    return RunList([read_brief(run) for run in shown], max(0, ended - number))


def _elsewhere(directories: Sequence[Path], listed: Sequence[RunBrief]) -> list[str]:
    """Name the newest runs of these directories that have their controller on another machine, which are not asked."""
    shown = {brief.run for brief in listed}
    here = {os.path.abspath(directory) for directory in directories}
    runs = [run for run in runs_elsewhere(os.environ) if run.runs_dir in here and run.run not in shown]
    lines = [f"on {run.host}: {run.run} (allranks status {run.run})" for run in runs[: -MOST_ELSEWHERE - 1 : -1]]
    return ["\n".join(lines)] if lines else []


def _listing_lines(directory: Path, listing: RunList, width: int, names_directory: bool) -> list[str]:
    lines = [f"{directory.absolute()}:"] if names_directory else []
    if not listing.runs:
        return [*lines, f"no run in {directory}/. `allranks ps --all` lists those of other directories"]
    heading, *rows = brief_lines(listing.runs, time.time(), width)
    colour = shows_colour(sys.stdout)
    styles = [STATE_STYLES.get(run.state, "") for run in listing.runs]
    lines += [heading, *(paint(row, style, colour) for row, style in zip(rows, styles, strict=True))]
    if listing.left_out:
        everything = len(listing.runs) + listing.left_out
        lines.append(f"… and {count_of(listing.left_out, 'older run')}: allranks ps -n {everything}")
    return lines
