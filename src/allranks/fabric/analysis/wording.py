"""The sentences about a culprit: what is bad, by how much, what to do (pure)."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from allranks.findings import Finding, Where

from .blame import Culprit
from .norms import BANDWIDTH, LATENCY, METRICS, TAIL, CellState, Metric, Norms, Symptom

CHECK = "pairs"
REASONS_SHOWN = 2
LINES_SHOWN = 8  # links in the evidence, the worst first
NAMED = 16  # nodes in a host list that is to be pasted
# What shows a bad cable, a wrong rate, a shaper or losses on a host, with tools that most have.
INSPECT = "; ".join(("ip -s -s link", "tc -s qdisc show", "nstat -az TcpRetransSegs"))


@dataclass(frozen=True)
class SentenceFacts:
    """All that a sentence needs: the culprit, the states of its bad cells and what is bad about them, all nodes.

    `alone`: the ends of a link have no other bad link.
    """

    culprit: Culprit
    states: Sequence[CellState]
    symptoms: Sequence[Symptom]
    norms: Norms
    nodes: tuple[str, ...]
    addresses: Mapping[str, str]
    alone: bool


def finding(facts: SentenceFacts) -> Finding:
    """Make the finding about a confirmed culprit: dead rather than slow where most of its cells are."""
    kind = "network" if facts.culprit.kind == "all" else facts.culprit.kind
    extent = _extent(facts.culprit)
    dead = [state for state in facts.states if state.is_dead]
    slow_count = len(facts.states) - len(dead)
    if len(dead) > slow_count:
        what = "dead"
        more = f" ({slow_count} more are slow)" if slow_count else ""
        detail = "; ".join([*dict.fromkeys(state.reason for state in dead)][:REASONS_SHOWN])
    else:
        what = "slow"
        more = f" ({len(dead)} more are dead)" if dead else ""
        detail = ", ".join(filter(None, (_figure(facts, metric) for metric in METRICS)))
    message = f"{_subject(facts.culprit)} is {what}{extent}{more}: {detail}{_note(facts)}"
    return Finding(
        f"{kind}-{what}",
        "fail",
        message,
        _remedy(facts),
        where=_where(facts),
        evidence=_evidence(facts),
        check=CHECK,
    )


def unconfirmed(facts: SentenceFacts) -> Finding:
    """Make the finding about a suspect that was not measured again."""
    plain = finding(facts)
    message = f"{plain.message}. It was not measured again, so this may be chance"
    return plain._replace(status="unknown", message=message, remedy="run the test once more")


def passed_again(culprit: Culprit) -> str:
    """Write the remark about a suspect that passed."""
    return f"{_subject(culprit)} was out of the norm at first and passed when measured again"


def _where(facts: SentenceFacts) -> Where:
    nodes = facts.culprit.nodes
    if facts.culprit.kind == "link":
        return Where(node=nodes[0], peer=nodes[1])
    return Where(node=nodes[0], nodes=nodes if len(nodes) > 1 else ())


def _subject(culprit: Culprit) -> str:
    if culprit.kind == "all":
        return f"the network between all {len(culprit.nodes)} nodes"
    if culprit.kind == "link":
        return f"the link {'–'.join(culprit.nodes)}"
    return culprit.nodes[0]


def _extent(culprit: Culprit) -> str:
    bad = len(culprit.cells)
    if culprit.kind == "link":
        return ""
    if culprit.kind == "all":
        return f" between {bad} of {bad + culprit.fine} pairs"
    return f" with {bad} of {bad + culprit.fine} peers"


def _note(facts: SentenceFacts) -> str:
    """Write what tells a link from a node."""
    if facts.culprit.kind == "link" and len(facts.nodes) == 2:
        return ". Two nodes do not show which end is at fault: test with a third"
    if facts.culprit.kind == "link" and facts.alone:
        return ". Both nodes pass with all others"
    return ""


def _figure(facts: SentenceFacts, metric: Metric) -> str:
    signs = [sign for sign in facts.symptoms if sign.metric is metric]
    if not signs:
        return ""
    value = metric.format(median(sign.value for sign in signs))
    floors = [sign.floor for sign in signs if sign.severity <= 1 and sign.floor is not None]
    floor = f", asked for {metric.format(max(floors))}" if floors else ""
    usual = f"(the cluster's median is {metric.format(signs[0].usual)}{floor})"
    if metric is LATENCY:
        return f"round trip {value} {usual}"
    if metric is TAIL:
        return f"1 in 100 round trips takes more than {value}, as when packets are lost {usual}"
    return f"{value}{_direction(facts.culprit, [sign.start for sign in signs])} {usual}"


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


def _remedy(facts: SentenceFacts) -> str:
    kind = facts.culprit.kind
    node = facts.culprit.nodes[0]
    command = _ssh(node, INSPECT)
    if kind == "all":
        return f"look at what all share (switch, firewall, rate): {command}"
    if kind == "link":
        peer = facts.culprit.nodes[1]
        address = facts.addresses.get(peer, peer)
        route = _ssh(node, "; ".join((f"ip route get {address}", f"ping -c 20 -i 0.2 {address}", INSPECT)))
        other = _ssh(peer, INSPECT)
        return f"check the path and both firewalls, then cable and switch port:\n{route}\n{other}"
    others = sorted(set(facts.nodes) - {node}, key=natural)
    if len(others) < NAMED:
        return f"go on without it with --hosts {','.join(others)}, and check it: {command}"
    return f"leave {node} out of the hosts, and check it: {command}"


def natural(name: str) -> list[tuple[int, str]]:
    """Give a key that sorts h2 before h10."""
    return [(len(part) * part.isdecimal(), part) for part in re.split(r"(\d+)", name)]


def _ssh(node: str, line: str) -> str:
    return f"ssh {node} {shlex.quote(line)}"


# -- evidence ------------------------------------------------------------------------------------------


def _evidence(facts: SentenceFacts) -> tuple[str, ...]:
    """Write a line for each bad way, the worst first, and the cluster's figures."""
    lines = []
    for state in sorted(facts.states, key=_badness):
        if state.is_dead:
            detail = f"{state.dead} of {state.samples} attempts failed: {state.reason}"
        else:
            detail = f"{', '.join(_both_ways(state))} ({state.samples} samples)"
        lines.append(f"{'–'.join(state.cell)}: {detail}")
    if len(lines) > LINES_SHOWN:
        lines[LINES_SHOWN:] = [f"and {len(lines) - LINES_SHOWN} more"]
    usual = []
    for metric in METRICS:
        norm = facts.norms.get(metric.name)
        if norm:
            limit = f"{math.exp(norm.limit):.2g}"
            usual.append(f"{metric.name} {metric.format(norm.usual)}, limit a factor of {limit}")
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
