"""One connection to a controller, as the agent or the supervisor has it: buffers over a Unix socket."""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time
from collections import deque
from typing import Deque, List, Optional, Tuple

from allranks.protocol.frames import MAX_JSON, PROTOCOL, Decoder, Frame, Outgoing
from allranks.protocol.jsontext import write_json
from allranks.protocol.messages import AttemptSummary, HelloMessage, Message, pack_message

UNREADABLE = "an order that this agent (protocol %d) cannot read: %%s" % PROTOCOL
SLOWEST = 0.1  # seconds by which output may make the controller's word of it come later; above, less is sent ahead
FIND_EVERY = 10.0  # seconds until it is measured again how quick a word is with little on its way
LEAST_AHEAD = 128 << 10  # bytes of output sent ahead of the controller's word; it says one at each 64 KB
MOST_AHEAD = 1 << 20
READS = 16  # of 64 KB, before anything else is done


def hello(node_dir: str, cwd: str, attempt: Optional[AttemptSummary]) -> HelloMessage:
    """Make the first message to a controller: who speaks, where ranks begin (`cwd`), and which attempt it has."""
    return HelloMessage(
        node_dir=node_dir,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        t=time.time(),
        cwd=cwd,
        attempt=attempt and _with_errors_that_fit(attempt),
    )


def _with_errors_that_fit(attempt: AttemptSummary) -> AttemptSummary:
    """Leave out the error files of ranks for which a message has no room: each may have 128 KB, or thrice as JSON."""
    room = MAX_JSON // 2
    ranks = dict(attempt.ranks)
    for number, rank in attempt.ranks.items():
        if rank.exit is None or rank.exit.error is None:
            continue
        size = len(write_json(rank.exit.error))
        if size > room:
            ranks[number] = rank._replace(exit=rank.exit._replace(error=None))
        else:
            room -= size
    return attempt._replace(ranks=ranks)


class Link:
    """A non-blocking connected socket with a send buffer and a frame decoder."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._out = Outgoing()
        self._decoder = Decoder()
        self._output_sent = 0
        self._output_taken = 0
        self._ahead = LEAST_AHEAD  # bytes of output that may be on their way
        self._quickest = float("inf")  # seconds to a word of the controller
        self._find_at = 0.0
        self._packed: Deque[Tuple[int, float]] = deque()  # bytes of output in all, and when they were packed

    @property
    def room(self) -> int:
        """Bytes of output that may be sent now; what is said behind them waits for no more than they take."""
        return self._ahead - (self._output_sent - self._output_taken)

    def send_output(self, frames: List[bytes], size: int, now: float) -> None:
        """Queue frames that hold `size` bytes of output; `now` in seconds of a monotonic clock, as below."""
        self._out.add(frames)
        self._output_sent += size
        self._packed.append((self._output_sent, now))

    def output_taken(self, count: int, now: float) -> None:
        """Take the controller's word of how much output it has had from this connection: it sets the pace.

        Where a message behind output on its way would come later for it, less is sent ahead. A machine that is busy
        is slow without it, too.
        """
        self._output_taken = max(self._output_taken, min(count, self._output_sent))
        packed_at = None
        while self._packed and self._packed[0][0] <= self._output_taken:
            packed_at = self._packed.popleft()[1]
        if packed_at is None:
            return
        if packed_at >= self._find_at and self._ahead == LEAST_AHEAD:
            self._find_at = now + FIND_EVERY
            self._quickest = now - packed_at
        self._quickest = min(self._quickest, now - packed_at)
        if now >= self._find_at:
            self._ahead = LEAST_AHEAD
        elif now - packed_at > self._quickest + SLOWEST:
            self._ahead = max(self._ahead // 2, LEAST_AHEAD)
        else:
            self._ahead = min(self._ahead * 2, MOST_AHEAD)

    @property
    def events(self) -> int:
        """What a selector waits for: input, and room where something is to be sent."""
        return selectors.EVENT_READ | selectors.EVENT_WRITE * bool(self._out)

    def send(self, message: Message) -> None:
        """Queue a message."""
        self._out.add((pack_message(message),))

    def flush(self) -> None:
        """Send what the socket takes now; raise OSError where the other side has closed."""
        while self._out:
            try:
                self._out.drop(self.sock.sendmsg(self._out.next()))
            except BlockingIOError:
                return

    def receive(self) -> List[Frame]:
        """Give frames that have arrived; raise EOFError at the end of the stream, FrameError, OSError.

        One that writes faster than it is read is not read to its end: others wait too.
        """
        frames: List[Frame] = []
        for _ in range(READS):
            try:
                data = self.sock.recv(65536)
            except BlockingIOError:
                return frames
            if not data:
                if frames:
                    return frames
                raise EOFError
            frames += self._decoder.feed(data)
        return frames

    def close(self, last_word: Optional[Message] = None) -> None:
        """Close the socket, after a last word where the other side still takes it."""
        if last_word is not None:
            try:
                self.send(last_word)
                self.flush()
            except OSError:
                pass
        self.sock.close()


def still_followed(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> bool:
    """Tell whether what became ready together with other input is still to be read after that input was."""
    now = selector.get_map().get(key.fd)
    return now is not None and now.data == key.data


def want(selector: selectors.BaseSelector, fd: int, events: int) -> None:
    """Have a selector wait for these events of a descriptor; for none where they are 0."""
    key: Optional[selectors.SelectorKey] = selector.get_map().get(fd)
    if key is None:
        if events:
            selector.register(fd, events)
    elif not events:
        selector.unregister(fd)
    elif key.events != events:
        selector.modify(fd, events)


def log(text: str) -> None:
    """Write a line to the node's log, which is the agent's standard error; a full disk loses it."""
    try:
        os.write(2, ("%s %s\n" % (time.strftime("%H:%M:%S"), text)).encode("utf-8", "replace"))
    except OSError:
        pass


def log_traceback() -> None:
    """Write the traceback of an exception that is being handled to the node's log, which standard error is."""
    import traceback  # late: a start has none to write, and does without its 3 ms

    traceback.print_exc()
    sys.stderr.flush()


def describe_error(error: BaseException) -> str:
    """Describe a defect by its type, text and place: `TypeError: … (agent.py:41)`."""
    where = ""
    place = error.__traceback__
    while place is not None:
        where = " (%s:%s)" % (os.path.basename(place.tb_frame.f_code.co_filename), place.tb_lineno)
        place = place.tb_next
    return "%s: %s%s" % (type(error).__name__, str(error)[:300], where)
