"""How long a fuzzer goes on: the same few hundred rounds in `make test`, new ones for minutes in `make fuzz`."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator


class Budget:
    """`rounds()` counts; `random` is seeded, and `report` says the seed so that a failure can be repeated."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._seconds = float(os.environ.get("ALLRANKS_FUZZ_SECONDS", "0"))
        self.seed = int(os.environ.get("ALLRANKS_FUZZ_SEED", time.time_ns() % 10**9 if self._seconds else 7))
        self.random = random.Random(self.seed)
        self.done = 0

    def rounds(self) -> Iterator[int]:
        """Numbers of rounds, for as long as the budget lasts."""
        deadline = time.monotonic() + self._seconds
        while self.done < self._rounds or time.monotonic() < deadline:
            yield self.done
            self.done += 1

    def report(self, name: str, **counts: int) -> None:
        """One line for the note of who ran it (`pytest -s` shows it)."""
        shown = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in counts.items())
        print(f"\nfuzz {name}: {self.done} rounds (seed {self.seed}){': ' + shown if shown else ''}")
