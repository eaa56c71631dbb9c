"""JSON Schemas (2020-12) of the documents, made from the typed records as protocol/codec encodes them."""

import enum
import types
import typing
from collections import abc
from dataclasses import dataclass
from typing import Any

from tests.reference.settings_page import cell

from allranks.cli import clean, data, explain, follow, logs, orphans, profile, ps, render, report, stacks, status, stop
from allranks.cli.exec import ExecReport
from allranks.cli.fetch import FetchReport
from allranks.cli.nodes import NodesReport
from allranks.engines import dry_run, joined
from allranks.engines.kubernetes.engine import PodsPlan
from allranks.engines.skypilot import TaskPlan
from allranks.engines.slurm.engine import SubmissionPlan
from allranks.findings import Finding, Verdict
from allranks.overlap.statement import OverlapDocument
from allranks.protocol import codec
from allranks.protocol.run_facts import KINDS, NOT_KEPT
from allranks.report.checks_table import CheckReport
from allranks.report.explained import ExplainedPage
from allranks.runs import documents

Schema = dict[str, Any]
DRAFT = "https://json-schema.org/draft/2020-12/schema"
SIMPLE: dict[object, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    object: {},
    Any: {},
    dict: {"type": "object"},
    type(None): {"type": "null"},
}


@dataclass(frozen=True)
class Published:
    """A document: its record, and the files and commands that have it."""

    name: str
    kind: type
    where: str


DOCUMENTS = [
    Published("run", documents.RunDocument, "`run.json`"),
    Published("status", documents.StatusDocument, "`status.json`"),
    Published("result", documents.ResultDocument, "`result.json`, `run --json`, `attach --json`"),
    Published("test-result", documents.SuiteResult, "`test --json`, `result.json` of a test or a failed quick one"),
    Published("verdict", Verdict, "`verdict.json`, `diagnose --json`, and inside of other documents"),
    Published("finding", Finding, "inside of other documents"),
    Published("preflight", documents.PreflightDocument, "`evidence/preflight.json`"),
    Published("node-result", joined.NodeEnd, "`join --json` on a node other than 0"),
    Published("run-status", status.StatusReport, "`status --json`"),
    Published("runs", ps.RunList, "`ps --json`"),
    Published("check", CheckReport, "`check --json`"),
    Published("check-list", dry_run.CheckList, "`check --list --json`"),
    Published("check-plan", dry_run.CheckPlan, "`check --dry-run --json`"),
    Published("dry-run", dry_run.DryRunDocument, "`run --dry-run --json`, `test --dry-run --json`"),
    Published("submission-plan", SubmissionPlan, "`run --slurm --dry-run --json` outside of an allocation"),
    Published("pods-plan", PodsPlan, "`run --k8s --dry-run --json`"),
    Published("task-plan", TaskPlan, "`run --sky --dry-run --json`"),
    Published("detached", follow.DetachedRun, "`run --detach --json`"),
    Published("stacks", stacks.StacksReport, "`stacks --json`"),
    Published("profile", profile.ProfileReport, "`profile --json`"),
    Published("stop", stop.StopReport, "`stop --json`"),
    Published("clean", clean.CleanReport, "`clean --json`"),
    Published("orphans", orphans.OrphanReport, "`clean --orphans --json`"),
    Published("report", report.Made, "`report --json`"),
    Published("exec", ExecReport, "`exec --json`"),
    Published("fetch", FetchReport, "`fetch --json`"),
    Published("nodes", NodesReport, "`nodes --json`"),
    Published("log-line", logs.PrintedLine, "a line of `logs --json`"),
    Published("metrics-line", logs.MetricsLine, "a line of `logs --metrics --json`"),
    Published("render", render.RenderedDocument, "`render … --json`"),
    Published("data-plan", data.PlanDocument, "`data plan --json`"),
    Published("data-audit", data.AuditDocument, "`data audit --json`"),
    Published("overlap", OverlapDocument, "`overlap --json`"),
    Published("explain", ExplainedPage, "`explain NAME --json`"),
    Published("explain-list", explain.PageList, "`explain --json`"),
    Published("error", documents.ErrorDocument, "any command with `--json` that fails"),
]
PUBLISHED = {document.name: document for document in DOCUMENTS}
WITHOUT_NUMBER = {"finding", "events"}  # parts of documents: these have no "schema" of their own


class Generator:
    """Makes schemas; each record that one refers to stands in its `$defs`. `closed`: no other fields are allowed."""

    def __init__(self, closed: bool = False) -> None:
        self._closed = closed
        self._definitions: dict[str, Schema] = {}

    def document(self, published: Published) -> Schema:
        """The schema of a published document."""
        body = self._record(published.kind)
        if published.name not in WITHOUT_NUMBER:
            body["properties"] = {"schema": {"const": 1}, **body["properties"]}
            body["required"] = ["schema", *(name for name in body["required"] if name != "schema")]
        return self._whole(published.name, body)

    def events(self) -> Schema:
        """The schema of a line of events.jsonl: one of the records, by the event's name."""
        lines = []
        for name, kind in KINDS.items():
            body = self._record(kind, without=not_written(kind))
            own = {"schema": {"const": 1}, "t": {"type": "number"}, "event": {"const": name}}
            own |= {"attempt": {"type": "integer"}, "node": {"type": "string"}, "role": {"type": "string"}}
            required = [field for field in body["required"] if field not in own]
            lines.append({**body, "properties": {**body["properties"], **own}, "required": ["t", "event", *required]})
        return self._whole("events", {"description": "A line of events.jsonl.", "anyOf": lines})

    def _whole(self, name: str, body: Schema) -> Schema:
        head = {"$schema": DRAFT, "$id": f"allranks/{name}.json", "title": name}
        return {**head, **body, **({"$defs": self._definitions} if self._definitions else {})}

    def _record(self, kind: type, without: tuple[str, ...] = ()) -> Schema:
        hints = typing.get_type_hints(kind)
        shape = codec.shape_of(kind)
        properties: dict[str, Schema] = {}
        required: list[str] = []
        for name in codec.field_names(kind):
            if name in without:
                continue
            if name == shape.spread:
                inner = self._record(hints[name])
                properties |= inner["properties"]
                required += inner["required"]
                continue
            key = codec.json_name(name)
            properties[key] = {"const": 1} if key == "schema" else self.of(hints[name])
            may_be_none = type(None) in typing.get_args(hints[name])
            if name not in shape.omitted and not (may_be_none and shape.is_sparse):
                required.append(key)
        for name in shape.computed:
            properties[name] = {"const": 1} if name == "schema" else {"type": "string"}
        about = " ".join((kind.__doc__ or "").split())
        described = {} if about.startswith(f"{kind.__name__}(") else {"description": about}
        body: Schema = {**described, "type": "object", "properties": properties, "required": required}
        return {**body, "additionalProperties": False} if self._closed else body

    def of(self, annotation: Any) -> Schema:
        """The schema of a value with this annotation."""
        kind = annotation.kind if isinstance(annotation, codec.Bounded) else annotation
        if kind in SIMPLE:
            return dict(SIMPLE[kind])
        origin = typing.get_origin(kind)
        parts = typing.get_args(kind)
        if origin in (typing.Union, types.UnionType):
            choices = [self.of(part) for part in parts]
            if all(choice.keys() == {"type"} for choice in choices):
                return {"type": [choice["type"] for choice in choices]}
            return {"anyOf": choices}
        if origin is typing.Literal:
            return {"enum": list(parts)}
        if origin is tuple and parts[1:] != (Ellipsis,):
            exact = len([part for part in parts if part != ()])
            items = [self.of(part) for part in parts if part != ()]
            return {"type": "array", "prefixItems": items, "minItems": exact, "maxItems": exact}
        if origin in (tuple, list, frozenset, abc.Sequence, abc.Set):
            return {"type": "array", "items": self.of(parts[0])}
        if origin in (dict, abc.Mapping):
            return {"type": "object", "additionalProperties": self.of(parts[1])}
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return {"enum": [member.value for member in kind]}
        if codec.is_record(kind):
            return self._reference(kind)
        raise TypeError(f"no schema for {kind!r}")

    def _reference(self, kind: type) -> Schema:
        """A record that others extend may stand there as each of them."""
        kinds = [kind, *(one for one in kind.__subclasses__() if one.__module__.startswith("allranks."))]
        references = [self._definition(one) for one in kinds]
        return references[0] if len(references) == 1 else {"anyOf": references}

    def _definition(self, kind: type) -> Schema:
        name = kind.__name__
        if name not in self._definitions:
            self._definitions[name] = {}  # a record may hold its own kind
            self._definitions[name] = self._record(kind)
        return {"$ref": f"#/$defs/{name}"}


def not_written(kind: type) -> tuple[str, ...]:
    """The fields of a fact that do not stand in its line: its stamp has them, or nobody reads them there."""
    return ("t", "attempt", *NOT_KEPT.get(kind, ()))


def schema_of(name: str, closed: bool = False) -> Schema:
    """The schema that is published under a name."""
    generator = Generator(closed)
    return generator.events() if name == "events" else generator.document(PUBLISHED[name])


def schemas_page() -> str:
    rows = "".join(
        f"| [{one.name}](schemas/{one.name}.json) | {cell(one.where)} | {cell(_first(one.kind))} |\n"
        for one in DOCUMENTS
    )
    return f"""# JSON Schemas
<!-- `make pages` writes this page and the files in schemas/ from the typed records of the source. -->

Every JSON document has `"schema": 1`, and where a command or a file has a document a line, each line has it:
`events.jsonl`, `logs --json` and `join --json`. A line of `join --json` on node 0 is the result, or has one of the keys
`say`, `opening`, `event`, `status` and `output`. The number changes when a field goes away or gets another meaning.
A new field does not change it, so read the fields that you know and pass over the others. The schemas are
[JSON Schema 2020-12](https://json-schema.org/draft/2020-12/schema), and the tests validate real documents against them.

| schema | where | what it holds |
|---|---|---|
| [events](schemas/events.json) | a line of `events.jsonl`, see [events](events.md) | What happened in a run |
{rows}"""


def _first(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split()).rstrip(".")


def events_page() -> str:
    rows = []
    for event, kind in sorted(KINDS.items()):
        hints = typing.get_type_hints(kind)
        spread = codec.shape_of(kind).spread
        if spread:
            hints |= typing.get_type_hints(hints[spread])
        own = [name for name in codec.field_names(kind) if name not in (*not_written(kind), spread)]
        inner = codec.field_names(typing.get_type_hints(kind)[spread]) if spread else ()
        fields = [f"`{codec.json_name(name)}` {_words(hints[name])}" for name in (*own, *inner)]
        meaning = " ".join((kind.__doc__ or "").split())
        rows.append(f"| {event} | {cell(', '.join(fields))} | {cell(meaning)} |\n")
    return f"""# Events
<!-- `make pages` writes this page from src/allranks/protocol/run_facts.py. -->

`events.jsonl` of a run directory has a JSON object a line. Each has `"schema": 1`, `event`, `t` (unix seconds,
corrected to the controller's clock), and `attempt`, `node` (a node's name) and `role` where they apply. A line without
`role` is of the run, or of the role whose success ends it. Its schema is [events.json](schemas/events.json).

| event | further fields | when |
|---|---|---|
{"".join(rows)}"""


def _words(annotation: Any) -> str:
    """A type in words."""
    kind = annotation.kind if isinstance(annotation, codec.Bounded) else annotation
    simple = {str: "text", int: "integer", float: "number", bool: "true or false"}
    if kind in simple:
        return f"({simple[kind]})"
    origin = typing.get_origin(kind)
    parts = typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _words(next(part for part in parts if part is not type(None))).replace(")", " or null)")
    if origin in (dict, abc.Mapping):
        return f"(by name, {_words(parts[1]).strip('()')})"
    if origin in (tuple, list, abc.Sequence):
        return f"(list of {_words(parts[0]).strip('()')})"
    return f"({getattr(kind, '__name__', 'any')})"
