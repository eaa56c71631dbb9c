"""Kubernetes objects as records, and the user's own settings laid over what a record says (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from allranks.errors import UsageError

from .yamltext import Document


@dataclass(frozen=True)
class Metadata:
    """Of an object or of a template of pods; what is empty is left out."""

    name: str = ""
    namespace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def adding(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Metadata:
        """With further labels and annotations."""
        return replace(self, labels={**self.labels, **labels}, annotations={**self.annotations, **annotations})

    def document(self) -> Document:
        """As the API takes it."""
        fields: Document = {"name": self.name, "namespace": self.namespace}
        entries = {"labels": dict(self.labels), "annotations": dict(self.annotations)}
        return {key: value for key, value in {**fields, **entries}.items() if value}


@dataclass(frozen=True)
class Template:
    """Of a pod: what a Job makes pods from, and what a bare pod is."""

    metadata: Metadata
    spec: Document

    def document(self) -> Document:
        """As the API takes it."""
        return {"metadata": self.metadata.document(), "spec": self.spec}


@dataclass(frozen=True)
class Manifest:
    """An object: `body` is what stands beside kind and metadata."""

    api: str
    kind: str
    metadata: Metadata
    body: Document

    def document(self) -> Document:
        """As the API takes it."""
        return {"apiVersion": self.api, "kind": self.kind, "metadata": self.metadata.document(), **self.body}


def laid_over(base: Document, top: Document, where: str) -> Document:
    """`top` laid over `base`: objects key by key, lists of named things by name, other lists are joined."""
    document = dict(base)
    for key, value in top.items():
        present = document.get(key)
        place = f"{where}: {key}"
        if isinstance(value, dict) and isinstance(present, dict):
            document[key] = laid_over(present, value, place)
        elif isinstance(value, list) and isinstance(present, list):
            document[key] = _joined(present, value, place)
        elif isinstance(present, (dict, list)):
            want = "list" if isinstance(present, list) else "map"
            raise UsageError(f"{place} has the value {value!r}, expected a {want}")
        else:
            document[key] = value
    return document


def _joined(present: Sequence[object], more: Sequence[object], where: str) -> list[object]:
    items = list(present)
    names = [_name_of(item) for item in items]
    for item in more:
        name = _name_of(item)
        if name is None or name not in names:
            items.append(item)
            continue
        at = names.index(name)
        same = items[at]
        if isinstance(same, dict) and isinstance(item, dict):
            items[at] = laid_over(same, item, f"{where}: {name}")
    return items


def _name_of(item: object) -> object:
    if not isinstance(item, dict):
        return None
    return item.get("name")
