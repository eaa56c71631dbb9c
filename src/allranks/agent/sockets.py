"""TCP connections of processes, by the kernel's socket diagnostics (sock_diag(7), linux/inet_diag.h, linux/tcp.h).

What `ss -ti` prints is read without it: nodes need not have the command.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Dict, Iterator, List, Mapping, Tuple

from allranks.protocol.samples import LinkCount, RankSocket, is_loopback

from .netfacts import ESTABLISHED, attributes, tcp_sockets
from .processes import open_names

INET_DIAG_INFO = 2
SYN_SENT = 2
STATES = 1 << ESTABLISHED | 1 << SYN_SENT
MOST_LINKS = 4096  # addresses of all ranks of a node
MOST = 256  # connections of a rank that are reported

_MESSAGE = struct.Struct("=BBBB2s2s16s16sIIIIIIII")  # inet_diag_msg
_INODE = 15  # its last field
# Of tcp_info (Linux 4.10 and newer): retransmits, total_retrans, bytes_acked, bytes_received, data_segs_out, busy_time
# and rwnd_limited.
_INFO = struct.Struct("=2xB97xI16xQQ20xI8xQQ")


def connections(pids: Mapping[int, int]) -> Dict[int, Tuple[RankSocket, ...]]:
    """List the TCP connections of ranks, to other machines first, and those that wait for an answer before others.

    `pids` are the ranks' processes. A rank of which nothing can be read is left out.
    """
    of_ranks: Dict[int, List[RankSocket]] = {}
    for rank, one in _of_ranks(pids):
        of_ranks.setdefault(rank, []).append(one)
    for ones in of_ranks.values():
        ones.sort(key=lambda one: (is_loopback(one.peer), -one.retransmits, -one.queued))
    return {rank: tuple(ones[:MOST]) for rank, ones in of_ranks.items()}


def link_counts(pids: Mapping[int, int]) -> List[LinkCount]:
    """Add up the kernel's counters of ranks' connections to other machines, by rank and address of the peer.

    `pids` are the ranks' processes.
    """
    counts: Dict[Tuple[int, str], LinkCount] = {}
    for rank, one in _of_ranks(pids):
        peer = one.peer.rpartition(":")[0]
        if is_loopback(peer):
            continue
        count = counts.get((rank, peer), LinkCount(rank, peer))
        counts[rank, peer] = count._replace(
            acked=count.acked + one.acked,
            busy=count.busy + one.busy,
            held=count.held + one.held,
            sent=count.sent + one.sent,
            resent=count.resent + one.resent,
        )
    return list(counts.values())[:MOST_LINKS]


def _of_ranks(pids: Mapping[int, int]) -> Iterator[Tuple[int, RankSocket]]:
    """Give each connection with its rank. The kernel is asked once for all: what it refuses to say is left out."""
    owners = {name: rank for rank, pid in pids.items() for name in open_names(pid) if name.startswith("socket:[")}
    if not owners:
        return
    for family, message in tcp_sockets(STATES, 1 << (INET_DIAG_INFO - 1)):
        fields = _MESSAGE.unpack_from(message)
        owner = owners.get("socket:[%d]" % fields[_INODE])
        if owner is not None:
            yield owner, _read(family, message, fields)


def _read(family: int, message: bytes, fields: Tuple[Any, ...]) -> RankSocket:
    state = fields[1]
    size = 4 if family == socket.AF_INET else 16
    local, peer = (
        "%s:%d" % (_address(family, address[:size]), int.from_bytes(port, "big"))
        for address, port in ((fields[6], fields[4]), (fields[7], fields[5]))
    )
    info = dict(attributes(message, _MESSAGE.size)).get(INET_DIAG_INFO, b"")
    one = RankSocket(local, peer, state == SYN_SENT, queued=fields[13])
    if len(info) < _INFO.size:
        return one
    retransmits, resent, acked, received, sent, busy, held = _INFO.unpack_from(info)
    return one._replace(
        retransmits=retransmits, acked=acked, received=received, resent=resent, sent=sent, busy=busy, held=held
    )


def _address(family: int, packed: bytes) -> str:
    """Write an address; one of IPv4 in the form of IPv6 as the former."""
    text = socket.inet_ntop(family, packed)
    if text.startswith("::ffff:") and "." in text:
        return text[7:]
    return text
