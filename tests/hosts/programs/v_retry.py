"""A rank of a gang that fails: v_retry.py FAILURES [raise|bug|kill|code|stuck|port]

Rank 1 (rank 0 with `port`) fails on the first FAILURES attempts, by an exception of the outside world unless another
way is named; the others wait to be ended. Each attempt goes on from the step that the last one left in
ALLRANKS_OUTPUT_DIR (`stuck`: from 0), and shows its step in the metrics.
"""

import errno
import json
import os
import signal
import sys
import time

RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
FAILURES, HOW = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "raise"
OUTPUTS = os.environ["ALLRANKS_OUTPUT_DIR"]
TRIED = f"tried-{RANK}"  # how often this rank has been started, whatever allranks calls it



def text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return ""


tries = len(text(TRIED))
with open(TRIED, "a") as file:
    file.write("x")
checkpoint = os.path.join(OUTPUTS, f"step-{RANK}")
step = int(text(checkpoint) or 0)
print(f"attempt {ATTEMPT} of {os.environ['TORCHELASTIC_MAX_RESTARTS']} port {os.environ['MASTER_PORT']} "
      f"resumes at {step} in {OUTPUTS}", flush=True)  # fmt: skip
with open(checkpoint, "w") as file:
    file.write("0" if HOW == "stuck" else str(step + 10))
with open(os.path.join(OUTPUTS, f"rank_{RANK:02d}_metrics.jsonl"), "a") as metrics:
    metrics.write(json.dumps({"step": step + 10, "t": time.time(), "attempt": ATTEMPT}) + "\n")
open(f"up-{RANK}-{os.getpid()}", "w").close()
if tries >= FAILURES:
    print("done", flush=True)
    sys.exit(0)
if (0 if HOW == "port" else 1) == RANK:
    # The other rank counts this attempt too before it is ended: else it would wait for ever in the last one.
    while len(text(f"tried-{1 - RANK}")) <= tries:
        time.sleep(0.01)
    if HOW == "port":
        raise OSError(errno.EADDRINUSE, f"The server socket has failed to listen: {os.strerror(errno.EADDRINUSE)}")
    if HOW == "raise":
        raise ConnectionError(f"fails on attempt {ATTEMPT}")
    if HOW == "bug":
        raise ValueError(f"fails on attempt {ATTEMPT}")
    if HOW in ("kill", "stuck"):
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "code":
        os._exit(9)
while True:
    time.sleep(1)
