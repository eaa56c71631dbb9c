"""What a run's ledger must say, from what its ranks have logged themselves (bench/programs/ledger.py)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from allranks.runs.directory import RunDirectory
from allranks.runs.documents import TimeLedger
from allranks.runs.timeledger import ledger_of

PROGRAM = Path(__file__).parents[1] / "bench/programs/ledger.py"
LEAST = 0.5  # seconds that a part may always be off by
SHARE = 0.05  # of the part
UNACCOUNTED = 0.01  # of the wall time
MEASURED = (
    "preflight", "start", "useful", "computed_twice", "hang", "after_last_step", "teardown", "restart",
)  # fmt: skip


@dataclass
class Moments:
    """Of one attempt, the moments of all its ranks (unix seconds)."""

    process: list[float] = field(default_factory=list)
    steps: dict[int, float] = field(default_factory=dict)  # when a rank first had it
    last_step: float = 0.0
    still: list[float] = field(default_factory=list)
    moving: list[float] = field(default_factory=list)
    told: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)

    def take(self, line: str) -> None:
        """Read a line of a rank's log."""
        what, *number, t = line.split()
        seconds = float(t)
        if what == "step":
            step = int(number[0])
            self.steps[step] = min(seconds, self.steps.get(step, seconds))
            self.last_step = max(self.last_step, seconds)
        else:
            getattr(self, what).append(seconds)

    @property
    def fault(self) -> float:
        """When the first rank ended, or all of them were told to."""
        return min([*self.told, *self.end])

    @property
    def over(self) -> float:
        return max(self.end)


def read_moments(directory: Path) -> list[Moments]:
    """Read the logs of all attempts, in order."""
    attempts: dict[int, Moments] = {}
    for path in sorted(directory.glob("moments-*")):
        moments = attempts.setdefault(int(path.name.split("-")[1]), Moments())
        for line in path.read_text().splitlines():
            moments.take(line)
    return [attempts[number] for number in sorted(attempts)]


def true_parts(began: float, attempts: list[Moments], over: float) -> dict[str, float]:
    """Give the seconds of each part of a run that lasted from `began` to `over`."""
    parts = dict.fromkeys(MEASURED, 0.0)
    reached = -1
    before = began
    for number, moments in enumerate(attempts):
        process = min(moments.process)
        ends = list(attempts)[number + 1 :] == []
        fault = moments.over if ends and not moments.told else moments.fault
        first_step = min(moments.steps)
        first = moments.steps[first_step]
        redone = moments.steps[reached] if reached >= first_step else first
        standstill = sum(moments.moving) - sum(moments.still[: len(moments.moving)])
        hang = 0.0
        if len(moments.still) > len(moments.moving):
            hang = fault - moments.last_step
        parts["restart" if number else "preflight"] += process - before
        parts["start"] += first - process
        parts["computed_twice"] += redone - first
        parts["useful"] += moments.last_step - redone - standstill
        parts["hang"] += hang + standstill
        parts["after_last_step"] += fault - moments.last_step - hang
        parts["teardown"] += moments.over - fault
        reached = max(reached, *moments.steps)
        before = moments.over
    parts["teardown"] += over - before
    return parts


def deviations(ledger: Mapping[str, float | None], true: Mapping[str, float]) -> dict[str, float]:
    """Say how far each part is off, as a multiple of what it may be off by.

    What a template imports while ranks wait for it is of the time before their processes, which is all that they see.
    """
    seen = {part: ledger[part] or 0.0 for part in true}
    if ledger["imports"]:
        true = {**true, "restart": true["restart"] + true["preflight"], "preflight": 0.0}
        seen = {**seen, "restart": seen["restart"] + seen["preflight"] + ledger["imports"], "preflight": 0.0}
    return {part: abs(seen[part] - seconds) / max(LEAST, SHARE * seconds) for part, seconds in true.items()}


def ledger_faults(directory: Path) -> list[str]:
    """Say what is wrong with the ledger of a run that its controller has brought to its end.

    It must follow from the files of the run alone, and account for all of the time.
    """
    run = RunDirectory(directory)
    result = run.read_result()
    if result is None or result.time_ledger is None:
        return ["there is no ledger"]
    if any(finding.id == "disk-full" for finding in result.findings):
        return []  # events are missing
    kept = result.time_ledger
    faults = []
    again = ledger_of(run.read_facts()[0], run.read_status())
    if again != kept:
        faults.append(f"it says {_shown(kept)}, and its files say {_shown(again)}")
    if kept.unaccounted > max(0.05, UNACCOUNTED * kept.wall):
        faults.append(f"{kept.unaccounted} s are unaccounted: {_shown(kept)}")
    parts = [seconds for name, seconds in asdict(kept).items() if name != "wall" and seconds is not None]
    if abs(sum(parts) - kept.wall) > 0.02 or min(parts) < 0:
        faults.append(f"the parts are not its wall time: {_shown(kept)}")
    return faults


def _shown(ledger: TimeLedger) -> str:
    return ", ".join(f"{name} {seconds}" for name, seconds in asdict(ledger).items() if seconds)
