"""Rank 0 ends at once; a grandchild of its own session keeps its output open and goes on printing."""

import os
import sys
import time

RANK = int(os.environ["RANK"])


def grandchild() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            number = 0
            while True:
                os.write(1, b"late %d\n" % number)
                number += 1
                time.sleep(0.01)
        os._exit(0)
    os.wait()


open(f"up-{RANK}-{os.getpid()}", "w").close()
if RANK == 0:
    grandchild()
    print("rank 0 leaves", flush=True)
    sys.exit(0)
while not os.path.exists("done"):
    time.sleep(0.01)
