"""A row of the tables: a text of one line, what it means, and which part it plays in a failure (pure)."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property


class Sign(enum.Enum):
    """What a line is in the story of a failure."""

    SITE = "site"  # a site's own row: what it says comes before what ours say
    ROOT = "root"  # explains itself
    WEAK = "weak"  # something failed by itself, and does not say why
    SYMPTOM = "symptom"  # a rank waits or complains; right only where nothing better is known
    CASCADE = "cascade"  # follows from another's end
    HARMLESS = "harmless"  # looks bad, means nothing


ROOT = Sign.ROOT
WEAK = Sign.WEAK
SYMPTOM = Sign.SYMPTOM
CASCADE = Sign.CASCADE
HARMLESS = Sign.HARMLESS


class Scope(enum.Flag):
    """The texts that a row is tried on."""

    LOG = enum.auto()  # a line of a log, whoever wrote it
    EXCEPTION = enum.auto()  # `Type: text` of the exception that ended a rank, on one line: rows of ROOT and CASCADE
    AGENT = enum.auto()  # an agent's own words on what it could not do


RAISED = Scope.LOG | Scope.EXCEPTION

GAP = 120
WORD = 120
_TOKENS = re.compile(r"\\.|.", re.DOTALL)


def bounded(pattern: str) -> str:
    """Give each `*` and `+` of a pattern an end; a repetition with braces has its own."""
    out: list[str] = []
    in_set = False
    for token in _TOKENS.findall(pattern):
        if token in ("*", "+") and not in_set:
            most = GAP if out[-1:] == ["."] else WORD
            out.append(f"{{{int(token == '+')},{most}}}")
            continue
        if token == "[":
            in_set = True
        elif token == "]":
            in_set = False
        out.append(token)
    return "".join(out)


@dataclass(frozen=True)
class Row:
    """`literals`, separated by `|`: one stands in every text that `pattern` finds; the scan looks for them first.

    In `pattern` no repetition is without end: `.*` means at most `GAP` characters, `*` and `+` behind anything else at
    most `WORD` of it (`bounded`), as a search that goes on to the end of a line from each of its beginnings is
    quadratic.

    `means` says in plain words what the text does not say itself. Named groups of the pattern (node, peer, rank, pid,
    gpu, interface, port) tell the place. `rule`: the rule that weighs such lines instead of the table. `trace`: what
    must stand in an exception's traceback, too. `fix` takes the place of the cause's own.
    """

    id: str
    cause: str
    role: Sign
    source: str
    literals: str
    pattern: str
    confidence: float = 0.9
    means: str = ""
    also: str = ""  # a second cause that the same text can have
    rule: str = ""
    scope: Scope = Scope.LOG
    trace: str = ""
    fix: str = ""

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """The literals, one by one."""
        return tuple(self.literals.split("|"))

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The pattern, compiled when a line holds a literal of it: all 240 of them take 0.2 s."""
        return re.compile(bounded(self.pattern))

    def fits_traceback(self, traceback: str) -> bool:
        """Tell whether the traceback of an exception has what it must have."""
        return not self.trace or re.compile(self.trace).search(traceback) is not None

    def find(self, text: str) -> re.Match[str] | None:
        """Search a line; None where it holds no literal of the row."""
        if not any(need in text for need in self.needs):
            return None
        return self.compiled.search(text)


Cells = (
    tuple[str, str, str]
    | tuple[str, str, str, float]
    | tuple[str, str, str, float, str]
    | tuple[str, str, str, float, str, str]
)


def table(
    source: str, role: Sign, cause: str, rows: Sequence[Cells], *, scope: Scope = Scope.LOG, fix: str = ""
) -> tuple[Row, ...]:
    """Make rows of one cause and source: (id, literals, pattern, then confidence, means, also)."""
    made = (Row(row[0], cause, role, source, *row[1:]) for row in rows)
    return tuple(replace(row, scope=scope, fix=fix) for row in made)
