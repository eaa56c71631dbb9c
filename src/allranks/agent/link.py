"""One connection to a controller, as the agent or the supervisor sees it: buffers over a Unix socket."""

import json
import os
import socket
import time
from typing import Any, Dict, List

from allranks.protocol.frames import PROTOCOL, Decoder, Frame, pack_json
from allranks.protocol.jsontext import read_object

HIGH_WATER = 1 << 20  # bytes waiting to be sent above which no more output is packed


def hello(node_dir: str, **fields: Any) -> Dict[str, Any]:
    """The first message to a controller: who speaks, from where; `fields` are the agent's or the supervisor's own."""
    return {
        "type": "hello",
        "protocol": PROTOCOL,
        "node_dir": node_dir,
        "pid": os.getpid(),
        "t": time.time(),
        "hostname": socket.gethostname(),
        **fields,
    }


class Link:
    """A non-blocking connected socket with a send buffer and a frame decoder."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._out = bytearray()
        self._decoder = Decoder()

    @property
    def backlog(self) -> int:
        """Bytes that wait to be sent."""
        return len(self._out)

    def send(self, message: Dict[str, Any]) -> None:
        """Queues a control message."""
        self._out += pack_json(message)

    def send_bytes(self, frames: bytes) -> None:
        """Queues packed frames."""
        self._out += frames

    def flush(self) -> None:
        """Sends what the socket takes now; raises OSError where the other side is gone."""
        while self._out:
            try:
                sent = self.sock.send(memoryview(self._out)[: 256 << 10])
            except BlockingIOError:
                return
            del self._out[:sent]

    def receive(self) -> List[Frame]:
        """All frames that have arrived; raises EOFError at the end of the stream, FrameError, OSError."""
        frames: List[Frame] = []
        while True:
            try:
                data = self.sock.recv(65536)
            except BlockingIOError:
                return frames
            if not data:
                if frames:
                    return frames
                raise EOFError
            frames += self._decoder.feed(data)

    def close(self) -> None:
        """Closes the socket."""
        self.sock.close()


class Journal:
    """What happened on this node, one JSON object a line, for whoever comes after this process."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, entry: Dict[str, Any]) -> None:
        """Appends one entry; a full disk loses it, never the run."""
        try:
            os.write(self._fd, json.dumps(entry).encode() + b"\n")
        except OSError:
            pass


def read_journal(path: str) -> List[Dict[str, Any]]:
    """The entries of a journal; a line cut short is skipped."""
    entries = []
    try:
        with open(path, "rb") as file:
            for line in file.read(64 << 20).splitlines():
                try:
                    entries.append(read_object(line, 1 << 20))
                except ValueError:
                    continue
    except OSError:
        pass
    return entries
