"""What people read: the live view, folded log lines, tables, the last words of a run.

Text in, text out; the terminal is touched only in live.py. No decisions about the run are made here.
"""

from importlib.util import find_spec


def can_write_pages() -> bool:
    """Tell whether Jinja2 is here, which draws the pages: allranks.pyz holds none."""
    return find_spec("jinja2") is not None
