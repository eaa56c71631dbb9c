"""clean --orphans: list what earlier runs left on the nodes, and end it on request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from allranks.cluster import Cluster
from allranks.engines.reachable_nodes import find_cluster
from allranks.engines.ssh import ssh_transport
from allranks.gang import sweeper
from allranks.plan.network import target_words
from allranks.protocol.header import ForeignQuestion, SweepHeader
from allranks.report.terminal import clean
from allranks.settings import RunSpec
from allranks.text import count_of

from .target import resolve_options

Answers = dict[str, dict[str, Any]]


def ask(spec: RunSpec, cluster: Cluster, headers: Mapping[str, SweepHeader]) -> Answers:
    """Send each named node its question over ssh; the answers by node name."""
    return sweeper.ask(spec, ssh_transport(spec), cluster, headers)


def clean_orphans(options: Mapping[str, Any], foreign: bool, yes: bool, dry_run: bool, json_: bool) -> int:
    """List the orphans on the target's nodes, ask, end them by pid and start time. Return 4 where some stay."""
    resolved = resolve_options(options, None)
    spec = resolved.spec
    cluster = find_cluster(resolved.spec)
    question = SweepHeader(foreign=ForeignQuestion(spec.rendezvous.master_port)) if foreign else SweepHeader()
    answers = ask(spec, cluster, {n.name: question for n in cluster.nodes})
    chosen = _choose(answers, foreign)
    if json_ and (dry_run or not yes):
        click.echo(json.dumps({"schema": 1, "nodes": answers, "ended": False}))
        return 0
    if not json_:
        _list(answers, foreign)
    directories = {name: [] if foreign else answer["directories"] for name, answer in answers.items()}
    count = sum(len(p) for p in chosen.values()) + sum(len(d) for d in directories.values())
    if dry_run or not count or not (yes or _agreed(chosen, foreign)):
        return 0
    left = _end(spec, cluster, chosen, directories)
    if json_:
        click.echo(json.dumps({"schema": 1, "nodes": answers, "ended": True, "left": left}))
    else:
        click.echo("all ended" if not any(left.values()) else f"could not end: {left}")
    return 4 if any(left.values()) else 0


def _choose(answers: Answers, foreign: bool) -> dict[str, list[dict[str, Any]]]:
    """Without --foreign: processes of runs whose agent is dead. With it: the user's others that are in the way."""
    if foreign:
        return {name: answer.get("foreign") or [] for name, answer in answers.items()}
    return {name: [p for p in a["processes"] if not p["live"]] for name, a in answers.items()}


def _list(answers: Answers, foreign: bool) -> None:
    nothing = True
    for name, answer in answers.items():
        for process in answer.get("foreign") or [] if foreign else answer["processes"]:
            nothing = False
            note = process.get("why") or (f"run {process['uid']}" + (" (alive: left alone)" if process["live"] else ""))
            click.echo(f"{name}  pid {process['pid']}  {note}  {process['command']}")
        for path in [] if foreign else answer["directories"]:
            nothing = False
            click.echo(f"{name}  directory {path}")
    if nothing:
        click.echo("nothing is left of earlier runs" if not foreign else "no other process of yours is in the way")


def _agreed(chosen: dict[str, list[dict[str, Any]]], foreign: bool) -> bool:
    if not foreign:
        return click.confirm("end these processes and remove these directories?")
    for name, processes in chosen.items():
        chosen[name] = [p for p in processes if _is_wanted(name, p)]
    return any(chosen.values())


def _is_wanted(node: str, process: dict[str, Any]) -> bool:
    """The question goes past standard output where it is a terminal: the line editor writes it."""
    return click.confirm(clean(f"{node}: end pid {process['pid']} ({process['command']})?", colour=False))


def _end(
    spec: RunSpec, cluster: Cluster, chosen: dict[str, list[dict[str, Any]]], directories: dict[str, list[str]]
) -> dict[str, Any]:
    left: dict[str, Any] = {}
    ends = {}
    for name, orphans in chosen.items():
        if orphans:
            ends[name] = SweepHeader(end=tuple((p["pid"], p["start_time"]) for p in orphans))
    for name, answer in ask(spec, cluster, ends).items():
        left[name] = answer["left"]
    ask(spec, cluster, {n: SweepHeader(remove=tuple(paths)) for n, paths in directories.items() if paths})
    return left


def end_dead_runs(spec: RunSpec, cluster: Cluster) -> None:
    """run --end-orphans: ends processes of runs whose agent is dead, before anything starts.

    What no run of allranks has started is left alone, and named.
    """
    answers = ask(spec, cluster, {n.name: SweepHeader() for n in cluster.nodes})
    chosen = _choose(answers, foreign=False)
    if any(chosen.values()):
        count = sum(len(p) for p in chosen.values())
        left = _end(spec, cluster, chosen, {n: a["directories"] for n, a in answers.items()})
        click.echo(f"ended {count_of(count, 'process', 'processes')} of earlier runs", err=True)
        if any(left.values()):
            click.echo(f"could not end: {left}", err=True)
    question = SweepHeader(foreign=ForeignQuestion(spec.rendezvous.master_port))
    others = ask(spec, cluster, {n.name: question for n in cluster.nodes})
    for line in left_alone(others, spec):
        click.echo(line, err=True)


def left_alone(answers: Answers, spec: RunSpec) -> list[str]:
    """Name the processes that are in the way and that --end-orphans does not end, and the command that does."""
    command = f"allranks clean --foreign --master-port {spec.rendezvous.master_port} {target_words(spec)}"
    return [
        f"left alone, as no run of allranks started it: {name} pid {process['pid']} {process['why']} "
        f"({process['command']}). To end it: {command}"
        for name, answer in answers.items()
        for process in answer.get("foreign") or []
    ]
