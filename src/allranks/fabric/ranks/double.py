"""A test double, for allranks' own tests only: makes one rank misbehave, to prove that the checker can fail.

ALLRANKS_TEST_DOUBLE="rank=2,test=all_gather,what=zeros|wrong_block|off_by_one|late=3s|hang|exit". It has no use in a
test of a cluster; a run that has it set says so in its closing statement.
"""

from __future__ import annotations

import os
import time

from allranks.text import parse_duration

NAME = "ALLRANKS_TEST_DOUBLE"
DATA = ("zeros", "wrong_block", "off_by_one")
KINDS = (*DATA, "late", "hang", "exit")
EVERY = "every"  # as a test's name: wrong data in all of them
EXIT = 7
FOREVER = 86400.0  # seconds


class TestDouble:
    """What this rank does wrong, and in which test."""

    def __init__(self, test: str, what: str) -> None:
        self.test = test
        self.kind, _, amount = what.partition("=")
        if self.kind not in KINDS:
            raise ValueError(f"{NAME}: what={what} is none of {', '.join(KINDS)}")
        self.seconds = FOREVER
        if self.kind == "late":
            self.seconds = parse_duration(amount or "3s")
        self.done = False

    def data(self, test: str) -> str:
        """Give zeros, wrong_block or off_by_one where this test's data is to be wrong, else nothing."""
        if self.test in (test, EVERY) and self.kind in DATA:
            return self.kind
        return ""

    def behave(self, test: str) -> None:
        """Be late, hang or exit, once, before this rank says that it has arrived."""
        if test != self.test or self.done or self.kind in DATA:
            return
        self.done = True
        if self.kind == "exit":
            os._exit(EXIT)
        time.sleep(self.seconds)


def double_of(text: str, rank: int) -> TestDouble | None:
    """Read the double that the environment asks of this rank."""
    if not text:
        return None
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    if not (fields.keys() >= {"rank", "test", "what"} and fields["rank"].isdecimal()):
        raise ValueError(f"{NAME}: expected rank=N,test=NAME,what=…, not {text!r}")
    double = TestDouble(fields["test"], fields["what"])
    if int(fields["rank"]) != rank:
        return None
    return double
