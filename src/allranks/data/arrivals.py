"""What the ranks of a running program noted of their loaders so far, and which loader can be judged (pure)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from allranks.protocol.codec import DecodeError, decode, read_json

from .rows import LONGEST_ROW, LoaderRow

QUIET = 30.0  # seconds without news after which ranks that have no such loader are waited for no longer
LINE_LIMIT = 4 << 20


class Key(NamedTuple):
    """The n-th loader of a rank over a class of dataset: the same one in all ranks, as `rows.gather` has it."""

    dataset: str
    nth: int


class RankPosition(NamedTuple):
    """The part of a row that says how far a rank is; what it read is judged from the file."""

    kind: str
    loader: int = 0
    epoch: int | None = None
    dataset: str = "?"


@dataclass
class _Rank:
    rest: bytes = b""
    keys: dict[int, Key] = field(default_factory=dict)
    loaders_of: Counter[str] = field(default_factory=Counter)
    batches: Counter[Key] = field(default_factory=Counter)
    ready: set[tuple[Key, bool]] = field(default_factory=set)  # True: a further epoch has begun


class Arrivals:
    """Of one attempt. `wanted` is how many batches of a loader each rank notes."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._ranks: dict[int, _Rank] = {}
        self._judged: set[tuple[Key, bool]] = set()
        self._news = 0.0

    def take(self, rank: int, data: bytes, now: float) -> None:
        """Take in bytes of a rank's rows; lines that are none are left out."""
        state = self._ranks.setdefault(rank, _Rank())
        *lines, rest = (state.rest + data).split(b"\n")
        state.rest = rest[-LINE_LIMIT:]
        self._news = now
        for line in lines:
            try:
                self._note(state, decode(RankPosition, read_json(line, LONGEST_ROW)))
            except DecodeError:
                continue

    def _note(self, state: _Rank, row: RankPosition) -> None:
        if row.kind == "data-loader":
            name = LoaderRow(dataset=row.dataset).name
            state.loaders_of[name] += 1
            state.keys[row.loader] = Key(name, state.loaders_of[name])
        key = state.keys.get(row.loader)
        if key is None:
            return
        if row.kind == "data-batch":
            state.batches[key] += 1
        if state.batches[key] >= self._wanted or (row.kind == "data-end" and row.epoch == 0):
            state.ready.add((key, False))
        if row.kind == "data-epoch" and row.epoch != 0:
            state.ready.add((key, True))

    def due(self, world: int, now: float) -> list[Key]:
        """List loaders of which all ranks noted enough, each once; again when all have begun a further epoch.

        Where some ranks have no such loader, it is due when those that have it are done and nothing new comes."""
        quiet = now - self._news >= QUIET
        due = []
        for key in sorted({key for rank in self._ranks.values() for key in rank.keys.values()}):
            readers = [rank for rank in self._ranks.values() if key in rank.keys.values()]
            if len(readers) < world and not quiet:
                continue
            for stage in ((key, False), (key, True)):
                if stage not in self._judged and all(stage in rank.ready for rank in readers):
                    self._judged.add(stage)
                    due.append(key)
        return list(dict.fromkeys(due))
