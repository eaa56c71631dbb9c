"""Writes metrics every EVERY seconds for SECONDS, prints nothing, calls no collective: `v_metrics.py SECONDS EVERY`."""

import json
import os
import sys
import time
from pathlib import Path

seconds, every = float(sys.argv[1]), float(sys.argv[2])
rank = int(os.environ["RANK"])
Path(f"up-{rank}").write_text(str(os.getpid()))
path = Path(os.environ["ALLRANKS_OUTPUT_DIR"]) / f"rank_{rank:02d}_metrics.jsonl"
began, step = time.monotonic(), 0
while time.monotonic() - began < seconds:
    step += 1
    with path.open("a") as file:
        file.write(json.dumps({"t": time.time(), "step": step}) + "\n")
    time.sleep(every)
