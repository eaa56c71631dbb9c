"""Accuracy of `diagnose` on the corpus of real logs beside the checkout: `python -m bench.corpus [FILE] [--wrong]`.

The corpus is no part of the project (its README says why); without it there is nothing to measure.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.diagnose.verdict import judge_logs
from allranks.findings import Verdict
from allranks.runs.logdiagnosis import read_logs

_BESIDE = [folder / "shared/corpus" for folder in Path(__file__).resolve().parents[2:]]
CORPUS = next((path for path in _BESIDE if path.is_dir()), _BESIDE[0])
CALM = "no line of these logs tells of a failure"
AIM = 0.9  # of the decidable, first answer


@dataclass
class Count:
    """Answers of one kind of log."""

    first: int = 0
    second: int = 0
    total: int = 0

    def add(self, causes: Sequence[str], wanted: str) -> None:
        self.total += 1
        self.first += causes[0] == wanted
        self.second += wanted in causes[:2]

    def line(self, name: str) -> str:
        return f"{name:<42}{self.first:>5}/{self.total:<4}{self.first / self.total:>5.0%}{self.second:>7}/{self.total}"


def judged(log: str, folder: Path) -> Verdict:
    """By way of a file, as a user's log goes."""
    path = folder / "job.log"
    path.write_text(log, encoding="utf-8")
    return judge_logs(read_logs([path]))


@dataclass(frozen=True)
class Answer:
    """What was answered to one log: `causes` are the first answer and the runners-up."""

    id: str
    wanted: str
    decidable: str
    is_rich: bool
    is_undetermined: bool
    causes: tuple[str, ...]
    confidence: float
    is_calm: bool

    @property
    def ranked(self) -> tuple[str, ...]:
        """The causes, the likeliest first: behind `unknown` comes what is "most likely", and it counts as first.

        Of a log that decides nothing the answer is `unknown` itself.
        """
        if self.causes[0] == "unknown" and not self.is_undetermined and len(self.causes) > 1:
            return self.causes[1:]
        return self.causes

    @property
    def is_right(self) -> bool:
        """Whether the cause that the verdict has is the right one."""
        return self.causes[0] == self.wanted

    @property
    def is_first_right(self) -> bool:
        """Whether the likeliest cause is the right one."""
        return self.ranked[0] == self.wanted


def answers(files: Iterable[Path]) -> Iterator[Answer]:
    """Diagnose each log of the files."""
    with tempfile.TemporaryDirectory() as scratch:
        for path in files:
            for line in path.read_text(encoding="utf-8").splitlines():
                row: dict[str, Any] = json.loads(line)
                verdict = judged(row["log"], Path(scratch))
                is_undetermined = row["cause"] == "undetermined"
                named = verdict.cause or "unknown"
                accepted = {row["cause"], *row.get("also_accepted", ())}
                yield Answer(
                    row["id"],
                    _wanted(is_undetermined, named, accepted, row["cause"]),
                    row["decidable"],
                    bool(row.get("rich")),
                    is_undetermined,
                    (verdict.cause, *(finding.id for finding in verdict.runners_up)),
                    verdict.confidence,
                    CALM in verdict.finding.message,
                )


def _wanted(is_undetermined: bool, named: str, accepted: set[str], cause: str) -> str:
    """The label that counts as right: the one that was named, where several are accepted."""
    if is_undetermined:
        return "unknown"
    return named if named in accepted else cause


def measure(files: Iterable[Path], wrong: bool) -> dict[str, Count]:
    """Counts by group; prints the wrong ones where asked."""
    counts: dict[str, Count] = defaultdict(Count)
    for answer in answers(files):
        for group in groups(answer):
            counts[group].add(answer.ranked, answer.wanted)
        if answer.is_calm:
            print(f"{answer.id}: called calm")
        if wrong and not answer.is_first_right:
            print(f"{answer.id} ({answer.decidable}): {answer.wanted}, answered {', '.join(answer.causes)}")
    return counts


def groups(answer: Answer) -> list[str]:
    """The lines of the table that a log counts in."""
    if answer.is_undetermined:
        return ["= undetermined"]
    decidable = f"= decidable: {answer.decidable}"
    return [f"  {answer.wanted}", "= all", decidable, f"{decidable}, {'rich' if answer.is_rich else 'short'}"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.corpus", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="JSON lines (default: dev and undetermined)")
    parser.add_argument("--wrong", action="store_true", help="also the logs that were answered wrongly")
    options = parser.parse_args()
    files = options.files or [CORPUS / "dev.jsonl", CORPUS / "undetermined.jsonl"]
    absent = [str(f) for f in files if not f.is_file()]
    if absent:
        print(f"corpus is skipped: {', '.join(absent)} is not there")
        return 0
    counts = measure(files, options.wrong)
    print(f"{'':<42}{'first':>9}{'':>6}{'first two':>10}")
    for name in sorted(counts):
        print(counts[name].line(name))
    decidable = counts.get("= decidable: yes")
    if decidable is None:
        return 0
    share = decidable.first / decidable.total
    print(
        f"\naim: {AIM:.0%} of the decidable, all of the undetermined unknown: "
        + ("met" if _met(counts, share) else "missed")
    )
    return 0


def _met(counts: dict[str, Count], share: float) -> bool:
    undetermined = counts.get("= undetermined", Count())
    return share >= AIM and undetermined.first == undetermined.total


if __name__ == "__main__":
    sys.exit(main())
