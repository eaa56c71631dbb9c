"""What a rule answers with, and how strongly it explains a failure (pure)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from allranks.findings import Finding, Where

from .causes import CAUSES, FixReader, InWorld, in_place
from .worlds import NOWHERE, Worlds

_NOWHERE = Where()
EVIDENCE = 3  # lines of it that are shown


class Strength(enum.IntEnum):
    """A higher one explains a lower one, whatever their times."""

    SYMPTOM = 0  # a consequence of something that no rule has observed
    WEAK = 1  # something failed by itself, but nothing says why
    FINDING = 2  # a check, the rendezvous check or the transport has looked and found a fault
    ROOT = 3  # explains itself
    SITE = 4  # a signature of the site's own says so
    ENGINE = 5  # who gave the nodes has taken them back: whatever ranks said, they said because of it


@dataclass(frozen=True)
class Candidate:
    """A possible verdict, or what one observation says before it has a place: then `message` is a part of the sentence.

    `remedy` takes the place of the cause's own. `t`: when it happened. `culprits`: ranks that are not victims of it.
    `also`: a second cause that the same text can have. `others`: further findings of the same rule, for the runners-up.
    `line`: the place in the logs that it was read at, by the row or the rule `rule`; None where processes, nodes or
    checks were observed. `worlds` and `reader` choose the fix, and `values` of the evidence stand in it.
    """

    cause: str
    confidence: float
    message: str
    remedy: str = ""
    strength: Strength = Strength.ROOT
    evidence: tuple[str, ...] = ()
    culprits: frozenset[int] = frozenset()
    where: Where = _NOWHERE
    t: float | None = None
    also: str = ""
    others: tuple[Finding, ...] = ()
    rule: str = ""
    line: int | None = None
    worlds: Worlds = NOWHERE
    reader: FixReader = FixReader.LOGS
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def column(self) -> InWorld:
        """Its cause's next step and fix in its world."""
        return CAUSES[self.cause].column(self.worlds)

    @property
    def advice(self) -> str:
        """What is to do, with the names of what is filled in."""
        return self.remedy or self.column.text

    def filled(self, text: str) -> str:
        """Fill its place and its values into a text."""
        return in_place(text, self.where, self.reader, self.worlds, self.values)

    def finding(self) -> Finding:
        """Give the candidate as a finding whose id is the cause; the message is one line."""
        message = " ".join(self.message.splitlines())
        return Finding(self.cause, "fail", message, self.filled(self.advice), self.where, self.evidence[:EVIDENCE])
