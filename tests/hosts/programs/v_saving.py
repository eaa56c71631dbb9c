"""Trains without torch, in step: rank 0 waits for the others every tenth step; saves where allranks says so.

Each save is a line `SAVED <step> <time>`, each SIGUSR1 a line `GOT <time>`. Ends with the file `go`, or at SIGTERM by
its default action.
"""

import os
import signal
import sys
import time
from pathlib import Path

import allranks

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
PAUSE = float(sys.argv[1]) if len(sys.argv) > 1 else 0.002


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


if "handler" in sys.argv:
    signal.signal(signal.SIGUSR1, lambda *_: say(f"GOT {time.time()}"))
say(f"rank {RANK} is up")
step = 0
while not os.path.exists("go"):
    step += 1
    time.sleep(PAUSE * (1 + RANK % 3 / 10))
    if allranks.should_save(step):
        say(f"SAVED {step} {time.time()}")
    if step == 1:
        Path(f"up-{RANK}").touch()
    if step % 10 == 0:
        Path(f"at-{step}-{RANK}").touch()
        while not all(os.path.exists(f"at-{step}-{rank}") for rank in range(WORLD_SIZE)) and not os.path.exists("go"):
            time.sleep(0.001)
