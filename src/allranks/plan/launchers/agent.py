"""What launchers that start a node's ranks themselves have in common: the process, its environment, the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..environment import Place, Process
from ..ranks import Attempt, NodePlan
from .words import Words

ANY = "{rank}"  # agent/runner_launched.py puts the number there


def agent(
    world_size: int,
    node: NodePlan,
    place: Place,
    attempt: Attempt,
    argv: tuple[str, ...],
    env: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
) -> Process:
    """The one process of a node."""
    environment = {
        **node_environment(world_size, node, attempt),
        **for_ranks(world_size, node, place, attempt),
        **(env or {}),
    }
    return Process(node.first_rank, 0, argv, environment, per_rank=False, files=files or {})


def node_environment(world_size: int, node: NodePlan, attempt: Attempt) -> dict[str, str]:
    """The names that people's own scripts read once a node."""
    return {
        "MASTER_ADDR": attempt.master_addr,
        "MASTER_PORT": str(attempt.master_port),
        "NODE_RANK": str(node.rank),
        "NNODES": str(node.of),
        "NPROC_PER_NODE": str(node.nproc),
        "WORLD_SIZE": str(world_size),
    }


def for_ranks(world_size: int, node: NodePlan, place: Place, attempt: Attempt) -> dict[str, str]:
    """What agent/runner_launched.py reads: how many ranks there shall be, and the files of each.

    No quotes: colossalai passes variables through a shell.
    """
    files = {
        "TORCHELASTIC_ERROR_FILE": place.error(ANY, attempt.number),
        "ALLRANKS_STACKS_FILE": place.stacks(ANY),
        "ALLRANKS_ASK_SOCKET": place.asked(ANY),
        "NCCL_DEBUG_FILE": place.nccl_log(ANY, attempt.number),
    }
    return {
        "ALLRANKS_PLANNED": str(world_size),
        "ALLRANKS_FIRST_RANK": str(node.first_rank),
        "ALLRANKS_RANK_FILES": "|".join(f"{name}={path}" for name, path in files.items()),
    }


def through(words: Words, place: Place) -> tuple[str, ...]:
    """A Python program goes through the runner, so that initialised ranks and errors are seen."""
    if words.kind in ("python-script", "python-module"):
        return (f"{place.node_dir}/runner_launched.py", *words.program)
    return words.program


def interpreter(words: Words, facts: Mapping[str, Any]) -> str:
    """The training interpreter that was found on the node, else the word the user wrote for it."""
    return str((facts.get("interpreter") or {}).get("path") or words.python or "python3")


def has_gpu(facts: Mapping[str, Any]) -> bool:
    """False only where the node was looked at and has none."""
    gpus = facts.get("gpus")
    return not isinstance(gpus, Mapping) or "error" in gpus or bool(gpus.get("count"))
