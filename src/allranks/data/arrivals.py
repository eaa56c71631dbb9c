"""What the ranks of a running program have told of their loaders so far, and which loader can be judged (pure)."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .rows import dataset_name, whole

QUIET = 30.0  # seconds without news after which ranks that have no such loader are waited for no longer
LINE_LIMIT = 4 << 20


class Key(NamedTuple):
    """The n-th loader of a rank over a class of dataset: the same one in all ranks, as `rows.gather` has it."""

    dataset: str
    nth: int


@dataclass
class _Rank:
    rest: bytes = b""
    keys: dict[int, Key] = field(default_factory=dict)
    count: Counter[str] = field(default_factory=Counter)
    batches: Counter[Key] = field(default_factory=Counter)
    done: set[Key] = field(default_factory=set)
    again: set[Key] = field(default_factory=set)


class Arrivals:
    """Of one attempt. `wanted` is how many batches of a loader each rank notes."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._ranks: dict[int, _Rank] = {}
        self._judged: set[tuple[Key, bool]] = set()
        self._news = 0.0

    def take(self, rank: int, data: bytes, now: float) -> None:
        """Bytes of a rank's rows; lines that are none are left out."""
        known = self._ranks.setdefault(rank, _Rank())
        *lines, rest = (known.rest + data).split(b"\n")
        known.rest = rest[-LINE_LIMIT:]
        self._news = now
        for line in lines:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict):
                self._note(known, row)

    def _note(self, known: _Rank, row: dict[str, Any]) -> None:
        kind, number = row.get("kind"), whole(row.get("loader")) or 0
        if kind == "data-loader":
            name = dataset_name(row)
            known.count[name] += 1
            known.keys[number] = Key(name, known.count[name])
        key = known.keys.get(number)
        if key is None:
            return
        if kind == "data-batch":
            known.batches[key] += 1
        first = row.get("epoch") == 0
        if known.batches[key] >= self._wanted or (kind == "data-end" and first):
            known.done.add(key)
        if kind == "data-epoch" and not first:
            known.again.add(key)

    def due(self, world: int, now: float) -> list[Key]:
        """Loaders that all ranks have told enough of, each once; again when all have begun a further epoch.

        Where some ranks have no such loader, it is due when those that have it are done and nothing is heard."""
        found = []
        quiet = now - self._news >= QUIET
        for key in sorted({key for rank in self._ranks.values() for key in rank.keys.values()}):
            mine = [rank for rank in self._ranks.values() if key in rank.keys.values()]
            if len(mine) < world and not quiet:
                continue
            for again in (False, True):
                ready = all(key in (rank.again if again else rank.done) for rank in mine)
                if ready and (key, again) not in self._judged:
                    self._judged.add((key, again))
                    found.append(key)
        return list(dict.fromkeys(found))
