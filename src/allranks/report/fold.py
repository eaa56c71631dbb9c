"""Log lines for display: cut, cleaned, and folded where many ranks say the same (pure; time is passed in).

A line of one rank is `[h1 3] text`; the same line of several ranks within the window is one line,
`[8 ranks] text` where all ranks said it, else `[h1 0 +3 ranks] text`. Lines of one rank keep their order: a line
joins what another rank said only if its own rank has written nothing later. A progress bar (carriage returns
without a newline) is shown every ten seconds, and its last state once its line ends.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

from allranks.text import count_of, plural

from .terminal import clean

# C++ frames, of which torch prints a dozen with each of its errors, are one line: the first stands for all of them.
# torch's warning of a hostname that has no name server comes with each connection of healthy runs: one line says so.
FRAMES = "  (frames of C++ are in the log)"
HARMLESS = "torch cannot look up the hostname of a peer, which is harmless"
_HOSTNAME = "[c10d] The hostname of the client socket cannot be retrieved"  # torch socket.cpp
_FRAME = re.compile(r"frame #(\d{1,4}): ")  # c10/util/Backtrace.cpp
_PREFIX = re.compile(r"\[rank\d{1,7}\]: ?")

Who = tuple[str, int]

WINDOW = 0.5  # seconds a line waits for the same words of other ranks
CUT = 64 << 10  # bytes of a line that are displayed
MOST = 2000  # lines displayed at once; the rest is counted
STEADY = 1000  # of them a second, where output goes on and on: folding one takes 15 µs
MOST_BYTES = 8 << 20  # of lines that wait
PROGRESS_EVERY = 10.0  # seconds between two states of a progress bar

# What differs in lines that ranks print alike: dates, times, glog's times ([W1121 18:42:17.07 or W1121 18:42:17.070
# 19182), IPv4 addresses, pids, pointers. The pattern begins with a digit, as searching for one character is quick.
_OWN_NUMBER = re.compile(
    r"\d(?:(?<=[WIEF]\d)\d{3} \d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?(?: \d{1,8}(?= \S{1,200}:\d))?|"
    r"\d{3}-\d\d-\d\d|\d?:\d\d:\d\d(?:[.,]\d{1,9})?(?: \d{1,8}(?= \S{1,200}:\d))?|"
    r"(?<=\b\d)\d{0,2}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b(?::\d{1,5})?|"
    r"(?:(?<=[Pp][Ii][Dd]\d)|(?<=[Pp][Ii][Dd][ =:]\d)|(?<=[Pp][Ii][Dd][ =:][ =:]\d))\d{0,7}|"
    r"(?<=\b0)x[0-9a-fA-F]{4,16}\b)"
)
_OWN_ADDRESS = re.compile(r"\[[0-9a-fA-F:.]{2,45}\](?::\d{1,5})?")
_OWN_PREFIX = re.compile(r"\[rank\d{1,7}\]:|[\w.-]{1,64}:\d{1,8}:\d{1,8} \[\d{1,3}\]")  # a rank's; NCCL's
_LOOKED_AT = 1000  # characters of a line in which these are looked for


def alike(text: str) -> str:
    """Equal for lines that differ only in a time stamp, an address, a process or the rank's own number."""
    head = text[:_LOOKED_AT]
    prefix = _OWN_PREFIX.match(head)
    if prefix is not None:
        head = "~" + head[prefix.end() :]
    if "[" in head:
        head = _OWN_ADDRESS.sub("~", head)
    return _OWN_NUMBER.sub("~", head) + text[_LOOKED_AT:]


def not_shown(lines: int, logs_complete: bool) -> str:
    """Write the notice for lines that are not displayed."""
    where = "all are in the logs" if logs_complete else "some are not in the logs either: there was no room"
    return f"… {lines:,} {plural(lines, 'line')} not shown here ({where})"


@dataclass
class _Line:
    """One line that waits, and the ranks that wrote it.

    `number` is its place in the order of all lines, `key` what lines that are joined with it have in common.
    """

    text: str
    since: float
    number: int
    key: str
    ranks: dict[Who, None] = field(default_factory=dict)


class Folder:
    """Bytes of ranks in, display lines out; lines beyond `most` at once, or STEADY a second, are only counted.

    `shorten`: what torch says at length is one line.
    """

    def __init__(
        self,
        fold: bool = True,
        colour: bool = False,
        most: int | None = MOST,
        window: float = WINDOW,
        shorten: bool = False,
    ) -> None:
        self._shorten = shorten
        self._has_warned = False  # of the hostname: torch says it on every rank, and at any time
        self._fold = fold
        self._colour = colour
        self._most = most
        self._room = float(most or 0)  # lines that may be displayed now
        self._room_at = 0.0
        self._window = window
        self._rest: dict[Who, bytes] = {}
        self._bars: dict[Who, tuple[float, bytes]] = {}  # unfinished progress bars: when shown last, and what
        self.queue: deque[_Line] = deque()
        self._open: dict[str, list[_Line]] = {}  # the queue by text
        self._last: dict[Who, int] = {}  # number of the line a rank has written last
        self._number = self._bytes = self._skipped = 0
        self.ranks = 0  # in all, where known
        self.logs_complete = True  # until output has found no room

    def feed(self, node: str, rank: int, data: bytes, now: float) -> None:
        """Output of a rank."""
        who = (node, rank)
        data = self._rest.get(who, b"") + data
        end = data.rfind(b"\n") + 1
        start = 0
        while start < end:
            if self._is_full():
                self._skipped += data.count(b"\n", start, end)
                break
            stop = data.index(b"\n", start)
            self._add(who, last_state(data[start:stop]), now)
            start = stop + 1
        self._keep(who, data[end:], now, is_new=end > 0)

    def _is_full(self) -> bool:
        return self._most is not None and (self._room < 1 or self._bytes >= MOST_BYTES)

    def _keep(self, who: Who, rest: bytes, now: float, is_new: bool) -> None:
        """Keep an unfinished line until its end comes; of a progress bar the last state is enough."""
        if is_new:
            self._bars.pop(who, None)
        if b"\r" in rest:
            self._bars.setdefault(who, (now, b""))
            rest = last_state(rest)[:CUT] + (b"\r" if rest.endswith(b"\r") else b"")
        self._rest[who] = rest[: CUT + 1]

    def _show_bars(self, now: float) -> None:
        for who, (shown, before) in self._bars.items():
            state = last_state(self._rest[who])
            if not 0 <= now - shown < PROGRESS_EVERY and state != before and not self._is_full():
                self._bars[who] = (now, state)
                if state.strip():
                    self._add(who, state, now)

    def _add(self, who: Who, raw: bytes, now: float) -> None:
        text = clean(raw[:CUT].decode("utf-8", "replace"), self._colour)
        shown = self._shortened(text) if self._shorten else text
        if shown is not None:
            self._show_soon(who, shown, now)

    def _shortened(self, text: str) -> str | None:
        """Return what is displayed of a line; None where a line before it stands for it."""
        body = _PREFIX.sub("", text, count=1)
        frame = _FRAME.match(body)
        if frame is not None:
            return None if int(frame[1]) else FRAMES
        if not (body.startswith("[W") and _HOSTNAME in body):
            return text
        has_warned = self._has_warned
        self._has_warned = True
        return None if has_warned else HARMLESS

    def _show_soon(self, who: Who, text: str, now: float) -> None:
        key = alike(text) if self._fold else text
        line = self._same(who, key)
        if line is None:
            self._number += 1
            line = _Line(text, now, self._number, key)
            self._room -= 1
            self.queue.append(line)
            self._open.setdefault(key, []).append(line)
            self._bytes += len(text)
        line.ranks[who] = None
        self._last[who] = line.number

    def _same(self, who: Who, key: str) -> _Line | None:
        """Find the same words of another rank that this rank's line can join without leaving its order."""
        if not self._fold:
            return None
        same = self._open.get(key, [])
        place = bisect_right(same, self._last.get(who, 0), key=_number)
        return same[place] if place < len(same) else None

    def _show(self, line: _Line) -> str:
        (node, rank) = next(iter(line.ranks))
        others = len(line.ranks) - 1
        if not others:
            start = f"[{node} {rank}]"
        elif len(line.ranks) == self.ranks:
            start = f"[{self.ranks} ranks]"
        else:
            start = f"[{node} {rank} +{count_of(others, 'rank')}]"
        return f"{start} {line.text}".rstrip()

    def lines(self, now: float) -> list[str]:
        """Take the lines that may be shown now, in order: their window is over, or every rank has written them."""
        if self._most is not None:
            self._room = min(self._most, self._room + STEADY * min(1.0, max(0.0, now - self._room_at)))
            self._room_at = now
        self._show_bars(now)
        return self._ready(now)

    def _ready(self, now: float, is_end: bool = False) -> list[str]:
        ready = []
        while self.queue and (is_end or self._is_due(self.queue[0], now)):
            ready.append(self._show(self._take()))
        if self._skipped:
            ready.append(not_shown(self._skipped, self.logs_complete))
            self._skipped = 0
        return ready

    def _is_due(self, line: _Line, now: float) -> bool:
        if not self._fold or not 0 <= now - line.since < self._window or self._bytes >= MOST_BYTES:
            return True  # also where the clock was set back
        return bool(self.ranks) and len(line.ranks) >= self.ranks

    def _take(self) -> _Line:
        line = self.queue.popleft()
        same = self._open[line.key]
        del same[0]  # the oldest of its key, as the queue's first is the oldest of all
        if not same:
            del self._open[line.key]
        self._bytes -= len(line.text)
        return line

    def rest(self, now: float) -> list[str]:
        """Everything, unfinished lines too."""
        for who, data in self._rest.items():
            if data.strip(b"\r"):
                self._add(who, last_state(data), now)
        self._rest.clear()
        self._bars.clear()
        return self._ready(now, is_end=True)


def _number(line: _Line) -> int:
    return line.number


def last_state(line: bytes) -> bytes:
    """Return a line as a screen shows it at its end: of a progress bar the last state."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]
