"""When a run became slower than it was, and what changed on its nodes at that time (pure).

Each step, or each few of them, gives one pace: seconds a step. An evaluation, a save or an epoch's end is one slow
pace among others and changes no median. A slowdown is a change point: most of what follows is slower than most of
what came before, by half at least, and for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import log
from statistics import median
from typing import NamedTuple

from allranks.findings import Finding, place_of
from allranks.protocol.samples import NodeUsage
from allranks.text import group, join_words

from .devices import HELD, PORT_ERRORS
from .stragglers.slow_findings import name_with_node

CHECK = "slowdown"
SPACING = 0.5  # seconds: faster steps are taken together
KEPT = 240  # paces: two minutes of fast steps, more of slow ones
LEAST_BEFORE = 12  # paces that a run has to have shown
LEAST_AFTER = 4
LEAST_SECONDS = 20.0  # for which it has been slower
SLOWER = 1.5  # times
RECOVERED = 1.2  # times what it was before, or faster
MOST = 0.75  # of the paces before are faster than as many of those after
OUTLIERS = 0.03  # of the paces, at either end
SAID = 3  # changes on nodes that a message names
DIFFERS = 3.0  # times what it was before

NodeOfRank = Mapping[int, str]


class Pace(NamedTuple):
    """`steps` that were done in `seconds`, up to `t` (unix seconds)."""

    t: float
    seconds: float
    steps: int

    @property
    def seconds_a_step(self) -> float:
        """Give what one step took."""
        return self.seconds / self.steps


class Slowdown(NamedTuple):
    """A change at `t` (unix seconds): steps a second `before` and `after`, and the evidence for both in paces."""

    t: float
    before: float
    after: float
    paces_before: int
    paces_after: int


class PaceKeeper:
    """Makes paces of the steps that a run shows, the newest KEPT of them."""

    def __init__(self) -> None:
        self.paces: list[Pace] = []
        self._last: tuple[float, int] | None = None

    def note(self, t: float, step: int) -> bool:
        """Note a step and when it was shown; tell whether that gave a pace. Steps that go back start over."""
        if self._last is None or step < self._last[1]:
            self.paces.clear()
            self._last = (t, step)
            return False
        seconds = t - self._last[0]
        steps = step - self._last[1]
        if steps == 0 or seconds < SPACING:
            return False
        self._last = (t, step)
        self.paces.append(Pace(t, seconds, steps))
        del self.paces[:-KEPT]
        return True


def find_slowdown(paces: Sequence[Pace]) -> Slowdown | None:
    """Find the change point after which a run is slower; None without one.

    Single long pauses count as much as the slowest of the others, so that none moves the cut.
    """
    last = len(paces) - LEAST_AFTER
    while last >= LEAST_BEFORE and paces[-1].t - _begin(paces[last]) < LEAST_SECONDS:
        last -= 1
    if last < LEAST_BEFORE:
        return None
    cut = _greatest_difference(paces, last)
    usual = sorted(pace.seconds_a_step for pace in paces[:cut])
    slow = sorted(pace.seconds_a_step for pace in paces[cut:])
    if median(slow) < SLOWER * median(usual):
        return None
    least = usual[int(len(usual) * MOST)]
    if slow[int(len(slow) * (1 - MOST))] <= least or paces[cut].seconds_a_step <= least:
        return None
    return Slowdown(_begin(paces[cut]), 1 / median(usual), 1 / median(slow), cut, len(slow))


def _begin(pace: Pace) -> float:
    return pace.t - pace.seconds


def _greatest_difference(paces: Sequence[Pace], last: int) -> int:
    """Give the cut from LEAST_BEFORE to `last` that explains most of the variance of the logarithms."""
    order = sorted(pace.seconds_a_step for pace in paces)
    outliers = max(1, int(len(order) * OUTLIERS))
    least = order[outliers]
    most = order[-1 - outliers]
    logarithms = [log(min(most, max(least, pace.seconds_a_step))) for pace in paces]
    mean = sum(logarithms) / len(logarithms)
    best = LEAST_BEFORE
    greatest = 0.0
    below = sum(mean - one for one in logarithms[:LEAST_BEFORE])
    for cut in range(LEAST_BEFORE, last + 1):
        explained = below * abs(below) / (cut * (len(paces) - cut))
        if explained > greatest:
            greatest = explained
            best = cut
        below += mean - logarithms[cut]
    return best


def has_recovered(slowdown: Slowdown, paces: Sequence[Pace]) -> bool:
    """Tell whether the newest paces, but for one, are as they were before it, for as long as a slowdown has to last."""
    fast = 0.0
    number = slow = 0
    for pace in reversed(paces):
        if pace.t <= slowdown.t or (number >= LEAST_AFTER and fast >= LEAST_SECONDS):
            break
        if pace.seconds_a_step > RECOVERED / slowdown.before:
            slow += 1
            if slow > 1:
                break
            continue
        number += 1
        fast += pace.seconds
    return number >= LEAST_AFTER and fast >= LEAST_SECONDS


# -- what changed --------------------------------------------------------------------------------------------


def changes(t: float, samples: Mapping[str, Sequence[NodeUsage]]) -> list[tuple[str, str]]:
    """Compare each node's samples after `t` with those before; the strongest first, as (node, sentence)."""
    weights: dict[tuple[str, str], float] = {}  # how many times the least that counts a change is
    for node, of_node in samples.items():
        after = [one for one in of_node if one.t - one.seconds / 2 >= t]
        before = [one for one in of_node if one.t <= t]
        if not after or not before:
            continue
        cores = float(after[-1].cores or 1)
        for measure, least, text in _MEASURES:
            now = measure(after)
            was = measure(before)
            if measure is _of_others:
                least = max(least, cores / 4)
            if now is None or was is None or now < least or now < DIFFERS * was:
                continue
            sentence = f"{node}: {text.format(after=now, before=was, cores=cores)}"
            weights[node, sentence] = now / least
    return sorted(weights, key=lambda change: -weights[change])


def _share(samples: Sequence[NodeUsage]) -> float | None:
    sent = sum(one.tcp_sent or 0 for one in samples)
    if not sent or any(one.tcp_retransmitted is None for one in samples):
        return None
    return sum(one.tcp_retransmitted or 0 for one in samples) / sent


def _mean(samples: Sequence[NodeUsage], name: str, is_sum: bool = False) -> float | None:
    """Give a figure's mean over time, or what it grew by in a second where each sample has its sum."""
    values = [(getattr(one, name), one.seconds) for one in samples]
    known = [(float(value), seconds) for value, seconds in values if value is not None and seconds > 0]
    seconds = sum(each for _, each in known)
    if not seconds:
        return None
    return sum(value if is_sum else value * each for value, each in known) / seconds


def _of_others(samples: Sequence[NodeUsage]) -> float | None:
    return _mean(samples, "cpu_others")


def _held(samples: Sequence[NodeUsage]) -> float | None:
    held = [any(gpu.held & bit for bit, _ in HELD) for one in samples if one.devices for gpu in one.devices.gpus]
    return sum(held) / len(held) if held else None


def _port_errors(samples: Sequence[NodeUsage]) -> float | None:
    """Give what ports count a second, but for their bytes, downs and waits."""
    counted = [
        (one.t, sum(port.counted.get(name, 0) for port in one.devices.ports for name in PORT_ERRORS))
        for one in samples
        if one.devices is not None and one.devices.ports
    ]
    if len(counted) < 2 or counted[-1][0] <= counted[0][0]:
        return None
    return (counted[-1][1] - counted[0][1]) / (counted[-1][0] - counted[0][0])


# A figure of a node, the least that counts, and what is said of it.
_MEASURES: tuple[tuple[Callable[[Sequence[NodeUsage]], float | None], float, str], ...] = (
    (_share, 0.005, "{after:.1%} of its TCP segments were sent again, {before:.1%} before"),
    (
        partial(_mean, name="cpu_throttled_s", is_sum=True),
        0.1,
        "its ranks' CPU quota held them back {after:.2g} s a second, {before:.2g} before",
    ),
    (_of_others, 0.5, "processes that are not of the run use {after:.1f} of {cores:.0f} cores, {before:.1f} before"),
    (
        partial(_mean, name="memory_pressure"),
        0.1,
        "processes wait for memory {after:.0%} of the time, {before:.0%} before",
    ),
    (partial(_mean, name="io_pressure"), 0.1, "processes wait for disks {after:.0%} of the time, {before:.0%} before"),
    (_held, 0.2, "{after:.0%} of its GPUs are held back by heat or power, {before:.0%} before"),
    (_port_errors, 10.0, "its ports count {after:.0f} errors and repeated packets a second, {before:.0f} before"),
)


# -- words ---------------------------------------------------------------------------------------------------


def slowdown_finding(
    slowdown: Slowdown,
    at: str,
    found: Sequence[tuple[str, str]],
    late: Sequence[int],
    node_of: NodeOfRank,
) -> Finding:
    """Say when the run became slower, and what changed then; `at` is that time in words. No cause is claimed.

    `late` are the ranks that have come late to collectives from that time on.
    """
    pace = f"the run fell from {format_pace(slowdown.before)} to {format_pace(slowdown.after)} at {at}"
    if not found and not late:
        return Finding(
            CHECK,
            "warn",
            f"{pace}. Nothing that allranks samples on the nodes changed then",
            "see whether the program's own work changed then: data, evaluation, sequence length",
            evidence=_evidence(slowdown),
        )
    sentences = [sentence for _, sentence in found[:SAID]]
    if late:
        by_node = group(late, lambda rank: node_of.get(rank, ""))
        names = join_words([name_with_node(ranks, node_of) for ranks in by_node.values()], limit=SAID)
        sentences.insert(0, f"{names} began to come late to collectives")
    if len(found) > SAID:
        sentences.append(f"{len(found) - SAID} more in evidence/usage.jsonl")
    nodes = tuple(dict.fromkeys([*(node_of[rank] for rank in late if rank in node_of), *(node for node, _ in found)]))
    if found:
        remedy = f"look at {join_words(nodes[:SAID])} for what began then"
    else:
        remedy = "the warning slow-rank has the reason where it is known"
    message = f"{pace}. At that time, {'. '.join(sentences)}"
    return Finding(CHECK, "warn", message, remedy, place_of(nodes), _evidence(slowdown))


def recovery_words(slowdown: Slowdown, paces: Iterable[Pace]) -> str:
    """Say that a run is as fast as before."""
    newest = [pace.seconds_a_step for pace in paces][-LEAST_AFTER:]
    return f"the run is back at {format_pace(1 / median(newest))}, after {format_pace(slowdown.after)}"


def format_pace(rate: float) -> str:
    """Write steps a second, or seconds a step where they are slow.

    >>> format_pace(40.2), format_pace(0.5)
    ('40.2 steps/s', '2 s a step')
    """
    return f"{rate:.3g} steps/s" if rate > 1 else f"{1 / rate:.3g} s a step"


def _evidence(slowdown: Slowdown) -> tuple[str, ...]:
    before = f"{slowdown.paces_before} measurements before: the median is {format_pace(slowdown.before)}"
    after = f"{slowdown.paces_after} since: the median is {format_pace(slowdown.after)}"
    return (before, after)
