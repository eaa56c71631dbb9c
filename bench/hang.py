"""hang: 8 hosts, one rank that keeps the others waiting: how long until the verdict, and does it name that rank?"""

from __future__ import annotations

from functools import partial

from tests.hosts.bed import Bed

from bench.launch import PROGRAMS, Ground, Launch, hosts
from bench.table import Report, Sample, alternate, column

HOSTS = 8
CULPRIT = 5
TIMEOUT = 20.0  # seconds: longer than torch's import on a busy machine
AIM = 15.0
CASES = {"sleeps": "sleep", "is stopped": "stop", "calls another collective": "gather"}


def sample(bed: Bed, ground: Ground, what: str) -> Sample:
    """One run. `verdict`: from the suspicion (the limit is over) to the verdict, both looks and their gap included;
    `confirmed`: from the second look's last answer to the verdict, ranks ended and their output drained."""
    launch = Launch(ground.place(), bed)
    try:
        launch.start([str(PROGRAMS / "hang.py"), what, str(CULPRIT)],
                     {"nproc": 1, "workdir": str(launch.work), "hang-timeout": f"{TIMEOUT:g}s"})  # fmt: skip
        launch.until_files("up-*", HOSTS)
        code = launch.wait()
        times = {e["event"]: e for e in launch.events()}
        verdict = launch.result().get("verdict") or {}
        over = times["attempt-end"]["t"]
        return {
            "verdict": over - times["hang-suspected"]["t"],
            "confirmed": over - times["hang"]["t"],
            "late": times["hang-suspected"]["quiet"] - TIMEOUT,
            "right": int((verdict.get("where") or {}).get("rank") == CULPRIT),
            "exit": code,
            "said": verdict.get("message"),
            "evidence": verdict.get("evidence"),
        }
    finally:
        if launch.process is not None and not launch.is_over():
            launch.kill()
        bed.heal()


def run(quick: bool) -> Report:
    """Every way to hang, in turn."""
    report = Report("hang", f"hang: {HOSTS} hosts × 1 rank, --hang-timeout {TIMEOUT:g} s, two looks 4 s apart")
    with hosts(HOSTS) as (bed, ground):
        report.samples = alternate({k: partial(sample, bed, ground, v) for k, v in CASES.items()}, 1 if quick else 5)
    for name, found in report.samples.items():
        aim = f"≤ {AIM:g} s"
        report.add(f"a rank {name}: suspected to verdict", column(found, "verdict"), "s", aim, lambda s: s <= AIM)
        report.add("… confirmed to verdict", column(found, "confirmed"))
    named = [sum(column(found, "right")) / max(1, len(found)) for found in report.samples.values()]
    report.add("verdicts that name the rank", named, "", "all", lambda value: value == 1)
    report.remark()
    return report
