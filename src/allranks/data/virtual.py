"""Plays all ranks of a run on one machine, without GPUs and without a network, to see what each would read.

    PYTHON virtual.py JSON       {"loader": "module:function", "world", "local", "jobs", "folder"}

One fork a rank after torch is imported, with the rank's environment and torch's `fake` process group: ranks and
sizes are right, collectives do nothing. Standard library and torch alone: it runs under the training interpreter.
Standard output gets JSON lines: {"done", "of", "batches"} and, at last, {"error", "rank"} where a rank raised.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import mmap
import os
import random
import struct
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

REFERENCE = -1  # the rank of the pass that a single rank makes
EPOCHS = 2  # the first in full, of the second the first batch
EVERY = 0.05


def load_probe() -> Any:
    """The probe beside this file; nothing else of this folder may shadow the program's modules."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe.py")
    spec = importlib.util.spec_from_file_location("allranks_data_probe", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find(name: str) -> Callable[[], Any]:
    """The function that `module:function` or `file.py:function` names."""
    place, _, function = name.rpartition(":")
    if place.endswith(".py"):
        spec = importlib.util.spec_from_file_location("allranks_audited", place)
        if spec is None or spec.loader is None:
            raise ImportError(place)
        module = importlib.util.module_from_spec(spec)
        sys.modules["allranks_audited"] = module
        sys.path.insert(0, os.path.dirname(os.path.abspath(place)))
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    found: Any = module
    for part in function.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def environment(rank: int, world: int, local: int) -> dict[str, str]:
    """What a launcher would set."""
    return {
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank % local),
        "LOCAL_WORLD_SIZE": str(min(local, world)), "GROUP_RANK": str(rank // local), "NODE_RANK": str(rank // local),
        "NNODES": str(-(-world // local)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
        "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip


def pretend(rank: int, world: int) -> None:
    """A process group that knows rank and size; the program's own init_process_group finds it there."""
    import torch
    import torch.distributed as dist

    random.seed()
    torch.seed()  # as after a start of its own, not as the fork's brothers
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    try:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    except Exception:  # an old torch
        names: dict[str, Callable[..., Any]] = {
            "is_initialized": lambda: True, "get_rank": lambda *_: rank, "get_world_size": lambda *_: world,
            "barrier": lambda *_, **__: None,
        }  # fmt: skip
        for name, function in names.items():
            setattr(dist, name, function)
    setattr(dist, "init_process_group", lambda *_, **__: None)  # noqa: B010
    setattr(dist, "destroy_process_group", lambda *_, **__: None)  # noqa: B010


def begin_epoch(loader: Any, epoch: int) -> None:
    """What a right training loop does."""
    inner = [getattr(loader, name, None) for name in ("batch_sampler", "sampler", "dataset")]
    for one in (loader, *inner, getattr(inner[0], "sampler", None)):
        set_epoch = getattr(one, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
            return


def read(make: Callable[[], Any], count: Callable[[], None]) -> None:
    """Reads the first epoch, and of the second the first batch.

    A function that yields its loader once an epoch is taken at its word on set_epoch."""
    made = make()
    own = inspect.isgenerator(made)
    for epoch in range(EPOCHS):
        loader = next(made, None) if own else made
        if loader is None:
            return
        if not own:
            begin_epoch(loader, epoch)
        for _ in loader:
            count()
            if epoch:
                break


def play(rank: int, spec: dict[str, Any], make: Callable[[], Any] | None, tally: mmap.mmap) -> None:
    """One rank, in a process of its own."""
    world = 1 if rank == REFERENCE else spec["world"]
    path = os.path.join(spec["folder"], f"rank_{rank}.jsonl")
    at, batches = 8 * (rank + 1), 0
    number = max(rank, 0)
    os.environ.update(environment(number, world, spec["local"]))
    os.environ.update(ALLRANKS_AUDIT_FILE=path, ALLRANKS_AUDIT_BATCHES=str(spec.get("batches", "all")))

    def count() -> None:
        nonlocal batches
        batches += 1
        struct.pack_into("<Q", tally, at, batches)

    pretend(number, world)
    if not load_probe().install():
        raise RuntimeError("the probe could not be put into torch's DataLoader")
    read(make or find(spec["loader"]), count)


def child(rank: int, spec: dict[str, Any], make: Callable[[], Any] | None, tally: mmap.mmap) -> int:
    """Forks a rank; its output goes to standard error."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.dup2(2, 1)
        play(rank, spec, make, tally)
        code = 0
    except BaseException:
        with open(os.path.join(spec["folder"], f"rank_{rank}.error"), "w") as file:
            file.write(traceback.format_exc())
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def run(spec: dict[str, Any], tell: Callable[[dict[str, Any]], None], make: Callable[[], Any] | None = None) -> bool:
    """Plays the reference and all ranks, `jobs` at a time; stops at the first that fails."""
    import torch.utils.data  # noqa: F401  (once, for all forks)

    waiting = [REFERENCE, *range(spec["world"])]
    total, running, done = len(waiting), dict[int, int](), 0
    tally = mmap.mmap(-1, 8 * total)
    try:
        while waiting or running:
            while waiting and len(running) < spec["jobs"]:
                rank = waiting.pop(0)
                running[child(rank, spec, make, tally)] = rank
            for pid in list(running):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    done += 1
                    rank = running.pop(pid)
                    if os.path.exists(os.path.join(spec["folder"], f"rank_{rank}.error")):
                        with open(os.path.join(spec["folder"], f"rank_{rank}.error")) as file:
                            tell({"error": file.read(), "rank": rank})
                        return False
            batches = sum(struct.unpack_from("<Q", tally, 8 * at)[0] for at in range(total))
            tell({"done": done, "of": total, "batches": batches})
            time.sleep(EVERY if running else 0)
    finally:
        for pid in running:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    return True


def main() -> int:
    """The command line above."""
    sys.path[0] = os.getcwd()
    return 0 if run(json.loads(sys.argv[1]), lambda line: print(json.dumps(line), flush=True)) else 1


if __name__ == "__main__":
    sys.exit(main())
