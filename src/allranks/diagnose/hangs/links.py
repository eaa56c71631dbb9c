"""Which link does not carry what ranks send, by the kernel's counters of their own connections (pure).

A rank's kernel sends what is not acknowledged again and again. If the other end has received it, its
acknowledgements are what is lost, and so the other direction. A peer that merely does not read acknowledges: a
stopped or busy rank is not mistaken for a link. What is acknowledged from one sample to the next moves: the link is
slow, and nothing hangs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from allranks.findings import Hang
from allranks.protocol.samples import RankSocket, StackSample, is_loopback
from allranks.text import format_rate, format_size, group, join_words

RETRANSMITS = 3  # time-outs in a row, at the least
RTO = 0.2  # seconds: the least of Linux (TCP_RTO_MIN); each time-out in a row takes twice as long
SHARE = 0.25  # of the silence for which a dead link has sent again and again; a lossy one gets through before
CAUSE = "mtu-or-packet-loss"
SLOW = "slow-link"
RESENT = 10  # packets sent again since a connection began: a sound network loses fewer
SAID = 3  # links that a message names
Samples = Mapping[int, StackSample]
Names = Mapping[int, str]  # nodes by rank
Link = tuple[str, str]  # two nodes, or two addresses
OtherEnd = tuple[int, RankSocket]  # of a connection between ranks, with the rank
ACK_OF_SYN = 1  # tcpi_bytes_acked of who connected counts the SYN


class LinkEnd(NamedTuple):
    """A connection on which a rank has waited for an acknowledgement. `sender` and `receiver` are nodes, "" unknown."""

    rank: int
    connection: RankSocket
    sender: str
    receiver: str
    is_directed: bool  # both ends were read: it is known which direction loses packets
    peer_rank: int | None = None
    moved: int = 0  # bytes that were acknowledged between two samples


def dead_link(
    first: Samples,
    second: Samples,
    names: Names,
    addresses: Mapping[str, str],
    quiet: float = 0.0,
) -> Hang | None:
    """Name the link on which nothing was acknowledged between two samples, with its direction; None without one.

    `names` are nodes by rank, `addresses` nodes by an address that only one of them has. `quiet`: the seconds for
    which nothing has moved.
    """
    least = _least_retransmits(quiet)
    ends = [end for end in _dead_ends(first, second, names, addresses) if end.connection.retransmits >= least]
    if not ends:
        return None
    directed = [end for end in ends if end.is_directed]
    links = group(directed or ends, lambda end: (end.sender, end.receiver))
    words = join_words([_link(of_link[0]) for of_link in links.values()], limit=SAID + 1)
    return Hang(
        CAUSE,
        f"the link is at fault: {words}",
        _look_at(links),
        confidence=0.9 if directed else 0.8,
        culprits=(),
        victims=tuple(sorted(second)),
        evidence=tuple(_line(end) for end in ends[:3]),
        nodes=next(iter(links)),
    )


def slow_link(first: Samples, second: Samples, names: Names, seconds: float) -> Hang | None:
    """Name the links over which ranks wait for data that still moves; None where none does.

    The samples are `seconds` apart. Both have data that the peer's kernel has not acknowledged: a link that keeps up
    has none twice.
    """
    links = _waiting_links(first, second, names)
    moved = {link: sum(end.moved for end in of_link) for link, of_link in links.items()}
    slow = sorted((link for link in links if moved[link]), key=lambda link: moved[link])[:SAID]
    if not slow:
        return None
    sentences = [
        f"{sender} sends {format_rate(moved[sender, receiver] / seconds)} to {receiver}" for sender, receiver in slow
    ]
    return _slow(SLOW, sentences, {link: links[link] for link in slow})


def lossy_link(first: Samples, second: Samples, names: Names) -> Hang | None:
    """Name the links whose packets were sent again and may yet arrive; None without one.

    To be asked where nothing else explains why all ranks wait: a peer that does not read is not a lossy link.
    """
    links = _waiting_links(first, second, names)
    lossy = [
        link
        for link, ends in links.items()
        if any(end.connection.retransmits or end.connection.resent >= RESENT for end in ends)
    ]
    if not lossy:
        return None
    sentences = [f"packets between {sender} and {receiver} get lost" for sender, receiver in lossy[:SAID]]
    return _slow(CAUSE, sentences, {link: links[link] for link in lossy[:SAID]})


def _slow(cause: str, said: Sequence[str], links: Mapping[Link, Sequence[LinkEnd]]) -> Hang:
    return Hang(
        cause,
        f"a link is slow and nothing hangs: {join_words(said)}, and the ranks wait for it",
        _look_at(links),
        confidence=0.8,
        culprits=(),
        victims=(),
        evidence=tuple(_waiting_line(ends[0]) for ends in links.values()),
        slow=True,
        nodes=next(iter(links)),
    )


def _waiting_links(first: Samples, second: Samples, names: Names) -> dict[Link, list[LinkEnd]]:
    return group(_waiting_ends(first, second, names), lambda end: (end.sender, end.receiver))


def _far(samples: Samples, rank: int) -> dict[Link, RankSocket]:
    """Give the connections of a rank to other machines by their two ends."""
    if rank not in samples:
        return {}
    return {(one.local, one.peer): one for one in samples[rank].sockets if not is_loopback(one.peer)}


def _connections(
    first: Samples, second: Samples
) -> Iterator[tuple[int, RankSocket | None, RankSocket, OtherEnd | None]]:
    """Give the connections of all ranks to other machines: as each was, as it is, and its other end.

    Those are found by the two addresses: to search the samples for each is quadratic.
    """
    far_ends: dict[Link, OtherEnd] = {}
    for rank in second:
        for ends, one in _far(second, rank).items():
            far_ends.setdefault(ends, (rank, one))
    for rank in sorted(second):
        before = _far(first, rank)
        for ends, one in _far(second, rank).items():
            yield rank, before.get(ends), one, far_ends.get((one.peer, one.local))


def _waiting_ends(first: Samples, second: Samples, names: Names) -> Iterator[LinkEnd]:
    """Find the connections to other ranks that had data on its way in both samples."""
    for rank, before, one, other_end in _connections(first, second):
        if before is None or other_end is None or not (before.queued and one.queued):
            continue
        peer_rank, _ = other_end
        here = names.get(rank, "")
        there = names.get(peer_rank, "")
        if not here or here != there:  # else no network is between them: the store of rank 0 is asked by its own rank
            yield LinkEnd(rank, one, here, there, True, peer_rank, one.acked - before.acked)


def _waiting_line(end: LinkEnd) -> str:
    """Write `rank 0: 2 MB on their way to rank 2, 480 KB acknowledged between two samples`."""
    on_way = f"{format_size(end.connection.queued)} on their way to rank {end.peer_rank}"
    if end.connection.retransmits:
        on_way += f", sent {end.connection.retransmits + 1} times"
    return f"rank {end.rank}: {on_way}, {format_size(end.moved)} acknowledged between two samples"


def _least_retransmits(quiet: float) -> int:
    """Count the time-outs in a row that a link has had which was dead for a share of the silence."""
    least = RETRANSMITS
    while RTO * (2 ** (least + 1) - 1) <= quiet * SHARE:
        least += 1
    return least


def _look_at(links: Iterable[Link]) -> str:
    """Write where to look: at the node that all links have in common, or at both ends of the first."""
    listed = list(links)
    common = set(listed[0]).intersection(*listed)
    suspects = " and ".join(listed[0])
    if len(listed) > 1 and len(common) == 1:
        suspects = common.pop() or suspects
    return (
        f"look at the network of {suspects}: `ip -s link; ethtool -S IFACE | grep -i -E 'err|drop'; nft list ruleset`. "
        f"`allranks test --hosts HOSTS --suite pairs` tries every link again"
    )


def _dead_ends(first: Samples, second: Samples, names: Names, addresses: Mapping[str, str]) -> Iterator[LinkEnd]:
    """Find the connections that got no answer from one sample to the next."""
    for rank, before, one, other_end in _connections(first, second):
        has_moved = before is None or before.acked != one.acked
        if one.retransmits < RETRANSMITS or (not one.connecting and (has_moved or not one.queued)):
            continue
        here = names.get(rank, "")
        if other_end is None:
            yield LinkEnd(rank, one, here, addresses.get(one.peer.rpartition(":")[0], one.peer), False)
            continue
        peer_rank, other = other_end
        there = names.get(peer_rank, "")
        if other.received > one.acked + ACK_OF_SYN:
            yield LinkEnd(rank, one, there, here, True, peer_rank)
        else:
            yield LinkEnd(rank, one, here, there, True, peer_rank)


def _link(end: LinkEnd) -> str:
    """Write `no packets from h1 reach h3`."""
    if end.connection.connecting:
        return f"{end.sender} gets no answer from {end.receiver} ({end.connection.peer})"
    if not end.is_directed:
        return f"packets are lost between {end.sender} and {end.receiver}"
    return f"packets from {end.sender} do not reach {end.receiver}"


def _line(end: LinkEnd) -> str:
    """Write `rank 0: 64 KB to 10.0.0.3:4411 (rank 2) not acknowledged, sent 7 times`."""
    one = end.connection
    whose = "" if end.peer_rank is None else f" (rank {end.peer_rank})"
    if one.connecting:
        return f"rank {end.rank}: no answer from {one.peer}, tried {one.retransmits + 1} times"
    again = f"sent {one.retransmits + 1} times"
    return f"rank {end.rank}: {format_size(one.queued)} to {one.peer}{whose} not acknowledged, {again}"
