"""The sentences about a culprit: what is bad, by how much, what to do (pure)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from allranks.findings import Finding, Where
from allranks.text import join_words

from .blame import ALL_LINKS, Culprit
from .norms import BANDWIDTH, LATENCY, METRICS, TAIL, Metric, Norms, State, Symptom, shown

CHECK = "pairs"
SHOWN = 8  # links in the evidence, the worst first
NAMED = 16  # nodes in a host list that is to be pasted
# What shows a bad cable, a wrong rate, a shaper or losses on a host, with tools that most have.
LOOK = "ip -s -s link; tc -s qdisc show; nstat -az TcpRetransSegs; ethtool {interface}"


@dataclass(frozen=True)
class Facts:
    """All that a sentence needs: the culprit, the states of its bad cells and what is bad about them, all nodes."""

    culprit: Culprit
    states: Sequence[State]
    symptoms: Sequence[Symptom]
    norms: Norms
    nodes: tuple[str, ...]
    addresses: Mapping[str, str]
    alone: bool = True  # the ends of a link have no other bad link

    @property
    def dead(self) -> list[State]:
        """The cells through which nothing went."""
        return [state for state in self.states if state.is_dead]

    @property
    def is_dead(self) -> bool:
        """Dead rather than slow: most of the cells are."""
        return 2 * len(self.dead) > len(self.states)

    def interface(self) -> str:
        """The interface's name at the culprit, else its index; empty where the culprit isn't one rail."""
        if self.culprit.rail is None:
            return ""
        ends = self.culprit.nodes or tuple(node for state in self.states for node in state.cell[:2])
        names = {name for state in self.states for node in ends if (name := state.interfaces.get(node))}
        return names.pop() if len(names) == 1 else f"index {self.culprit.rail}"


def natural(names: Iterable[str]) -> list[str]:
    """h2 before h10."""
    return sorted(names, key=lambda name: [(len(p), p) if p.isdigit() else (0, p) for p in re.split(r"(\d+)", name)])


def finding(facts: Facts) -> Finding:
    """The finding about a confirmed culprit."""
    what = "dead" if facts.is_dead else "slow"
    message = f"{_subject(facts)} {_dead(facts) if facts.is_dead else _slow(facts)}"
    kind = {"node-rail": "rail", "all": "network"}.get(facts.culprit.kind, facts.culprit.kind)
    return Finding(f"{kind}-{what}", "fail", message, _remedy(facts), _where(facts), _evidence(facts), CHECK)


def unconfirmed(facts: Facts) -> Finding:
    """The finding about a suspect that was not measured again."""
    plain = finding(facts)
    message = f"{plain.message}; it was not measured again, so this may be chance"
    return Finding(plain.id, "unknown", message, "run the test once more", plain.where, plain.evidence, CHECK)


def passed_again(culprit: Culprit) -> str:
    """The remark about a suspect that passed."""
    name = "–".join(culprit.nodes) if culprit.kind in ("node", "link", "node-rail") else "the network"
    rail = "" if culprit.rail is None else f" (interface index {culprit.rail})"
    return f"{name}{rail} was out of the norm at first and passed when measured again"


def _where(facts: Facts) -> Where:
    nodes, interface = facts.culprit.nodes, facts.interface() or None
    if facts.culprit.kind == "link":
        return Where(node=nodes[0], peer=nodes[1], interface=interface)
    if facts.culprit.kind == "rail":
        return Where(interface=interface)
    return Where(node=nodes[0], interface=interface, nodes=nodes if len(nodes) > 1 else ())


def _subject(facts: Facts) -> str:
    culprit = facts.culprit
    if culprit.kind == "all":
        return f"the network between all {len(culprit.nodes)} nodes"
    if culprit.kind == "link":
        plain = f"the link {culprit.nodes[0]}–{culprit.nodes[1]}"
        return plain if culprit.rail is None else f"{plain} on interface {facts.interface()}"
    if culprit.kind == "rail":
        return f"the rail of interface {facts.interface()}"
    return culprit.nodes[0] if culprit.rail is None else f"interface {facts.interface()} of {culprit.nodes[0]}"


def _extent(facts: Facts) -> str:
    """`with 7 of 7 peers`; for a link, what tells it from a node."""
    culprit = facts.culprit
    pairs = len({state.cell[:2] for state in facts.states})
    if culprit.kind in ("node", "node-rail"):
        whole = pairs if not culprit.fine else len(culprit.cells) + culprit.fine
        return f" with {pairs if not culprit.fine else len(culprit.cells)} of {whole} peers"
    if culprit.kind in ("rail", "all"):
        return f" between {len(culprit.cells)} of {len(culprit.cells) + culprit.fine} pairs"
    return ""


def _link_note(facts: Facts) -> str:
    if facts.culprit.besides:
        return _besides_note(facts.culprit.besides, facts.is_dead)
    if facts.culprit.kind != "link":
        return ""
    if len(facts.nodes) == 2:
        return "; with two nodes there is no telling which end is at fault: test with a third"
    return "; both nodes pass with all others" if facts.alone else ""


def _besides_note(besides: Sequence[str], is_dead: bool) -> str:
    """What else is at fault there, and does not explain it."""
    verb = "are" if len(besides) > 1 or besides[0] == ALL_LINKS else "is"
    less = "not dead" if is_dead else "less so"
    return f"; {join_words(natural(besides))} {verb} slow elsewhere too, but {less}"


def _dead(facts: Facts) -> str:
    reasons = dict.fromkeys(state.reason for state in facts.dead)
    slow = len(facts.states) - len(facts.dead)
    more = f" ({slow} more are slow)" if slow else ""
    return f"is dead{_extent(facts)}{more}: {'; '.join(list(reasons)[:2])}{_link_note(facts)}"


def _slow(facts: Facts) -> str:
    """The metric that says it first, with its median over the bad ways, and the cluster's."""
    parts = [text for metric in METRICS if (text := _figure(facts, metric))]
    dead = f" ({len(facts.dead)} more are dead)" if facts.dead else ""
    return f"is slow{_extent(facts)}{dead}: {', '.join(parts)}{_link_note(facts)}"


def _figure(facts: Facts, metric: Metric) -> str:
    mine = [sign for sign in facts.symptoms if sign.metric is metric]
    if not mine:
        return ""
    value, usual = median(sign.value for sign in mine), mine[0].usual
    floors = {sign.floor for sign in mine if sign.severity <= 1 and sign.floor is not None}
    asked = f", asked for {shown(metric, max(floors))}" if floors else ""
    against = f"(the cluster's median is {shown(metric, usual)}{asked})"
    if metric is BANDWIDTH:
        return f"{shown(metric, value)}{_way(facts, mine)} {against}"
    what = "round trip" if metric is LATENCY else "1 in 100 round trips takes more than"
    lost = ", as when packets are lost" if metric is TAIL else ""
    return f"{what} {shown(metric, value)}{lost} {against}"


def _way(facts: Facts, signs: Sequence[Symptom]) -> str:
    """One direction, where all that is bad goes that way."""
    culprit, starts = facts.culprit, {sign.start for sign in signs}
    if culprit.kind == "link":
        return f" from {starts.pop()}" if len(starts) == 1 else ""
    if culprit.kind not in ("node", "node-rail") or len(signs) < 2:
        return ""
    if starts == {culprit.nodes[0]}:
        return " sending"
    return "" if culprit.nodes[0] in starts else " receiving"


def _ssh(node: str, line: str) -> str:
    return f"ssh {node} {shlex.quote(line)}"


def _remedy(facts: Facts) -> str:
    culprit, name = facts.culprit, facts.interface()
    interface = "" if not name or name.startswith("index ") else name
    look = LOOK.format(interface=interface) if interface else LOOK.rpartition("; ")[0]
    if culprit.kind == "link":
        a, b = culprit.nodes
        peer = facts.addresses.get(b, b)
        route = f"ip route get {peer}; ping -c 20 -i 0.2 {peer}; {look}"
        return f"look at the path and at both firewalls: {_ssh(a, route)}; {_ssh(b, look)}; then cable and switch port"
    if culprit.kind in ("node", "node-rail"):
        return f"look: {_ssh(culprit.nodes[0], look)}; {_without(facts)}"
    if culprit.kind == "rail":
        node = facts.states[0].cell[0]
        return f"look at the switch of this rail; at a node: {_ssh(node, look)}; or leave it out with NCCL_IB_HCA=^NAME"
    return f"look at what all share (switch, firewall, rate): {_ssh(culprit.nodes[0], look)}"


def _without(facts: Facts) -> str:
    """How to go on without the node, or its rail."""
    node = facts.culprit.nodes[0]
    if facts.culprit.kind == "node-rail":
        return f"then cable and switch port of that interface; until then leave {node} out"
    rest = natural(name for name in facts.nodes if name != node)
    return f"to go on without it: --hosts {','.join(rest)}" if len(rest) < NAMED else f"leave {node} out of the hosts"


def _evidence(facts: Facts) -> tuple[str, ...]:
    """A line for each bad way, the worst first, and the cluster's figures."""
    lines = []
    for state in facts.dead:
        lines.append(f"{_name(state)}: {state.dead} of {state.samples} attempts failed: {state.reason}")
    worst = {state.cell: min((v for (name, _), v in state.values.items() if name == BANDWIDTH.name), default=0.0)
             for state in facts.states}  # fmt: skip
    for state in sorted((s for s in facts.states if not s.is_dead), key=lambda s: worst[s.cell]):
        lines.append(f"{_name(state)}: {', '.join(_values(state))} ({state.samples} samples)")
    more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    usual = [f"{m.name} {shown(m, n.usual)}, limit a factor of {_factor(n.limit)}" for m in METRICS
             if (n := facts.norms.get(m.name))]  # fmt: skip
    return (*lines[:SHOWN], *more, *([f"the cluster's medians: {'; '.join(usual)}"] if usual else []))


def _factor(limit: float) -> str:
    return f"{2.718281828459045**limit:.2g}"


def _name(state: State) -> str:
    rail = f" on interface index {state.cell[2]}" if state.cell[2] else ""
    return f"{state.cell[0]}–{state.cell[1]}{rail}"


def _values(state: State) -> list[str]:
    found = []
    for metric in METRICS:
        both = [shown(metric, v) if v is not None else "?" for way in state.cell[:2]
                for v in [state.values.get((metric.name, way))]]  # fmt: skip
        if both != ["?", "?"]:
            found.append(f"{metric.name} {both[0]} there, {both[1]} back")
    return found
