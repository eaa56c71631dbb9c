"""A stand-in for ranks that NCCL's watchdog ends: what torch 2.11 says and dumps on an H200, written where it would.

Rank 1 has not called the all_reduce in which the others are (docs/benchmarks.md).
"""

import os
import pickle
import sys
import time

rank = int(os.environ["RANK"])


def entry(number, state):
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1795819172,
        "input_sizes": [[1049600]],
        "input_dtypes": ["Float"],
        "output_sizes": [[1049600]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": None,
        "retired": state != "scheduled",
        "timeout_ms": 15000,
        "is_p2p": False,
        "frames": [],
    }


entries = [entry(64, "completed")] + [entry(65, "scheduled")] * (rank != 1)
document = {
    "version": "2.10",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}},
    "pg_status": {},
    "nccl_version": "2.28.9",
    "entries": entries,
}
name = os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(rank)
with open(name + ".new", "wb") as file:
    file.write(pickle.dumps(document, 2))
os.rename(name + ".new", name)
open(f"up-{rank}", "w").close()
if rank == 1:
    time.sleep(600)
while not all(os.path.exists(f"up-{one}") for one in range(3)):
    time.sleep(0.05)
print(
    f"[rank{rank}]:[E1127 22:40:13.110 ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=65, OpType=ALLREDUCE, NumelIn=1049600, NumelOut=1049600, Timeout(ms)=15000) "
    "ran for 15084 milliseconds before timing out.",
    file=sys.stderr,
)
os.abort()
