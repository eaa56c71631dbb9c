"""Counts SIGUSR1 and SIGUSR2 one by one, and who sent each, until the file `go` is there.

Each arrival is a line `GOT SIGUSR1 from <pid>`; the end is a line `COUNTED {"SIGUSR1": 1}`.
"""

import json
import os
import signal

RANK = os.environ["RANK"]
AWAITED = (signal.SIGUSR1, signal.SIGUSR2)


def say(text: str) -> None:
    """One write a line: below a launcher all ranks of a node share one log."""
    os.write(1, f"{text}\n".encode())


signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
with open(f"up-{RANK}-{os.getpid()}", "w") as file:
    file.write("up")
say(f"rank {RANK} is up")
counts: dict[str, int] = {}
while True:
    last_look = os.path.exists("go")  # before the wait: what had come until then is counted
    arrived = signal.sigtimedwait(AWAITED, 0.1)
    while arrived is not None:
        name = signal.Signals(arrived.si_signo).name
        counts[name] = counts.get(name, 0) + 1
        say(f"GOT {name} from {arrived.si_pid}")
        arrived = signal.sigtimedwait(AWAITED, 0.1)
    if last_look:
        break
say("COUNTED " + json.dumps(counts))
