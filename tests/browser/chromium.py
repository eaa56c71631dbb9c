"""Headless Chromium, driven through two pipes by its own protocol: no port, no package but the browser's."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE = 120.0  # seconds for an answer


def find() -> str | None:
    """The browser's path."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """One tab. `said` has what went wrong or was asked in it: console, exceptions, dialogs, requests."""

    def __init__(self, directory: Path) -> None:
        executable = find()
        assert executable is not None
        their_in, self._out = os.pipe()
        self._in, their_out = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (their_in, their_out)]

        def wire() -> None:
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [executable, *FLAGS, f"--user-data-dir={directory}", "about:blank"], preexec_fn=wire, pass_fds=(3, 4),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for fd in (*high, their_in, their_out):
            os.close(fd)
        self._rest, self._number, self._session = b"", 0, None
        self.said: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Asks, and waits for the answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return dict(found["result"])
            self._event(found)

    def _read(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._in, 1 << 20) if ready else b""
            if not data:
                raise TimeoutError("Chromium says nothing")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def _event(self, message: dict[str, Any]) -> None:
        kind, params = message.get("method", ""), message.get("params", {})
        if kind == "Page.loadEventFired":
            self._loaded = True
        elif kind == "Page.javascriptDialogOpening":
            self.said.append(f"dialog {params.get('message')}")
            answer = {"id": 0, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
            os.write(self._out, json.dumps({**answer, "sessionId": self._session}).encode() + b"\0")
        elif kind in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.said.append(f"{kind} {json.dumps(params)[:500]}")
        elif kind == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, path: Path) -> None:
        """Loads a file."""
        self._loaded, self.said, self.requests = False, [], []
        self.call("Page.navigate", url=path.as_uri())
        while not self._loaded:
            self._event(self._read())

    def value(self, expression: str) -> Any:
        """What an expression gives in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def text(self) -> str:
        """All that can be seen."""
        return str(self.value("document.body.innerText"))

    def close(self) -> None:
        """Ends the browser."""
        for fd in (self._out, self._in):
            os.close(fd)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
