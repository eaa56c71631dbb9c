"""Secrets out of texts, JSON values and files, with a list of what was hidden (pure).

`Redactor` serves one page or one bundle. Of a line at most `WINDOW` characters are looked at: a longer one is cut at
white space, and what follows is left out, so that no part of a secret is left at the cut. Escape sequences and control
characters are removed first, as they could stand inside a token.

The list says kind, file, count and lines, never the value. Not found: what is encoded (base64, compressed), and
secrets without a known form that no name, header or command beside them gives away; `patterns` are for those.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from allranks.errors import UsageError
from allranks.protocol.codec import decode_parts, encode
from allranks.protocol.jsontext import Json
from allranks.protocol.run_facts import read_lines, write_line
from allranks.settings import secretforms as forms
from allranks.settings.secrets import REDACTED, is_secret_name
from allranks.text import count_of, plural

from .record import Excerpt, Record

WINDOW = 64 << 10  # characters of a line that are looked at
KNOWN_LENGTH = 8  # characters from which on a known value is looked for
PEM_LINES = 400  # of a private key whose end never comes
PLACES_LISTED = 20
USERS = "user's pattern"
NAMED = "named value"
KNOWN = "known value"
KEY = "private key"

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[()#][A-Z0-9]|[@-Z\\^_=>78])")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u200b-\u200f\u2060\ufeff]")
_PATHS = ("path", "file", "files", "filename", "dir", "directory", "folder", "sock", "socket", "home")
_NO_VALUES = ("", "none", "null", "true", "false", "<unset>")
_AROUND = " \t\r\n\f\v\"'\\,;)}]"  # what may stand around a value
_COUNT = re.compile(r"-?\d{1,7}[,;)\]]*")

Part = TypeVar("Part")
Note = Callable[[str], None]  # of a kind


@dataclass
class Hidden:
    """What was hidden of one kind in one file: how often, and in which lines (or places of a JSON document)."""

    kind: str
    file: str
    count: int = 0
    lines: list[int | str] = field(default_factory=list)


def hidden_words(hidden: Sequence[Hidden]) -> str:
    """Write `3 secrets were hidden (named value, private key)`."""
    count = sum(one.count for one in hidden)
    kinds = ", ".join(sorted({one.kind for one in hidden}))
    return f"{count_of(count, 'secret')} {plural(count, 'was', 'were')} hidden ({kinds})"


class Redactor:
    """`patterns` are the user's regular expressions; `known_values` are secret wherever they stand."""

    def __init__(self, patterns: Sequence[str] = (), known_values: Iterable[str] = ()) -> None:
        self._patterns = [_compiled(pattern) for pattern in patterns]
        parts = {p.strip() for value in known_values for p in value.splitlines()}
        longest = sorted((p for p in parts if len(p) >= KNOWN_LENGTH), key=lambda p: (-len(p), p))
        self._known = re.compile("|".join(map(re.escape, longest))) if longest else None
        self._hidden: dict[tuple[str, str], Hidden] = {}

    @property
    def hidden(self) -> list[Hidden]:
        """By file, then kind."""
        return [self._hidden[key] for key in sorted(self._hidden)]

    def text(self, text: str, file: str, place: int | str = "") -> str:
        """Redact a text of several lines; `place` is the number of the first, or where it stands in a document."""
        lines = LineRedactor(self, file, place)
        return "\n".join(lines.line(_bounded(line)) for line in text.split("\n"))

    def excerpt(self, excerpt: Excerpt) -> Excerpt:
        """Redact beginning and end of a log, each on its own."""
        log = excerpt.log
        head = LineRedactor(self, log.file)
        tail = LineRedactor(self, log.file, excerpt.total - len(excerpt.tail) + 1)
        return excerpt._replace(
            log=log._replace(file=self.text(log.file, "names"), node=self.text(log.node, "names")),
            head=[head.line(_bounded(line)) for line in excerpt.head],
            tail=[tail.line(_bounded(line)) for line in excerpt.tail][excerpt.context :],
            context=0,
        )

    def note(self, kind: str, file: str, place: int | str) -> None:
        """One more was hidden."""
        hidden = self._hidden.setdefault((file, kind), Hidden(kind, file))
        hidden.count += 1
        if place not in ("", *hidden.lines) and len(hidden.lines) < PLACES_LISTED:
            hidden.lines.append(place)

    def line(self, text: str, note: Note) -> str:
        """Redact a line."""
        if self._known is not None:
            text = _without(text, _spans(self._known, text), KNOWN, note)
        for pattern in self._patterns:
            text = _without(text, _spans(pattern, text), USERS, note)
        if forms.may_hold(text):
            return hide_forms(text, note)
        return text

    # -- JSON --------------------------------------------------------------------------------------

    def value(self, value: Json, file: str, place: int | str = "") -> Any:
        """Redact a JSON value: texts by the rules for text, all that stands under a secret name."""
        if isinstance(value, str):
            return self.text(value, file, place)
        if isinstance(value, Mapping):
            return self._mapping(value, file, place)
        if isinstance(value, (list, tuple)):
            return self._words(value, file, place)
        return value

    def _mapping(self, value: Mapping[str, Json], file: str, place: int | str) -> dict[str, Json]:
        is_pair = is_secret(str(value.get("name"))) and "value" in value  # as Kubernetes writes variables
        redacted: dict[str, Json] = {}
        for key, item in value.items():
            name = self.text(key, file, place)
            at = place if isinstance(place, int) else f"{place}.{name}".lstrip(".")
            if is_secret(key) or (is_pair and key == "value"):
                redacted[name] = self._whole(item, key, file, at)
            else:
                redacted[name] = self.value(item, file, at)
        return redacted

    def _words(self, value: Sequence[Json], file: str, place: int | str) -> list[Json]:
        """Redact a list. It may be a command: its `--api-key` hides the next word."""
        redacted: list[Json] = []
        hide = False
        for item in value:
            if not isinstance(item, str):
                redacted.append(self.value(item, file, place))
                hide = False
                continue
            if hide and not item.startswith("--"):
                redacted.append(self._whole(item, "", file, place))
            else:
                redacted.append(self.text(item, file, place))
            hide = item.startswith("-") and "=" not in item and is_secret(item)
        return redacted

    def _whole(self, value: Json, name: str, file: str, place: int | str) -> Json:
        """Hide the value of a secret name; of a list or an object all in it."""
        if isinstance(value, Mapping):
            return {self.text(key, file, place): self._whole(item, name, file, place) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._whole(item, name, file, place) for item in value]
        if value is None or isinstance(value, bool) or value == REDACTED or _is_none(name, str(value)):
            return value
        self.note(NAMED, file, place)
        return REDACTED

    def document(self, text: str, file: str) -> str | None:
        """Redact a JSON document, and write it indented; None where the text is none."""
        with contextlib.suppress(ValueError, RecursionError):
            return json.dumps(self.value(json.loads(text), file), indent=1, ensure_ascii=False)
        return None

    def json_line(self, line: str, file: str, number: int) -> str | None:
        """Redact a line of a .jsonl file; None where it is not JSON."""
        with contextlib.suppress(ValueError, RecursionError):
            return json.dumps(self.value(json.loads(line), file, number))
        return None


class LineRedactor:
    """Line after line of one file: what goes on over several lines is remembered."""

    def __init__(self, redactor: Redactor, file: str, place: int | str = 1) -> None:
        self._redactor = redactor
        self._file = file
        self._place = place
        self._key = 0  # lines of a private key that may still come
        self._pair = False  # the next line has the value of a secret name
        self._block: int | None = None  # how far the name is indented whose block is secret

    def line(self, raw: str) -> str:
        """Redact a line; the lines of a private key become empty."""
        text = self._rest(plain(raw))
        redacted = ""
        if text is not None:
            text, key = _before_key(text)
            redacted = self._redactor.line(self._paired(text), self._note)
            self._begin(text)
            if key:
                self._key = PEM_LINES
                self._note(KEY)
                redacted += REDACTED
        if isinstance(self._place, int):
            self._place += 1
        return redacted

    def _note(self, kind: str) -> None:
        self._redactor.note(kind, self._file, self._place)

    def _rest(self, text: str) -> str | None:
        """Return the part of a line behind a key or block that began before; None where all of it belongs to that."""
        if self._key:
            end = forms.PEM_ENDS.search(text)
            if end is None:
                self._key -= 1
                return None
            self._key = 0
            return text[end.end() :]
        if self._block is not None:
            if not text.strip() or len(text) - len(text.lstrip()) > self._block:
                return None
            self._block = None
        return text

    def _paired(self, text: str) -> str:
        """Without the value, where the line before has named it."""
        began = self._pair
        self._pair = False
        start = forms.PAIR_ENDS.match(text) if began else None
        value = forms.VALUES.match(text, start.end()) if start else None
        if value is None:
            return text
        self._note(NAMED)
        return text[: value.start()] + REDACTED + text[value.end() :]

    def _begin(self, text: str) -> None:
        if "name" in text:
            pair = forms.PAIR_BEGINS.search(text)
            self._pair = pair is not None and is_secret(pair["name"])
        if text[-6:].rstrip(" \t0123456789+-").endswith(("|", ">")):
            block = forms.BLOCK_BEGINS.match(text)
            if block is not None and is_secret(block["name"]):
                self._block = len(block["indent"])
                self._note(NAMED)


# -- one line --------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Without escape sequences and control characters: they could stand within a secret."""
    if text.isprintable():  # most are, and the test is quick
        return text
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return _CONTROL.sub("", text)


def hide_forms(text: str, note: Note) -> str:
    """Hide what has the form of a secret, then what a name calls one."""
    for form in forms.FORMS:
        if form.needs in text:
            text = _without(text, list(form.spans(text)), form.kind, note)
    for pattern in (forms.PAIRED, forms.SPOKEN, forms.ASSIGNED, forms.FLAGGED, forms.SET):
        text = _hide_named(pattern, text, note)
    return text


def is_secret(name: str) -> bool:
    """As `is_secret_name`, but for names in free text: a bare `key` is one of many things there, and so is an error."""
    bare = name.strip("-._").lower()
    return bare not in ("key", "keys") and not bare.endswith(("error", "exception", "warning")) and is_secret_name(name)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--redact {pattern!r} is not a regular expression: {error}") from None


def _spans(pattern: re.Pattern[str], text: str) -> list[forms.Span]:
    return [match.span() for match in pattern.finditer(text)]


def _bounded(line: str) -> str:
    """Cut a long line at the last white space of its window: a secret may go on behind it."""
    if len(line) <= WINDOW:
        return line
    words = line[:WINDOW].rsplit(None, 1)
    return "".join(words[:-1]) + " … the rest of this line is left out"


def _before_key(text: str) -> tuple[str, bool]:
    """Return what stands before a private key that does not end in this line, and whether there is such a key."""
    if "-----BEGIN" not in text:
        return text, False
    ended = max((end.end() for end in forms.PEM_ENDS.finditer(text)), default=0)
    begin = forms.PEM_BEGINS.search(text, ended)
    if begin is None:
        return text, False
    return text[: begin.start()], True


def _without(text: str, spans: Sequence[forms.Span], kind: str, note: Note) -> str:
    """Hide each span of a text; spans stand in order and do not overlap."""
    kept = []
    at = 0
    for start, end in spans:
        secret = text[start:end]
        if start < at or not secret or secret.strip("\"'") == REDACTED:
            continue
        note(kind)
        kept += [text[at:start], REDACTED]
        at = end
    return "".join([*kept, text[at:]])


def _hide_named(pattern: re.Pattern[str], text: str, note: Note) -> str:
    parts = []
    at = 0
    for match in pattern.finditer(text):
        if match.end() <= at or not (pattern is forms.SPOKEN or is_secret(match["name"])):
            continue
        values = forms.PHRASES if forms.PHRASED.search(match["name"]) else forms.VALUES
        value = values.match(text, match.end())
        if value is None or _is_none(match["name"], value[0]):
            continue
        if REDACTED not in value[0]:
            note(NAMED)
        parts += [text[at : match.end()], _in_quotes(value[0])]
        at = value.end()
    return "".join([*parts, text[at:]])


def _is_none(name: str, value: str) -> bool:
    """Nothing, a flag, a path, or a count: no secret."""
    bare = value.lstrip("\"'\\")
    last = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())[-1:]
    if last and last[0] in _PATHS and bare.startswith(("/", "~/", "./", "../")):
        return True
    if name.lower() == "token" and _COUNT.fullmatch(bare):
        return True
    inner = value.lstrip(_AROUND).rstrip(_AROUND + ":.").lower()
    return inner in _NO_VALUES or not inner.strip("*")


def _in_quotes(value: str) -> str:
    """`<redacted>`, within the quotes that the value has."""
    quote = value[0] if value[0] in "\"'" and value.count(value[0]) > 1 else ""
    return f"{quote}{REDACTED}{quote}"


# -- a whole record ----------------------------------------------------------------------------------------


def redacted(record: Record, redactor: Redactor) -> Record:
    """All that a page shows; the redactor has the list of what was hidden."""
    names = redactor.text
    facts = enumerate(record.facts, 1)
    return replace(
        record,
        name=names(record.name, "names"),
        directory=names(record.directory, "names"),
        verdict=_record(record.verdict, "verdict", redactor),
        run=None if record.run is None else _record(record.run, "run.json", redactor),
        result=None if record.result is None else _record(record.result, "result.json", redactor),
        status=_record(record.status, "status.json", redactor),
        facts=tuple(read_lines(redactor.value(write_line(s), "events.jsonl", at) for at, s in facts)),
        preflight=_record(record.preflight, "evidence/preflight.json", redactor),
        checks={check: _by_hidden_name(row, redactor) for check, row in record.checks.items()},
        tests=tuple(_record(tested, f"{tested.run}/result.json", redactor) for tested in record.tests),
        links=tuple(redactor.value(record.links, "outputs")),
        texts={names(f, "names"): _text(f, text, redactor) for f, text in record.texts.items()},
        excerpts=tuple(map(redactor.excerpt, record.excerpts)),
    )


def _record(record: Part, file: str, redactor: Redactor) -> Part:
    """Redact a document; what no longer fits its field is left out."""
    return decode_parts(type(record), redactor.value(encode(record), file))


def _by_hidden_name(row: Mapping[str, str], redactor: Redactor) -> dict[str, str]:
    """Node names may have to be hidden; statuses are ours."""
    return {redactor.text(node, "names"): status for node, status in row.items()}


def _text(file: str, text: str, redactor: Redactor) -> str:
    """JSON by its parts, as texts in it are escaped; anything else line by line."""
    if file.endswith(".jsonl"):
        lines = enumerate(text.split("\n"), 1)
        return "\n".join(redactor.json_line(line, file, at) or redactor.text(line, file, at) for at, line in lines)
    document = redactor.document(text, file) if file.endswith(".json") else None
    return redactor.text(text, file, 1) if document is None else document
