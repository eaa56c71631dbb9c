"""A driver: an actor on each node works for so many seconds; with a word behind them it raises."""

import os
import sys
import time
from pathlib import Path

import ray

seconds = float(sys.argv[1])
ray.init(log_to_driver=False)


@ray.remote(num_cpus=1)
class Keeper:
    def pid(self) -> int:
        return os.getpid()

    def work(self) -> None:
        time.sleep(0.1)


nodes = [node["NodeID"] for node in ray.nodes()]
print("nodes", len(nodes), "RANK" in os.environ, flush=True)
if seconds:
    keepers = [Keeper.remote() for _ in nodes]
    pids = ray.get([keeper.pid.remote() for keeper in keepers])
    Path("actors").write_text(" ".join(map(str, pids)))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ray.get([keeper.work.remote() for keeper in keepers])
if len(sys.argv) > 2:
    raise ValueError("bad batch")
