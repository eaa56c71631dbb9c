"""Trains without torch in a world that may change: world.py STEPS PAUSE. Its state must be that of each step once.

Rank 0 saves every tenth step, all ranks where allranks says so. A rank goes on from the newest step that is saved.
"""

import json
import os
import sys
import time

import allranks

STEPS, PAUSE = int(sys.argv[1]), float(sys.argv[2])
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["ALLRANKS_ATTEMPT"])
METRICS = os.path.join(os.environ["ALLRANKS_OUTPUT_DIR"], f"rank_{RANK:02d}_metrics.jsonl")


def saved() -> dict[str, int]:
    states = [{"step": 0, "total": 0}]
    for name in os.listdir("."):
        if name.startswith("state-") and not name.endswith(".new"):
            with open(name) as file:
                states.append(json.load(file))
    return max(states, key=lambda state: state["step"])


def save(state: dict[str, int]) -> None:
    name = f"state-{ATTEMPT}-{RANK}"
    with open(f"{name}.new", "w") as file:
        json.dump(state, file)
    os.rename(f"{name}.new", name)


state = saved()
while state["step"] < STEPS:
    time.sleep(PAUSE)
    state["step"] += 1
    state["total"] += state["step"]
    with open(METRICS, "a") as file:
        file.write(json.dumps({"step": state["step"], "t": time.time(), "attempt": ATTEMPT}) + "\n")
    asked = allranks.should_save(state["step"])
    if asked or (RANK == 0 and state["step"] % 10 == 0):
        save(state)
if state["total"] != STEPS * (STEPS + 1) // 2:
    raise SystemExit(f"steps were lost or done twice: {state}")
print(f"done with {os.environ['WORLD_SIZE']} ranks", flush=True)
