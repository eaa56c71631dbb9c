"""How slow ranks and slow links are written in a finding (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from allranks.findings import Finding, Where
from allranks.protocol.samples import LinkCount
from allranks.text import count_of, format_percent, format_ranks, format_rate, format_time, join_words, plural

from ..words import on_node, utc
from .lateness import Straggler, middle
from .reasons import Reason

ID = "slow-rank"
LINK_ID = "slow-link"
ALWAYS = 0.9  # share of the steps from which it is every one


def name_with_node(ranks: Sequence[int], node_of: Mapping[int, str]) -> str:
    """Write `rank 5 on h3`."""
    return on_node(format_ranks(ranks), node_of.get(ranks[0]))


def slow_rank_finding(found: Straggler, reason: Reason | None, node_of: Mapping[int, str], step: int | None) -> Finding:
    """Write the finding; `step` is that of the change, where it is known."""
    names = name_with_node(found.ranks, node_of)
    others = found.key.size - len(found.ranks)
    on_average = " on average" if found.is_mean else ""
    message = (
        f"{names} {plural(len(found.ranks), 'arrives', 'arrive')} {format_time(found.late)} late{on_average} at "
        f"{_where(found)} {_since(found, step)}: the other {count_of(others, 'rank')} "
        f"{plural(others, 'waits', 'wait')} {format_percent(found.share)} of the time"
    )
    if reason is not None:
        message += f". {reason.words[:1].upper()}{reason.words[1:]}"
        remedy = reason.remedy
    else:
        message += ". Why is not known"
        remedy = f"see its stacks with `py-spy dump`, and what else runs on {node_of.get(found.top, 'its node')}"
    judged = count_of(found.steps, "mean" if found.is_mean else "step")
    evidence = [f"late in {format_percent(found.steady)} of {judged}, a step takes {format_time(found.period)}"]
    if found.since_t is not None:
        evidence.append(f"{format_time(found.before)} late before {utc(found.since_t)}")
    evidence += reason.evidence if reason is not None else ()
    where = Where(node=node_of.get(found.top), rank=found.top)
    return Finding(ID, "warn", message, remedy, where, tuple(evidence))


def _where(found: Straggler) -> str:
    if found.is_mean:
        return found.operation if found.calls_of_step == 1 else "the collectives of a step"
    often = "every" if found.steady >= ALWAYS else "most"
    if found.calls_of_step == 1:
        return f"{often} {found.operation}"
    return f"the collectives of {often} {plural(1 if often == 'every' else 2, 'step')}"


def _since(found: Straggler, step: int | None) -> str:
    if found.since_t is None:
        return "since the start"
    if step is not None:
        return f"since step {step}"
    return f"since {utc(found.since_t)}"


def no_longer_late(ranks: Sequence[int], node_of: Mapping[int, str]) -> str:
    """Write that ranks come in time again."""
    return f"{name_with_node(ranks, node_of)} {plural(len(ranks), 'comes', 'come')} in time again"


def slow_link_finding(slow: Sequence[LinkTraffic]) -> Finding:
    """Write the finding on the slowest link, and name the others."""
    link = slow[0]
    message = (
        f"the link from {link.sender} to {link.receiver} is slow: it carries {format_rate(link.rate)}, the usual link "
        f"of this run {format_rate(link.usual)}. It is busy for {format_percent(link.share)} of the time"
    )
    if link.is_lossy:
        message += f". Packets get lost, {format_percent(link.loss)} were sent again"
    evidence = tuple(
        f"{one.sender} to {one.receiver}: {format_rate(one.rate)}, busy for {format_percent(one.share)}, "
        f"{one.resent} of {one.sent} packets sent again"
        for one in slow[:3]
    )
    names = join_words([link.sender, link.receiver])
    remedy = (
        f"look at the network of {names}: `ip -s link; ethtool -S IFACE | grep -i -E 'err|drop'`. "
        f"When the run is over, `allranks test --hosts {link.sender},{link.receiver} --suite pairs` measures the link"
    )
    return Finding(LINK_ID, "warn", message, remedy, Where(node=link.sender, peer=link.receiver), evidence)


BUSY = 0.2  # share of the time from which a link is worth a word
SLOWER = 4.0  # times slower than the usual link
RESENT = 0.005  # share of the packets sent again from which a link loses packets
LEAST_RESENT = 8  # packets
LEAST_LINKS = 3  # that carry data: fewer cannot be compared
LEAST_BYTES = 64 << 10  # a second, of a link that is compared


class LinkTraffic(NamedTuple):
    """What went from one node to another between two looks: bytes and busy seconds of `seconds`, packets.

    Of a link that stands out, `usual` is the usual rate, and lost packets are the reason where it `is_lossy`.
    """

    sender: str
    receiver: str
    seconds: float
    acked: int = 0
    busy: float = 0.0
    sent: int = 0
    resent: int = 0
    usual: float = 0.0
    is_lossy: bool = False

    @property
    def rate(self) -> float:
        """Bytes a second while it was busy; not of a link that never was."""
        return self.acked / self.busy

    @property
    def share(self) -> float:
        """The share of the time for which it was busy; 1 at most, where several connections share it."""
        return min(1.0, self.busy / self.seconds)

    @property
    def loss(self) -> float:
        """The share of packets that were sent again."""
        return self.resent / max(1, self.sent)


def links_between(
    before: Sequence[LinkCount],
    after: Sequence[LinkCount],
    seconds: float,
    node_of: Mapping[int, str],
    node_at: Mapping[str, str],
) -> list[LinkTraffic]:
    """Give what went over each link between two looks, `seconds` apart. `node_at` are nodes by address.

    Counters that went back belong to new connections: the link is left out.
    """
    earlier = {(one.rank, one.peer): one for one in before}
    sums: dict[tuple[str, str], LinkTraffic] = {}
    for one in after:
        old = earlier.get((one.rank, one.peer))
        ends = (node_of.get(one.rank, ""), node_at.get(one.peer, ""))
        if old is None or not all(ends) or ends[0] == ends[1] or one.acked < old.acked or one.busy < old.busy:
            continue
        busy = max(0, (one.busy - old.busy) - max(0, one.held - old.held)) / 1e6
        link = sums.get(ends, LinkTraffic(*ends, seconds))
        sums[ends] = link._replace(
            acked=link.acked + one.acked - old.acked,
            busy=link.busy + busy,
            sent=link.sent + one.sent - old.sent,
            resent=link.resent + one.resent - old.resent,
        )
    return list(sums.values())


def find_slow_links(links: Sequence[LinkTraffic]) -> list[LinkTraffic]:
    """Find the links that are busy for a share of the time and far slower than the usual one; the slowest first."""
    carrying = [link for link in links if link.acked >= LEAST_BYTES * link.seconds and link.busy > 0]
    slow = []
    for link in carrying:
        others = [one for one in carrying if one is not link]
        if len(others) < LEAST_LINKS - 1 or link.share < BUSY:
            continue
        usual = middle(one.rate for one in others)
        if link.rate * SLOWER > usual:
            continue
        usual_loss = middle(one.loss for one in others)
        is_lossy = link.resent >= LEAST_RESENT and link.loss >= max(RESENT, 3 * usual_loss)
        slow.append(link._replace(usual=usual, is_lossy=is_lossy))
    return sorted(slow, key=lambda one: one.rate)
