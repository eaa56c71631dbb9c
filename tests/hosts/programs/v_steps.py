"""A rank that steps until `done` is there: prints, writes metrics, and keeps a child with its environment."""

import json
import os
import subprocess
import sys
import time

RANK = int(os.environ["RANK"])
subprocess.Popen([sys.executable, "-c", "import time\nwhile 1: time.sleep(9)"], start_new_session=True)
open(f"up-{RANK}-{os.getpid()}", "w").close()
step = 0
with open(os.path.join(os.environ["ALLRANKS_OUTPUT_DIR"], f"rank_{RANK:02d}_metrics.jsonl"), "w") as metrics:
    while not os.path.exists("done"):
        step += 1
        metrics.write(json.dumps({"step": step, "loss": 1 / step, "t": time.time()}) + "\n")
        metrics.flush()
        print(f"rank {RANK} step {step}", flush=True)
        time.sleep(0.02)
print(f"rank {RANK} is done", flush=True)
