"""Documents as YAML: in the order they were made, texts of several lines as blocks (pure but for PyYAML)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from allranks.errors import UsageError


@cache
def _dumper() -> Any:
    """PyYAML's, told how we write; imported here, as allranks.pyz and most verbs do without it."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """No anchors: a document that stands twice is written twice."""

        def ignore_aliases(self, data: Any) -> bool:
            """Never an anchor."""
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        odd = not value.replace("\n", "").isprintable()  # quoted and escaped: PyYAML writes U+0085 as it is
        if odd:
            style = '"'
        elif "\n" in value:
            style = "|"
        else:
            style = None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return Dumper


def yaml_text(documents: Sequence[Any], head: Sequence[str] = ()) -> str:
    """One file; `head` are its comment lines."""
    import yaml

    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 2**31, "default_flow_style": False}
    parts = [yaml.dump(document, Dumper=_dumper(), **options) for document in documents]
    return "".join(f"# {line}".rstrip() + "\n" for line in head) + "---\n".join(parts)


def read_yaml(text: str, where: str) -> dict[str, Any]:
    """One document that is a map; UsageError with the line where it is none."""
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "one document is wanted"
        raise UsageError(f"{where}{line}: no YAML: {problem}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{where}: found {type(found).__name__}, set a map of settings")
    return found
