"""Facts of a run as tests write them: a line of events.jsonl, which may lack its time."""

from collections.abc import Mapping
from typing import Any

from allranks.protocol.run_facts import Fact, Stamped, read_line


def fact(line: Mapping[str, Any]) -> Stamped[Fact]:
    """Read a line that is known to be one."""
    stamped = read_line({"t": 1.0, **line})
    assert stamped is not None, line
    return stamped
