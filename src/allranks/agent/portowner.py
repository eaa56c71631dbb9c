"""Who holds a TCP port on this machine, as far as this user may see.

Sockets come from sock_diag(7), which also knows sockets that are bound and do not listen (state 13,
Linux 6.8 and newer), else from /proc/net/tcp and tcp6. The process comes from /proc/PID/fd.
"""

import os
import pwd
import re
import socket
import struct
import time
from typing import List, NamedTuple, Optional, Set, Tuple

from allranks.protocol.messages import PortOwner

from .processes import Process, command_of, read_process, run_tag_of

NODE_LOG = re.compile(r"/allranks-\d+/([^/]+)/node_[^/]+/node\.log$")
LISTEN = 10
BOUND = (7, 13)  # asked for as TCP_BOUND_INACTIVE, answered as TCP_CLOSE
SCAN_SECONDS = 1.0
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_DUMP_REQUEST = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_DONE = 3
_ERROR = 2


class _Socket(NamedTuple):
    state: int
    uid: int
    inode: int


def who_holds(port: int) -> Optional[PortOwner]:
    """Give the process on a port; None where no socket is on it.

    Where the socket is seen but its process is not (another user's), there is no pid and `note` says so.
    Never raises; takes about 1 s at most.
    """
    try:
        sockets = _sockets(port)
    except Exception as error:
        return PortOwner(note="could not look: %s" % error)
    if not sockets:
        return None
    best = min(sockets, key=lambda s: (s.state != LISTEN, s.state not in BOUND, s.inode == 0))
    owner = PortOwner(uid=best.uid, user=_user(best.uid), state=_state_name(best.state))
    if best.inode == 0:
        return owner._replace(note="an old connection in %s, no process" % owner.state)
    process = _process_of({s.inode for s in sockets if s.state == best.state and s.inode})
    if process is None:
        return owner._replace(note="inode known but process not visible")
    run, run_lives = _run_of(process)
    command = command_of(process.pid)
    return owner._replace(pid=process.pid, start_time=process.start, command=command, run=run, run_lives=run_lives)


def _run_of(process: Process) -> Tuple[Optional[str], Optional[bool]]:
    """The run that a process belongs to, by an agent that it is or descends from, else by its run tag; and whether
    its agent runs."""
    above: Optional[Process] = process
    while above is not None and above.pid > 1:
        run = _run_of_agent(above.pid)
        if run is not None:
            return run, True
        above = read_process(above.parent)
    run_tag = run_tag_of(process.pid)
    if run_tag:
        return run_tag.partition("/")[0], False
    return None, None


def _run_of_agent(pid: int) -> Optional[str]:
    """The uid of the run that an agent works for: its standard error is the log in its node directory."""
    try:
        match = NODE_LOG.search(os.readlink("/proc/%d/fd/2" % pid))
    except OSError:
        return None
    return match.group(1) if match else None


def _sockets(port: int) -> List[_Socket]:
    sockets: List[_Socket] = []
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            sockets += _from_sock_diag(family, port)
        except OSError:
            sockets += _from_proc("/proc/net/tcp6" if family == socket.AF_INET6 else "/proc/net/tcp", port)
    return sockets


def _from_sock_diag(family: int, port: int) -> List[_Socket]:
    """One inet_diag dump (linux/inet_diag.h: inet_diag_req_v2, inet_diag_msg)."""
    body = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + bytes(48)
    head = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _DUMP_REQUEST, 1, 0)
    sockets: List[_Socket] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(SCAN_SECONDS)
        link.send(head + body)
        while True:
            data = link.recv(1 << 16)
            offset = 0
            while offset + 16 <= len(data):
                length, kind = struct.unpack_from("=IH", data, offset)
                if kind == _DONE:
                    return sockets
                if kind == _ERROR or length < 16:
                    raise OSError("sock_diag refused")
                state = data[offset + 17]
                if struct.unpack_from(">H", data, offset + 20)[0] == port:
                    uid, inode = struct.unpack_from("=II", data, offset + 16 + 64)
                    sockets.append(_Socket(state, uid, inode))
                offset += (length + 3) & ~3


def _from_proc(path: str, port: int) -> List[_Socket]:
    sockets: List[_Socket] = []
    try:
        with open(path) as file:
            next(file, None)
            for line in file:
                words = line.split()
                if int(words[1].rsplit(":", 1)[1], 16) == port:
                    sockets.append(_Socket(int(words[3], 16), int(words[7]), int(words[9])))
    except (OSError, ValueError, IndexError):
        pass
    return sockets


def _process_of(inodes: Set[int]) -> Optional[Process]:
    """The oldest process that has one of the sockets open."""
    wanted = {"socket:[%d]" % inode for inode in inodes}
    deadline = time.monotonic() + SCAN_SECONDS
    owners: List[Process] = []
    for name in os.listdir("/proc"):
        if time.monotonic() > deadline:
            break
        if name.isdecimal() and _has_open(int(name), wanted):
            process = read_process(int(name))
            if process is not None:
                owners.append(process)
    return min(owners, key=lambda p: (p.start, p.pid), default=None)


def _has_open(pid: int, links: Set[str]) -> bool:
    directory = "/proc/%d/fd" % pid
    try:
        names = os.listdir(directory)
    except OSError:
        return False
    for name in names:
        try:
            if os.readlink("%s/%s" % (directory, name)) in links:
                return True
        except OSError:
            continue
    return False


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _state_name(state: int) -> str:
    return {1: "established", 6: "TIME_WAIT", LISTEN: "listen", 7: "bound", 13: "bound"}.get(state, "state %d" % state)
