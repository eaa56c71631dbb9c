"""Who holds a TCP port on this machine, as far as this user may see.

Sockets come from sock_diag(7), which also knows sockets that are bound and do not listen (state 13,
Linux 6.8 and newer), else from /proc/net/tcp and tcp6. The process comes from /proc/PID/fd.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from typing import List, Optional, Set, Tuple

from allranks.protocol.node_names import RUN_TAG
from allranks.protocol.processes import PortOwner
from allranks.protocol.records import NamedTuple

from .files import read_link, read_text
from .netfacts import tcp_sockets
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
LISTEN = 10
BOUND = (7, 13)  # asked for as TCP_BOUND_INACTIVE, answered as TCP_CLOSE
STATES = {1: "established", 6: "TIME_WAIT", LISTEN: "listen", 7: "bound", 13: "bound"}
SCAN_SECONDS = 1.0
TABLE_LIMIT = 32 << 20  # bytes of /proc/net/tcp


class _Socket(NamedTuple):
    state: int
    uid: int
    inode: int


def who_holds(port: int) -> Optional[PortOwner]:
    """Give the process on a port; None where no socket is on it.

    Where the socket is seen but its process is not (another user's), the pid is absent and `note` says so.
    Never raises; takes about 1 s at most.
    """
    try:
        sockets = _sockets(port)
    except Exception as error:
        return PortOwner(note="could not look: %s" % error)
    if not sockets:
        return None
    best = min(sockets, key=lambda s: (s.state != LISTEN, s.state not in BOUND, s.inode == 0))
    owner = PortOwner(uid=best.uid, user=user_name(best.uid), state=STATES.get(best.state, "state %d" % best.state))
    if best.inode == 0:
        return owner._replace(note="an old connection in %s, no process" % owner.state)
    process = _process_of({s.inode for s in sockets if s.state == best.state and s.inode})
    if process is None:
        return owner._replace(note="inode known but process not visible")
    run, run_lives = _run_of(process)
    command = command_of(process.pid)
    return owner._replace(pid=process.pid, start_time=process.start, command=command, run=run, run_lives=run_lives)


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


def _sockets(port: int) -> List[_Socket]:
    """Take those that the kernel gives as inet_diag_msg (linux/inet_diag.h), else those of /proc."""
    sockets: List[_Socket] = []
    for family, table in ((socket.AF_INET, "/proc/net/tcp"), (socket.AF_INET6, "/proc/net/tcp6")):
        try:
            answers = list(tcp_sockets(family, states=0xFFFFFFFF))
            for answer in answers:  # all or none: what /proc has is not to stand beside a part of them
                if struct.unpack_from(">H", answer, 4)[0] == port:
                    uid, inode = struct.unpack_from("=II", answer, 64)
                    sockets.append(_Socket(answer[1], uid, inode))
        except OSError:
            for line in read_text(table, TABLE_LIMIT).splitlines()[1:]:
                words = line.split()
                if len(words) > 9 and int(words[1].rpartition(":")[2], 16) == port:
                    sockets.append(_Socket(int(words[3], 16), int(words[7]), int(words[9])))
    return sockets


def _process_of(inodes: Set[int]) -> Optional[Process]:
    wanted = {"socket:[%d]" % inode for inode in inodes}
    deadline = time.monotonic() + SCAN_SECONDS
    owners: List[Process] = []
    for process in read_processes(all_pids()):
        if time.monotonic() > deadline:
            break
        if not wanted.isdisjoint(open_names(process.pid)):
            owners.append(process)
    return min(owners, key=lambda p: (p.start, p.pid), default=None)
