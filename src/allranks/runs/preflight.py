"""evidence/preflight.json: what a check or a run has seen of its nodes, to be judged again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from allranks.errors import ConfigError
from allranks.protocol.codec import SCHEMA, encode, fitting
from allranks.protocol.jsontext import DecodeError, JsonObject, read_object
from allranks.settings.secrets import redact_argv, redact_env

from .directory import RunDirectory
from .documents import PreflightDocument
from .regular import open_regular

LIMIT = 256 << 20  # bytes of saved evidence
NAME = "preflight.json"
EXPECTED = "--from takes the evidence/preflight.json of a run."


def document(
    request: JsonObject,
    nodes: Mapping[str, JsonObject | None],
    checks: Sequence[str],
    t: float,
) -> PreflightDocument:
    """Make what a judgement needs, without secrets; `t` is unix seconds."""
    seen = {name: facts for name, facts in nodes.items() if facts is not None}
    hidden = {
        **request,
        "environ": redact_env(request.get("environ") or {}),
        "command": redact_argv(request.get("command") or ()),
    }
    return PreflightDocument(SCHEMA, round(t, 3), tuple(checks), hidden, seen)


def save(run: RunDirectory, saved: PreflightDocument) -> None:
    """Write it into a run directory; on a full disk it is left out."""
    evidence = run.path / "evidence"
    evidence.mkdir(mode=0o700, exist_ok=True)
    document = encode(saved._replace(nodes={}))
    del document["nodes"]
    RunDirectory(evidence).write_large(NAME, document, "nodes", saved.nodes)


def read(path: Path) -> PreflightDocument:
    """Read saved evidence; raise ConfigError that says what is wrong with it."""
    if path.is_dir():
        path = path / "evidence" / NAME
    try:
        with open_regular(path) as file:
            document = read_object(file.read(LIMIT + 1), LIMIT)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}. {EXPECTED}") from None
    except DecodeError:
        document = {}
    saved = fitting(PreflightDocument, document)
    if saved is None:
        raise ConfigError(f"{path} is not the evidence of a check. {EXPECTED}")
    if saved.schema != SCHEMA:
        raise ConfigError(f"{path} has schema {document.get('schema')!r}, this allranks reads schema {SCHEMA}")
    return saved
