"""What must not be written into run.json: values whose name says that they are secret.

A name is split into words at `_`, `-`, `.` and capitals. It is secret if a word says password, secret or
credential, or ends in `token` or `key`. Counts and special tokens of a vocabulary are none
(`--max-tokens`, `--pad-token`, `TOKENIZERS_PARALLELISM`), nor are keys of a model's attention or state
(`num_key_value_heads`, `missing_keys`). Passwords inside URLs are hidden as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from allranks.protocol.jsontext import Json, JsonObject

REDACTED = "<redacted>"
COMMANDS = ("command", "argv")  # members of documents
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ANYWHERE = ("secret", "password", "passwd", "passphrase", "credential", "apikey")
_ENDINGS = ("token", "key", "sshpass")
_WHOLE = ("pass", "pwd", "auth")
_OF_A_VOCABULARY = (
    "pad eos bos unk mask sep cls special image per sort num heads dim size len length count ids type index idx "
    "missing unexpected cache public error"
)
_VOCABULARY = frozenset(_OF_A_VOCABULARY.split())
_IN_URL = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")
_ASSIGNED = re.compile(
    r"(?<![A-Za-z0-9_.-])(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)="
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s;&|]+)"
)


@lru_cache(1024)
def is_secret_name(name: str) -> bool:
    """Tell whether a variable or an option of this name holds a secret."""
    words = [word.lower() for word in _WORDS.findall(name)]
    joined = "".join(words)
    if any(part in joined for part in _ANYWHERE):
        return True
    if len(words) > 1 and any(word in _WHOLE for word in words):
        return True
    ends = any(word.endswith(_ENDINGS) or word == "keys" for word in words)
    return ends and not _VOCABULARY.intersection(words)


def redact_text(text: str) -> str:
    """Hide the values of secret assignments and options, known tokens and passwords in URLs of a shell text."""

    def hide(match: re.Match[str]) -> str:
        if is_secret_name(match["name"]):
            return f"{match['name']}={REDACTED}"
        return match[0]

    return _in_urls(_hide_forms(_ASSIGNED.sub(hide, text)))


def redact_document(document: Mapping[str, Json]) -> JsonObject:
    """Return a document without tokens of a known form in its texts, and with commands in it as `redact_argv` has them.

    Whoever writes a document calls it: a module that puts a command or a text of a node into one need not.
    """
    return {name: _redact_value(name, value) for name, value in document.items()}


def _redact_value(name: str, value: Json) -> Json:
    if isinstance(value, str):
        is_command = name in COMMANDS
        # A word alone may be a host or a directory, by which the run is found again: sk-telecom-cluster-node-01.
        shown = _hide_forms(value, is_command) if is_command or " " in value else value
        return _in_urls(shown)
    if isinstance(value, Mapping):
        return redact_document(value)
    if not isinstance(value, (list, tuple)):
        return value
    if name in COMMANDS and all(isinstance(word, str) for word in value):
        return redact_argv(value)
    return [_redact_value("", item) for item in value]


def _hide_forms(text: str, is_command: bool = True) -> str:
    """Hide what is a secret by its form or by the command beside it: `wandb login …`, `--api-key …`, `sshpass -p …`."""
    from .secretforms import FLAGGED, FORMS, VALUES  # late: few settings hold such a text

    lines = []
    for line in text.split("\n"):
        spans = [span for form in FORMS for span in form.spans(line)]
        for flag in FLAGGED.finditer(line) if is_command else ():
            value = VALUES.match(line, flag.end())
            if value is not None and is_secret_name(flag["name"]):
                spans.append(value.span("value"))
        for start, end in _apart(spans):
            if not is_command and line[start:end].islower():
                continue  # tokens have capitals, names of hosts have none
            line = line[:start] + REDACTED + line[end:]
        lines.append(line)
    return "\n".join(lines)


def _apart(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge places that overlap, and return the last first."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            start, end = merged[-1][0], max(end, merged.pop()[1])
        merged.append((start, end))
    return merged[::-1]


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the values of secret ones hidden."""
    return {name: REDACTED if is_secret_name(name) else _shown(value) for name, value in env.items()}


@lru_cache(1024)  # as names, most values are those of all ranks
def _shown(value: str) -> str:
    return _in_urls(_hide_forms(value))


def redact_argv(argv: Sequence[str]) -> list[str]:
    """Return the words of a command with `--token=…`, `--api-key …` and `KEY=…` hidden, also in a text for a shell."""
    shown: list[str] = []
    hide_next = False
    for word in argv:
        hide = hide_next and not word.startswith("--")
        hide_next = False
        name, equals, _ = word.partition("=")
        if hide:
            shown.append(REDACTED)
        elif equals and is_secret_name(name):
            shown.append(f"{name}={REDACTED}")
        else:
            hide_next = word.startswith("-") and not equals and is_secret_name(word)
            shown.append(redact_text(word) if " " in word or "\n" in word else _in_urls(_hide_forms(word)))
    return shown


def _in_urls(text: str) -> str:
    return _IN_URL.sub(rf"\g<1>{REDACTED}@", text)
