"""allranks status: what every node and rank of a run is doing."""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import Any

from allranks.engines import engine_of, settle
from allranks.exitcodes import DONE
from allranks.report.live import label, node_line
from allranks.report.terminal import redraw_lines
from allranks.runs.directory import OVER, RunDirectory
from allranks.settings.parsers import FLAG
from allranks.settings.table import SettingRow
from allranks.text import count_of

from .chosen_run import find_run
from .declare import RUN, RUNS_DIR, Declared


def command(run: str | None, watch: bool, runs_dir: str | None, json_: bool) -> int:
    """Describe a run, once or every second until it ends."""
    run_dir = find_run(run, runs_dir)
    drawn: list[str] | None = None
    while True:
        document = describe(run_dir, time.time())
        if json_:
            print(json.dumps(document), flush=True)
        else:
            drawn = _draw(lines(document), drawn if watch and sys.stdout.isatty() else None, watch)
        if not watch or document["state"] in (*OVER, "orphaned"):
            return DONE
        time.sleep(1.0)


COMMAND = Declared(
    "status",
    "Nodes and ranks of a run: states, pids, steps, seconds since the last output.",
    ("status --watch",),
    command,
    arguments=(RUN,),
    options=(
        SettingRow("watch", FLAG, "show it again every second until the run ends"),
        RUNS_DIR,
        SettingRow("json_", FLAG, "print JSON. With --watch a line each second", options="--json"),
    ),
)


def _draw(text: list[str], before: list[str] | None, watch: bool) -> list[str]:
    """Over what was drawn before, which therefore fits the window."""
    if watch and sys.stdout.isatty():
        columns, rows = shutil.get_terminal_size()
        text = [line[: columns - 1] for line in text[: max(1, rows - 1)]]
    redraw_lines(sys.stdout, len(before or ()), text)
    return text


def describe(run: RunDirectory, now: float) -> dict[str, Any]:
    """The document of the design: run, state, nodes, ranks."""
    settle(run, now)
    state = run.state()  # first: what it says is not newer than what follows
    status = run.read_document("status.json") or {}
    result = run.read_document("result.json")
    nodes = [{**n, "ranks": [_rank(r, now) for r in n.get("ranks") or []]} for n in status.get("nodes") or []]
    return {
        "schema": 1,
        "run": run.name,
        "directory": str(run.path),
        "state": state,
        **engine_of(run).condition(run, state),
        "attempt": status.get("attempt", 0),
        "master": status.get("master"),
        "world_size": status.get("world_size"),
        "verdict": result.get("verdict") if result else None,
        "nodes": nodes,
    }


def _rank(rank: dict[str, Any], now: float) -> dict[str, Any]:
    last = rank.get("last_output")
    quiet = round(max(0.0, now - last), 1) if last is not None else None
    return {**rank, "last_output_s": quiet}


def lines(document: dict[str, Any]) -> list[str]:
    """For people: a line a run, a line a node, and of a run in progress the ranks' pids."""
    master = document.get("master") or {}
    at = f", master {master['address']}:{master['port']}" if master.get("address") and master.get("port") else ""
    size = document["world_size"]
    ranks = count_of(size, "rank") if isinstance(size, int) and size else "? ranks"
    described = [f"{document['run']}: {document['state']}, {ranks}{at}"]
    if document.get("job"):
        job = document["job"]
        described.append(f"Slurm job {job['id']}: {job['state']}" + (f", {job['why']}" if job["why"] else ""))
    elif document["state"] == "orphaned" and document.get("engine"):
        described.append(f"it goes on in {document['engine']}. `allranks attach` follows it, `allranks stop` ends it")
    elif document["state"] == "orphaned":
        described.append("its controller has ended. `allranks attach` takes it over, `allranks stop` ends it")
    over = document["state"] in OVER
    width = max([len(label(n)) for n in document["nodes"]] + [4])
    for node in document["nodes"]:
        described.append(node_line(_quiet(node) if over else node, time.time(), width))
        if not over:
            described += _pids(node, width)
    verdict = document.get("verdict")
    if verdict:
        described.append(f"verdict: {verdict['message']}")
    return [part for line in described for part in line.split("\n")]


def _quiet(node: dict[str, Any]) -> dict[str, Any]:
    """Of a run that is over it says nothing how long ago the last output came."""
    return {**node, "ranks": [{**r, "last_output": None} for r in node["ranks"]]}


def _pids(node: dict[str, Any], width: int) -> list[str]:
    pids = ", ".join(f"{r['rank']}:{r['pid']}" for r in node["ranks"] if r.get("pid"))
    return [f"{'':<{width}}  rank:pid {pids}"] if pids else []
