"""Runs the benchmarks and prints their tables: `python -m bench [NAME …] [--quick]`."""

from __future__ import annotations

import argparse
import signal
import sys

from tests.hosts.bed import missing

from bench import (
    audit,
    bare,
    check,
    counters,
    hang,
    kill,
    ledger,
    localise,
    logs,
    nodes,
    preempt,
    ray,
    restart,
    scale,
    scan,
    simulate,
    slow,
    stacks,
    start,
    steps,
    table,
    teardown,
    watchdog,
    world,
)

ALL = {
    "start": start.run,
    "restart": restart.run,
    "teardown": teardown.run,
    "kill": kill.run,
    "logs": logs.run,
    "check": check.run,
    "localise": localise.run,
    "bare": bare.run,
    "hang": hang.run,
    "watchdog": watchdog.run,
    "counters": counters.run,
    "stacks": stacks.run,
    "scale": scale.run,
    "nodes": nodes.run,
    "simulate": simulate.run,
    "audit": audit.run,
    "scan": scan.run,
    "steps": steps.run,
    "ledger": ledger.run,
    "slow": slow.run,
    "preempt": preempt.run,
    "world": world.run,
}
APART = {"ray": ray.run}  # by name alone: it needs Ray, which is large
WITHOUT_HOSTS = ("scale", "simulate", "scan", "audit", "steps", "ledger", "watchdog", "counters")


def main() -> int:
    every = {**ALL, **APART}
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(every)} (default: all but ray)")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer runs: to see that it works")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in every]
    if unknown:
        parser.error(f"no benchmark is called {unknown[0]}; there are {', '.join(every)}")
    for number in (signal.SIGINT, signal.SIGTERM):  # hosts and scratch files go in any case
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    reason = missing()
    about = table.machine()
    print(f"{about['cores']} cores, {about['memory_gib']} GiB, Python {about['python']}, load {about['load'][0]:.2f}\n")
    for name in options.names or ALL:
        if reason and name not in WITHOUT_HOSTS:
            print(f"{name} is skipped: {reason}\n")
            continue
        report = every[name](options.quick)
        path = table.keep(report, options.quick)
        print(f"{table.text_of(report)}\nraw: {path}\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
