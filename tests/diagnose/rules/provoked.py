"""The cases of `provoke.py`: training scripts that fail. What the verdict must say stands in the fixtures."""

from typing import Any

HEAD = """import datetime, os, sys, time
import torch, torch.distributed as dist
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
"""
INIT = HEAD + 'dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))\n'
STEPS = """
def step(n):
    x = torch.ones(4)
    dist.all_reduce(x)
    at(n)

def main():
    for n in range(200):
        step(n)
        time.sleep(0.01)

main()
dist.destroy_process_group()
"""


def at_step(body: str, who: str = "rank == 1") -> str:
    """A script that trains, and at step 3 does `body` on the ranks for which `who` holds."""
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return INIT + f"def at(n):\n    if n == 3 and {who}:\n{lines}" + STEPS


def alone(body: str, who: str = "rank == 1") -> str:
    """A script that does `body` on the ranks for which `who` holds before it joins the group."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return HEAD + f"if {who}:\n{lines}" + INIT[len(HEAD) :] + "def at(n): pass\n" + STEPS


LOADER = """from torch.utils.data import DataLoader
def get(i):
    {body}
    return torch.zeros(1)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return get(i)
for batch in DataLoader(Data(), num_workers=1): pass"""

ALL = "True"


def case(code: str, **rest: Any) -> dict[str, Any]:
    """A case; run settings by name."""
    return {"code": code, **rest}


CASES: dict[str, dict[str, Any]] = {
    "rank_raised/one-rank": case(at_step('raise ValueError(f"bad batch {n}")', "rank == 3"), world=4),
    "rank_raised/every-rank": case(at_step('raise KeyError(f"label of rank {rank}")', ALL), world=4),
    "rank_raised/wrapped-exception": case(
        at_step('try:\n    open("/data/none.bin")\nexcept OSError as e:\n    raise RuntimeError("no batch") from e'),
    ),
    "rank_raised/barrier-in-finally": case(
        at_step('try:\n    if rank == 1: raise ValueError("bad record")\n    else: os._exit(0)\nfinally:\n'
                '    time.sleep(0.1); dist.barrier()', ALL),
    ),
    "rank_raised/peer-loss-wrapped": case(
        INIT + "def at(n):\n    if n == 3 and rank == 1: raise ZeroDivisionError('loss is 0')\n"
        + STEPS.replace("    dist.all_reduce(x)", "    try: dist.all_reduce(x)\n    except RuntimeError as e:\n"
                        "        raise ValueError('step failed') from e"),
    ),
    "rank_raised/missing-module-one-node": case(alone("import flash_attn_nope", "rank >= 2"), world=4),
    "rank_raised/missing-module-every-rank": case(alone("import flash_attn_nope", ALL)),
    "rank_raised/missing-file": case(alone('open("/data/shard_0001.bin", "rb")')),
    "rank_raised/permission-denied": case(alone('os.mkdir("locked", 0o700); os.setuid(65534)\nopen("/root/data.bin")')),
    "rank_raised/disk-full": case(at_step('with open("/dev/full", "w") as f: f.write("x")')),
    "rank_raised/disk-full-torch-save": case(at_step('torch.save({"w": torch.zeros(100000)}, "/dev/full")')),
    "rank_raised/too-many-open-files": case(
        at_step('import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n'
                'keep = [open("/dev/null") for _ in range(100)]'),
    ),
    "rank_raised/port-in-use": case(INIT, hold_port=True),
    "rank_raised/dataloader-worker-killed": case(at_step(LOADER.format(body="if i == 5: os.kill(os.getpid(), 9)"))),
    "rank_raised/dataloader-worker-bus-error": case(at_step(LOADER.format(body="if i == 5: os.kill(os.getpid(), 7)"))),
    "rank_raised/dataloader-worker-raises": case(at_step(LOADER.format(body='if i == 5: open("/data/img_5.jpg")'))),
    "rank_raised/checkpoint-truncated": case(
        at_step('torch.save({"w": torch.zeros(100000)}, "c.pt"); os.truncate("c.pt", 1000); torch.load("c.pt")'),
    ),
    "rank_raised/checkpoint-cut-short": case(
        at_step('torch.save({"w": torch.zeros(10000)}, "c.pt"); os.truncate("c.pt", 20000); torch.load("c.pt")'),
    ),
    "rank_raised/checkpoint-garbage": case(
        at_step('open("c.pt", "w").write("<html>login</html>"); torch.load("c.pt")'),
    ),
    "rank_raised/checkpoint-empty": case(at_step('open("c.pt", "w").close(); torch.load("c.pt")')),
    "rank_raised/checkpoint-size-mismatch": case(
        at_step('torch.nn.Linear(4, 4).load_state_dict(torch.nn.Linear(4, 8).state_dict())', ALL),
    ),
    "rank_raised/checkpoint-missing-keys": case(
        at_step('torch.nn.Linear(4, 4).load_state_dict({"module.weight": torch.zeros(4, 4)})', ALL),
    ),
    "rank_raised/unused-parameters": case(
        INIT + """class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    def forward(self, x): return self.a(x)
net = torch.nn.parallel.DistributedDataParallel(Net())
for n in range(5): net(torch.ones(2, 4)).sum().backward()
""",
    ),
    "rank_raised/order-mismatch-detail": case(
        INIT + "x = torch.ones(4)\ndist.all_reduce(x) if rank else dist.broadcast(x, 0)\n",
        env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    ),
    "rank_raised/shape-mismatch-detail": case(
        INIT + "dist.all_reduce(torch.ones(4 + rank))\n", env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    ),
    "rank_raised/no-interface": case(INIT + "def at(n): pass\n" + STEPS, env={}),
    "rank_crashed/terminate": case(  # what a thread of gloo that was not joined does at the interpreter's end
        at_step('import ctypes; ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev()'),
    ),
    "rank_crashed/bus-error": case(
        at_step('import mmap; open("m", "wb").write(bytes(8192)); f = open("m", "r+b")\n'
                'm = mmap.mmap(f.fileno(), 8192); f.truncate(0); m[5000]'),
    ),
    "rank_raised/host-memory": case(at_step("torch.empty(10**15)")),
    "rank_raised/no-cuda": case(alone('torch.zeros(1, device="cuda")', ALL)),
    "rank_raised/cuda-out-of-memory": case(  # torch's class; the text as in c10/cuda/CUDACachingAllocator.cpp
        at_step('raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "\n'
                '"capacity of 79.11 GiB of which 1.06 GiB is free.")'),
    ),
    "rank_exited/sys-exit-code": case(at_step("dist.destroy_process_group(); sys.exit(3)")),
    "rank_exited/sys-exit-text": case(at_step('sys.exit("loss is nan, giving up")')),
    "rank_exited/os-exit": case(at_step('print("giving up"); os._exit(7)')),
    "rank_exited/bad-arguments": case(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float)\np.parse_args()\n",
        args=["--lrr", "0.1"],
    ),
    "rank_exited/no-script": case("", script="trian.py"),
    "rank_killed/sigkill": case(at_step("os.kill(os.getpid(), 9)", "rank == 3"), world=4),
    "rank_killed/sigkill-of-rank-0": case(at_step("os.kill(os.getpid(), 9)", "rank == 0")),
    "rank_killed/sigterm-from-outside": case(at_step("os.kill(os.getpid(), 15)")),
    "rank_crashed/segfault": case(at_step("import ctypes; ctypes.string_at(0)")),
    "rank_crashed/segfault-with-faulthandler": case(
        at_step("import ctypes, faulthandler; faulthandler.enable(); ctypes.string_at(0)"),
    ),
    "rank_crashed/abort": case(at_step("os.abort()")),
    "rank_crashed/short-tensor": case(INIT + "dist.all_reduce(torch.ones(4 if rank else 4096))\n"),
    "rank_crashed/odd-shape-of-four": case(  # the one that is sent too much is not the one that sends it
        at_step("dist.all_reduce(torch.ones(8192 if rank == 2 else 4096))", ALL), world=4,
    ),
    "accused/monitored-barrier": case(
        at_step("if rank == 2: time.sleep(60)\ndist.monitored_barrier(timeout=datetime.timedelta(seconds=2))", ALL),
        world=4,
    ),
    "accused/ddp-other-model": case(
        INIT + """class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 4)
        if rank == 2: self.b = torch.nn.Linear(4, 4)
    def forward(self, x): return self.a(x)
net = torch.nn.parallel.DistributedDataParallel(Net())
""", world=4,
    ),
    "accused/ddp-other-sizes": case(
        INIT + "net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 8 if rank == 3 else 4))\n", world=4,
    ),
    "peer_lost/store-lost-before-any-step": case(  # somebody else listens on the master's port, and hangs up
        INIT, start=[1], hang_up=True, incident={"init_entered": [1]},
    ),
    "peer_lost/exit-0-early": case(at_step("os._exit(0)")),
    "peer_lost/collective-timeout": case(at_step("time.sleep(60)").replace("seconds=20", "seconds=4")),
    "peer_lost/rank-never-came": case(
        INIT.replace("seconds=20", "seconds=5"), start=[0], incident={"init_entered": [0]},
    ),
    "peer_lost/nobody-listens": case(
        INIT.replace("seconds=20", "seconds=5"), start=[1], incident={"init_entered": [1]},
    ),
}
CASES["rank_raised/no-interface"]["code"] = CASES["rank_raised/no-interface"]["code"].replace(
    "import datetime", 'import os; os.environ["GLOO_SOCKET_IFNAME"] = "eth77"\nimport datetime'
)
