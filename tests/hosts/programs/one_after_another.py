"""Rank FIRST raises and is slow to end; another, told by that, raises later and is gone before: … FIRST SECOND."""

import atexit
import os
import sys
import time

rank = os.environ["RANK"]


with open(f"up-{rank}-{os.getpid()}", "w") as file:
    file.write("up")
if rank == sys.argv[1]:

    def linger() -> None:
        while not os.path.exists("second"):
            time.sleep(0.02)
        time.sleep(0.3)  # the other has ended

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
