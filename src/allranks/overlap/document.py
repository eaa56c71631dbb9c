"""What `allranks overlap` says, as one JSON document (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .measure import Overlap
from .verdict import verdict


def document(found: Overlap, top: int, notes: Sequence[str] = ()) -> dict[str, Any]:
    """Seconds throughout; `collectives` holds the `top` that stand in the open longest."""
    return {
        "schema": 1,
        "verdict": verdict(found),
        "mean": found.mean.to_json(),
        "steps": found.steps,
        "ranks": [
            {"name": rank.name, "rank": rank.trace.rank, "file": rank.trace.file, "device": rank.trace.device,
             "events": rank.trace.events, "mean": rank.mean.to_json(), "notes": rank.trace.notes,
             "steps": [{"step": step.number, **step.split.to_json()} for step in rank.steps]}
            for rank in found.ranks
        ],
        "collectives": [group.to_json() for group in found.groups[:top]],
        "collectives_left_out": max(0, len(found.groups) - top),
        "waited_for": dict(found.waited_for),
        "notes": list(notes),
        "exit": 0,
    }  # fmt: skip
