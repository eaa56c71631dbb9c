"""The metrics of a run for others: a port that answers scrapes, and a file that is replaced every few seconds (IO).

prometheus-client's server takes any number of clients for any time, each in a thread: it listens on this machine alone
where no other address is asked for.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server

from allranks.errors import UsageError
from allranks.protocol.run_facts import Fact, HangConcluded, RetryDecided, Stamped
from allranks.runs.documents import ResultDocument, StatusDocument
from allranks.runs.regular import replacing
from allranks.runs.view import View

from .openmetrics import FiguresCollector, RunFigures, openmetrics_text

FILE_EVERY = 5.0  # seconds between two states of the file


class MetricsFile:
    """A file in OpenMetrics form, replaced as a whole. Readable for others: a collector runs as another user."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = 0.0
        if path.is_dir() or not path.parent.is_dir():
            raise UsageError(f"--metrics-file {path}: expected a file in a directory that exists")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise UsageError(f"--metrics-file {path}: this user cannot write into {path.parent}")

    def show(self, figures: RunFigures, now: float) -> None:
        """Write the figures, at most every few seconds, and once the run is over. `now`: monotonic seconds."""
        if figures.result is None and now - self._written < FILE_EVERY:
            return
        self._written = now
        # A full disk: the run goes on, and the file grows old.
        with contextlib.suppress(OSError), replacing(self._path, 0o644) as file:
            file.write(openmetrics_text(figures))


class MetricsPort:
    """Answers `GET /metrics` on an address and port, by prometheus-client's own server, in threads."""

    def __init__(self, address: str, port: int) -> None:
        """Listen. Raise UsageError where the address or the port cannot be had."""
        self.figures = RunFigures(StatusDocument())
        registry = CollectorRegistry()
        registry.register(FiguresCollector(lambda: self.figures))
        try:
            self._server, _ = start_http_server(port, address, registry)
        except OSError as error:
            raise UsageError(
                f"--metrics-port: cannot listen on {address} port {port} ({error.strerror})\n"
                f"hint: --metrics-port 0 takes a free port"
            ) from None

    @property
    def url(self) -> str:
        """Return where it answers."""
        host, port = self._server.socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class RunMetrics(View):
    """The metrics of one run on their way out."""

    def __init__(self, port: MetricsPort | None, file: MetricsFile | None) -> None:
        self._port = port
        self._file = file
        self._figures = RunFigures(StatusDocument())

    def event(self, stamped: Stamped[Fact]) -> None:
        """Count retries and hangs."""
        if isinstance(stamped.fact, RetryDecided):
            self._take(self._figures._replace(restarts=self._figures.restarts + 1))
        elif isinstance(stamped.fact, HangConcluded):
            self._take(self._figures._replace(hangs=self._figures.hangs + 1))

    def status(self, status: StatusDocument, now: float) -> None:
        """Keep the state of the run."""
        self._take(self._figures._replace(status=status))

    def tick(self, now: float) -> None:
        """Write the file again."""
        if self._file is not None and self._figures.status.run:
            self._file.show(self._figures, time.monotonic())

    def closing(self, result: ResultDocument) -> None:
        """Write the end into the file, and close the port."""
        self._take(self._figures._replace(result=result))
        if self._file is not None:
            self._file.show(self._figures, time.monotonic())
        if self._port is not None:
            self._port.close()

    def _take(self, figures: RunFigures) -> None:
        self._figures = figures
        if self._port is not None:
            self._port.figures = figures
