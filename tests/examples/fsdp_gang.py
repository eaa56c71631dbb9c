"""Ranks of train_fsdp.py on loopback, forked from a process that has imported torch already."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from tests.fabric import gang
from tests.hosts.waiting import BOUND

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = EXAMPLES / "train_fsdp.py"
SMALL = ("model.num_layers=2", "model.model_dim=32", "model.num_heads=2", "model.context=32", "training.batch_size=2")


def words(*changes: str) -> list[str]:
    """The command line: the file as it is shipped, a small model, then these."""
    sets = [word for change in (*SMALL, *changes) for word in ("--set", change)]
    return ["--config", str(EXAMPLES / "fsdp.yaml"), *sets]


class Run:
    """`world` ranks, `per_node` on each node; `out` is their output directory."""

    def __init__(self, out: Path, world: int, *changes: str, per_node: int | None = None, **env: str) -> None:
        self.out, self.world, port = out, world, gang.free_port()
        out.mkdir(parents=True, exist_ok=True)
        self.ranks = []
        for rank in range(world):
            more = {"OMP_NUM_THREADS": "1", "ALLRANKS_OUTPUT_DIR": str(out), **env}
            whole = gang.environment(rank, world, per_node or world, port, **more)
            log = str(out / f"{rank}.log")
            self.ranks.append(gang.fork(gang.be_script, whole, str(SCRIPT), words(*changes), log))

    def codes(self) -> list[int | None]:
        """Exit codes, once all have ended; none is left behind."""
        until = time.monotonic() + BOUND
        for rank in self.ranks:
            rank.join(max(0.0, until - time.monotonic()))
        found = [rank.exitcode for rank in self.ranks]
        for rank in self.ranks:
            rank.kill()
        return found

    def done(self) -> Run:
        """All ended well."""
        assert self.codes() == [0] * self.world, self.everything()
        return self

    def said(self, rank: int = 0) -> str:
        path = self.out / f"{rank}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def everything(self) -> str:
        """For a failing assertion."""
        return "\n".join(f"--- rank {rank}\n{self.said(rank)[-3000:]}" for rank in range(self.world))

    def metrics(self, rank: int = 0) -> list[dict[str, Any]]:
        path = self.out / f"rank_{rank:02d}_metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def losses(self, rank: int = 0) -> dict[int, float]:
        return {line["step"]: line["loss"] for line in self.metrics(rank)}

    def until_step(self, step: int) -> None:
        """Wait until every rank has done this step."""
        until = time.monotonic() + BOUND
        while not all(step in self.losses(rank) for rank in range(self.world)):
            assert time.monotonic() < until and all(rank.is_alive() for rank in self.ranks), self.everything()
            time.sleep(0.05)

    def send(self, rank: int, number: signal.Signals) -> None:
        pid = self.ranks[rank].pid
        assert pid is not None
        os.kill(pid, number)
