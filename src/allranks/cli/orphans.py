"""clean --orphans: list what earlier runs left on the nodes, and end it on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click

from allranks.engines.orphans import Answers, Processes, ask, choose, end, name_unended
from allranks.engines.reachable_nodes import find_cluster
from allranks.exitcodes import DONE, NODE_FAILED, code_if
from allranks.protocol.codec import document_line, omit_none
from allranks.protocol.header import SweepHeader
from allranks.protocol.jsontext import JsonObject
from allranks.protocol.messages import MESSAGES
from allranks.protocol.processes import SweptProcess
from allranks.report.terminal import clean

from .target import resolve_options


@omit_none
class OrphanReport(NamedTuple):
    """What `clean --orphans --json` prints: each node's answer, and what could not be ended."""

    nodes: Mapping[str, JsonObject]
    ended: bool
    left: Mapping[str, Sequence[SweptProcess]] | None = None


def clean_orphans(options: Mapping[str, Any], foreign: bool, yes: bool, dry_run: bool, json_: bool) -> int:
    """List the orphans on the target's nodes, ask, end them by pid and start time. Return 4 where some stay."""
    spec = resolve_options(options, None).spec
    cluster = find_cluster(spec)
    question = SweepHeader(foreign=spec.rendezvous.master_port) if foreign else SweepHeader()
    answers = ask(spec, cluster, {n.name: question for n in cluster.nodes})
    chosen = choose(answers, foreign)
    written = {name: MESSAGES.write(answer) for name, answer in answers.items()}
    if json_ and (dry_run or not yes):
        click.echo(document_line(OrphanReport(written, False)))
        return DONE
    if not json_:
        _list(answers, foreign)
    count = sum(len(p) for p in chosen.values()) + sum(len(answer.directories or ()) for answer in answers.values())
    if dry_run or not count:
        return DONE
    if not (yes or _agreed(chosen, foreign)):
        click.echo("nothing was ended")
        return DONE
    left = end(spec, cluster, chosen, answers)
    if json_:
        click.echo(document_line(OrphanReport(written, True, left)))
    else:
        click.echo(name_unended(left) or "all ended")
    return code_if(any(left.values()), NODE_FAILED)


def _list(answers: Answers, foreign: bool) -> None:
    nothing = True
    for name, answer in answers.items():
        for process in (*(answer.processes or ()), *(answer.foreign or ())):
            nothing = False
            note = process.why or (f"run {process.uid}" + (" (not ended: its agent is alive)" if process.live else ""))
            click.echo(f"{name}  pid {process.pid}  {note}  {process.command}")
        for path in answer.directories or ():
            nothing = False
            click.echo(f"{name}  directory {path}")
        for path in answer.kept or ():
            click.echo(f"{name}  outputs of an ended run, which stay  {path}")
    if nothing:
        else_ = " else" if any(answer.kept for answer in answers.values()) else ""
        click.echo(
            f"nothing{else_} is left of earlier runs" if not foreign else "no other process of yours is in the way"
        )


def _agreed(chosen: Processes, foreign: bool) -> bool:
    if not foreign:
        return click.confirm("end these processes and remove these directories?")
    for name, processes in chosen.items():
        chosen[name] = [p for p in processes if is_wanted(name, p)]
    return any(chosen.values())


def is_wanted(node: str, process: SweptProcess) -> bool:
    """Ask about one process. The line editor writes the question itself, so it is cleaned here."""
    return click.confirm(clean(f"{node}: end pid {process.pid} ({process.command})?", colour=False))
