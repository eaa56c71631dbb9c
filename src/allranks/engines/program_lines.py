"""Lines of a program that runs beside this process (kubectl, sky), to be taken whenever there is time."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence

END_SECONDS = 3.0
WAITING = 20_000  # lines that may wait to be taken; then the program waits
LONGEST = 64 << 20  # characters of a line, as of a document of a run; a longer one is several


class ProcessLines:
    """Starts the program, in a session of its own: Ctrl-C here is not its affair. Raises OSError."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, stderr: int = subprocess.DEVNULL
    ) -> None:
        self.over = False  # all that it said has been taken
        self._queue: queue.Queue[str | None] = queue.Queue(WAITING)
        self._process = subprocess.Popen(
            list(argv),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(LONGEST):
            self._queue.put(line)
        self._process.wait()
        self._queue.put(None)

    def take(self, most: int = 5000) -> Iterator[str]:
        """Yield what has come since the last call, `most` lines at most."""
        for _ in range(most):
            try:
                line = self._queue.get_nowait()
            except queue.Empty:
                return
            if line is None:
                self.over = True
                return
            yield line

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        """End it by SIGTERM, and by SIGKILL where that does not help."""
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
