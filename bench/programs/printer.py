"""A rank that prints as fast as it can: printer.py COUNTERS LINES KILLED AT. Works without torch and without allranks.

COUNTERS is mapped by all ranks: for each one the writes it has begun and those that returned (two 64-bit
numbers), so what was handed to the kernel is known whatever happens to the process. Rank KILLED (-1: none)
ends itself by SIGKILL at line AT, and leaves the time of it in `fault`.
"""

import mmap
import os
import signal
import struct
import sys
import time

RANK = int(os.environ["RANK"])
COUNTERS = sys.argv[1]
LINES, KILLED, AT = (int(word) for word in sys.argv[2:5])
LENGTH = 100


def line(number: int) -> bytes:
    return f"{RANK:03d} {number:08d} ".encode().ljust(LENGTH - 1, b"abcdefghij"[RANK % 10 : RANK % 10 + 1]) + b"\n"


def main() -> None:
    with open(COUNTERS, "r+b") as file:
        counters = mmap.mmap(file.fileno(), 0)
    pack, place = struct.Struct("<Q").pack_into, RANK * 16
    end = AT if RANK == KILLED else -1
    with open(f"up-{RANK}", "w"):
        pass
    while not os.path.exists("go"):
        time.sleep(0.005)
    for number in range(LINES):
        if number == end:
            with open("fault", "w") as file:
                file.write(repr(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        data = line(number)
        pack(counters, place, number + 1)
        if os.write(1, data) != LENGTH:
            raise RuntimeError("a pipe took a part of a line")
        pack(counters, place + 8, number + 1)


main()
