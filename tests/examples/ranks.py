"""Ranks of the examples on loopback, forked from a process that has imported torch; each has a log."""

import importlib.util
import json
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.fabric import gang
from tests.hosts.waiting import BOUND, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
FSDP = EXAMPLES / "train_fsdp.py"
SMALL = ("model.num_layers=2", "model.model_dim=32", "model.num_heads=2", "model.context=32", "training.batch_size=2")


def module_of(script: Path) -> ModuleType:
    """An example as a module, of which nothing has run."""
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def metrics(out: Path, rank: int = 0) -> list[dict[str, Any]]:
    path = out / f"rank_{rank:02d}_metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Ranks:
    """`world` ranks of a script, `per_node` on each node; `out` is their output directory."""

    def __init__(
        self, script: Path, out: Path, *words: str, world: int = 2, per_node: int | None = None, **env: str
    ) -> None:
        self.out, self.processes, port = out, [], gang.free_port()
        out.mkdir(parents=True, exist_ok=True)
        for rank in range(world):
            log = out / f"{rank}.log"
            log.unlink(missing_ok=True)
            environment = gang.environment(rank, world, per_node or world, port, **env)
            self.processes.append(gang.fork(gang.be_script, environment, str(script), list(words), str(log)))

    def codes(self) -> list[int | None]:
        """Exit codes, once all have ended; none is left behind."""
        until = time.monotonic() + BOUND
        for process in self.processes:
            process.join(max(0.0, until - time.monotonic()))
        found = [process.exitcode for process in self.processes]
        for process in self.processes:
            process.kill()
        return found

    def finish(self) -> str:
        """The output of rank 0; every rank must have ended well."""
        assert self.codes() == [0] * len(self.processes), self.everything()
        return self.said()

    def said(self, rank: int = 0) -> str:
        path = self.out / f"{rank}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def everything(self) -> str:
        """For a failing assertion."""
        return "\n".join(f"--- rank {rank}\n{self.said(rank)[-3000:]}" for rank in range(len(self.processes)))

    def metrics(self, rank: int = 0) -> list[dict[str, Any]]:
        return metrics(self.out, rank)

    def losses(self, rank: int = 0, until: int = 1 << 30) -> dict[int, float]:
        return {line["step"]: line["loss"] for line in self.metrics(rank) if line["step"] <= until}

    def until_step(self, step: int) -> None:
        """Wait until every rank has done this step."""
        def is_done() -> bool:
            assert all(process.is_alive() for process in self.processes), self.everything()
            return all(step in self.losses(rank) for rank in range(len(self.processes)))

        wait_until(is_done, what=f"step {step}")


def fsdp_words(*changes: str) -> list[str]:
    """The command line of train_fsdp.py: the file as it is shipped, a small model, then these."""
    sets = [word for change in (*SMALL, *changes) for word in ("--set", change)]
    return ["--config", str(EXAMPLES / "fsdp.yaml"), *sets]


class FsdpRanks(Ranks):
    """Ranks of train_fsdp.py with these changes of its settings."""

    def __init__(self, out: Path, world: int, *changes: str, per_node: int | None = None, **env: str) -> None:
        more = {"OMP_NUM_THREADS": "1", "ALLRANKS_OUTPUT_DIR": str(out), **env}
        super().__init__(FSDP, out, *fsdp_words(*changes), world=world, per_node=per_node, **more)

    def done(self) -> "FsdpRanks":
        """All ended well."""
        self.finish()
        return self
