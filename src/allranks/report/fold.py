"""Log lines for display: cut, cleaned, and folded where many ranks say the same (pure; time is passed in).

A line of one rank is `[h1 3] text`; the same line of several ranks within half a second is one line,
`[8 ranks] text` where all ranks said it, else `[h1 0 +3] text`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

WINDOW = 0.5  # seconds a line waits for the same words of other ranks
CUT = 64 << 10  # bytes of a line that are displayed
MOST = 2000  # lines displayed a flush; the rest is counted
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OTHER_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-ln-z@`]|\][^\x07\x1b]*(\x07|\x1b\\)?|[^\[\]])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]|\x1b(?!\[[0-9;]*m)")


def clean(text: str, colour: bool) -> str:
    """A line without anything that could move the cursor or set the title; colours stay if wanted."""
    if "\x1b" in text:
        text = _OTHER_ESCAPES.sub("", text)
        if not colour:
            text = _COLOUR.sub("", text)
    return _CONTROL.sub("?", text)


@dataclass
class _Said:
    """One text within the window, and who said it."""

    since: float
    who: list[tuple[str, int]] = field(default_factory=list)
    count: int = 0


class Folder:
    """Bytes of ranks in, display lines out; lines beyond `most` between two calls of `lines` are only counted."""

    def __init__(self, fold: bool = True, colour: bool = False, most: int | None = MOST) -> None:
        self._fold, self._colour, self._most = fold, colour, most
        self._rest: dict[tuple[str, int], bytes] = {}
        self._said: dict[str, _Said] = {}
        self._ready: list[str] = []
        self._skipped = 0
        self.ranks = 0  # in all, where known

    def feed(self, node: str, rank: int, data: bytes, now: float) -> None:
        """Output of a rank."""
        key = (node, rank)
        *lines, rest = (self._rest.get(key, b"") + data).split(b"\n")
        self._rest[key] = rest if len(rest) <= CUT else rest[:CUT]
        for line in lines:
            if self._most is not None and len(self._said) + len(self._ready) >= self._most:
                self._skipped += 1
                continue
            # of a progress bar only the last state before the line's end is worth a line
            shown = line.rstrip(b"\r").rsplit(b"\r", 1)[-1][:CUT]
            self._line(node, rank, clean(shown.decode("utf-8", "replace"), self._colour), now)

    def _line(self, node: str, rank: int, text: str, now: float) -> None:
        if not self._fold or not text.strip():
            self._ready.append(f"[{node} {rank}] {text}".rstrip())
            return
        said = self._said.setdefault(text, _Said(now))
        if (node, rank) in said.who:  # the same rank again: what was said before is complete
            self._ready.append(self._show(text, said))
            said = self._said[text] = _Said(now)
        said.who.append((node, rank))

    def _show(self, text: str, said: _Said) -> str:
        (node, rank), others = said.who[0], len(said.who) - 1
        if not others:
            return f"[{node} {rank}] {text}"
        if len(said.who) == self.ranks:
            return f"[{self.ranks} ranks] {text}"
        return f"[{node} {rank} +{others}] {text}"

    def lines(self, now: float) -> list[str]:
        """What may be shown now: lines whose window is over or that every rank has said."""
        for text, said in list(self._said.items()):
            if now - said.since >= WINDOW or (self.ranks and len(said.who) >= self.ranks):
                self._ready.append(self._show(text, said))
                del self._said[text]
        ready, self._ready = self._ready, []
        if self._skipped:
            ready.append(f"… {self._skipped:,} lines not shown here (all are in the logs)")
            self._skipped = 0
        return ready

    def rest(self, now: float) -> list[str]:
        """Everything, unfinished lines too."""
        for (node, rank), data in self._rest.items():
            if data:
                self._line(node, rank, clean(data.decode("utf-8", "replace"), self._colour), now)
        self._rest.clear()
        return self.lines(now + WINDOW)
