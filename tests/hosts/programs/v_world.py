"""Trains without torch, in step, in a world that may change: shows its steps, saves where allranks says so.

Goes on from the step in ALLRANKS_OUTPUT_DIR that rank 0 has saved last. Ends with the file `go`.
"""

import json
import os
import time

import allranks

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ATTEMPT = int(os.environ["ALLRANKS_ATTEMPT"])

step = 0
for name in sorted(os.listdir(".")):
    if name.startswith("saved-") and name.endswith("-0"):
        with open(name) as file:
            step = max(step, int(file.read() or 0))
print(f"resumes at {step}", flush=True)
changed = allranks.world_changed()
if changed is not None:
    print(f"world changed from {changed.before} to {changed.now}", flush=True)
while not os.path.exists("go"):
    step += 1
    time.sleep(0.02)
    if allranks.should_save(step):
        with open(f"saved-{ATTEMPT}-{RANK}.new", "w") as file:
            file.write(str(step))
        os.rename(f"saved-{ATTEMPT}-{RANK}.new", f"saved-{ATTEMPT}-{RANK}")
    if step % 10 == 0:
        row = {"step": step, "t": time.time(), "attempt": ATTEMPT, "world": WORLD_SIZE}
        with open(os.path.join(os.environ["ALLRANKS_OUTPUT_DIR"], f"rank_{RANK:02d}_metrics.jsonl"), "a") as file:
            file.write(json.dumps(row) + "\n")
