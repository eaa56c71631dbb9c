"""A rank that leaves every kind of child behind, says that it is up, and waits or fails as told.

nasty.py [raise|exit0|ignore-term|save-on-term|wait] [RANK that does it]
"""

import ctypes
import os
import signal
import subprocess
import sys
import time

RANK = int(os.environ.get("RANK", os.environ.get("NODE_RANK", "0")))
WHAT = sys.argv[1] if len(sys.argv) > 1 else "wait"
WHO = int(sys.argv[2]) if len(sys.argv) > 2 else 1


def daemon() -> None:
    """Double fork, own session, renamed, not dumpable, empty environment."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            libc = ctypes.CDLL(None)
            libc.prctl(15, b"kworker/u8:2", 0, 0, 0)
            libc.prctl(4, 0, 0, 0, 0)
            os.closerange(0, 64)
            while True:
                time.sleep(100)
        os._exit(0)
    os.wait()


def children() -> None:
    daemon()
    subprocess.Popen(["sleep", "4000"], env={}, start_new_session=True, stdout=subprocess.DEVNULL)
    subprocess.Popen([sys.executable, "-c", "import signal,time\nsignal.signal(15, 1)\nwhile 1: time.sleep(9)"])


def save(number: int, frame: object) -> None:
    time.sleep(3)
    with open(f"saved-{RANK}", "w") as file:
        file.write("whole")
    sys.exit(0)


children()
if WHAT == "ignore-term":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if WHAT == "save-on-term":
    signal.signal(signal.SIGTERM, save)
with open(f"up-{RANK}-{os.getpid()}", "w") as file:
    file.write("up")
print(f"rank {RANK} is up", flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
if RANK == WHO and WHAT == "raise":
    raise ValueError("bad batch")
if RANK == WHO and WHAT == "exit0":
    sys.exit(0)
if WHAT == "exit0":
    while not os.path.exists("done"):
        time.sleep(0.02)
    sys.exit(0)
while True:
    time.sleep(1)
