"""A rank that logs its own moments: `ledger.py DIRECTORY [--torch] [--steps N] [--each S] [--save-every N] …`.

A line of `moments-ATTEMPT-RANK` is what happened, and when by this rank's clock: `process` (its process began, as the
kernel has it), `step N`, `still` and `moving` (a sleep that the other ranks wait for), `told` (SIGTERM came), `end`.
Of the first attempt only, --kill-at, --hang-at and --sleep-at take rank 1 at that step.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import allranks

LONG = 10_000.0

parser = argparse.ArgumentParser()
parser.add_argument("directory", type=Path)
parser.add_argument("--torch", action="store_true", help="ranks wait for each other at each step")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--each", type=float, default=0.1, help="seconds of a step")
parser.add_argument("--save-every", type=int, default=1_000_000)
parser.add_argument("--slow-start", type=float, default=0.0, help="seconds of sleep before the first step")
parser.add_argument("--slow-end", type=float, default=0.0, help="seconds that rank 0 lives on after SIGTERM")
parser.add_argument("--kill-at", type=int, default=-1)
parser.add_argument("--hang-at", type=int, default=-1)
parser.add_argument("--sleep-at", type=int, default=-1)
parser.add_argument("--sleep", type=float, default=0.0)
options = parser.parse_args()

attempt = int(os.environ["ALLRANKS_ATTEMPT"])
rank = int(os.environ["RANK"])
moments = open(options.directory / f"moments-{attempt}-{rank}", "a", buffering=1)  # noqa: SIM115  (until the end)
checkpoint = options.directory / f"checkpoint-{rank}"


def note(what, t=None):
    """Write down a moment: now, or `t` (unix seconds)."""
    moments.write(f"{what} {time.time() if t is None else t!r}\n")


def told(number, frame):
    """SIGTERM: rank 0 takes its time."""
    note("told")
    time.sleep(options.slow_end if rank == 0 else 0.0)
    note("end")
    os._exit(143)


def process_began():
    """Return when this process began (unix seconds): field 22 of /proc/PID/stat, see proc(5)."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


note("process", process_began())
signal.signal(signal.SIGTERM, told)
time.sleep(options.slow_start)
if options.torch:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
first = int(checkpoint.read_text()) if checkpoint.exists() else 0
odd = rank == 1 and attempt == 0
for step in range(first, options.steps):
    if odd and step == options.hang_at:
        note("still")
        time.sleep(LONG)
    if odd and step == options.sleep_at:
        note("still")
        time.sleep(options.sleep)
        note("moving")
    time.sleep(options.each)
    if options.torch:
        dist.all_reduce(torch.ones(1))
    allranks.report_step(step)
    note(f"step {step}")
    if (step + 1) % options.save_every == 0:
        checkpoint.write_text(str(step + 1))
    if odd and step == options.kill_at:
        note("end")
        os.kill(os.getpid(), signal.SIGKILL)
note("end")
sys.stdout.flush()
os._exit(0)
