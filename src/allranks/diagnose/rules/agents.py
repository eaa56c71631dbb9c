"""Under torchrun one agent stands for all ranks of its node: who failed below it, by its own account (pure).

Sources: torch/distributed/elastic/multiprocessing/errors/__init__.py (the `Root Cause` block; the agent's error
file is a copy of the failed child's, where it wrote one) and multiprocessing/api.py (its log lines).
"""

from __future__ import annotations

import re
from dataclasses import replace

from allranks.protocol.codec import decode_parts
from allranks.protocol.foreign import ErrorDetails

from ..incident import RankEnd
from ..logs.ends import End, ends
from ..logs.lines import read_line
from ..logs.sightings import Evidence

_AGENT_LINE = re.compile(
    r"^[WEI]\d{4} [^\n]*torch/distributed/elastic/|^Traceback \(most recent call last\):\n"
    r"(?=(?:  [^\n]*\n)*[^\n]*ChildFailedError)",
    re.MULTILINE,
)
_RANK_LINE = re.compile(r"^\[rank(\d+)\]:.*\n?", re.MULTILINE)


def behind_agent(end: RankEnd, ranks: tuple[int, ...]) -> RankEnd:
    """Give the end of the rank that an agent names as the first to fail; any other end as it is."""
    root = _root_cause(end.tail)
    if root is None or root.rank is None:
        return _by_error_file(end, ranks)
    if root.rank not in ranks:
        return end
    is_copy = end.raised is not None and end.raised.type != "ChildFailedError"
    pid = root.sighting.number("pid2")
    fact = end.fact._replace(rank=root.rank, pid=pid, code=root.code, signal=None)
    if root.code < 0:
        fact = fact._replace(code=None, signal=root.signal)
    if not is_copy:
        fact = fact._replace(error=None)
    return replace(end, fact=fact, tail=of_rank(end.tail, root.rank))


def _root_cause(tail: str) -> End | None:
    """Read the process that the agent's report calls the first failure; None without a report."""
    if "Root Cause" not in tail:
        return None
    lines = [line for raw in tail.splitlines() for line in read_line(raw)]
    return next((end for end in ends(Evidence.of(lines)) if end.root), None)


def _by_error_file(end: RankEnd, ranks: tuple[int, ...]) -> RankEnd:
    """Take the first rank that left an error file, where a launcher names none (deepspeed)."""
    detail = decode_parts(ErrorDetails, (end.fact.error or {}).get("allranks"))
    if detail.rank is not None and detail.rank != end.rank and detail.rank in ranks:
        return replace(end, fact=end.fact._replace(rank=detail.rank, pid=detail.pid))
    if len(ranks) > 1:
        return replace(end, tail=_without_others(end.tail, end.rank))
    return end


def of_rank(tail: str, rank: int) -> str:
    """Cut a log before the agent speaks, and leave out the lines that name another rank."""
    return _without_others(_AGENT_LINE.split(tail, maxsplit=1)[0], rank)


def _without_others(tail: str, rank: int) -> str:
    """Leave out the lines that name another rank: what that one says of a lost peer is not this rank's end."""
    if "[rank" not in tail:
        return tail
    return _RANK_LINE.sub(lambda line: line[0] if line[1] == str(rank) else "", tail)
