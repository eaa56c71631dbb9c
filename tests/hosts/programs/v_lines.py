"""A rank that prints numbered lines until the file `done` is there: v_lines.py [SECONDS between lines]

`count-RANK` holds how many lines the kernel has taken: what must be in the log, whatever dies.
"""

import mmap
import os
import struct
import sys
import time

WIDTH = 100


def line(rank: int, number: int) -> bytes:
    return f"{rank:03d} {number:09d} ".encode().ljust(WIDTH - 1, b".") + b"\n"


def complete(data: bytes, rank: int, taken: int) -> int:
    """Checks a log: every line from the first to the last, in order, at least `taken`; gives their number."""
    count, rest = divmod(len(data), WIDTH)
    for number in range(count):
        assert data[number * WIDTH : (number + 1) * WIDTH] == line(rank, number), f"rank {rank}: line {number}"
    assert data[count * WIDTH :] == line(rank, count)[:rest]
    assert count >= taken, f"rank {rank}: {count} lines of {taken} that the kernel took"
    return count


def taken(directory: str, rank: int) -> int:
    """What a rank has counted."""
    try:
        with open(f"{directory}/count-{rank}", "rb") as file:
            return int(struct.unpack("<Q", file.read(8))[0])
    except (OSError, struct.error):
        return 0


def main() -> None:
    rank, pause = int(os.environ["RANK"]), float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    with open(f"count-{rank}", "wb") as file:
        file.write(bytes(8))
    with open(f"count-{rank}", "r+b") as file:
        counter = mmap.mmap(file.fileno(), 8)
    with open(f"up-{rank}-{os.getpid()}", "w"):
        pass
    number = 0
    while not (number % 64 == 0 or pause) or not os.path.exists("done"):
        assert os.write(1, line(rank, number)) == WIDTH
        number += 1
        struct.pack_into("<Q", counter, 0, number)
        if pause:
            time.sleep(pause)


if __name__ == "__main__":
    main()
