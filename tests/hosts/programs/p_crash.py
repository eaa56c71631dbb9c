"""Steps that all ranks do together over Gloo, until one of them, or `all`, does something else at step 3.

`p_crash.py WHAT WHO [PATH]`: the names below say what; `import` and `load` come before the group.
"""

import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path

WHAT, WHO, PLACE = sys.argv[1], sys.argv[2], Path(sys.argv[3] if len(sys.argv) > 3 else ".")
RANK = int(os.environ["RANK"])
ODD = WHO in (str(RANK), "all")

if WHAT == "import":
    sys.path.append(str(PLACE))
    import tokens_of_the_project  # noqa: F401

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

if WHAT == "load":
    torch.load(PLACE / "model.pt")


class Samples(Dataset):
    """The worker that gets number 5 is killed, as the kernel or an operator would."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(1)


def eat() -> None:
    """More memory than there is under the limit."""
    kept = []
    while True:
        kept.append(bytearray(16 << 20))


def fail() -> None:
    """What the odd rank does."""
    if WHAT == "raise":
        raise ValueError("bad batch 3")
    if WHAT == "address-space":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
        eat()
    if WHAT == "control-group":
        (PLACE / "cgroup.procs").write_text(str(os.getpid()))
        eat()
    if WHAT == "segfault":
        ctypes.string_at(0)
    if WHAT == "leave":
        sys.exit(0)
    if WHAT == "loader":
        for _ in DataLoader(Samples(), num_workers=1):
            pass
    if WHAT == "save":
        torch.save({"weights": torch.zeros(1 << 20)}, PLACE / "model.pt")


dist.init_process_group("gloo")
for step in range(100_000 if WHAT == "go" else 200):
    dist.all_reduce(torch.ones(64))
    if step == 3:
        Path(f"up-{RANK}").write_text(str(os.getpid()))
        if ODD:
            fail()
    time.sleep(0.02)
dist.destroy_process_group()
