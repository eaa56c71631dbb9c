"""Notifications on their way out: each in a process of its own with a limit of time, so that no service holds up a run.

One is sent when the one before is out: they arrive in the order of the run. The last one does not wait for ever.

apprise (the extra `notify`) knows the services. Addresses hold tokens: they go through the process's standard input,
and no message quotes one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from allranks.exitcodes import CTRL_C, DONE, TERMINATED
from allranks.findings import Finding
from allranks.protocol.run_facts import NAMES, Fact, HangConcluded, HangNoted, RetryDecided, Stamped
from allranks.runs.documents import ResultDocument, StatusDocument
from allranks.runs.view import View
from allranks.text import cut, join_words

from .redact import Redactor, plain
from .sentences import closing_lines, event_line

LONGEST = 4000  # characters: Telegram takes 4,096, Discord 2,000 a part and apprise divides for it
KINDS = {RetryDecided: "warning", HangConcluded: "failure", HangNoted: "warning"}  # of a notification, by the fact
WARNINGS = (
    "slow-rank",
    "slowdown",
    "slow-link",
    "mtu-or-packet-loss",
    "data-not-split",
    "metric-rule",
)  # findings of a run that goes on
SECONDS = 30  # for one notification, over all addresses
PATIENCE = 20.0  # seconds at the end of a run for those that are on their way
IN_ORDER = 10.0  # seconds of these in which the last one waits for those before it
MOST = 20  # notifications of a run, and the one at its end: a run that fails and fails does not flood a phone
# Ends by SIGALRM. Prints the names whose services did not take it, in JSON.
_SEND = f"""
import sys
del sys.path[0]  # the working directory, which may be another user's: -I would also leave out what pip --user installed
import json, logging, signal
signal.alarm({SECONDS})
request = json.load(sys.stdin)
import apprise
logging.disable(logging.CRITICAL)
failed = []
for name, addresses in request["addresses"].items():
    service = apprise.Apprise()
    known = all([service.add(address) for address in addresses])
    if not known or not service.notify(title=request["title"], body=request["body"], notify_type=request["kind"]):
        failed.append(name)
print(json.dumps(failed))
"""


class Notice(NamedTuple):
    """One notification; `kind` is apprise's: info, success, warning or failure."""

    title: str
    body: str
    kind: str


def notice_of_event(stamped: Stamped[Fact], run: str, runs_dir: str, nodes: int) -> Notice | None:
    """Word an event of a run that goes on; None where it is not worth a notification."""
    fact = stamped.fact
    name = NAMES[type(fact)]
    kind = KINDS.get(type(fact))
    if isinstance(fact, Finding) and fact.status == "warn" and fact.id in WARNINGS:
        kind = "warning"
        name = fact.id
    line = event_line(stamped, nodes) if kind is not None else None
    if kind is None or line is None:
        return None
    return _notice(run, runs_dir, name, line, kind)


def notice_of_end(result: ResultDocument, runs_dir: str) -> Notice | None:
    """Word the end of a run; None where a person has ended it."""
    if result.exit in (CTRL_C, TERMINATED):
        return None
    text = "\n".join(closing_lines(result))
    if result.exit == DONE:
        return _notice(result.run, runs_dir, "done", text, "success")
    return _notice(result.run, runs_dir, f"failed ({result.cause or f'exit {result.exit}'})", text, "failure")


def _notice(run: str, runs_dir: str, what: str, text: str, kind: str) -> Notice:
    """Put the parts together, without secrets and escape sequences, and not longer than services take."""
    hidden = Redactor().text("\n".join(plain(line) for line in text.splitlines()), "notification")
    return Notice(plain(f"allranks {run}: {what}"), f"{cut(hidden, LONGEST)}\n{plain(f'{runs_dir}/{run}')}", kind)


class _Sending:
    def __init__(self, notice: Notice, addresses: Mapping[str, Sequence[str]]) -> None:
        self.names = list(addresses)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SEND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,  # some names: less than a pipe holds
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run
        )
        assert self.process.stdin is not None
        request = {**notice._asdict(), "addresses": {name: list(urls) for name, urls in addresses.items()}}
        with self.process.stdin as stdin:  # less than a pipe holds: it never blocks
            stdin.write(json.dumps(request).encode())

    def failed_names(self) -> list[str]:
        """Return the names whose services did not take it; of a process that has ended."""
        assert self.process.stdout is not None
        with self.process.stdout as answer:
            written = answer.read(1 << 16)
        try:
            failed = json.loads(written)
        except ValueError:
            return self.names
        return [name for name in self.names if name in failed]


class Notifier(View):
    """Sends the notifications of one run.

    `addresses` are apprise's, by the names that the user gave. `runs_dir` is `host:/path` of the run directories.
    `on_note` gets a sentence for the person at the run.
    """

    def __init__(self, addresses: Mapping[str, Sequence[str]], runs_dir: str, on_note: Callable[[str], None]) -> None:
        self._addresses = addresses
        self._runs_dir = runs_dir
        self._on_note = on_note
        self._status = StatusDocument()
        self._waiting: deque[Notice] = deque()
        self._under_way: list[_Sending] = []
        self._count = 0
        self._complained: set[str] = set()

    def event(self, stamped: Stamped[Fact]) -> None:
        """Tell of a retry, a hang or a warning."""
        notice = notice_of_event(stamped, self._status.run, self._runs_dir, len(self._status.nodes))
        if notice is not None and self._count < MOST:
            self._count += 1
            self._waiting.append(notice)
            self._send_next()

    def status(self, status: StatusDocument, now: float) -> None:
        """Keep which run it is."""
        self._status = status

    def tick(self, now: float) -> None:
        """See which notifications have been sent, and send the next."""
        self._send_next()

    def _send_next(self) -> None:
        for sending in list(self._under_way):
            if sending.process.poll() is not None:
                self._under_way.remove(sending)
                self._complain(sending.failed_names())
        if self._waiting and not self._under_way:
            self._send(self._waiting.popleft())

    def closing(self, result: ResultDocument) -> None:
        """Tell of the end, and wait a moment until it is out."""
        begin = time.monotonic()
        self._wait_until(begin + IN_ORDER)
        self._waiting.clear()  # the end tells more than they do
        notice = notice_of_end(result, self._runs_dir)
        if notice is not None:
            self._send(notice)
        self._wait_until(begin + PATIENCE)
        for sending in self._under_way:
            sending.process.kill()
            sending.process.wait()
            self._complain(sending.names)

    def _wait_until(self, ends: float) -> None:
        """Wait until all are out, at most until `ends` (seconds of the monotonic clock)."""
        while (self._under_way or self._waiting) and time.monotonic() < ends:
            time.sleep(0.05)
            self._send_next()

    def _send(self, notice: Notice) -> None:
        try:
            self._under_way.append(_Sending(notice, self._addresses))
        except OSError:
            self._complain(list(self._addresses))

    def _complain(self, names: Sequence[str]) -> None:
        """Say once which names failed; the next notification tries them again."""
        fresh = [name for name in names if name not in self._complained]
        self._complained.update(fresh)
        if fresh:
            self._on_note(
                f"--notify {join_words(fresh)}: the notification was not delivered\n"
                "hint: check the address with `apprise -vv -b test URL`"
            )
