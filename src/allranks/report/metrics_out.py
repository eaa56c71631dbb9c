"""The metrics of a run for others: a port that answers scrapes, and a file that is replaced every few seconds (IO).

The port has no thread of its own: it is served by `tick`, which whoever follows a run calls several times a second.
prometheus-client has a server, which takes any number of clients for any time, each in a thread.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from pathlib import Path

from allranks.errors import UsageError
from allranks.protocol.run_facts import Fact, HangConcluded, RetryDecided, Stamped
from allranks.runs.documents import ResultDocument, StatusDocument
from allranks.runs.regular import replacing
from allranks.runs.view import View

from .openmetrics import CONTENT_TYPE_LATEST, RunFigures, openmetrics_text

FILE_EVERY = 5.0  # seconds between two states of the file
CLIENTS = 16  # connections at once; more wait in the kernel
REQUEST_LIMIT = 8 << 10  # bytes of a request
PATIENCE = 10.0  # seconds for a client to ask and to read: Prometheus gives up after as long
READ = 4 << 10


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


class _Client:
    """One connection: what it has asked so far, and what it is still to get."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection = connection
        self.deadline = deadline
        self.request = b""
        self.answer: memoryview | None = None


class MetricsPort:
    """Answers `GET /metrics` on an address and port. A slow client does not keep others waiting."""

    def __init__(self, address: str, port: int) -> None:
        """Listen. Raise UsageError where the address or the port cannot be had."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((address, port))
        except OSError as error:
            self._listener.close()
            raise UsageError(
                f"--metrics-port: cannot listen on {address} port {port} ({error.strerror})\n"
                f"hint: --metrics-port 0 takes a free port"
            ) from None
        self._listener.listen(CLIENTS)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._clients: list[_Client] = []

    @property
    def url(self) -> str:
        """Return where it answers."""
        name = self._listener.getsockname()
        host = f"[{name[0]}]" if ":" in name[0] else name[0]
        return f"http://{host}:{name[1]}/metrics"

    def serve(self, figures: RunFigures, now: float) -> None:
        """Take and answer what has come, without waiting. `now`: monotonic seconds."""
        if self._selector.select(0):
            self._accept(now)
        text: bytes | None = None
        for client in list(self._clients):
            if client.answer is None and self._read(client):
                text = text or openmetrics_text(figures)
                client.answer = memoryview(_answer(client.request, text))
            if self._is_done(client) or now >= client.deadline:
                client.connection.close()
                self._clients.remove(client)

    def _accept(self, now: float) -> None:
        while len(self._clients) < CLIENTS:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setblocking(False)
            self._clients.append(_Client(connection, now + PATIENCE))

    def _read(self, client: _Client) -> bool:
        """Read what has come; True once the request is there, or is too long to be one."""
        try:
            data = client.connection.recv(READ)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        client.request += data
        return not data or b"\r\n\r\n" in client.request or len(client.request) > REQUEST_LIMIT

    def _is_done(self, client: _Client) -> bool:
        """Send what the client takes; True where nothing is left, or it has closed the connection."""
        while client.answer:
            try:
                sent = client.connection.send(client.answer)
            except BlockingIOError:
                return False
            except OSError:
                return True
            client.answer = client.answer[sent:]
        return client.answer is not None

    def close(self) -> None:
        """Stop listening."""
        for client in self._clients:
            client.connection.close()
        self._selector.close()
        self._listener.close()


def _answer(request: bytes, text: bytes) -> bytes:
    words = request.split(b"\r\n", 1)[0].split(b" ")
    path = words[1].partition(b"?")[0] if len(words) == 3 and words[0] == b"GET" else b""
    if path == b"/metrics":
        return _response("200 OK", CONTENT_TYPE_LATEST, text)
    if path == b"/":
        return _response("200 OK", "text/plain; charset=utf-8", b"allranks: see /metrics\n")
    return _response("404 Not Found" if path else "400 Bad Request", "text/plain; charset=utf-8", b"GET /metrics\n")


def _response(status: str, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


class RunMetrics(View):
    """The metrics of one run on their way out."""

    def __init__(self, port: MetricsPort | None, file: MetricsFile | None) -> None:
        self._port = port
        self._file = file
        self._figures = RunFigures(StatusDocument())

    def event(self, stamped: Stamped[Fact]) -> None:
        """Count retries and hangs."""
        if isinstance(stamped.fact, RetryDecided):
            self._figures = self._figures._replace(restarts=self._figures.restarts + 1)
        elif isinstance(stamped.fact, HangConcluded):
            self._figures = self._figures._replace(hangs=self._figures.hangs + 1)

    def status(self, status: StatusDocument, now: float) -> None:
        """Keep the state of the run."""
        self._figures = self._figures._replace(status=status)

    def tick(self, now: float) -> None:
        """Answer who asks."""
        seconds = time.monotonic()
        if self._port is not None:
            self._port.serve(self._figures, seconds)
        if self._file is not None and self._figures.status.run:
            self._file.show(self._figures, seconds)

    def closing(self, result: ResultDocument) -> None:
        """Write the end into the file, and close the port."""
        self._figures = self._figures._replace(result=result)
        if self._file is not None:
            self._file.show(self._figures, time.monotonic())
        if self._port is not None:
            self._port.close()
