"""Who holds a TCP port on this machine, as far as this user may see.

Sockets come from sock_diag(7), which also knows sockets that are bound and do not listen (state 13,
Linux 6.8 and newer). The process comes from /proc/PID/fd.
"""

from __future__ import annotations

import re
import struct
import time
from typing import List, Optional, Set, Tuple

from allranks.protocol.node_names import RUN_TAG
from allranks.protocol.processes import PortOwner
from allranks.protocol.records import NamedTuple

from .files import read_link
from .netfacts import ESTABLISHED, tcp_sockets
from .processes import (
    Process,
    all_pids,
    command_of,
    open_names,
    read_process,
    read_processes,
    user_name,
    variable_of,
)

NODE_LOG = r"/allranks-\d+/([^/]+)/node_[^/]+/node\.log$"
ALL_STATES = 0xFFFFFFFF
LISTEN = 10
BOUND = (7, 13)  # asked for as TCP_BOUND_INACTIVE, answered as TCP_CLOSE
SCAN_SECONDS = 1.0


class _Socket(NamedTuple):
    port: int
    peer_port: int
    state: int
    uid: int
    inode: int


def who_holds(port: int) -> Optional[PortOwner]:
    """Give the process on a port; None where no socket is seen on it.

    Where the socket is seen but its process is not (another user's), the pid is absent. Takes about 1 s at most.
    """
    sockets = [s for s in _sockets(ALL_STATES) if s.port == port]
    if not sockets:
        return None
    best = min(sockets, key=lambda s: (s.state != LISTEN, s.state not in BOUND, s.inode == 0))
    process = _process_of({s.inode for s in sockets if s.state == best.state and s.inode})
    if process is None:
        return PortOwner(user_name(best.uid))
    run, run_lives = _run_of(process)
    return PortOwner(user_name(best.uid), process.pid, command_of(process.pid), run, run_lives)


def _run_of(process: Process) -> Tuple[Optional[str], Optional[bool]]:
    """Return the run that a process belongs to, and whether the run's agent lives.

    It is known by an agent that the process is or descends from, else by its run tag."""
    above: Optional[Process] = process
    while above is not None and above.pid > 1:
        # an agent's standard error is the log in its node directory
        log = re.search(NODE_LOG, read_link("/proc/%d/fd/2" % above.pid))
        if log is not None:
            return log.group(1), True
        above = read_process(above.parent)
    run_tag = variable_of(process.pid, RUN_TAG)
    if run_tag:
        return run_tag.partition("/")[0], False
    return None, None


def connections_to(port: int) -> Set[str]:
    """Name the sockets here that are connected to a port, as /proc/PID/fd does."""
    return {_name(s.inode) for s in _sockets(1 << ESTABLISHED) if s.peer_port == port}


def _sockets(states: int) -> List[_Socket]:
    sockets: List[_Socket] = []
    for _, message in tcp_sockets(states):
        port, peer_port = struct.unpack_from(">HH", message, 4)
        uid, inode = struct.unpack_from("=II", message, 64)
        sockets.append(_Socket(port, peer_port, message[1], uid, inode))
    return sockets


def _name(inode: int) -> str:
    return "socket:[%d]" % inode


def _process_of(inodes: Set[int]) -> Optional[Process]:
    wanted = set(map(_name, inodes))
    deadline = time.monotonic() + SCAN_SECONDS
    owners: List[Process] = []
    for process in read_processes(all_pids()):
        if time.monotonic() > deadline:
            break
        if not wanted.isdisjoint(open_names(process.pid)):
            owners.append(process)
    return min(owners, key=lambda p: (p.start, p.pid), default=None)
