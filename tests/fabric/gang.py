"""Real ranks on loopback, forked from one process that has imported torch already: that import takes seconds."""

import contextlib
import json
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from tests.hosts.waiting import BOUND
from tests.ports import free_port

from allranks.fabric.__main__ import main

PRELOAD = [
    "allranks.fabric.ranks.start", "torch.distributed.fsdp", "torch.distributed.device_mesh",
    # Optimizers import torch._dynamo when they are made: four seconds that each rank of an example would spend.
    "torch._dynamo", "torch.distributed.checkpoint.state_dict", "torch.profiler", "torch.utils.checkpoint",
]  # fmt: skip
CONTEXT = multiprocessing.get_context("forkserver")
DOUBLE = "TEST_DOUBLE"
CUT = "TEST_CUT"  # the rank whose connections break in all_gather
START = "TEST_START"  # seconds until the leaders of pairs must have come
FOREIGN = ("ALLRANKS_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "NCCL_", "GLOO_")


def fork(target: Callable[..., None], *arguments: Any) -> Any:
    """A process forked from the one that has imported torch."""
    warm_up()
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    return process


def warm_up() -> None:
    """Start the process that ranks are forked from; its threads would not survive a fork, so it must have none.

    Were it started by the first fork, it would have imported nothing, and each rank would import torch.
    """
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    CONTEXT.set_forkserver_preload(PRELOAD)
    forkserver.ensure_running()
    if before is None:
        del os.environ["OMP_NUM_THREADS"]
    else:
        os.environ["OMP_NUM_THREADS"] = before


def environment(rank: int, world: int, per_node: int, port: int, **more: str) -> dict[str, str]:
    """What torchrun sets."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    place = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank % per_node, "LOCAL_WORLD_SIZE": per_node,
             "GROUP_RANK": rank // per_node, "MASTER_PORT": port}  # fmt: skip
    return {**kept, **{name: str(value) for name, value in place.items()}, "MASTER_ADDR": "127.0.0.1", **more}


def be_script(env: dict[str, str], script: str, words: list[str], log: str) -> None:
    """In the forked process: as `python SCRIPT …` would be, with its output in a file."""
    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [script, *words]
    sys.path[0] = os.path.dirname(script)
    runpy.run_path(script, run_name="__main__")
    sys.stdout.flush()


def be_rank(env: dict[str, str], words: tuple[str, ...], stem: str, sabotaged: tuple[str, ...]) -> None:
    """In the forked process: as `python -m allranks.fabric` would be, with functions of torch that do nothing."""
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{stem}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.clear()
    os.environ.update(env)
    import torch.distributed as dist

    for name in sabotaged:
        if hasattr(dist, name):
            setattr(dist, name, lambda *args, **named: None)
    if DOUBLE in env:
        runpy.run_path(str(Path(__file__).with_name("double") / "sitecustomize.py"))
    if START in env:
        from allranks.fabric.ranks import pairs_suite  # noqa: PLC0415 - it imports torch

        pairs_suite.START = float(env[START])
    if env.get(CUT) == env["RANK"]:
        whole = dist.all_gather
        dist.all_gather = lambda *args, **named: (cut(int(env["MASTER_PORT"])), whole(*args, **named))[1]
    main(words)


def cut(port: int) -> None:
    """Break this process' connections, but those to the store at a port."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as one:
            if one.type == socket.SOCK_STREAM and port not in (one.getpeername()[1], one.getsockname()[1]):
                one.shutdown(socket.SHUT_RDWR)


class Gang:
    """`world` ranks, `per_node` of them on each node."""

    def __init__(self, folder: Path, world: int, per_node: int, *words: str, without: tuple[int, ...] = (),
                 sabotaged: tuple[str, ...] = (), **env: str) -> None:  # fmt: skip
        self.folder, port = folder, free_port()
        folder.mkdir(exist_ok=True)
        self.ranks = {}
        for rank in range(world):
            if rank not in without:
                options = (*words, "--out", str(folder / f"{rank}.jsonl"))
                whole = environment(rank, world, per_node, port, **env)
                self.ranks[rank] = fork(be_rank, whole, options, str(folder / str(rank)), sabotaged)

    def codes(self, *of: int) -> dict[int, int | None]:
        """Exit codes, once these ranks (all) have ended; a signal's number is negative."""
        until = time.monotonic() + BOUND
        for rank in of or self.ranks:
            self.ranks[rank].join(max(0.0, until - time.monotonic()))
        return {rank: self.ranks[rank].exitcode for rank in of or self.ranks}

    def until(self, words: str, rank: int = 0) -> None:
        """Wait for a rank to print this."""
        until = time.monotonic() + BOUND
        while words not in self.out(rank):
            assert time.monotonic() < until and self.ranks[rank].is_alive(), self.everything()
            time.sleep(0.02)

    def out(self, rank: int = 0) -> str:
        return self._read(f"{rank}.out")

    def err(self, rank: int = 0) -> str:
        return self._read(f"{rank}.err")

    def _read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def everything(self) -> str:
        """For a failing assertion."""
        return "\n".join(f"--- rank {r}\n{self.out(r)}\n{self.err(r)[-3000:]}" for r in self.ranks)

    def line(self, test: str) -> str:
        """The line of a test."""
        return next(line for line in self.out().splitlines() if line.split()[1:2] == [test] and line[4] == " ")

    def rows(self, kind: str = "collective", rank: int = 0) -> list[dict[str, Any]]:
        """Rows of a kind."""
        found = [json.loads(line) for line in self._read(f"{rank}.jsonl").splitlines()]
        return [row for row in found if row["kind"] == kind]

    def row(self, test: str, rank: int = 0) -> dict[str, Any]:
        return next(row for row in self.rows(rank=rank) if row["test"] == test)

    def send(self, rank: int, number: signal.Signals) -> None:
        """A signal to a rank."""
        pid = self.ranks[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def end(self) -> None:
        """Kill what is left."""
        for process in self.ranks.values():
            process.kill()
            process.join(BOUND)
