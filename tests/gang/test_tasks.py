"""Ctrl-C around an event loop, at every call of a Python function."""

import subprocess
import sys

import pytest
from tests.hosts.waiting import BOUND

pytestmark = pytest.mark.processes

# A second thread, as the one that writes the screen, takes a signal that the first has masked. Not in callbacks of weak
# references and `__del__` of others: CPython prints what they raise and goes on.
AT_EVERY_CALL = """
import asyncio, os, signal, sys, threading
from allranks.gang.tasks import run_loop

threading.Thread(target=threading.Event().wait, daemon=True).start()
calls_left = 0

def profile(frame, event, argument):
    global calls_left
    if event == "call":
        calls_left -= 1
        if calls_left == 0:
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGINT)

async def main():
    await asyncio.sleep(0)
    if calls_left > 0:
        return "over before the signal"
    await asyncio.sleep(60)

moments = 0
lost = []
while calls_left <= 0:
    moments += 1
    calls_left = moments
    sys.setprofile(profile)
    try:
        run_loop(main)
    except KeyboardInterrupt:
        continue
    finally:
        sys.setprofile(None)
    if calls_left <= 0:
        lost.append(moments)
print(moments > 100, lost, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


def test_it_is_raised_when_the_loop_is_closed_wherever_it_comes() -> None:
    done = subprocess.run([sys.executable, "-c", AT_EVERY_CALL], capture_output=True, text=True, timeout=BOUND)
    assert (done.stdout, done.stderr) == ("True [] True\n", "")
