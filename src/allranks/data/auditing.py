"""The audit as a call: a loader of this process, of all processes of a group, or of virtual ranks."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from allranks.cores import usable_cores
from allranks.errors import AllranksError, NodeError, UsageError
from allranks.findings import Finding
from allranks.protocol.codec import DecodeError, decode, encode, read_json

from . import probe, virtual
from .case import Coverage, Layout
from .rows import REFERENCE, Row, gather, read_row
from .split_findings import FAULTS, cases_of, judge
from .virtual import Play, ReadingProgress

LONGEST_LINE = 16 << 20  # bytes of what the player of virtual ranks writes


class LoaderError(AllranksError):
    """The user's loader raised; the message has its traceback."""

    exit_code = 1


@dataclass(frozen=True)
class Audit:
    """What an audit saw: its `findings`, and in `coverage` a row a rank for each loader."""

    findings: tuple[Finding, ...]
    coverage: tuple[Coverage, ...]

    @property
    def ok(self) -> bool:
        """Tell whether nothing is wrong, as far as could be seen."""
        return not any(finding.status in FAULTS for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(f"{finding.status}: {finding.message}" for finding in self.findings)


def audit(loader: Iterable[object]) -> Audit:
    """Audit an epoch of a loader, to its end.

    Where torch.distributed is initialised all ranks must call this, and each gets the same answer.
    """
    return conclude(*_gathered(_rows_of_this_process(loader)))


def conclude(rows: Sequence[Row], layout: Layout) -> Audit:
    """Make findings and table from the rows of all ranks; `layout` gives each rank's node and local rank."""
    coverage = [row for case in cases_of(gather(rows)[1], layout) for row in case.coverage()]
    return Audit(tuple(judge(rows, layout)), tuple(coverage))


def virtual_layout(world: int, local: int) -> Layout:
    """Give node and local rank of virtual ranks."""
    return {rank: (str(rank // local), rank % local) for rank in range(world)}


def _rows_of_this_process(loader: Iterable[object]) -> list[Row]:
    import torch.utils.data.dataloader as module  # late: heavy, and only here

    with tempfile.TemporaryDirectory(prefix="allranks-audit-") as folder:
        path = Path(folder) / "rows.jsonl"
        notes = probe.Notes(str(path), None)
        undo = probe.patch(module.DataLoader, module._BaseDataLoaderIter, notes)
        try:
            notes.write("data-rank")
            for _ in loader:
                pass
        finally:
            undo()
        return read_rows(path)


def _gathered(rows: list[Row]) -> tuple[list[Row], Layout]:
    """Give the rows of all ranks, and where each is as its environment says."""
    import torch.distributed as dist  # late: heavy, and only here

    if not (dist.is_available() and dist.is_initialized()):
        return rows, {row.rank or 0: ("0", row.rank or 0) for row in rows}
    rank = dist.get_rank()
    local_rank = probe.variable("LOCAL_RANK") or 0
    node = next((one for name in ("GROUP_RANK", "NODE_RANK") if (one := probe.variable(name)) is not None), None)
    place = (str(rank - local_rank if node is None else node), local_rank)
    parts: list[tuple[list[Row], tuple[str, int]]] = [([], place)] * dist.get_world_size()
    dist.all_gather_object(parts, ([replace(row, rank=rank) for row in rows], place))
    return [row for part, _ in parts for row in part], {at: where for at, (_, where) in enumerate(parts)}


def read_rows(path: Path, rank: int | None = None) -> list[Row]:
    """Read the rows of a file, lines that are none left out; all under `rank` where that is given."""
    if not path.exists():
        return []
    rows = (read_row(line, rank) for line in path.read_bytes().splitlines())
    return [row for row in rows if row is not None]


def virtual_rows(name: str, world: int, local: int, tell: Callable[[ReadingProgress], None], python: str) -> list[Row]:
    """Play the ranks and one rank alone, in this `python` or, without one, in ours; `tell` gets the progress.

    Raise UsageError for a name that cannot be, and LoaderError where a rank raised."""
    if not all(name.rpartition(":")):
        raise UsageError(f"--loader {name!r}: set module:function, or file.py:function")
    if world < 1 or local < 1:
        raise UsageError(f"{world} ranks, {local} a node: set 1 or more")
    with tempfile.TemporaryDirectory(prefix="allranks-audit-") as folder:
        jobs = max(1, min(world + 1, usable_cores()))
        play = Play(name, world, min(local, world), jobs, folder)
        failure = _play_apart(python or sys.executable, play, tell)
        if failure is not None:
            who = "alone" if failure.rank == REFERENCE else f"as rank {failure.rank}"
            traceback, _, last_line = failure.error.rstrip().rpartition("\n")
            shown = f"\n{traceback}\n{last_line}" if traceback else ""
            raise LoaderError(f"the loader raised {who}: {last_line}{shown}")
        files = {rank: Path(folder) / f"rank_{rank}.jsonl" for rank in (REFERENCE, *range(world))}
        return [row for rank, path in files.items() for row in read_rows(path, rank)]


def _play_apart(python: str, play: Play, tell: Callable[[ReadingProgress], None]) -> ReadingProgress | None:
    argv = [python, str(Path(virtual.__file__)), json.dumps(encode(play))]
    failure = None
    try:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    except OSError as error:
        raise UsageError(f"{python}: {error.strerror}. Set --python to the training interpreter.") from None
    with process:
        assert process.stdout is not None
        for line in iter(partial(process.stdout.readline, LONGEST_LINE), b""):  # a longer one comes in pieces
            try:
                progress = decode(ReadingProgress, read_json(line, LONGEST_LINE))
            except DecodeError:  # of the loader's own: it prints where we read
                continue
            failure = progress if progress.error else failure
            tell(progress)
    if process.returncode and failure is None:
        raise NodeError(f"{python} ended with {process.returncode}. Is torch in it? Set --python.")
    return failure
