"""The sentences about a culprit: what is bad, by how much, what to do (pure)."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from allranks.findings import Finding, Where
from allranks.text import group

from ..metric_rows import Cell
from .blame import Culprit, nodes_of
from .norms import BANDWIDTH, LATENCY, METRICS, TAIL, CellState, Metric, Norms, Symptom

CHECK = "pairs"
REASONS_SHOWN = 2
LINES_SHOWN = 8  # links in the evidence, the worst first
NAMED = 16  # nodes in a host list that is to be pasted
# What shows a bad cable, a wrong rate, a shaper or losses on a host, with tools that most have.
INSPECT = "; ".join(("ip -s -s link", "tc -s qdisc show", "nstat -az TcpRetransSegs"))


@dataclass(frozen=True)
class Pass:
    """What a pass shows: all cells, what is bad about them (no symptom: dead), the culprits."""

    cells: Mapping[Cell, CellState]
    bad: Mapping[Cell, Sequence[Symptom]]
    culprits: Sequence[Culprit]


def finding(culprit: Culprit, seen: Pass, usual: Norms, addresses: Mapping[str, str]) -> Finding:
    """Make the finding about a confirmed culprit: dead rather than slow where most of its cells are."""
    kind = "network" if culprit.kind == "all" else culprit.kind
    states = [seen.cells[cell] for cell in culprit.cells]
    dead = [state for state in states if state.is_dead]
    slow_count = len(states) - len(dead)
    if len(dead) > slow_count:
        what = "dead"
        more = f" ({slow_count} more are slow)" if slow_count else ""
        detail = "; ".join([*dict.fromkeys(state.reason for state in dead)][:REASONS_SHOWN])
    else:
        what = "slow"
        more = f" ({len(dead)} more are dead)" if dead else ""
        symptoms = [sign for cell in culprit.cells for sign in seen.bad[cell]]
        by_metric = group(symptoms, lambda sign: sign.metric)
        detail = ", ".join(_figure(culprit, metric, by_metric[metric]) for metric in METRICS if metric in by_metric)
    of_all = f"{len(culprit.cells)} of {len(culprit.cells) + culprit.fine}"
    extent = {"all": f" between {of_all} pairs", "node": f" with {of_all} peers"}.get(culprit.kind, "")
    message = f"{_subject(culprit)} is {what}{extent}{more}: {detail}{_note(culprit, seen)}"
    nodes = culprit.nodes
    where = Where(node=nodes[0], nodes=nodes if len(nodes) > 1 else ())
    if culprit.kind == "link":
        where = Where(node=nodes[0], peer=nodes[1])
    remedy = _remedy(culprit, nodes_of(seen.cells), addresses)
    return Finding(f"{kind}-{what}", "fail", message, remedy, where, _evidence(states, usual), check=CHECK)


def passed_again(culprit: Culprit) -> str:
    """Write the remark about a suspect that passed."""
    return f"{_subject(culprit)} was out of the norm at first and passed when measured again"


def _subject(culprit: Culprit) -> str:
    if culprit.kind == "all":
        return f"the network between all {len(culprit.nodes)} nodes"
    if culprit.kind == "link":
        return f"the link {'–'.join(culprit.nodes)}"
    return culprit.nodes[0]


def _note(culprit: Culprit, seen: Pass) -> str:
    if culprit.kind != "link":
        return ""
    if len(nodes_of(seen.cells)) == 2:
        return ". Two nodes do not show which end is at fault: test with a third"
    others = [cell for cell in seen.bad if cell != culprit.nodes]
    return ". Both nodes pass with all others" if set(culprit.nodes).isdisjoint(nodes_of(others)) else ""


def _figure(culprit: Culprit, metric: Metric, signs: Sequence[Symptom]) -> str:
    value = metric.format(median(sign.value for sign in signs))
    floors = [sign.floor for sign in signs if sign.severity <= 1 and sign.floor is not None]
    floor = f", asked for {metric.format(max(floors))}" if floors else ""
    usual = f"(the cluster's median is {metric.format(signs[0].usual)}{floor})"
    if metric is LATENCY:
        return f"round trip {value} {usual}"
    if metric is TAIL:
        return f"1 in 100 round trips takes more than {value}, as when packets are lost {usual}"
    return f"{value}{_direction(culprit, [sign.start for sign in signs])} {usual}"


def _direction(culprit: Culprit, starts: Sequence[str]) -> str:
    one_start = len(set(starts)) == 1
    if culprit.kind == "link" and one_start:
        return f" from {starts[0]}"
    if culprit.kind == "node" and culprit.nodes[0] not in starts and len(starts) > 1:
        return " receiving"
    if culprit.kind == "node" and one_start and len(starts) > 1:
        return " sending"
    return ""


# -- what to do ----------------------------------------------------------------------------------------


def _remedy(culprit: Culprit, nodes: Sequence[str], addresses: Mapping[str, str]) -> str:
    node = culprit.nodes[0]
    command = _ssh(node, INSPECT)
    if culprit.kind == "all":
        return f"look at what all share (switch, firewall, rate): {command}"
    if culprit.kind == "link":
        peer = culprit.nodes[1]
        address = addresses.get(peer, peer)
        route = _ssh(node, "; ".join((f"ip route get {address}", f"ping -c 20 -i 0.2 {address}", INSPECT)))
        other = _ssh(peer, INSPECT)
        return f"check the path and both firewalls, then cable and switch port:\n{route}\n{other}"
    others = sorted(set(nodes) - {node}, key=natural)
    if len(others) < NAMED:
        return f"go on without it with --hosts {','.join(others)}, and check it: {command}"
    return f"leave {node} out of the hosts, and check it: {command}"


def natural(name: str) -> list[tuple[int, str]]:
    """Give a key that sorts h2 before h10."""
    return [(len(part) * part.isdecimal(), part) for part in re.split(r"(\d+)", name)]


def _ssh(node: str, line: str) -> str:
    return f"ssh {node} {shlex.quote(line)}"


# -- evidence ------------------------------------------------------------------------------------------


def _evidence(states: Sequence[CellState], norms: Norms) -> tuple[str, ...]:
    lines = []
    for state in sorted(states, key=_badness):
        if state.is_dead:
            detail = f"{state.dead} of {state.samples} attempts failed: {state.reason}"
        else:
            detail = f"{', '.join(_both_ways(state))} ({state.samples} samples)"
        lines.append(f"{'–'.join(state.cell)}: {detail}")
    if len(lines) > LINES_SHOWN:
        lines[LINES_SHOWN:] = [f"and {len(lines) - LINES_SHOWN} more"]
    usual = []
    for name, norm in norms.items():
        usual.append(f"{name} {norm.metric.format(norm.usual)}, limit a factor of {math.exp(norm.limit):.2g}")
    if usual:
        lines.append(f"the cluster's medians: {'; '.join(usual)}")
    return tuple(lines)


def _badness(state: CellState) -> tuple[bool, float]:
    rates = [state.value(BANDWIDTH, start) or 0.0 for start in state.cell]
    return not state.is_dead, min(rates)


def _both_ways(state: CellState) -> list[str]:
    figures = []
    for metric in METRICS:
        values = [state.value(metric, start) for start in state.cell]
        there, back = ("?" if value is None else metric.format(value) for value in values)
        if there != back or there != "?":
            figures.append(f"{metric.name} {there} there, {back} back")
    return figures
