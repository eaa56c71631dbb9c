"""Write the pages of docs/ that are made from tables of the source: `make pages`."""

from __future__ import annotations

from tests.diagnose import test_causes
from tests.preflight.checks import catalogue
from tests.settings import test_reference

from allranks.settings.reference import reference_page


def write_pages() -> None:
    """Write docs/reference/causes.md, docs/reference/checks.md and docs/reference/settings.md."""
    test_causes.PAGE.write_text(test_causes.page(), encoding="utf-8")
    catalogue.PAGE.write_text(catalogue.page(), encoding="utf-8")
    test_reference.PAGE.write_text(reference_page(), encoding="utf-8")


if __name__ == "__main__":
    write_pages()
