"""Rules of --fail-on: what of the metrics, steps and output of a run ends it (pure)."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..text import parse_duration

METRIC_RULE = "metric-rule"  # the cause
RATE = "steps/s"
EXPECTED = (
    "rules such as 'loss=nan', 'loss>10 for 50 steps', 'steps/s<0.5xmedian for 5m', 'no-step for 10m', "
    "'output:PATTERN'. steps/s alone is compared with its median"
)
_VALUE = re.compile(
    r"(?P<name>[A-Za-z_][\w./-]{0,99}?)\s*"
    r"(?:==?\s*(?P<nan>nan)|(?P<sign>[<>])\s*(?P<bound>[-+]?[\d.]{1,20}(?:e[-+]?\d{1,3})?)\s*(?P<median>[x×*]\s*median)?)"
    r"(?:\s+for\s+(?:(?P<steps>\d{1,9}) steps?|(?P<time>\S{1,20})))?",
    re.IGNORECASE,
)
_NO_STEP = re.compile(r"no-step\s+for\s+(\S{1,20})", re.IGNORECASE)


class FailRule(NamedTuple):
    """A rule. `name`: the key of a line of metrics, steps/s, or empty: of `pattern` or where no step comes.

    The value is not a number where `bound` is None, else `sign` (< or >) says on which side of it the value is bad,
    times the rank's own median where `of_median`. It has to be so for `steps` steps, or `seconds`.
    """

    text: str
    name: str = ""
    sign: str = ""
    bound: float | None = None
    of_median: bool = False
    steps: int = 1
    seconds: float = 0.0
    pattern: str = ""


def read_rule(text: str) -> FailRule:
    """Read a rule; raise ValueError that says what is right."""
    if text.startswith("output:") and len(text) > len("output:"):
        return FailRule(text, pattern=text.partition(":")[2])
    match = _NO_STEP.fullmatch(text)
    if match is not None:
        return FailRule(text, seconds=parse_duration(match[1]))
    match = _VALUE.fullmatch(text.strip())
    if match is None:
        raise ValueError(EXPECTED)
    bound = None if match["nan"] else float(match["bound"])
    of_median = match["median"] is not None
    if of_median != (match["name"] == RATE):
        raise ValueError(EXPECTED)
    seconds = parse_duration(match["time"]) if match["time"] else 0.0
    steps = max(1, int(match["steps"] or 1))
    return FailRule(text, match["name"], match["sign"] or "", bound, of_median=of_median, steps=steps, seconds=seconds)
