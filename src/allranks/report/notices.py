"""What a notification about a run says, and which of its events are worth one (pure)."""

from __future__ import annotations

from typing import NamedTuple

from allranks.exitcodes import CTRL_C, DONE, TERMINATED
from allranks.findings import Finding
from allranks.protocol.run_facts import NAMES, Fact, HangConcluded, HangNoted, RetryDecided, Stamped
from allranks.runs.documents import ResultDocument
from allranks.text import cut

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
)  # findings of a run that goes on


class RunPlace(NamedTuple):
    """Which run, and where its directory is: `host:/path`."""

    run: str
    directory: str


class Notice(NamedTuple):
    """One notification; `kind` is apprise's: info, success, warning or failure."""

    title: str
    body: str
    kind: str


def notice_of_event(stamped: Stamped[Fact], place: RunPlace, nodes: int) -> Notice | None:
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
    return _notice(f"{place.run}: {name}", line, place, kind)


def notice_of_end(result: ResultDocument, place: RunPlace) -> Notice | None:
    """Word the end of a run; None where a person has ended it."""
    if result.exit in (CTRL_C, TERMINATED):
        return None
    text = "\n".join(closing_lines(result))
    if result.exit == DONE:
        return _notice(f"{place.run}: done", text, place, "success")
    return _notice(f"{place.run}: failed ({result.cause or f'exit {result.exit}'})", text, place, "failure")


def _notice(title: str, text: str, place: RunPlace, kind: str) -> Notice:
    """Put the parts together, without secrets and escape sequences, and not longer than services take."""
    hidden = Redactor().text("\n".join(plain(line) for line in text.splitlines()), "notification")
    return Notice(f"allranks {plain(title)}", f"{cut(hidden, LONGEST)}\n{plain(place.directory)}", kind)
