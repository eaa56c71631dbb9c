"""Play all ranks of a run on one machine, without GPUs and without a network, to see what each would read.

    PYTHON virtual.py JSON       a Play

One fork a rank after torch is imported, with the rank's environment and torch's `fake` process group: ranks and
sizes are right, collectives do nothing. Standard library and torch alone, Python 3.8: it runs under the training
interpreter. Standard output gets a Progress a line, as JSON.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import random
import sys
import time
import traceback
from types import GeneratorType, ModuleType
from typing import Any, Callable, Iterable, NamedTuple  # noqa: UP035  (Python 3.8)

REFERENCE = -1  # the rank of the pass that a single rank makes
EPOCHS = 2  # the first in full, of the second the first batch
EVERY = 0.05  # seconds

Make = Callable[[], Iterable[object]]


class Play(NamedTuple):
    """What is to be played: `loader` is module:function, `jobs` ranks at a time, notes go to `folder`."""

    loader: str
    world: int
    local: int
    jobs: int
    folder: str
    batches: str = "all"


class ReadingProgress(NamedTuple):
    """How many ranks are done, of how many. `error`: the traceback of a `rank` that raised."""

    done: int
    of: int
    rank: int = 0
    error: str = ""


def import_file(name: str, path: str, register: bool = False) -> ModuleType:
    """Import one file under a name; nothing else of its folder may shadow the program's modules."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    if register:
        sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def find(name: str) -> Make:
    """Import the function that `module:function` or `file.py:function` names."""
    place, _, function = name.rpartition(":")
    if place.endswith(".py"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(place)))
        value: Any = import_file("allranks_audited", place, register=True)
    else:
        value = importlib.import_module(place)
    for part in function.split("."):
        value = getattr(value, part)
    make: Make = value  # whatever the user wrote
    return make


def environment(rank: int, world: int, local: int) -> dict[str, str]:
    """Give what a launcher would set."""
    node = rank // local
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": rank % local,
        "LOCAL_WORLD_SIZE": min(local, world),
        "GROUP_RANK": node,
        "NODE_RANK": node,
        "NNODES": -(-world // local),
        "MASTER_PORT": 29500,
    }
    texts = {name: str(number) for name, number in numbers.items()}
    return {**texts, "MASTER_ADDR": "127.0.0.1", "CUDA_VISIBLE_DEVICES": ""}


def pretend(rank: int, world: int) -> None:
    """Make a process group that knows rank and size; the program's own init_process_group finds it there."""
    import torch  # late: forks inherit it
    import torch.distributed

    random.seed()
    torch.seed()  # as after a start of its own, not as the fork's brothers
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    dist: Any = torch.distributed
    try:
        from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend

        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    except Exception:  # an old torch
        dist.is_initialized = lambda: True
        dist.get_rank = lambda *_: rank
        dist.get_world_size = lambda *_: world
        dist.barrier = lambda *_, **__: None
    dist.init_process_group = lambda *_, **__: None
    dist.destroy_process_group = lambda *_, **__: None


def begin_epoch(loader: object, epoch: int) -> None:
    """Call set_epoch as a right training loop does."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = [loader, batch_sampler, *(getattr(loader, name, None) for name in ("sampler", "dataset"))]
    for owner in (*owners, getattr(batch_sampler, "sampler", None)):
        set_epoch = getattr(owner, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
            return


def read(make: Make) -> None:
    """Read the first epoch, and of the second the first batch.

    A function that yields its loader once an epoch is taken at its word on set_epoch."""
    made = make()
    for epoch in range(EPOCHS):
        loader = next(made, None) if isinstance(made, GeneratorType) else made
        if loader is None:
            return
        if loader is made:
            begin_epoch(loader, epoch)
        for _ in loader:
            if epoch:
                break


def play_rank(rank: int, play: Play) -> None:
    """Play one rank, in a process of its own."""
    world = 1 if rank == REFERENCE else play.world
    number = max(rank, 0)
    os.environ.update(environment(number, world, play.local))
    os.environ["ALLRANKS_AUDIT_FILE"] = os.path.join(play.folder, f"rank_{rank}.jsonl")
    os.environ["ALLRANKS_AUDIT_BATCHES"] = play.batches
    pretend(number, world)
    folder = os.path.dirname(os.path.abspath(__file__))
    if not import_file("allranks_data_probe", os.path.join(folder, "probe.py")).install():
        raise RuntimeError("the probe could not be put into torch's DataLoader")
    read(find(play.loader))


def fork_rank(rank: int, play: Play) -> int:
    """Fork a rank and give its process id; its output goes to standard error."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.dup2(2, 1)
        play_rank(rank, play)
        code = 0
    except BaseException:
        with open(error_file(rank, play), "w") as file:
            file.write(traceback.format_exc())
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def error_of(rank: int, play: Play, status: int) -> str:
    """Give the traceback of a rank that has ended, or how it was ended where it left none; empty where all is well."""
    if not status:
        return ""
    try:
        with open(error_file(rank, play)) as file:
            return file.read() or "its traceback could not be written"
    except OSError:
        how = f"signal {status}" if status < 256 else f"exit code {status >> 8}"  # wait(2)
        return f"its process ended with {how}"


def error_file(rank: int, play: Play) -> str:
    """Give the path where a rank that raises leaves its traceback."""
    return os.path.join(play.folder, f"rank_{rank}.error")


def run(play: Play, tell: Callable[[ReadingProgress], None]) -> ReadingProgress | None:
    """Play the reference and all ranks, `jobs` at a time; stop at the first that raises, and give its traceback."""
    import torch.utils.data  # noqa: F401  (once, for all forks)

    waiting = [REFERENCE, *range(play.world)]
    total = len(waiting)
    running: dict[int, int] = {}  # ranks by process id
    try:
        while waiting or running:
            while waiting and len(running) < play.jobs:
                rank = waiting.pop(0)
                running[fork_rank(rank, play)] = rank
            error = ""
            failed = 0
            for pid in list(running):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    rank = running.pop(pid)
                    error = error_of(rank, play, status) or error
                    failed = rank if status else failed
            progress = ReadingProgress(total - len(waiting) - len(running), total, failed, error)
            tell(progress)
            if error:
                return progress
            if running:
                time.sleep(EVERY)
    finally:
        for pid in running:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    return None


if __name__ == "__main__":
    sys.path[0] = os.getcwd()
    played = run(Play(**json.loads(sys.argv[1])), lambda state: print(json.dumps(state._asdict()), flush=True))
    sys.exit(int(played is not None))
