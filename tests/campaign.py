"""Fuzzing: as many cases as `make test` has time for, or for as long as `make fuzz` says, with their number printed.

A test takes the fixture `campaign` and asks it for cases. Each case is a source of chance with a seed of its own, which
is printed where the case fails: `ALLRANKS_FUZZ_CASE=SEED` repeats that one alone.
"""

import os
import random
import time
from collections.abc import Iterator

SECONDS = float(os.environ.get("ALLRANKS_FUZZ_SECONDS") or 0)  # of each campaign; 0: as many cases as its test says
SEED = os.environ.get("ALLRANKS_FUZZ_SEED") or (str(int(time.time())) if SECONDS else "0")
ONE = os.environ.get("ALLRANKS_FUZZ_CASE") or ""


def examples(count: int) -> int:
    """How many examples hypothesis makes: `count` in `make test`, ten times as many in `make fuzz`."""
    return count * 10 if os.environ.get("HYPOTHESIS_PROFILE") == "search" else count


class Campaign:
    """The cases of one test."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.done = 0
        self.at = ""  # the seed of the case that is being tried
        self.counts: dict[str, int] = {}  # what else is worth a number
        self.random = random.Random(f"{name}:{SEED}")  # for what goes on beside the cases

    def cases(self, count: int) -> Iterator[random.Random]:
        """At least `count` cases."""
        ends = time.monotonic() + SECONDS
        while ONE or self.done < count or time.monotonic() < ends:
            self.at = ONE or f"{self.name}:{SEED}:{self.done}"
            yield random.Random(self.at)
            self.done += 1
            if ONE:
                break
        self.at = ""
