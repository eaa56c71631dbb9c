"""Which link does not carry what ranks send, by the kernel's counters of their own connections (pure).

A rank's kernel sends what is not acknowledged again and again. If the other end has received it, its
acknowledgements are what is lost, and so the other direction. A peer that merely does not read acknowledges: a
stopped or busy rank is not mistaken for a link.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from allranks.protocol.sockets import RankSocket
from allranks.text import format_size, group, join_words

from .attribute import Hang
from .doing import StackSample

RETRANSMITS = 3  # time-outs in a row: 1.4 s without an acknowledgement at the least RTO of Linux, 0.2 s
CAUSE = "mtu-or-packet-loss"
ACK_OF_SYN = 1  # tcpi_bytes_acked of who connected counts the SYN


class DeadEnd(NamedTuple):
    """A connection on which a rank has waited for an acknowledgement. `sender` and `receiver` are nodes, "" unknown.

    `is_directed`: both ends were read, so that it is known which direction loses packets.
    """

    rank: int
    connection: RankSocket
    sender: str
    receiver: str
    is_directed: bool
    peer_rank: int | None = None


def dead_link(
    first: Mapping[int, StackSample],
    second: Mapping[int, StackSample],
    names: Mapping[int, str],
    addresses: Mapping[str, str],
) -> Hang | None:
    """Name the link on which nothing was acknowledged between two samples, with its direction; None without one.

    `names` are nodes by rank, `addresses` nodes by an address that only one of them has.
    """
    ends = [end for rank in sorted(second) for end in _dead_ends(rank, first, second, names, addresses)]
    if not ends:
        return None
    directed = [end for end in ends if end.is_directed]
    links = group(directed or ends, lambda end: (end.sender, end.receiver))
    words = join_words([_link(of_link[0]) for of_link in list(links.values())[:3]])
    if len(links) > 3:
        words += f" and {len(links) - 3} more"
    sender, receiver = next(iter(links))
    suspects = _only_node(links) or f"{sender} and {receiver}"
    remedy = (
        f"look at the network of {suspects}: `ip -s link; ethtool -S IFACE | grep -i -E 'err|drop'; nft list ruleset`. "
        f"`allranks test --hosts HOSTS --suite pairs` tries every link again"
    )
    return Hang(
        CAUSE,
        f"the link is at fault: {words}",
        remedy,
        0.9 if directed else 0.8,
        (),
        tuple(sorted(second)),
        tuple(_line(end) for end in ends[:3]),
        nodes=(sender, receiver),
    )


def _dead_ends(
    rank: int,
    first: Mapping[int, StackSample],
    second: Mapping[int, StackSample],
    names: Mapping[int, str],
    addresses: Mapping[str, str],
) -> Iterable[DeadEnd]:
    """Find the connections of a rank that got no answer from one sample to the next."""
    before = {(one.local, one.peer): one for one in first[rank].sockets} if rank in first else {}
    for one in second[rank].sockets:
        earlier = before.get((one.local, one.peer))
        has_moved = earlier is None or earlier.acked != one.acked
        if one.retransmits < RETRANSMITS or (not one.connecting and (has_moved or not one.queued)):
            continue
        other = _find_other_end(one, second)
        here = names.get(rank, "")
        if other is None:
            yield DeadEnd(rank, one, here, addresses.get(one.peer.rpartition(":")[0], one.peer), False)
            continue
        peer_rank, other_end = other
        there = names.get(peer_rank, "")
        if other_end.received > one.acked + ACK_OF_SYN:
            yield DeadEnd(rank, one, there, here, True, peer_rank)
        else:
            yield DeadEnd(rank, one, here, there, True, peer_rank)


def _find_other_end(one: RankSocket, samples: Mapping[int, StackSample]) -> tuple[int, RankSocket] | None:
    """Find the rank that has the other end of a connection, and how it counts."""
    for rank, sample in samples.items():
        for end in sample.sockets:
            if (end.local, end.peer) == (one.peer, one.local):
                return rank, end
    return None


def _only_node(links: Iterable[tuple[str, str]]) -> str:
    """Give the node that is an end of all links, where there are several; else nothing."""
    listed = list(links)
    common = set(listed[0]).intersection(*listed)
    if len(listed) > 1 and len(common) == 1:
        return common.pop()
    return ""


def _link(end: DeadEnd) -> str:
    """Write `no packets from h1 reach h3`."""
    if end.connection.connecting:
        return f"{end.sender} gets no answer from {end.receiver} ({end.connection.peer})"
    if not end.is_directed:
        return f"packets are lost between {end.sender} and {end.receiver}"
    return f"packets from {end.sender} do not reach {end.receiver}"


def _line(end: DeadEnd) -> str:
    """Write `rank 0: 64 KB to 10.0.0.3:4411 (rank 2) not acknowledged, sent 7 times`."""
    one = end.connection
    whose = "" if end.peer_rank is None else f" (rank {end.peer_rank})"
    if one.connecting:
        return f"rank {end.rank}: no answer from {one.peer}, tried {one.retransmits + 1} times"
    again = f"sent {one.retransmits + 1} times"
    return f"rank {end.rank}: {format_size(one.queued)} to {one.peer}{whose} not acknowledged, {again}"
