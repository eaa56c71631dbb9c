"""Processes and directories that earlier runs left on nodes: asked for over ssh, and ended on request (IO)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from allranks.cluster import Cluster
from allranks.gang import sweeper
from allranks.plan.network import target_words
from allranks.protocol.header import ForeignQuestion, SweepHeader
from allranks.settings import RunSpec
from allranks.text import count_of

from .ssh import ssh_transport

Answers = dict[str, dict[str, Any]]


def ask(spec: RunSpec, cluster: Cluster, headers: Mapping[str, SweepHeader]) -> Answers:
    """Send each named node its question over ssh; the answers by node name."""
    return sweeper.ask(spec, ssh_transport(spec), cluster, headers)


def choose(answers: Answers, foreign: bool) -> dict[str, list[dict[str, Any]]]:
    """Without --foreign: processes of runs whose agent is dead. With it: the user's others that are in the way."""
    if foreign:
        return {name: answer.get("foreign") or [] for name, answer in answers.items()}
    return {name: [p for p in a["processes"] if not p["live"]] for name, a in answers.items()}


def end(
    spec: RunSpec, cluster: Cluster, chosen: dict[str, list[dict[str, Any]]], directories: dict[str, list[str]]
) -> dict[str, Any]:
    """End processes by pid and start time, and remove directories; return what could not be ended, by node."""
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
    chosen = choose(answers, foreign=False)
    if any(chosen.values()):
        count = sum(len(p) for p in chosen.values())
        left = end(spec, cluster, chosen, {n: a["directories"] for n, a in answers.items()})
        sys.stderr.write(f"ended {count_of(count, 'process', 'processes')} of earlier runs\n")
        if any(left.values()):
            sys.stderr.write(f"could not end: {left}\n")
    question = SweepHeader(foreign=ForeignQuestion(spec.rendezvous.master_port))
    others = ask(spec, cluster, {n.name: question for n in cluster.nodes})
    for line in left_alone(others, spec):
        sys.stderr.write(f"{line}\n")


def left_alone(answers: Answers, spec: RunSpec) -> list[str]:
    """Name the processes that are in the way and that --end-orphans does not end, and the command that does."""
    command = f"allranks clean --foreign --master-port {spec.rendezvous.master_port} {target_words(spec)}"
    return [
        f"left alone, because no run of allranks started it: {name} pid {process['pid']} {process['why']} "
        f"({process['command']}). To end it: {command}"
        for name, answer in answers.items()
        for process in answer.get("foreign") or []
    ]
