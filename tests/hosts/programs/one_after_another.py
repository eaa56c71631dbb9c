"""Rank FIRST raises and is slow to end; another, told by that, raises later and is gone before: … FIRST SECOND."""

import atexit
import os
import select
import sys
import time

rank = os.environ["RANK"]


def pause(seconds: float) -> None:
    """Not time.sleep, which fails under libfaketime."""
    select.select([], [], [], seconds)


with open(f"up-{rank}-{os.getpid()}", "w") as file:
    file.write("up")
if rank == sys.argv[1]:

    def linger() -> None:
        while not os.path.exists("second"):
            pause(0.02)
        pause(0.3)  # the other has ended

    atexit.register(linger)
    with open("first", "w") as file:
        file.write(str(time.time()))
    raise ValueError("the first")
while not os.path.exists("first"):
    pause(0.02)
pause(0.3)  # clearly later
if rank == sys.argv[2]:
    with open("second", "w") as file:
        file.write(str(time.time()))
    raise KeyError("the second")
pause(1000)
