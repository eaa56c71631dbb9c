"""Several NCCL ranks on one GPU as if on several hosts: sync and bandwidth suites, and the GPU checks.

`python bench/gpu/several_on_one.py [NODES]`; see README.md beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parents[1] / "out" / "gpu.json"
ALLRANKS = [sys.executable, "-m", "allranks"]
# Each virtual node its own host for NCCL; $GROUP_RANK is only known in the rank.
WRAP = "sh -c 'NCCL_HOSTID=virtual-$GROUP_RANK exec \"$@\"' --"
SETTINGS = ("NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1", "NCCL_SOCKET_IFNAME=lo", "NCCL_IB_DISABLE=1",
            "CUDA_VISIBLE_DEVICES=0")  # fmt: skip
GPU_CHECKS = ("gpu_count,gpu_model,gpu_driver,gpu_ecc,gpu_remap,gpu_throttle,gpu_mode,gpu_pcie,gpu_busy,gpu_recovery,"
              "gpu_matmul")  # fmt: skip


def main(nodes: int) -> int:
    """Exit code 0 where all of it passed."""
    with tempfile.TemporaryDirectory() as place:
        env = [word for setting in SETTINGS for word in ("--env", setting)]
        gang = ["--local", str(nodes), "--nproc", "1", "--backend", "nccl", "--wrap", WRAP, *env]
        found = {
            "machine": smi(),
            "started": time.time(),
            "check": ask(place, "check", "--local", "1", "--only", GPU_CHECKS),
            "sync": ask(place, "test", *gang, "--suite", "sync", "--size", "64MB", "--timeout", "120s"),
            "bandwidth": ask(place, "test", *gang, "--suite", "bandwidth", "--size", "64MB", "--timeout", "240s"),
            "pairs": ask(place, "test", *gang, "--suite", "pairs"),
        }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(found, indent=1))
    for name in ("check", "sync", "bandwidth", "pairs"):
        print(f"{name:<10} exit {found[name]['exit']}  {found[name]['seconds']:.1f} s")
    print(f"raw: {OUT}")
    return max(int(bool(found[name]["exit"])) for name in ("check", "sync", "bandwidth", "pairs"))


def ask(place: str, *words: str) -> dict[str, Any]:
    """The document of a verb, or what it said where there is none."""
    began = time.monotonic()
    done = subprocess.run([*ALLRANKS, *words, "--json", "--runs-dir", f"{place}/runs"], cwd=place, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, check=False)  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"schema"')]
    document = json.loads(lines[-1]) if lines else {"said": done.stdout[-2000:] + done.stderr[-4000:]}
    return {"exit": done.returncode, "seconds": round(time.monotonic() - began, 2), "document": document}


def smi() -> str:
    """Card, driver and memory, from nvidia-smi."""
    fields = "name,driver_version,memory.total,uuid"
    argv = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"})
        return done.stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"no NVIDIA GPU here: {error}") from None


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 4))
