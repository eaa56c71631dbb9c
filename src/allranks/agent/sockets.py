"""TCP connections of processes, by the kernel's socket diagnostics (sock_diag(7), linux/inet_diag.h, linux/tcp.h).

What `ss -ti` prints is read without it: nodes need not have the command.
"""

from __future__ import annotations

import socket
import struct
from typing import Dict, Iterator, List, Mapping, Set, Tuple

from allranks.protocol.samples import LinkCount, RankSocket, is_loopback

from .netfacts import attributes, dump
from .processes import open_names

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
INET_DIAG_INFO = 2
ESTABLISHED = 1
SYN_SENT = 2
STATES = 1 << ESTABLISHED | 1 << SYN_SENT
MOST_LINKS = 4096  # addresses of all ranks of a node
MOST = 256  # connections of a rank that are reported

_MESSAGE = struct.Struct("=BBBB2s2s16s16sIIIIIIII")  # inet_diag_msg
_COUNTED = struct.Struct("=2xB")  # tcpi_retransmits
_BYTES = struct.Struct("=QQ")  # tcpi_bytes_acked, tcpi_bytes_received
BYTES_AT = 120  # their place in tcp_info, Linux 4.1 and newer
_RESENT = struct.Struct("=100xI")  # tcpi_total_retrans
_SENT = struct.Struct("=156xI")  # tcpi_data_segs_out, Linux 4.6
_BUSY = struct.Struct("=168xQQ")  # tcpi_busy_time, tcpi_rwnd_limited, Linux 4.10


def connections(pid: int) -> Tuple[RankSocket, ...]:
    """List a process's TCP connections, to other machines first, and those that wait for an answer before others.

    None where they cannot be read.

    Raise nothing: what a kernel or a container refuses to say is left out.
    """
    inodes = _inodes(pid)
    if not inodes:
        return ()
    of_rank: List[RankSocket] = []
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            of_rank += [one for inode, one in _of_family(family) if str(inode) in inodes]
        except (OSError, struct.error):
            continue
    of_rank.sort(key=lambda one: (is_loopback(one.peer), -one.retransmits, -one.queued))
    return tuple(of_rank[:MOST])


def link_counts(pids: Mapping[int, int]) -> List[LinkCount]:
    """Add up the kernel's counters of ranks' connections to other machines, by rank and address of the peer.

    `pids` are the ranks' processes. The kernel is asked once for all of them.
    """
    owners: Dict[str, int] = {}
    for rank, pid in pids.items():
        owners.update(dict.fromkeys(_inodes(pid), rank))
    counts: Dict[Tuple[int, str], LinkCount] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            for inode, one in _of_family(family):
                peer = one.peer.rpartition(":")[0]
                if str(inode) not in owners or is_loopback(peer):
                    continue
                rank = owners[str(inode)]
                count = counts.get((rank, peer), LinkCount(rank, peer))
                counts[rank, peer] = count._replace(
                    acked=count.acked + one.acked,
                    busy=count.busy + one.busy,
                    held=count.held + one.held,
                    sent=count.sent + one.sent,
                    resent=count.resent + one.resent,
                )
        except (OSError, struct.error):
            continue
    return list(counts.values())[:MOST_LINKS]


def _inodes(pid: int) -> Set[str]:
    return {name[len("socket:[") : -1] for name in open_names(pid) if name.startswith("socket:[")}


def _of_family(family: int) -> Iterator[Tuple[int, RankSocket]]:
    request = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 0, STATES)
    for message in dump(NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, request, SOCK_DIAG_BY_FAMILY):
        yield _read(family, message)


def _read(family: int, message: bytes) -> Tuple[int, RankSocket]:
    fields = _MESSAGE.unpack_from(message)
    state = fields[1]
    size = 4 if family == socket.AF_INET else 16
    local, peer = (
        "%s:%d" % (_address(family, address[:size]), int.from_bytes(port, "big"))
        for address, port in ((fields[6], fields[4]), (fields[7], fields[5]))
    )
    queued, inode = fields[13], fields[15]
    info = dict(attributes(message, _MESSAGE.size)).get(INET_DIAG_INFO, b"")
    one = RankSocket(local, peer, state == SYN_SENT, queued)
    if len(info) >= _COUNTED.size:
        one = one._replace(retransmits=_COUNTED.unpack_from(info)[0])
    if len(info) >= BYTES_AT + _BYTES.size:
        acked, received = _BYTES.unpack_from(info, BYTES_AT)
        one = one._replace(acked=acked, received=received, resent=_RESENT.unpack_from(info)[0])
    if len(info) >= _BUSY.size:
        busy, held = _BUSY.unpack_from(info)
        one = one._replace(sent=_SENT.unpack_from(info)[0], busy=busy, held=held)
    return inode, one


def _address(family: int, packed: bytes) -> str:
    """Write an address; one of IPv4 in the form of IPv6 as the former."""
    text = socket.inet_ntop(family, packed)
    if text.startswith("::ffff:") and "." in text:
        return text[7:]
    return text
