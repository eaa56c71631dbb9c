"""A TCP connection of a rank as the kernel counts it (pure, Python 3.8)."""

from __future__ import annotations

from .records import NamedTuple


class RankSocket(NamedTuple):
    """One connection; `local` and `peer` are ADDRESS:PORT.

    `connecting`: the peer has not answered yet. `queued`: bytes that the program has written and the peer has not
    acknowledged. `retransmits`: time-outs in a row without an answer. `acked` and `received`: bytes, since it began;
    `sent` and `resent`: packets, since it began. `busy`: microseconds with data on its way, `held` those for which the
    peer had no room.
    """

    local: str
    peer: str
    connecting: bool = False
    queued: int = 0
    retransmits: int = 0
    acked: int = 0
    received: int = 0
    resent: int = 0
    sent: int = 0
    busy: int = 0
    held: int = 0
