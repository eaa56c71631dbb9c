"""Calls whose documents a redesign must not change: `python -m tests.record.calls DIRECTORY`.

Each call is made in a directory of its own with the same files; what it prints is written to DIRECTORY/NAME.txt, with
times, ports, process ids, versions and paths replaced by placeholders. Two recordings are compared by `diff -ru`.
Pytest adds the verdicts of provoked failures where ALLRANKS_RECORD names a directory (tests/hosts/launching.py).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

TRAIN = "import os\nprint('rank', os.environ['RANK'], flush=True)\n"
FAILS = "import os\nif os.environ['RANK'] == '1':\n    raise ValueError('bad batch')\nimport time\ntime.sleep(30)\n"
HOSTFILE = "h1 slots=2\nuser@h2 port=2222 slots=2\n10.0.0.3 slots=2\nh4 slots=2\n"
SETTINGS = """nproc = 2
lease = "30s"
[env]
OMP_NUM_THREADS = "4"
"""
ACCELERATE = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 4\n"
DEEPSPEED = json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}})
OUT_OF_MEMORY = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/w/train.py", line 41, in step
[rank0]:     loss.backward()
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of \
79.11 GiB of which 1.06 GiB is free.
[rank1]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:2345
"""
FILES = {
    "train.py": TRAIN, "fails.py": FAILS, "hosts.txt": HOSTFILE, "settings.toml": SETTINGS,
    "accelerate.yaml": ACCELERATE, "ds.json": DEEPSPEED, "job.log": OUT_OF_MEMORY, "empty.log": "",
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One command; `environment` is added to a small fixed one."""

    name: str
    words: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "gpu[01-02]", "SLURM_NTASKS": "2",
         "SLURM_TASKS_PER_NODE": "1(x2)"}  # fmt: skip
RUN = ("run", "--dry-run", "--json")
CALLS = (
    Call("run-local", (*RUN, "--local", "2", "--nproc", "2", "--", "train.py", "--lr", "3")),
    Call("run-hosts", (*RUN, "--hosts", "hosts.txt", "--", "train.py")),
    Call("run-hosts-text", ("run", "--dry-run", "--hosts", "hosts.txt", "--", "train.py")),
    Call("run-list", (*RUN, "--hosts", "node[01-03],login", "--nproc", "8", "--master-port", "29500", "--",
                      "-m", "pkg.train")),
    Call("run-spares", (*RUN, "--hosts", "hosts.txt", "--spares", "1", "--retries", "2", "--", "train.py")),
    Call("run-settings", (*RUN, "--config", "settings.toml", "--hosts", "hosts.txt", "--", "train.py")),
    Call("run-environment", (*RUN, "--local", "2", "--", "train.py"), {"NPROC_PER_NODE": "3", "NCCL_DEBUG": "INFO"}),
    Call("run-forwarded", (*RUN, "--hosts", "h1,h2", "--env", "A=1", "--env", "WANDB_API_KEY", "--", "train.py"),
         {"WANDB_API_KEY": "0123456789abcdef0123", "NCCL_IB_DISABLE": "1"}),
    Call("run-torchrun", (*RUN, "--hosts", "h1,h2", "--launcher", "torchrun", "--nproc", "2", "--", "train.py")),
    Call("run-pasted", (*RUN, "--hosts", "h1,h2", "--", "torchrun", "--nnodes", "2", "--nproc-per-node", "2",
                        "train.py")),
    Call("run-accelerate", (*RUN, "--hosts", "h1,h2", "--nproc", "2", "--", "accelerate", "launch", "--config_file",
                            "accelerate.yaml", "train.py")),
    Call("run-deepspeed", (*RUN, "--hosts", "h1,h2", "--nproc", "2", "--", "deepspeed", "train.py", "--deepspeed",
                           "ds.json")),
    Call("run-colossalai", (*RUN, "--hosts", "h1,h2", "--nproc", "2", "--launcher", "colossalai", "--", "train.py")),
    Call("run-command", (*RUN, "--hosts", "h1,h2", "--launcher", "command", "--", "./start.sh")),
    Call("run-debug", (*RUN, "--local", "1", "--debug", "--audit-data", "5", "--pg-timeout", "5m", "--", "train.py")),
    Call("run-slurm", (*RUN, "--slurm", "--nproc", "2", "--", "train.py"), SLURM),
    Call("run-slurm-submit", (*RUN, "--slurm", "--nodes", "2", "--partition", "gpu", "--nproc", "2", "--", "train.py")),
    Call("run-k8s", (*RUN, "--k8s", "--nodes", "2", "--gpus", "8", "--image", "r/i:1", "--", "train.py")),
    Call("run-k8s-jobset", (*RUN, "--k8s", "--kind", "jobset", "--nodes", "2", "--image", "r/i:1", "--", "train.py")),
    Call("run-sky", (*RUN, "--sky", "--nodes", "2", "--gpus", "H100:8", "--", "train.py")),
    Call("run-test-quick", (*RUN, "--local", "2", "--test", "quick", "--", "train.py")),
    *(Call(f"render-{kind}", ("render", kind, "--hosts", "h1,h2", "--nproc", "2", "--", "train.py"))
      for kind in ("torchrun", "accelerate", "deepspeed")),
    Call("render-slurm", ("render", "slurm", "--nodes", "2", "--nproc", "2", "--", "train.py")),
    *(Call(f"render-kubernetes-{kind}",
           ("render", "kubernetes", "--kind", kind, "--nodes", "2", "--gpus", "8", "--image", "r/i:1", "--",
            "train.py"))
      for kind in ("job", "jobset", "trainjob", "pods")),
    Call("render-skypilot", ("render", "skypilot", "--nodes", "2", "--gpus", "H100:8", "--", "train.py")),
    Call("check-dry-run", ("check", "--dry-run", "--json", "--hosts", "hosts.txt")),
    Call("check-local", ("check", "--json", "--local", "2", "--level", "quick")),
    Call("test-dry-run", ("test", "--dry-run", "--json", "--hosts", "hosts.txt")),
    Call("diagnose-log", ("diagnose", "--json", "job.log")),
    Call("diagnose-empty", ("diagnose", "--json", "empty.log")),
    Call("run-fails", ("run", "--json", "--local", "2", "--python", sys.executable, "--", "fails.py")),
    Call("run-done", ("run", "--json", "--local", "2", "--python", sys.executable, "--", "train.py")),
    Call("data-plan", ("data", "plan", "--samples", "32217", "--batch", "1", "--gpus-per-node", "8", "--nodes", "1,2,8",
                       "--epochs", "5", "--step-time", "2s", "--json")),
    Call("init", ("init",)),
    Call("wrong-option", ("run", "--local", "two", "--", "train.py")),
    Call("wrong-hosts", ("run", "--hosts", "h1:8", "--", "train.py")),
    Call("wrong-verb", ("fly",)),
)  # fmt: skip


def normal(text: str, place: str) -> str:
    """The text with what differs from call to call replaced."""
    text = text.replace(place, "<place>").replace(sys.executable, "<python>").replace(sys.prefix, "<prefix>")
    text = re.sub(r"\b\d{8}-\d{6}(?:-[0-9a-f]{6})?(?:_\d+)?\b", "<run>", text)
    text = re.sub(r"\b[0-9a-f]{32,}\b", "<hash>", text)
    return re.sub(r"\b\d+\.\d+\b|\b\d{4,}\b", "<n>", text)


def pretty(text: str) -> str:
    """JSON with one value a line, so that a difference is one line; other text as it is."""
    try:
        return json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n"
    except ValueError:
        return text


def record(call: Call, directory: Path) -> None:
    """Make one call and write what it printed and its exit code."""
    with tempfile.TemporaryDirectory() as place:
        for name, text in FILES.items():
            (Path(place) / name).write_text(text)
        environment = {"PATH": os.environ["PATH"], "HOME": place, "NO_COLOR": "1", "TERM": "dumb", **call.environment}
        environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        done = subprocess.run(
            [sys.executable, "-m", "allranks", *call.words], cwd=place, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        written = Path(place) / "allranks.toml"
        parts = [f"exit {done.returncode}\n", pretty(done.stdout), "--- stderr\n", done.stderr]
        if written.exists():
            parts += ["--- allranks.toml\n", written.read_text()]
    (directory / f"{call.name}.txt").write_text(normal("".join(parts), place))


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[2:]
    for call in CALLS:
        if not wanted or call.name in wanted:
            record(call, directory)
            print(call.name, flush=True)


if __name__ == "__main__":
    main()
