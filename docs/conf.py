"""Sphinx: the pages of docs/ as one site. `make docs` builds it."""

import re
from pathlib import Path

project = "allranks"
copyright = "the allranks authors"
_SOURCE = Path(__file__).parents[1] / "src" / "allranks" / "__init__.py"
release = re.search(r'__version__ = "([^"]+)"', _SOURCE.read_text(encoding="utf-8"))[1]

extensions = ["myst_parser"]
myst_heading_anchors = 4
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
# Pages of examples/ are not part of the site. All links, these too, are checked before the build (tests/test_links.py).
suppress_warnings = ["myst.xref_missing"]

html_theme = "furo"
html_title = f"allranks {release}"
