"""What NCCL's RAS says is wrong with a job (pure). The text is that of `ncclras -v`: NCCL's src/ras/client_support.cc.

    #0-0 (cf264af53edbe986) MISMATCH
      Communicator ranks have different AllReduce operation counts
      2 ranks have launched up to operation 17
      Rank 3 has launched up to operation 16 -- GPU 1 managed by process 4242 on node 10.0.0.4

Not tried on hardware: read from NCCL's source (2.24 to 2.30) and its user's guide.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_HEAD = re.compile(
    r"(?:#\d+-\d+ \([0-9a-f]+\) )?"
    r"(?P<what>INCOMPLETE|DEAD|MISMATCH|ERROR|TIMEOUT)$"
)
_PROCESS = re.compile(r"process (?P<pid>\d+) on node (?P<node>\S+)", re.IGNORECASE)
LIMIT = 3


@dataclass(frozen=True)
class Remark:
    """One complaint: `what` is RAS's word, `lines` its lines, `processes` the (pid, node) it names."""

    what: str
    lines: tuple[str, ...]
    processes: tuple[tuple[int, str], ...]


def read_ras(text: str) -> tuple[Remark, ...]:
    """Read the complaints under Errors and Warnings, in order; none where RAS finds nothing, or the text is cut."""
    remarks: list[Remark] = []
    for block in re.split(r"\n\s*\n", text.replace("\r\n", "\n")):
        lines = [line.strip() for line in block.strip().splitlines()]
        head = _HEAD.match(lines[0]) if lines else None
        if head is not None:
            processes = tuple((int(m["pid"]), m["node"]) for line in lines[1:] for m in _PROCESS.finditer(line))
            remarks.append(Remark(head["what"], tuple(lines[1:]), processes))
    return tuple(remarks)


def evidence(texts: Sequence[str], ranks: Mapping[int, Sequence[int]]) -> tuple[str, ...]:
    """Write lines for a verdict; `ranks` are this job's ranks by pid: at that port another job may answer."""
    lines: dict[str, None] = {}
    for remark in (remark for text in texts for remark in read_ras(text)):
        if any(pid in ranks for pid, _ in remark.processes):
            lines[f"NCCL RAS {remark.what}: {'; '.join(remark.lines[:4])}"] = None
    return tuple(lines)[:LIMIT]
