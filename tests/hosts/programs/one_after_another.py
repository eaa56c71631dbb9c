"""Rank FIRST raises and is slow to end; another, told by that, raises later and is gone before: … FIRST SECOND."""

import atexit
import os
import signal
import sys
import time

rank = os.environ["RANK"]


with open(f"up-{rank}-{os.getpid()}", "w") as file:
    file.write("up")
if rank == sys.argv[1]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the others' teardown does not hurry it

    def linger() -> None:
        while not os.path.exists("reaped"):  # by the test, once the other's end is in the log
            time.sleep(0.02)

    atexit.register(linger)
    with open("first", "w") as file:
        file.write(str(time.time()))
    raise ValueError("the first")
while not os.path.exists("first"):
    time.sleep(0.02)
time.sleep(0.3)  # clearly later
if rank == sys.argv[2]:
    with open("second", "w") as file:
        file.write(str(time.time()))
    raise KeyError("the second")
time.sleep(1000)
