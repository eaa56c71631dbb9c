"""allranks logs: the output of all ranks, merged; or their last metrics."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer

from allranks.report.fold import Folder
from allranks.runs.directory import RunDirectory
from allranks.runs.reading import LogReader
from allranks.spec.units import parse_duration

from .places import find_run

PAUSE = 0.2
TAIL = 256 << 10


def command(
    run: Annotated[str | None, typer.Argument(help="run directory or name (default: the newest)")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="go on until the run ends")] = False,
    node: Annotated[list[str] | None, typer.Option("--node", help="only this node (repeatable)")] = None,
    rank: Annotated[list[int] | None, typer.Option("--rank", help="only this rank (repeatable)")] = None,
    since: Annotated[str | None, typer.Option("--since", help="only what arrived in the last 10m")] = None,
    metrics: Annotated[bool, typer.Option("--metrics", help="metrics lines instead of output")] = False,
    number: Annotated[int, typer.Option("-n", help="with --metrics: the last N lines of each rank")] = 5,
    no_fold: Annotated[bool, typer.Option("--no-fold", help="show identical lines of all ranks")] = False,
    runs_dir: Annotated[str | None, typer.Option(help="where run directories are (runs)")] = None,
    json_: Annotated[bool, typer.Option("--json", help="a JSON object a line")] = False,
) -> None:
    """Output of all ranks, each line with its node and rank.

    Example: allranks logs -f --rank 0
    """
    found = find_run(run, runs_dir)
    if metrics:
        _metrics(found, number, rank or [], json_)
        return
    reader = LogReader(found, tuple(node or ()), tuple(rank or ()))
    if since is not None:
        reader.skip_to_time(time.time() - parse_duration(since, "--since"))
    folder = Folder(fold=not no_fold and not json_, colour=sys.stdout.isatty(), most=None)
    folder.ranks = int((found.read_document("status.json") or {}).get("world_size") or 0)
    while True:
        over = found.read_document("result.json") is not None or not found.controller_alive()
        for name, number_, data in reader.fresh():
            if json_:
                _as_json(name, number_, data)
            else:
                folder.feed(name, number_, data, time.time())
                _print(folder.lines(time.time()))
        if over or not follow:
            _print(folder.rest(time.time()))
            return
        _print(folder.lines(time.time()))
        time.sleep(PAUSE)


def _print(lines: list[str]) -> None:
    if lines:
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()


def _as_json(node: str, rank: int, data: bytes) -> None:
    for line in data.decode("utf-8", "replace").splitlines():
        sys.stdout.write(json.dumps({"node": node, "rank": rank, "line": line}) + "\n")
    sys.stdout.flush()


def _metrics(run: RunDirectory, number: int, ranks: list[int], json_: bool) -> None:
    """The last lines of each rank's metrics file."""
    for path in sorted((run.path / "outputs").glob("rank_*_metrics.jsonl")):
        rank = int(path.name.split("_")[1])
        if ranks and rank not in ranks:
            continue
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            last = file.read().decode("utf-8", "replace").splitlines()[-number:]
        for line in last:
            print(json.dumps({"rank": rank, "metrics": _loads(line)}) if json_ else f"[{rank}] {line}")


def _loads(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return line
