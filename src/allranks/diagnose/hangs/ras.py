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

_HEAD = re.compile(
    r"(?:#\d+-\d+ \([0-9a-f]+\) )?"
    r"(?P<what>INCOMPLETE|DEAD|MISMATCH|ERROR|TIMEOUT)$"
)
_PROCESS = re.compile(r"process (\d+) on node \S", re.IGNORECASE)
LIMIT = 3


def evidence(texts: Sequence[str], ranks: Mapping[int, Sequence[int]]) -> tuple[str, ...]:
    """Write the complaints under Errors and Warnings as lines for a verdict, in order.

    `ranks` are this job's ranks by pid: at that port another job may answer.
    """
    complaints: dict[str, None] = {}
    for text in texts:
        for block in re.split(r"\n\s*\n", text.replace("\r\n", "\n")):
            first, *lines = [line.strip() for line in block.strip().splitlines()] or [""]
            head = _HEAD.match(first)
            if head is not None and any(int(pid) in ranks for line in lines for pid in _PROCESS.findall(line)):
                complaints[f"NCCL RAS {head['what']}: {'; '.join(lines[:4])}"] = None
    return tuple(complaints)[:LIMIT]
