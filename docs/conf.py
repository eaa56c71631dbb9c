"""Sphinx: the pages of docs/ and examples/ as one site. `make docs` builds it, from the repository's root."""

import re
from pathlib import Path

project = "allranks"
copyright = "the allranks authors"
_SOURCE = Path(__file__).parents[1] / "src" / "allranks" / "__init__.py"
release = re.search(r'__version__ = "([^"]+)"', _SOURCE.read_text(encoding="utf-8"))[1]

extensions = ["myst_parser"]
myst_heading_anchors = 4
source_suffix = {".md": "markdown"}
root_doc = "docs/index"
include_patterns = ["docs/**", "examples/**"]
exclude_patterns = [".*", "bench", "build", "dist", "runs", "src", "tests"]  # not even walked

html_theme = "furo"
html_extra_path = ["site"]  # index.html, which leads to docs/index.html
html_title = f"allranks {release}"
