"""What a part of the GPU report is, and what it found."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


class Skipped(Exception):
    """What is measured is not here; the message says what."""


@dataclass
class Outcome:
    """What a part found: `ok` None where nothing is to be held against it, `line` for people, `facts` for machines."""

    line: str
    ok: bool | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """One part: `alone` where others beside it would spoil its figures; `limit` in seconds, where a GPU is lent."""

    name: str
    run: Callable[[Path, float], Outcome]  # its own directory, and its limit
    limit: float = 120.0
    alone: bool = False


@dataclass
class Row:
    """A line of the report."""

    name: str
    state: str  # ok, WRONG, skipped, failed, or seen (nothing to hold it against)
    seconds: float
    line: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.name:<22} {self.state:<8} {self.seconds:6.1f} s  {self.line}"


def row_of(part: Part, directory: Path, limit: float) -> Row:
    """Run a part, which has so many seconds; what it raises is its line."""
    directory.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    facts: dict[str, Any] = {}
    try:
        outcome = part.run(directory, limit)
    except Skipped as reason:
        state, line = "skipped", str(reason)
    except Exception as error:  # the other parts go on
        state, line = "failed", f"{type(error).__name__}: {error}"
    else:
        state = {None: "seen", True: "ok", False: "WRONG"}[outcome.ok]
        line, facts = outcome.line, outcome.facts
    return Row(part.name, state, round(time.monotonic() - began, 1), line, facts)


def keep(rows: list[Row], out: Path, machine: dict[str, Any]) -> None:
    """Write the report as it stands: text and JSON."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "gpu.json").write_text(json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=1))
    (out / "gpu.txt").write_text("".join(f"{row}\n" for row in rows))
