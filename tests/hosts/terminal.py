"""`allranks run` in a terminal of its own."""

import contextlib
import fcntl
import os
import pty
import subprocess
import termios
from collections.abc import Callable
from typing import Any

from tests.hosts.launching import BOUND, PYTHON, Launch, program
from tests.hosts.waiting import wait_until


class Terminal:
    """`allranks run` in a terminal of its own; what it writes is read all the while."""

    def __init__(self, launch: Launch, *options: str) -> None:
        self.launch, self.text = launch, ""
        self._end, tty = pty.openpty()
        os.set_blocking(self._end, False)
        argv = launch.command("run", "--hosts", str(launch.bed.hostfile_names), "--nproc", "2", "--python", PYTHON,
                              *options, "--", *program("v_steps.py"))  # fmt: skip
        launch.process = self.process = subprocess.Popen(
            argv, env={**launch.environment(), "TERM": "xterm"}, cwd=launch.work, stdin=tty, stdout=tty, stderr=tty,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), text=True,
        )  # fmt: skip
        os.close(tty)

    def read(self) -> str:
        with contextlib.suppress(OSError):
            while data := os.read(self._end, 65536):
                self.text += data.decode("utf-8", "replace")
        return self.text

    def until(self, condition: Callable[[], Any], what: str) -> None:
        def look() -> bool:
            self.read()
            return bool(condition())

        wait_until(look, BOUND, f"{what} (said {self.text[-800:]!r})")

    def type(self, key: str) -> None:
        os.write(self._end, key.encode())

    def ctrl_z(self) -> None:
        """The question comes, again for each Ctrl-Z."""
        asked = self.read().count("[d]etach")
        self.type("\x1a")
        self.until(lambda: self.text.count("[d]etach") > asked, "the question")

    def ends(self) -> int:
        self.until(lambda: self.process.poll() is not None, "the end")
        os.close(self._end)
        return int(self.process.returncode)

    def dies(self) -> None:
        """As a window that is closed, or whose connection breaks: allranks is killed, and nobody reads any more."""
        self.process.kill()
        self.process.wait(BOUND)
        os.close(self._end)
