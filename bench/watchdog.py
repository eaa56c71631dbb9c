"""watchdog: 20 ways to hang under a process group of 40 s: is the verdict there before a rank aborts, with the stack?

Nothing of it is told to allranks: it has the limit from the ranks' group, and `--hang-timeout` is as it is.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.launch import PROGRAMS, Ground, Launch, ground
from bench.table import Report, Sample, column

RANKS = 3
LIMIT = 40.0  # seconds after which a collective gives up: the least that leaves time for two looks on a busy machine
SEED = 20261129
AT_ONCE = 4
UP = 300.0  # seconds until all ranks have come to the hang: imports of torch on a busy machine
WAYS = ("asleep", "other_collective", "wrong_order", "ended_early", "lock_in_dataset", "loader_worker",
        "swallowed_exception", "missing_barrier", "stopped", "file_lock", "silent_server", "child_process",
        "pipe_without_reader", "joined_thread", "waits_for_file", "event_loop", "receives", "held_interpreter",
        "busy", "signal_pause")  # fmt: skip
WITHOUT_STACK = ("stopped",)  # the kernel runs nothing of it


def _sample(place: Ground, way: str) -> Sample:
    """One run, whose hang strikes a rank and a step by its seed."""
    chance = random.Random(f"{SEED} {way}")
    odd = chance.randrange(RANKS)
    launch = Launch(place.place())
    try:
        launch.start([str(PROGRAMS / "watchdog.py"), way, str(odd), str(chance.randrange(3, 40)), str(LIMIT)],
                     {"local": RANKS, "nproc": 1, "workdir": str(launch.work)})  # fmt: skip
        launch.until_files("hung-*", RANKS, UP)
        launch.wait(UP)
        return {"way": way, "odd": odd, **_judged(launch, way, odd)}
    except (OSError, RuntimeError, ValueError) as error:
        return {"way": way, "odd": odd, "error": f"{type(error).__name__}: {error}"}
    finally:
        if launch.process is not None and not launch.is_over():
            launch.kill()


def _judged(launch: Launch, way: str, odd: int) -> dict[str, Any]:
    """What the run said, and when. A rank that ends unexpectedly before the end of the attempt has aborted."""
    began = max(float(path.read_text()) for path in launch.work.glob("hung-*"))
    events = launch.events()
    suspected = [event["t"] - began for event in events if event["event"] == "hang-suspected"]
    ended = [event["t"] - began for event in events if event["event"] in ("hang", "hang-noted")]
    aborts = [event["t"] - began for event in events if event["event"] == "exit" and not event.get("expected")]
    verdict = launch.result().get("verdict") or {}
    shown = " ".join([str(verdict.get("message")), *(verdict.get("evidence") or ())])
    kept = launch.run_dir / "evidence" / "stacks" / f"rank_{odd:03d}.txt"
    in_file = kept.is_file() and f"in {way}" in kept.read_text(errors="replace")
    return {
        "suspected": min(suspected, default=None),
        "verdict": min(ended, default=None),
        "aborted": min(aborts, default=None),
        "before": int(bool(ended) and (not aborts or ended[0] < aborts[0])),
        "named": int((verdict.get("where") or {}).get("rank") == odd),
        "stack": int(way in WITHOUT_STACK or f"in {way}" in shown or in_file),
        "cause": verdict.get("cause"),
        "said": verdict.get("message"),
        "evidence": verdict.get("evidence"),
    }


def run(quick: bool) -> Report:
    """Every way once, some at a time."""
    ways = WAYS[:4] if quick else WAYS
    report = Report("watchdog", f"watchdog: {len(ways)} hangs of {RANKS} ranks, process group of {LIMIT:g} s")
    with ground() as place, ThreadPoolExecutor(AT_ONCE) as pool:
        for found in pool.map(lambda way: _sample(place, way), ways):
            report.samples.setdefault("hangs", []).append(found)
            print(f"  {found}", flush=True)
    hangs = report.samples["hangs"]
    good = [sum(all(one.get(key) for key in ("before", "named", "stack")) for one in hangs)]
    aim = f"all {len(ways)}"
    report.add("verdict with rank and stack before the first abort", good, "", aim, lambda n: n == len(ways))
    for key in ("before", "named", "stack"):
        report.add(f"… {key}", [sum(column(hangs, key))], "")
    report.add("from the hang to the suspicion", column(hangs, "suspected"))
    report.add("from the hang to the verdict", column(hangs, "verdict"), "s", f"< {LIMIT:g} s", lambda s: s < LIMIT)
    report.notes += [
        f"{one['way']}, rank {one['odd']}: {one.get('said')}"
        for one in hangs
        if not (one.get("named") and one["stack"])
    ]
    report.remark()
    return report
