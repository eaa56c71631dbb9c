"""Which link of a running program is slow or loses packets, from two looks at the kernel's counters (pure).

A connection is busy while data of it is on its way. Without the time for which the receiver had no room (a straggler
that does not read), what it has carried in its busy time is the rate of the link. Links of one run are compared with
each other: a network that is slow everywhere is not a fault of a link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from allranks.protocol.calltimes import LinkCount

from .lateness import middle

BUSY = 0.2  # share of the time from which a link is worth a word
SLOWER = 4.0  # times slower than the usual link
RESENT = 0.005  # share of the packets sent again from which a link loses packets
LEAST_RESENT = 8  # packets
LEAST_LINKS = 3  # that carry data: fewer cannot be compared
LEAST_BYTES = 64 << 10  # a second, of a link that is compared


class LinkTraffic(NamedTuple):
    """What went from one node to another between two looks: bytes and busy seconds of `seconds`, packets."""

    sender: str
    receiver: str
    seconds: float
    acked: int
    busy: float
    sent: int
    resent: int

    @property
    def rate(self) -> float:
        """Bytes a second while it was busy."""
        if self.busy > 0:
            return self.acked / self.busy
        return 0.0

    @property
    def share(self) -> float:
        """The share of the time for which it was busy; 1 at most, where several connections share it."""
        if self.seconds > 0:
            return min(1.0, self.busy / self.seconds)
        return 0.0

    @property
    def loss(self) -> float:
        """The share of packets that were sent again."""
        if not self.sent:
            return 0.0
        return self.resent / self.sent


class SlowLink(NamedTuple):
    """A link that stands out: its figures, the usual rate, and whether lost packets are the reason."""

    link: LinkTraffic
    usual: float
    is_lossy: bool


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
        link = sums.get(ends, LinkTraffic(*ends, seconds, 0, 0.0, 0, 0))
        sums[ends] = link._replace(
            acked=link.acked + one.acked - old.acked,
            busy=link.busy + busy,
            sent=link.sent + one.sent - old.sent,
            resent=link.resent + one.resent - old.resent,
        )
    return list(sums.values())


def find_slow_links(links: Sequence[LinkTraffic]) -> list[SlowLink]:
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
        slow.append(SlowLink(link, usual, is_lossy))
    return sorted(slow, key=lambda one: one.link.rate)
