"""allranks status: what every node and rank of a run is doing."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import typer

from allranks.report.live import label, node_line
from allranks.runs.directory import RunDirectory

from .places import find_run

OVER = ("done", "failed", "stopped", "orphaned")


def command(
    run: Annotated[str | None, typer.Argument(help="run directory or name (default: the newest)")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="again every second until it ends")] = False,
    runs_dir: Annotated[str | None, typer.Option(help="where run directories are (runs)")] = None,
    json_: Annotated[bool, typer.Option("--json", help="JSON on stdout; with --watch a line each second")] = False,
) -> None:
    """Nodes and ranks of a run: states, pids, steps, seconds since the last output.

    Example: allranks status --watch
    """
    found = find_run(run, runs_dir)
    drawn = 0
    while True:
        document = describe(found, time.time())
        if json_:
            print(json.dumps(document), flush=True)
        else:
            drawn = _draw(lines(document), drawn if watch and sys.stdout.isatty() else 0)
        if not watch or document["state"] in OVER:
            return
        time.sleep(1.0)


def _draw(text: list[str], over: int) -> int:
    sys.stdout.write((f"\x1b[{over}A\x1b[J" if over else "") + "\n".join(text) + "\n")
    sys.stdout.flush()
    return len(text)


def describe(run: RunDirectory, now: float) -> dict[str, Any]:
    """The document of the design: run, state, nodes, ranks."""
    status = run.read_document("status.json") or {"nodes": []}
    result = run.read_document("result.json")
    nodes = [{**n, "ranks": [_rank(r, now) for r in n["ranks"]]} for n in status["nodes"]]
    return {
        "schema": 1,
        "run": run.name,
        "directory": str(run.path),
        "state": run.state(),
        "attempt": status.get("attempt", 0),
        "master": status.get("master"),
        "world_size": status.get("world_size"),
        "verdict": result.get("verdict") if result else None,
        "nodes": nodes,
    }


def _rank(rank: dict[str, Any], now: float) -> dict[str, Any]:
    last = rank.get("last_output")
    quiet = round(now - last, 1) if last is not None else None
    return {**rank, "last_output_s": quiet}


def lines(document: dict[str, Any]) -> list[str]:
    """For people: a line a run, a line a node, the ranks' pids where they differ from waiting."""
    master = document.get("master") or {}
    at = f", master {master['address']}:{master['port']}" if master.get("address") else ""
    found = [f"{document['run']}: {document['state']}, {document['world_size'] or '?'} ranks{at}"]
    if document["state"] == "orphaned":
        found.append("its launcher is gone: `allranks attach` takes it over, `allranks stop` ends it")
    now = time.time()
    width = max([len(label(n)) for n in document["nodes"]] + [4])
    for node in document["nodes"]:
        found.append(node_line(node, now, width))
        pids = ", ".join(f"{r['rank']}:{r['pid']}" for r in node["ranks"] if r.get("pid"))
        if pids and document["state"] not in ("done", "failed", "stopped"):
            found.append(f"{'':<{width}}  rank:pid {pids}")
    verdict = document.get("verdict")
    if verdict:
        found.append(f"verdict: {verdict['message']}")
    return found
