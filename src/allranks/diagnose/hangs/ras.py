"""What NCCL's RAS says is wrong with a job (pure). The text is that of `ncclras -v`: NCCL's src/ras/client_support.cc.

    #0-0 (cf264af53edbe986) MISMATCH
      Communicator ranks have different AllReduce operation counts
      2 ranks have launched up to operation 17
      Rank 3 has launched up to operation 16 -- GPU 1 managed by process 4242 on node 10.0.0.4

Not tried on hardware: read from NCCL's source (2.24 to 2.30) and its user's guide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

_HEAD = re.compile(
    r"(?:#\d+-\d+ \([0-9a-f]+\) )?"
    r"(?P<what>INCOMPLETE|DEAD|MISMATCH|ERROR|TIMEOUT)$"
)
_PROCESS = re.compile(r"process (\d{1,9}) on node \S", re.IGNORECASE)
LIMIT = 3


def read_ras(text: str) -> Iterator[tuple[str, list[int]]]:
    """Yield each complaint under Errors and Warnings, in order, as a line with the pids that it names."""
    for block in re.split(r"\n\s*\n", text.replace("\r\n", "\n")):
        first, *lines = [line.strip() for line in block.strip().splitlines()] or [""]
        head = _HEAD.match(first)
        if head is not None:
            pids = [int(pid) for line in lines for pid in _PROCESS.findall(line)]
            yield f"NCCL RAS {head['what']}: {'; '.join(lines[:4])}", pids


def evidence(texts: Sequence[str], ranks: Mapping[int, Sequence[int]]) -> tuple[str, ...]:
    """Write lines for a verdict; `ranks` are this job's ranks by pid: at that port another job may answer."""
    complaints = (complaint for text in texts for complaint in read_ras(text))
    return tuple(dict.fromkeys(line for line, pids in complaints if any(pid in ranks for pid in pids)))[:LIMIT]
