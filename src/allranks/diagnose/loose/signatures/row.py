"""A row of the tables: a text of one line, what it means, and which part it plays in a failure (pure)."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


class Role(enum.Enum):
    """What a line is in the story of a failure."""

    ROOT = "root"  # explains itself
    WEAK = "weak"  # something failed by itself, and does not say why
    SYMPTOM = "symptom"  # somebody waits or complains; right only where nothing better is known
    CASCADE = "cascade"  # follows from another's end
    HARMLESS = "harmless"  # looks bad, means nothing


GAP = 120
WORD = 120
_TOKENS = re.compile(r"\\.|.", re.DOTALL)


def bounded(pattern: str) -> str:
    """The pattern with an end to each `*` and `+`; a repetition with braces has its own."""
    out: list[str] = []
    in_set = False
    for token in _TOKENS.findall(pattern):
        if token in ("*", "+") and not in_set:
            most = GAP if out[-1] == "." else WORD
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
    """`needs`: literals, one of which stands in every text that `pattern` finds; the scan looks for them first.

    In `pattern` no repetition is without end: `.*` means at most `GAP` characters, `*` and `+` behind anything else at
    most `WORD` of it (`bounded`), as a search that goes on to the end of a line from each of its beginnings is
    quadratic.

    `means` says in plain words what the text does not say itself; `fix` overrides the cause's own. Named groups of
    the pattern (node, peer, rank, pid, gpu, interface, port) tell the place. `rule`: the file in `rules/` that
    weighs such lines instead of the table.
    """

    id: str
    cause: str
    role: Role
    source: str
    needs: tuple[str, ...]
    pattern: str
    confidence: float = 0.9
    means: str = ""
    fix: str = ""
    also: str = ""  # a second cause that the same text can have
    rule: str = ""

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The pattern, compiled when a line holds a literal of it: all 240 of them take 0.2 s."""
        return re.compile(bounded(self.pattern))

    def find(self, text: str) -> re.Match[str] | None:
        """The match in a line."""
        if not any(need in text for need in self.needs):
            return None
        return self.compiled.search(text)


def table(source: str, role: Role, cause: str, *rows: Sequence[object]) -> tuple[Row, ...]:
    """Rows of one cause and source: (id, needs separated by `|`, pattern, then confidence, means, fix, also)."""
    made = []
    for identity, needs, pattern, *rest in rows:
        given = dict(zip(("confidence", "means", "fix", "also"), rest, strict=False))
        made.append(Row(str(identity), cause, role, source, tuple(str(needs).split("|")), str(pattern), **given))  # type: ignore[arg-type]
    return tuple(made)
