"""allranks explain: what a cause, a check or a state means and what to do about it, without the network."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import NamedTuple

from allranks.diagnose.causes import CAUSES
from allranks.errors import UsageError
from allranks.exitcodes import DONE
from allranks.findings import explain_command
from allranks.gang.plugins import all_checks
from allranks.protocol.codec import document_line
from allranks.report.explained import STATES, ExplainedPage, explained, list_lines, text_of
from allranks.settings.table import suggestion

from .config_files import use_signatures

WIDEST = 100  # columns: longer lines are hard to read


class PageList(NamedTuple):
    """What `explain --json` prints: all pages that there are."""

    pages: Sequence[ExplainedPage]


def command(name: str | None, signatures: str | None, json_: bool) -> int:
    """Print the page of a name, or the list of all."""
    use_signatures(signatures, os.environ)
    width = WIDEST
    if sys.stdout.isatty():
        width = min(width, shutil.get_terminal_size().columns)
    if name is None:
        each = [explained(known, all_checks()) for known in (*CAUSES, *all_checks(), *STATES)]
        pages = [page for page in each if page is not None]
        print(document_line(PageList(pages)) if json_ else "\n".join(list_lines(pages, width)))
    else:
        page = find_page(name)
        print(document_line(page) if json_ else text_of(page, width))
    return DONE


def find_page(name: str) -> ExplainedPage:
    """Find the page of a name; raise UsageError that names the nearest one."""
    page = explained(name, {}) or explained(name, all_checks())
    if page is None:
        meant = suggestion(name, [*CAUSES, *all_checks(), *STATES])
        raise UsageError(f"{name}: unknown cause, check or state\nhint: {explain_command(meant) or 'allranks explain'}")
    return page
