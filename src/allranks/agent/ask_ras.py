"""Asks NCCL's own service for reliability (RAS, NCCL >= 2.24) what it knows of the whole job.

A thread of every NCCL process answers at localhost:28028 (NCCL_RAS_ADDR) in lines of text; the words are those of
NCCL's own client, ncclras (src/ras/client.cc). It is asked only where a rank has libnccl in its memory.
"""

import socket
import time
from typing import Dict, Optional, Tuple

from allranks.protocol.node_names import NodeFiles

from .files import append, read_text
from .processes import Process, variable_of

ADDRESS = ("localhost", 28028)
LEG = 3  # seconds NCCL may wait for its other processes
SECONDS = 8.0  # for everything
ANSWER = 1.5  # seconds for a first word: a stopped process accepts too, another try reaches another one
LIMIT = 256 << 10
MAPS_LIMIT = 16 << 20  # torch maps a few hundred files


def ask_ras(ranks: Dict[int, Process], node_dir: str) -> Optional[str]:
    """Return the text of NCCL's RAS service; None where no process of this node answers as one."""
    pid = next((p.pid for p in ranks.values() if "libnccl" in read_text("/proc/%d/maps" % p.pid, MAPS_LIMIT)), None)
    if pid is None:
        return None
    deadline = time.monotonic() + SECONDS
    text = None
    for _ in range(3):
        if text is None and time.monotonic() < deadline - ANSWER:
            text = _try(_address(pid), deadline)
    if text is not None:
        append(NodeFiles(node_dir).ras, text.encode("utf-8", "replace"))
    return text


def _address(pid: int) -> Tuple[str, int]:
    host, _, port = (variable_of(pid, "NCCL_RAS_ADDR") or "").rpartition(":")
    if not port.isdecimal():
        return ADDRESS
    return host.strip("[]") or ADDRESS[0], int(port)


def _try(address: Tuple[str, int], deadline: float) -> Optional[str]:
    try:
        with socket.create_connection(address, timeout=ANSWER) as channel:
            for word, wanted in (("CLIENT PROTOCOL 2", b"SERVER PROTOCOL"), ("TIMEOUT %d" % LEG, b"OK")):
                channel.sendall(word.encode() + b"\n")
                if not _line(channel).upper().startswith(wanted):
                    return None
            channel.sendall(b"VERBOSE STATUS\n")
            return _rest(channel, deadline)
    except (OSError, ValueError):  # UnicodeError of a name that NCCL_RAS_ADDR cannot mean
        return None


def _line(channel: socket.socket) -> bytes:
    """One answer; the service says nothing more until it is spoken to."""
    data = b""
    while not data.endswith(b"\n") and len(data) < 1024:
        part = channel.recv(1024)
        if not part:
            break
        data += part
    return data


def _rest(channel: socket.socket, deadline: float) -> Optional[str]:
    """Until the service closes the connection; what has come when the time is over counts too."""
    data = b""
    while len(data) < LIMIT and time.monotonic() < deadline:
        channel.settimeout(max(0.05, deadline - time.monotonic()))
        try:
            part = channel.recv(1 << 16)
        except OSError:
            break
        if not part:
            break
        data += part
    return data.decode("utf-8", "replace") or None
