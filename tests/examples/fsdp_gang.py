"""Ranks of train_fsdp.py on loopback, forked from a process that has imported torch already."""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.collectives import gang

# Optimizers import torch._dynamo when they are made: four seconds that ranks would spend each.
PRELOAD = ["torch._dynamo", "torch.distributed.checkpoint.state_dict", "torch.profiler", "torch.utils.checkpoint"]
EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = EXAMPLES / "train_fsdp.py"
SMALL = ("model.num_layers=2", "model.model_dim=32", "model.num_heads=2", "model.context=32", "training.batch_size=2")


def warm_up() -> None:
    """The process that ranks are forked from, with what this example imports too, where it isn't started yet."""
    gang.PRELOAD.extend(name for name in PRELOAD if name not in gang.PRELOAD)
    gang.warm_up()


def be_rank(env: dict[str, str], words: list[str], log: str) -> None:
    """In the forked process: as `python train_fsdp.py …` would be."""
    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [str(SCRIPT), *words]
    runpy.run_path(str(SCRIPT), run_name="__main__")
    sys.stdout.flush()


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
            arguments = (whole, words(*changes), str(out / f"{rank}.log"))
            self.ranks.append(gang.CONTEXT.Process(target=be_rank, args=arguments))
            self.ranks[-1].start()

    def codes(self) -> list[int | None]:
        """Exit codes, once all have ended; none is left behind."""
        until = time.monotonic() + gang.GENEROUS
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
        until = time.monotonic() + gang.GENEROUS
        while not all(step in self.losses(rank) for rank in range(self.world)):
            assert time.monotonic() < until and all(rank.is_alive() for rank in self.ranks), self.everything()
            time.sleep(0.05)

    def send(self, rank: int, number: signal.Signals) -> None:
        pid = self.ranks[rank].pid
        assert pid is not None
        os.kill(pid, number)
