"""collectives: allranks' own tests in every rank, with torchrun's environment; they lie beside the runner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.settings import RunSpec

from ..environment import Place, Process
from ..ranks import Attempt, NodePlan
from ..testing import arguments

ARCHIVE = "fabric.zip"  # agent/boot.py writes it there


def collectives(
    spec: RunSpec, world_size: int, node: NodePlan, place: Place, attempt: Attempt, facts: Mapping[str, Any]
) -> list[Process]:
    """One process a rank, under the interpreter that the program would have."""
    python = str((facts.get("interpreter") or {}).get("path") or spec.python or "python3")
    words = arguments(spec, attempt.tests) if attempt.tests is not None else ()
    argv = (python, f"{place.node_dir}/runner.py", f"{place.node_dir}/{ARCHIVE}", *words)
    return [Process(node.first_rank + i, i, argv) for i in range(node.nproc)]
