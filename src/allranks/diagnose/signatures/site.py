"""A site's own signatures, out of its signatures.toml: decoded, bounded as ours, and tried before them (pure).

They hold for the process that has read them (`use`): the diagnosis, the pages of `explain` and a run's verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from allranks.errors import ConfigError
from allranks.protocol.jsontext import Json

from ..causes import CAUSES, Cause, Charge, Ends
from .row import RAISED, Row, Sign, bounded

KEYS = ("id", "text", "pattern", "cause", "fix", "means", "charge")
NEEDED = ("id", "cause", "fix")
LEAST = 4  # characters of the plain text that every line of a signature holds
LONGEST = 400  # characters of a pattern
MOST = 1000  # signatures of a file
REPEATS = 6  # of more than one character, in a pattern
_HINT = 'hint: [[signature]] with id = "…", text = "…", cause = "…" and fix = "…"'
_LABEL = re.compile(r"[a-z][a-z0-9]{0,30}(?:-[a-z0-9]{1,30}){0,6}")
_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,60}")


_rows: tuple[Row, ...] = ()
_own_causes: dict[str, Cause] = {}  # by id: those that only the rows name


def use(signatures: Sequence[Row], causes: Iterable[Cause]) -> None:
    """Let this process know signatures, in place of those before; causes of ours stay as they are."""
    global _rows
    for own in _own_causes:
        CAUSES.pop(own, None)
    _own_causes.clear()
    _own_causes.update({cause.id: cause for cause in causes})
    CAUSES.update(_own_causes)
    _rows = tuple(signatures)


def rows() -> tuple[Row, ...]:
    """List the site's rows."""
    return _rows


def decode(values: Mapping[str, Json], source: str) -> tuple[list[Row], list[Cause]]:
    """Read the tables [[signature]] of a file, and the causes that only they name.

    Raise ConfigError that names the table at fault.
    """
    tables = values.get("signature")
    if not isinstance(tables, Sequence) or isinstance(tables, str) or set(values) != {"signature"}:
        raise ConfigError(f"{source}: expected tables [[signature]] and nothing else\n{_HINT}")
    if len(tables) > MOST:
        raise ConfigError(f"{source}: more than {MOST} signatures")
    places = [(f"{source}, signature {number}", table) for number, table in enumerate(tables, 1)]
    found = [_row(table, place, source) for place, table in places]
    charges = {row.cause: _charge(row, table, place) for row, (place, table) in zip(found, places, strict=True)
               if isinstance(table, Mapping) and "charge" in table}  # fmt: skip
    twice = {row.id for row in found if [other.id for other in found].count(row.id) > 1}
    if twice:
        raise ConfigError(f"{source}: the id {min(twice)} is there twice")
    labels = {row.cause: row for row in reversed(found) if row.cause not in CAUSES or row.cause in _own_causes}
    causes = [
        Cause(
            row.cause,
            row.means or f"a line has what {row.id} of {row.source} looks for",
            "Read the lines that the verdict quotes",
            row.fix,
            charge=charges.get(row.cause, Charge.SITE),
            ends=Ends.NODE_OR_PROGRAM,
        )
        for row in labels.values()
    ]
    return found, causes


def _row(table: Json, place: str, source: str) -> Row:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{place}: expected a table")
    unknown = [key for key in table if key not in KEYS]
    if unknown:
        raise ConfigError(f"{place}: unknown key {unknown[0]}, expected {', '.join(KEYS)}")
    words = {key: value for key, value in table.items() if isinstance(value, str) and value.strip()}
    lacking = [key for key in (*NEEDED, *table) if key not in words]
    if lacking:
        raise ConfigError(f"{place}: {lacking[0]} must be a text")
    if ("text" in words) == ("pattern" in words):
        raise ConfigError(f"{place}: give text or pattern, and one of the two")
    for key, form in (("id", _ID), ("cause", _LABEL)):
        if not form.fullmatch(words[key]):
            raise ConfigError(f"{place}: {key} {words[key]!r} is not a label such as rack-power")
    if "text" in words:
        needs: tuple[str, ...] = (words["text"],)
        pattern = re.escape(words["text"])
    else:
        pattern = words["pattern"]
        needs = _literals_of(pattern, place)
    if min(map(len, needs)) < LEAST:
        raise ConfigError(f"{place}: at least {LEAST} characters of plain text must stand in every line that it finds")
    # a literal of its own has no mark between literals: of a text with one, its longest part stands in every line too
    literals = "|".join(max(need.split("|"), key=len) for need in needs)
    return Row(words["id"], words["cause"], role=Sign.SITE, source=source, literals=literals, pattern=pattern,
        confidence=0.97, means=words.get("means", ""),
               scope=RAISED, fix=words["fix"])  # fmt: skip


def _charge(row: Row, table: Mapping[str, Json], place: str) -> Charge:
    names = [charge.value for charge in Charge if charge is not Charge.ALLRANKS]
    if row.cause in CAUSES and row.cause not in _own_causes:
        raise ConfigError(f"{place}: charge is of a new cause, and {row.cause} is one of ours")
    if table["charge"] not in names:
        raise ConfigError(f"{place}: charge {table['charge']!r} is none of {', '.join(names)}")
    return Charge(table["charge"])


# -- a pattern's plain text, and its cost ----------------------------------------------------------------

# Of a pattern that is valid: each set has its end. So `]?` costs no search for one that is not there.
_PARTS = re.compile(
    r"\[\^?\]?(?:\\.|[^\]\\])*\]?|\\(?:x\w\w|u\w{4}|U\w{8}|N\{[^}]*\}|0[0-7]{0,2}|.)|\{[\d,]{0,9}\}|"
    r"\(\?(?:P<\w{0,60}>|.)|.",
    re.DOTALL,
)
_OTHER = re.compile(r"\(\?(?!P<|:)|\\[1-9]")
_ONCE = frozenset({"?", "{1}", "{0,1}", "{,1}"})


@dataclass
class _Group:
    """A group of a pattern: what there was before it, and whether it is a choice."""

    repeats: int
    runs: int
    is_choice: bool = False


def _literals_of(pattern: str, place: str) -> tuple[str, ...]:
    """Give literals of which every match holds one; raise ConfigError for a pattern that may take long."""
    if re.search(r"\(\?[aiLmsux-]", pattern):
        raise ConfigError(f"{place}: a pattern takes no flags. Write [Nn]ot for both cases")
    if len(pattern) > LONGEST:
        raise ConfigError(f"{place}: the pattern has more than {LONGEST} characters")
    try:
        re.compile(bounded(pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"{place}: {pattern!r} is not a valid pattern, {error}") from None
    literals: list[str] = []  # of the alternatives before
    runs = [""]  # of plain characters that every match of this alternative has
    opened: list[_Group] = []
    ended: _Group | None = None  # the group that has just ended
    repeats = 0
    for part in _PARTS.findall(pattern):
        before = ended
        ended = None
        if _OTHER.match(part):
            raise ConfigError(f"{place}: back references and conditions are not taken")
        if part[0] in "*+?{" and part != "{":  # a repetition: what it repeats may not be there at all
            if part not in _ONCE:
                repeats += 1
                if before is not None and before.repeats < repeats - 1:
                    raise ConfigError(f"{place}: a repetition stands inside another one, which can take for ever")
            if before is not None:
                del runs[before.runs :]
            else:
                runs[-1] = runs[-1][:-1]
            runs.append("")
        elif part[0] == "(":
            opened.append(_Group(repeats, len(runs)))
            runs.append("")
        elif part == ")":
            ended = opened.pop()
            if ended.is_choice:
                del runs[ended.runs :]
            runs.append("")
        elif part == "|" and opened:
            opened[-1].is_choice = True
            runs.append("")
        elif part == "|":
            literals.append(max(runs, key=len))
            runs = [""]
        elif part in ".^$" or part[0] == "[" or (part[0] == "\\" and part[1].isalnum()):
            runs.append("")
        else:
            runs[-1] += part[-1]
    if repeats > REPEATS:
        raise ConfigError(f"{place}: more than {REPEATS} repetitions")
    return (*literals, max(runs, key=len))
