"""The end of an attempt: a fact of its run, and a part of the run's result (pure)."""

from __future__ import annotations

from typing import Mapping, Optional, Tuple

from allranks.findings import Verdict, Where
from allranks.text import count_of, list_first

from .codec import omit_empty
from .records import NamedTuple


class Replacement(NamedTuple):
    """A node whose place a hot spare has taken."""

    node: str = ""
    by: str = ""


class SavedStep(NamedTuple):
    """Where ranks were asked to save: `ranks` of those that call should_save did at `step`, the `others` elsewhere."""

    step: int = 0
    ranks: int = 0
    of: int = 0
    others: Mapping[str, int] = {}

    @property
    def sentence(self) -> str:
        """Say what was saved.

        >>> SavedStep(120, 4, 4).sentence, SavedStep(120, 3, 4, {"2": 121}).sentence
        ('step 120 saved on 4 of 4 ranks', 'step 120 saved on 3 of 4 ranks (rank 2 at step 121)')
        """
        sentence = f"step {self.step} saved on {self.ranks} of {count_of(self.of, 'rank')}"
        if not self.others:
            return sentence
        return f"{sentence} ({list_first([f'rank {rank} at step {step}' for rank, step in self.others.items()], 4)})"


@omit_empty("decision", "first_step", "lost_steps", "saved", "left_out", "taken_in")
class AttemptEnd(NamedTuple):
    """An attempt of the program, or of the collective tests, is over everywhere."""

    attempt: int = 0
    outcome: str = ""  # done, failed, stopped, regrown; of the collective tests: tested, failed, stopped
    cause: Optional[str] = None
    culprit: Optional[Where] = None
    step: Optional[int] = None  # the culprit's, else the furthest
    seconds: Optional[float] = None
    decision: Optional[str] = None  # what followed; None: it ran the collective tests
    reason: str = ""
    replaced: Tuple[Replacement, ...] = ()
    left_out: Tuple[str, ...] = ()  # nodes that have no place in the next attempt
    taken_in: Tuple[str, ...] = ()  # nodes that have one again
    verdict: Optional[Verdict] = None
    saved: Optional[SavedStep] = None
    first_step: Optional[int] = None  # of a further attempt: where it went on
    lost_steps: Optional[int] = None  # of a further attempt: steps that were done again
