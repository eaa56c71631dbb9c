"""The audit as a call: a loader of this process, of all processes of a group, or of virtual ranks."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.cores import usable_cores
from allranks.errors import AllranksError, NodeError, UsageError
from allranks.findings import Finding

from . import probe, virtual
from .case import Case
from .judge import FAULTS, cases_of, judge
from .rows import REFERENCE, Row, gather

Tell = Callable[[dict[str, Any]], None]


class LoaderError(AllranksError):
    """The user's loader raised; the message has its traceback."""

    exit_code = 1


@dataclass(frozen=True)
class Audit:
    """What an audit found: `findings`, and `coverage`, a row a rank for each loader."""

    findings: tuple[Finding, ...]
    coverage: tuple[dict[str, Any], ...]

    @property
    def ok(self) -> bool:
        """Nothing is wrong, as far as could be seen."""
        return not any(finding.status in FAULTS for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(f"{one.status}: {one.message}" for one in self.findings)

    def to_json(self) -> dict[str, Any]:
        """`data audit --json`."""
        found = [finding.to_json() for finding in self.findings]
        return {"schema": 1, "ok": self.ok, "findings": found, "coverage": list(self.coverage)}


def audit(loader: Any, *, world_size: int = 2, gpus_per_node: int = 8, model_parallel: int = 1) -> Audit:
    """Audits a whole epoch.

    `loader` is a function that makes a loader, or its name `module:function`: then `world_size` virtual ranks read
    it. Or it is a loader: then this process reads it, and where torch.distributed is initialised all ranks must
    call this; each gets the same answer. UsageError for a name that cannot be; LoaderError where a rank raised."""
    if isinstance(loader, str) or (callable(loader) and not hasattr(loader, "__iter__")):
        make = None if isinstance(loader, str) else loader
        name = loader if isinstance(loader, str) else ""
        rows = virtual_rows(name, world_size, gpus_per_node, lambda _: None, make=make)
    else:
        rows = _gathered(own_rows(loader))
    return conclude(rows, model_parallel)


def conclude(rows: list[Row], model_parallel: int = 1) -> Audit:
    """Findings and table from the rows of all ranks."""
    ranks, loaders = gather(rows)
    table = [row for case in cases_of(ranks, loaders) for row in coverage_rows(case)]
    return Audit(tuple(judge(rows, None, model_parallel)), tuple(table))


def coverage_rows(case: Case) -> list[dict[str, Any]]:
    """A row a rank: what it read, and what of it others read too; the last row is all ranks together."""
    rows = []
    for rank, count in case.counts.items():
        node, local = case.place(rank)
        also = sum(key in case.shared for key in count)
        rows.append({
            "loader": case.audited.name, "rank": rank, "node": node, "local_rank": local,
            "batches": case.shards[rank].length, "samples": count.total(), "distinct": len(count), "shared": also,
        })  # fmt: skip
    due = len(case.due) if case.due is not None else None
    missing = None if case.due is None else len(set(case.due) - set(case.total))
    rows.append({
        "loader": case.audited.name, "rank": None, "samples": case.reads, "distinct": len(case.total),
        "shared": len(case.shared), "repeated": case.repeated, "data": due, "missing": missing,
    })  # fmt: skip
    return rows


def own_rows(loader: Any) -> list[Row]:
    """Reads one epoch of a loader in this process."""
    import torch.utils.data.dataloader as module

    with tempfile.TemporaryDirectory(prefix="allranks-audit-") as folder:
        path = Path(folder) / "rows.jsonl"
        notes = probe.Notes(str(path), None)
        undo = probe.patch(module.DataLoader, module._BaseDataLoaderIter, notes)
        try:
            notes.write("data-rank", **probe.places())
            for _ in loader:
                pass
        finally:
            undo()
        return read_rows(path)


def _gathered(rows: list[Row]) -> list[Row]:
    """The rows of all ranks of the process group, under their ranks in it."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return [{**row, "rank": row.get("rank") or 0} for row in rows]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, [{**row, "rank": dist.get_rank()} for row in rows])
    return [row for part in found for row in part]


def read_rows(path: Path, rank: int | None = None) -> list[Row]:
    """The rows of a file, lines that are none left out; all under `rank` where one is given."""
    found: list[Row] = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            found.append(row if rank is None else {**row, "rank": rank})
    return found


def virtual_rows(
    name: str, world: int, local: int, tell: Tell, python: str = "", make: Callable[[], Any] | None = None
) -> list[Row]:  # fmt: skip
    """Plays the ranks and one rank alone; `tell` hears of progress."""
    if make is None and not (name.rpartition(":")[0] and name.rpartition(":")[2]):
        raise UsageError(f"--loader {name!r}: set module:function, or file.py:function")
    if world < 1 or local < 1:
        raise UsageError(f"{world} ranks, {local} a node: set 1 or more")
    with tempfile.TemporaryDirectory(prefix="allranks-audit-") as folder:
        jobs = max(1, min(world + 1, usable_cores()))
        spec = {"loader": name, "world": world, "local": min(local, world), "jobs": jobs, "folder": folder}
        errors: list[dict[str, Any]] = []

        def heard(line: dict[str, Any]) -> None:
            (errors.append if "error" in line else tell)(line)

        if make is not None:
            virtual.run(spec, heard, make)
        else:
            _process(python or sys.executable, spec, heard)
        if errors:
            raise LoaderError(_complaint(errors[0]))
        found = read_rows(Path(folder) / f"rank_{REFERENCE}.jsonl", REFERENCE)
        for rank in range(world):
            found += read_rows(Path(folder) / f"rank_{rank}.jsonl", rank)
        return found


def _process(python: str, spec: dict[str, Any], heard: Tell) -> None:
    """The ranks under the training interpreter."""
    argv = [python, str(Path(virtual.__file__)), json.dumps(spec)]
    try:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    except OSError as error:
        raise UsageError(f"{python}: {error.strerror}; set --python to the training interpreter") from None
    told = False
    with process:
        for line in process.stdout or ():
            document = json.loads(line)
            told = told or "error" in document
            heard(document)
    if process.returncode and not told:
        raise NodeError(f"{python} ended with {process.returncode}; does it have torch? set --python")


def _complaint(error: dict[str, Any]) -> str:
    """The last line of a rank's traceback first, then the traceback."""
    text = str(error["error"]).rstrip()
    who = "alone" if error["rank"] == REFERENCE else f"as rank {error['rank']}"
    return f"the loader raised {who}: {text.splitlines()[-1]}\n{text}"
