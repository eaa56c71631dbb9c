"""A test double, for allranks' own tests only: makes one rank misbehave, to prove that the checker can fail.

ALLRANKS_TEST_DOUBLE="rank=2,test=all_gather,what=zeros|wrong_block|off_by_one|late=3s|hang|exit". It has no use in a
test of a cluster; a run that has it set says so in its closing statement.
"""

from __future__ import annotations

import os
import time

from .sizes import parse_seconds

NAME = "ALLRANKS_TEST_DOUBLE"
KINDS = ("zeros", "wrong_block", "off_by_one", "late", "hang", "exit")
DATA = KINDS[:3]
EVERY = "every"  # as a test's name: wrong data in all of them
EXIT = 7


class Double:
    """What this rank does wrong, and in which test."""

    def __init__(self, rank: int, test: str, what: str) -> None:
        kind, _, amount = what.partition("=")
        if kind not in KINDS:
            raise ValueError(f"{NAME}: what={what} is none of {', '.join(KINDS)}")
        self.rank, self.test, self.kind = rank, test, kind
        self.seconds = parse_seconds(amount or "3s")
        self.done = False

    def data(self, test: str) -> str:
        """zeros, wrong_block or off_by_one where this test's data is to be wrong, else nothing."""
        return self.kind if self.test in (test, EVERY) and self.kind in DATA else ""

    def behave(self, test: str) -> None:
        """Be late, hang or exit, once, before this rank says that it has arrived."""
        if test != self.test or self.done or self.kind in DATA:
            return
        self.done = True
        if self.kind == "exit":
            os._exit(EXIT)
        time.sleep(self.seconds if self.kind == "late" else 86400.0)


def double_of(text: str, rank: int) -> Double | None:
    """The double that the environment asks of this rank."""
    if not text:
        return None
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    if not (fields.keys() >= {"rank", "test", "what"} and fields["rank"].isdigit()):
        raise ValueError(f"{NAME}: rank=N,test=NAME,what=…, not {text!r}")
    found = Double(int(fields["rank"]), fields["test"], fields["what"])
    return found if found.rank == rank else None
