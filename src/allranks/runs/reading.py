"""Reading a run's logs: whole, from a time on, or as they grow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .directory import RunDirectory, safe_name

CHUNK = 256 << 10
_RANK_LOG = re.compile(r"rank_(\d+)\.log\Z")


@dataclass(frozen=True)
class LogFile:
    """One rank's log of one attempt."""

    node: str
    rank: int
    attempt: int
    path: Path


class LogReader:
    """Follows the logs of a run; `fresh` gives what has come since the last call."""

    def __init__(self, run: RunDirectory, nodes: tuple[str, ...] = (), ranks: tuple[int, ...] = ()) -> None:
        self._run, self._nodes, self._ranks = run, nodes, ranks
        self._offsets: dict[Path, int] = {}
        document = run.read_document("run.json") or {}
        self._names = {f"node_{n['index']:02d}_{safe_name(n['name'])}": n["name"] for n in document.get("nodes", [])}

    def files(self) -> list[LogFile]:
        """The wanted logs that exist now, in order of attempt and rank."""
        found = []
        for path in (self._run.path / "logs").glob("**/rank_*.log"):
            match = _RANK_LOG.match(path.name)
            if match is None:
                continue
            top = path.parent.parent.name
            attempt = int(top[8:]) if top.startswith("attempt_") and top[8:].isdigit() else 0
            log = LogFile(self._names.get(path.parent.name, path.parent.name), int(match[1]), attempt, path)
            if (not self._nodes or log.node in self._nodes) and (not self._ranks or log.rank in self._ranks):
                found.append(log)
        return sorted(found, key=lambda f: (f.attempt, f.rank))

    def skip_to_end(self) -> None:
        """Only what comes from now on is fresh."""
        for log in self.files():
            self._offsets[log.path] = log.path.stat().st_size

    def skip_to_time(self, t: float) -> None:
        """Only what arrived at or after a time (unix seconds, to the second) is fresh."""
        for log in self.files():
            self._offsets[log.path] = _offset_at(log.path, t)

    def fresh(self) -> Iterator[tuple[str, int, bytes]]:
        """(node, rank, bytes) of everything new."""
        for log in self.files():
            while True:
                offset = self._offsets.get(log.path, 0)
                with log.path.open("rb") as file:
                    file.seek(offset)
                    data = file.read(CHUNK)
                if not data:
                    break
                self._offsets[log.path] = offset + len(data)
                yield log.node, log.rank, data


def _offset_at(path: Path, t: float) -> int:
    """The first byte that arrived at or after `t`, by the log's time index; the end where none did."""
    try:
        lines = path.with_suffix(".idx").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        when, _, offset = line.partition(" ")
        if float(when) >= t:
            return int(offset)
    return path.stat().st_size
