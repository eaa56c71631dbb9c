"""One pod's log as it grows: `kubectl logs --follow`, started again where the connection breaks."""

from __future__ import annotations

import queue
import re
import subprocess
import threading
import time

from .kubectl import Kubectl

MOST = 20_000  # lines that may wait to be read; then kubectl waits, and the kubelet keeps the rest
AGAIN_AFTER = 1.0
PIECE = 16 << 10  # container runtimes cut lines there, and older kubelets write the time of each piece into the line
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}(?:Z|[+-]\d\d:\d\d) ")


def whole(text: str) -> str:
    """A line without the times of its further pieces (it is ASCII, so that bytes are characters)."""
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
        self.pod, self.since = pod, since
        self._kubectl = kubectl
        self._queue: queue.Queue[str | None] = queue.Queue(MOST)
        self._process: subprocess.Popen[str] | None = None
        self._ended_at = 0.0
        self._skip: set[str] = set()
        self.closed = False

    def lines(self, most: int = 5000) -> list[str]:
        """New lines, without their times; starts kubectl (again) where it does not run."""
        if self._process is None and not self.closed and time.monotonic() - self._ended_at >= AGAIN_AFTER:
            self._start()
        found: list[str] = []
        while len(found) < most:
            try:
                line = self._queue.get_nowait()
            except queue.Empty:
                break
            if line is None:
                self._process, self._ended_at = None, time.monotonic()
                break
            text = self._new(line)
            if text is not None:
                found.append(text)
        return found

    @property
    def quiet(self) -> bool:
        """Nothing more comes from the kubectl that ran last."""
        return self._process is None and self._queue.empty()

    def close(self) -> None:
        """Ends kubectl."""
        self.closed = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        words = ["logs", self.pod, "--follow", "--timestamps", *([f"--since-time={self.since}"] if self.since else [])]
        self._process = subprocess.Popen(
            self._kubectl.argv(*words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, encoding="utf-8", errors="replace", start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._queue.put(line)
        process.wait()
        self._queue.put(None)

    def _new(self, line: str) -> str | None:
        """The text of a line that has not been given yet. --since-time is whole seconds: what came then comes again."""
        stamp, _, text = line.rstrip("\n").partition(" ")
        text = whole(text)
        if stamp < self.since or (stamp == self.since and text in self._skip):
            return None
        if stamp != self.since:
            self.since, self._skip = stamp, set()
        self._skip.add(text)
        return text
