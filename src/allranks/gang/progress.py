"""Steps, rates and last output of ranks, read from what passes by."""

from __future__ import annotations

from typing import Any

from allranks.node.frames import METRICS, RANK_LOG, Stream
from allranks.report.steps import Recurrence, StepReader


class Progress:
    """One StepReader a rank; activity is any output, a carriage return too, or only what matches `recurring`."""

    def __init__(self, pattern: str | None, recurring: str | None = None) -> None:
        self._pattern = pattern
        self._recurring = Recurrence(recurring) if recurring else None
        self._readers: dict[int, StepReader] = {}
        self._last_output: dict[int, float] = {}
        self._changed = False
        self.last_activity = 0.0
        self.first_step_at: float | None = None
        self.first_step_told = False

    def begin_attempt(self) -> None:
        """Steps are those of an attempt."""
        self._readers.clear()
        self._last_output.clear()

    def output(self, stream: Stream, data: bytes, now: float, t: float) -> None:
        """Bytes of a rank's log or metrics went by; `now` and `t` as in `Gang.handle`."""
        if stream.kind not in (RANK_LOG, METRICS):
            return
        self._last_output[stream.rank] = t
        if self._recurring is None or (stream.kind == RANK_LOG and self._recurring.seen(stream.rank, data)):
            self.last_activity = now
        self._changed = True
        reader = self._readers.get(stream.rank)
        if reader is None:
            reader = self._readers[stream.rank] = StepReader(self._pattern)
        stepped = reader.metrics(data, t) if stream.kind == METRICS else reader.log(data, t)
        if stepped and self.first_step_at is None:
            self.first_step_at = now

    def by_rank(self) -> dict[int, dict[str, Any]]:
        """step, rate and last_output for status.json."""
        found: dict[int, dict[str, Any]] = {}
        for rank, t in self._last_output.items():
            reader = self._readers[rank]
            found[rank] = {"step": reader.step, "rate": reader.rate, "last_output": round(t, 3)}
        return found

    def changed(self) -> bool:
        """True once after anything went by."""
        changed, self._changed = self._changed, False
        return changed
