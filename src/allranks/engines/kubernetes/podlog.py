"""One pod's log as it grows: `kubectl logs --follow`, started again where the connection breaks."""

from __future__ import annotations

import re
import time

from ..program_lines import ProcessLines
from .kubectl import Kubectl

AGAIN_AFTER = 1.0
PIECE = 16 << 10  # container runtimes cut lines there, and older kubelets write the time of each piece into the line
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}(?:Z|[+-]\d\d:\d\d) ")


def without_times(text: str) -> str:
    """Return a line without the times of its further pieces (it is ASCII, so that bytes are characters)."""
    at = PIECE
    while at < len(text):
        stamp = _STAMP.match(text, at)
        if stamp is None:
            return text
        text = text[:at] + text[stamp.end() :]
        at += PIECE
    return text


class PodLog:
    """`lines` gives what has come; `since` is the time of the last line, from which another PodLog can go on."""

    def __init__(self, kubectl: Kubectl, pod: str, since: str = "") -> None:
        self.pod = pod
        self.since = since
        self._kubectl = kubectl
        self._running: ProcessLines | None = None
        self._ended_at = 0.0
        self._skip: set[str] = set()
        self.closed = False
        self.is_read = False  # kubectl came to the end of the log once

    def lines(self, most: int = 5000) -> list[str]:
        """Return new lines without their times; start kubectl (again) where it does not run."""
        if self._running is None and not self.closed and time.monotonic() - self._ended_at >= AGAIN_AFTER:
            self._start()
        if self._running is None:
            return []
        fresh = [self._new(line) for line in self._running.take(most)]
        if self._running.over:
            self._running = None
            self._ended_at = time.monotonic()
            self.is_read = True
        return [text for text in fresh if text is not None]

    def close(self) -> None:
        """End kubectl."""
        self.closed = True
        if self._running is not None:
            self._running.end()

    def _start(self) -> None:
        """Start kubectl; the kubelet keeps what is not taken yet. Where that fails it is tried again."""
        words = ["logs", self.pod, "--follow", "--timestamps", *([f"--since-time={self.since}"] if self.since else [])]
        try:
            self._running = ProcessLines(self._kubectl.argv(*words))
        except OSError:
            self._ended_at = time.monotonic()

    def _new(self, line: str) -> str | None:
        """Return the text of a line that was not given yet, else None.

        --since-time is in whole seconds: what came in that second comes again. The kubelet's own complaints stand
        among the lines without a time (`failed to create fsnotify watcher: too many open files`).
        """
        line = line.rstrip("\n")
        if not _STAMP.match(line):
            return line
        stamp, _, text = line.partition(" ")
        text = without_times(text)
        if stamp < self.since or (stamp == self.since and text in self._skip):
            return None
        if stamp != self.since:
            self.since = stamp
            self._skip = set()
        self._skip.add(text)
        return text
