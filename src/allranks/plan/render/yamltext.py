"""Documents as YAML: in the order they were made, texts of several lines as blocks (pure but for PyYAML)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from allranks.errors import UsageError

if TYPE_CHECKING:
    import yaml

Document = dict[str, object]  # of YAML: texts, numbers, lists and maps by name
_BASE64 = re.compile(r"[A-Za-z0-9+/]{1000,}={0,2}")  # an archive: hundreds of thousands of characters


@cache
def _dumper() -> type[yaml.SafeDumper]:
    """PyYAML's, with how we write; imported here, as allranks.pyz and most verbs do without it."""
    import yaml
    from yaml.emitter import ScalarAnalysis

    class Dumper(yaml.SafeDumper):
        """No anchors: a document that stands twice is written twice.

        PyYAML looks at each character of a text two times, 0.2 s for an archive; one pattern knows base64.
        """

        def ignore_aliases(self, data: object) -> bool:
            return True

        def analyze_scalar(self, scalar: str) -> ScalarAnalysis:
            if _BASE64.fullmatch(scalar):
                return ScalarAnalysis(scalar, False, False, True, True, True, True, True)
            return super().analyze_scalar(scalar)

        def write_plain(self, text: str, split: bool = True) -> None:
            """Write base64 at once, behind what its first character asks for."""
            at_once = text[1:] if _BASE64.fullmatch(text) else ""
            super().write_plain(text.removesuffix(at_once), split)
            self.column += len(at_once)
            self.stream.write(at_once)

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


def yaml_text(documents: Sequence[Document], head: Sequence[str] = ()) -> str:
    """One file; `head` are its comment lines."""
    import yaml  # imported late, as in `_dumper`

    parts = [
        yaml.dump(
            document, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=2**31, default_flow_style=False
        )
        for document in documents
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in head) + "---\n".join(parts)


def read_yaml(text: str, where: str) -> Document:
    """One document that is a map; UsageError with the line where it is something else."""
    import yaml  # imported late, as in `_dumper`

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "expected one document"
        raise UsageError(f"{where} is not YAML{line}: {problem}") from None
    if not isinstance(document, dict):
        raise UsageError(f"{where} is a {type(document).__name__}, expected a map of settings")
    return document
