"""What others wrote and nobody can read: counted by source, told once a source, and the run goes on."""

from __future__ import annotations

from collections.abc import Callable


class Undecodable:
    """`tell` is called at the first of a source. `counts` goes into the result."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.counts: dict[str, int] = {}

    def note(self, source: str, why: str) -> None:
        """One more of a source, such as `metrics of rank 3`."""
        first = source not in self.counts
        self.counts[source] = self.counts.get(source, 0) + 1
        if first:
            self._tell(f"{source}: left out what cannot be read ({why}). The run goes on")

    def set_count(self, source: str, count: int) -> None:
        """How many a node has counted by itself."""
        self.counts[source] = max(count, self.counts.get(source, 0))
