"""Rank 1 prints COUNT lines of 100 bytes, BLOCK in a write, the others one block; then it may wait for `go`.

printer.py COUNT BLOCK [wait]. written-RANK says how many bytes were taken from it.
"""

import os
import sys
import time

rank, block = os.environ["RANK"], int(sys.argv[2])
count = int(sys.argv[1]) if rank == "1" else block
written = 0
for start in range(0, count, block):
    lines = b"".join(b"%s %097d\n" % (rank.encode(), number) for number in range(start, start + block))
    while lines:
        taken = os.write(1, lines)
        written, lines = written + taken, lines[taken:]
with open(f"written-{rank}.part", "w") as file:
    file.write(str(written))
os.rename(f"written-{rank}.part", f"written-{rank}")
while "wait" in sys.argv and not os.path.exists("go"):
    time.sleep(0.02)
