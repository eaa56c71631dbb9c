"""Whether a round went as it must: the invariants, each with the words that say how it was broken. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from allranks.diagnose.causes import UNKNOWN
from allranks.exitcodes import DONE
from allranks.text import join_words
from bench.chaos.faults import Ends, Target, codes, load_factor
from bench.chaos.plan import Round, fault_of

LINE = 64  # bytes of a line of the program


class Invariant(Enum):
    """What must hold in every round."""

    BOUND = "ends within its bound"
    CODE = "right exit code"
    ATTEMPTS = "no attempt fails where the run must go on"
    CULPRIT = "culprit named, or unknown"
    CAUSE = "right cause"
    PROCESSES = "no process left"
    LINES = "no line lost"
    DIRECTORY = "run directory readable"
    ORDER = "no event out of order"
    LOSS = "loss equal to an unbroken run's"
    RESUME = "says where it went on"


class Breach(NamedTuple):
    """One invariant that did not hold."""

    invariant: Invariant
    message: str


class Accused(NamedTuple):
    """A verdict: of an attempt, or of the run. Without a place it names nothing."""

    cause: str
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    message: str = ""

    @property
    def is_unknown(self) -> bool:
        """Nothing is named."""
        return not self.nodes and not self.ranks


class Printed(NamedTuple):
    """Lines of one process: what the kernel took, and the numbers of those in the run directory's log, in order."""

    node: str
    attempt: int
    rank: int
    taken: int
    numbers: tuple[int, ...]

    @property
    def lost(self) -> int:
        """Lines that are not in the log."""
        return len(set(range(self.taken)).difference(self.numbers))

    @property
    def is_in_order(self) -> bool:
        """No line twice, none before an earlier one."""
        return all(one < other for one, other in zip(self.numbers, self.numbers[1:], strict=False))


class TrainedStep(NamedTuple):
    """A loss as rank 0 wrote it, in hexadecimal."""

    attempt: int
    step: int
    loss: str


class Seen(NamedTuple):
    """What a round came to.

    `code` None: it was not over in time. `seconds` from the fault to the end of the command. `is_hit`: the fault struck
    before the run was over. `steps_before`: all ranks had shown a step when it struck. `first_steps`: where attempts
    went on, as allranks says. `dropped`: bytes by node and rank that the run says were dropped. `out_of_order`: the
    controller's notes on messages that it did not expect.
    """

    code: int | None
    seconds: float
    load: float
    cores: int
    is_hit: bool
    steps_before: bool
    attempts: int
    accused: tuple[Accused, ...] = ()
    left: tuple[str, ...] = ()
    printed: tuple[Printed, ...] = ()
    unfetched: tuple[str, ...] = ()
    dropped: Mapping[str, Mapping[int, int]] = {}
    directory: tuple[str, ...] = ()
    out_of_order: tuple[str, ...] = ()
    trained: tuple[TrainedStep, ...] = ()
    first_steps: Mapping[int, int] = {}

    @property
    def factor(self) -> float:
        """By how much the bounds grow."""
        return load_factor(self.load, self.cores)

    @property
    def unreached_lines(self) -> int:
        """Lines of nodes that could not be reached, which the run says."""
        return sum(printed.lost for printed in self.printed if printed.node in self.unfetched)

    @property
    def dropped_lines(self) -> int:
        """Lines for which a node's disk had no room, which the run says."""
        return sum(p.lost for p in self.printed if p.node in self.dropped and p.node not in self.unfetched)


def judge(round_: Round, seen: Seen, unbroken: Mapping[int, str]) -> list[Breach]:
    """All invariants that did not hold. `unbroken`: the loss of each step of a run without faults."""
    return [
        *_bound(round_, seen),
        *_code(round_, seen),
        *_accusations(round_, seen),
        *(Breach(Invariant.PROCESSES, f"left: {process}") for process in seen.left),
        *_lines(seen),
        *(Breach(Invariant.DIRECTORY, fault) for fault in seen.directory),
        *(Breach(Invariant.ORDER, note) for note in seen.out_of_order),
        *_losses(seen, unbroken),
        *_resumed(seen),
    ]


def unknown(round_: Round, seen: Seen) -> bool:
    """Whether a verdict names no place where there was one to name."""
    if fault_of(round_).target in (Target.NONE, Target.CONTROLLER, Target.JOB, Target.SPARE):
        return False
    return any(accused.is_unknown for accused in seen.accused)


def _bound(round_: Round, seen: Seen) -> Iterator[Breach]:
    fault = fault_of(round_)
    bound = (fault.bound + round_.lasting) * seen.factor
    if seen.code is None:
        yield Breach(Invariant.BOUND, f"not over after {seen.seconds:.0f} s, and {bound:.0f} s are its bound")
    elif seen.is_hit and seen.seconds > bound:
        yield Breach(Invariant.BOUND, f"over after {seen.seconds:.1f} s, and {bound:.0f} s are its bound")


def _code(round_: Round, seen: Seen) -> Iterator[Breach]:
    fault = fault_of(round_)
    right = codes(fault, seen.steps_before, round_.on_hang) if seen.is_hit else frozenset({DONE})
    if seen.code is not None and seen.code not in right:
        wanted = join_words([str(code) for code in sorted(right)], "or")
        yield Breach(Invariant.CODE, f"exit {seen.code}, not {wanted}")
    if (fault.ends is Ends.SURVIVES or not seen.is_hit) and seen.attempts > 1:
        yield Breach(Invariant.ATTEMPTS, f"{seen.attempts} attempts")


def _accusations(round_: Round, seen: Seen) -> Iterator[Breach]:
    fault = fault_of(round_)
    names = {f"h{node + 1}" for node in (round_.node, *((round_.peer,) if fault.target is Target.LINK else ()))}
    if fault.target in (Target.NONE, Target.CONTROLLER, Target.SPARE) or not seen.is_hit:
        for accused in seen.accused:
            yield Breach(Invariant.CULPRIT, f"a verdict, and no part of the run was at fault: {accused.message}")
        return
    if fault.target is Target.JOB:
        for accused in seen.accused:
            if accused.cause not in fault.causes:
                yield Breach(Invariant.CAUSE, f"{accused.cause}: {accused.message}")
    if not seen.accused and fault.ends in (Ends.RETRIED, Ends.FAILS, Ends.HANGS):
        yield Breach(Invariant.CULPRIT, "no verdict, though a part of the run failed")
    for accused in seen.accused:
        if accused.is_unknown or fault.target is Target.JOB:
            continue
        is_right = bool(names.intersection(accused.nodes))
        if fault.target is Target.RANK and accused.ranks:
            is_right = round_.rank in accused.ranks
        if not is_right:
            struck = (
                f"rank {round_.rank} on h{round_.node + 1}"
                if fault.target is Target.RANK
                else join_words(sorted(names))
            )
            yield Breach(Invariant.CULPRIT, f"{struck} was struck, and the verdict says: {accused.message}")
        elif fault.causes and accused.cause not in (*fault.causes, UNKNOWN.id):
            yield Breach(Invariant.CAUSE, f"{accused.cause}: {accused.message}")


def _lines(seen: Seen) -> Iterator[Breach]:
    for printed in seen.printed:
        where = f"rank {printed.rank} on {printed.node}, attempt {printed.attempt}"
        if not printed.is_in_order:
            yield Breach(Invariant.LINES, f"{where}: lines are twice in the log, or out of order")
        room = seen.dropped.get(printed.node, {}).get(printed.rank, 0) // LINE + 2  # the first and the last in part
        is_said = printed.node in seen.unfetched or (printed.node in seen.dropped and printed.lost <= room)
        if printed.lost and not is_said:
            yield Breach(Invariant.LINES, f"{where}: {printed.lost} of {printed.taken} lines are not in the log")


def _losses(seen: Seen, unbroken: Mapping[int, str]) -> Iterator[Breach]:
    for trained in seen.trained:
        if unbroken.get(trained.step) != trained.loss:
            yield Breach(
                Invariant.LOSS,
                f"step {trained.step} of attempt {trained.attempt} has the loss {trained.loss}, "
                f"not {unbroken.get(trained.step)}",
            )
            return
    missing = set(unbroken).difference(trained.step for trained in seen.trained)
    if seen.code == DONE and missing:
        yield Breach(Invariant.LOSS, f"exit 0, and {len(missing)} steps were not trained")


def _resumed(seen: Seen) -> Iterator[Breach]:
    truth: dict[int, int] = {}
    for trained in seen.trained:
        truth[trained.attempt] = min(trained.step, truth.get(trained.attempt, trained.step))
    for attempt, said in seen.first_steps.items():
        if attempt in truth and truth[attempt] != said:
            yield Breach(
                Invariant.RESUME, f"attempt {attempt} went on at step {truth[attempt]}, and the run says {said}"
            )


def worst(breaches: Sequence[Breach]) -> str:
    """Say breaches in one line."""
    return "; ".join(f"{breach.invariant.value}: {breach.message}" for breach in breaches)
