"""slow: 60 seeded runs on 8 hosts, each with one slow rank, one bad link or none: does the run name it by itself?

Each case adds a line to bench/out/slow-SEED.jsonl. A case that has its line is not run again, so a call goes on where
the last one ended.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.hosts.bed import Bed
from tests.hosts.bed.bed import Host

from bench.launch import PROGRAMS, Ground, Launch, hosts
from bench.table import OUT, Report, Sample

HOSTS = 8
SEED = 20261124
EACH = 9  # cases of each of the five faults, and 15 without: 60
CLEAN = 15
RIGHT, ALARMS = 57, 0
UP = 300.0  # seconds until all ranks train: eight imports of torch on this machine
CALM = 12.0  # seconds of training before a fault that comes later
PATIENCE = 60.0  # seconds from the fault to the end of a case without a finding
MORE = 6.0  # seconds that a run goes on after a finding
INTERVAL = "5s"
FAULTS = ("quota", "sleep", "loader", "rate", "loss")
QUIET = ("none", "stages", "saves")
SAYS = {"quota": "throttled", "sleep": "sleeps", "loader": "data loader", "rate": "the link", "loss": "the link"}
GROUP = Path("/sys/fs/cgroup/cpu/allranks-bench-slow")


@dataclass(frozen=True)
class Case:
    """`what` happens to `rank`, after some time or `from_start`; `amount` is its size."""

    number: int
    what: str
    rank: int
    from_start: bool
    amount: float

    @property
    def host(self) -> str:
        """The host that the rank runs on."""
        return f"h{self.rank + 1}"

    def words(self) -> list[str]:
        """The program's own arguments."""
        if self.what in ("sleep", "loader"):
            return [self.what, str(self.rank), "0" if self.from_start else str(60 + self.number), str(self.amount)]
        return [self.what if self.what in QUIET else "none"]


def draw(seed: int, each: int, clean: int) -> list[Case]:
    """The cases in a random order. A sleep from the start is work by design, so it comes later."""
    dice = random.Random(seed)
    kinds = [what for what in FAULTS for _ in range(each)] + [QUIET[at % len(QUIET)] for at in range(clean)]
    dice.shuffle(kinds)
    cases = []
    for number, what in enumerate(kinds):
        from_start = what in ("quota", "loader") and dice.random() < 0.33
        amounts = {"quota": (0.02, 0.03), "sleep": (0.08, 0.25), "loader": (0.15, 0.3), "loss": (4.0, 8.0)}
        amount = round(dice.uniform(*amounts.get(what, (0.0, 0.0))), 3)
        cases.append(Case(number, what, dice.randrange(HOSTS), from_start, amount))
    return cases


def apply(case: Case, host: Host, inner: int) -> None:
    """The fault; `inner` is the rank's process as its host numbers it."""
    if case.what == "quota":
        (pid,) = [process.pid for process in host.pids() if process.inner == inner]
        (GROUP / "cpu.cfs_period_us").write_text("100000")
        (GROUP / "cpu.cfs_quota_us").write_text(str(round(case.amount * 100_000)))
        (GROUP / "cgroup.procs").write_text(str(pid))
    doing: dict[str, Callable[[], None]] = {"rate": lambda: host.rate("20mbit"), "loss": lambda: host.loss(case.amount)}
    if case.what in doing:
        doing[case.what]()


@contextmanager
def group() -> Iterator[None]:
    """A control group (version 1) for the quota."""
    GROUP.mkdir(exist_ok=True)
    try:
        yield
    finally:
        end = time.monotonic() + 10
        while GROUP.exists() and time.monotonic() < end:
            with suppress(OSError):  # the processes in it are ending
                GROUP.rmdir()
            time.sleep(0.1)


def findings(launch: Launch) -> list[dict[str, Any]]:
    """What the run has said so far of slow ranks and links."""
    text = (launch.run_dir / "events.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return [line for line in lines if line.get("event") == "finding" and line["id"] in ("slow-rank", "slow-link")]


def sample(bed: Bed, ground: Ground, case: Case) -> Sample:
    """One run; `right` where all that is accused is the culprit, and it is."""
    launch = Launch(ground.place(), bed)
    with group():
        try:
            launch.start([str(PROGRAMS / "slow.py"), *case.words()],
                         {"nproc": 1, "workdir": str(launch.work), "straggler-interval": INTERVAL,
                          "step-pattern": r"step (\d+)", "init-timeout": "300s"})  # fmt: skip
            launch.until_files("up-*", HOSTS, UP)
            if not case.from_start and case.what in ("quota", "rate", "loss"):
                time.sleep(CALM)
            apply(case, bed.host(case.host), int((launch.work / f"up-{case.rank}").read_text()))
            began = time.monotonic()
            while time.monotonic() - began < PATIENCE and not findings(launch):
                time.sleep(0.5)
            seconds = time.monotonic() - began
            time.sleep(MORE if findings(launch) else 0)
            bed.host(case.host).clear_network_faults()
            (GROUP / "cpu.cfs_quota_us").write_text("-1")
            (launch.work / "stop").touch()
            code = launch.wait()
            said = findings(launch)
        finally:
            if launch.process is not None and not launch.is_over():
                launch.kill()
            bed.heal()
    return judge(case, said) | {"seconds": seconds, "exit": code, **status_of(launch)}


def judge(case: Case, said: list[dict[str, Any]]) -> Sample:
    """Whom the findings accuse, whether they are right, and whether they know why."""
    accused = sorted({"-".join(filter(None, (s["where"].get("node"), s["where"].get("peer")))) for s in said})
    messages = [s["message"] for s in said]
    if case.what in QUIET:
        return {"right": int(not said), "alarm": int(bool(said)), "accused": accused, "said": messages}
    right = bool(accused) and all(case.host in names.split("-") for names in accused)
    why = right and any(SAYS[case.what] in message for message in messages)
    evidence = [s.get("evidence") for s in said]
    return {
        "right": int(right),
        "why": int(why),
        "alarm": 0,
        "accused": accused,
        "said": messages,
        "evidence": evidence,
    }


def status_of(launch: Launch) -> dict[str, Any]:
    """How late each rank was at the end."""
    status = json.loads((launch.run_dir / "status.json").read_text())
    return {"late": [rank.get("lateness_s") for node in status["nodes"] for rank in node["ranks"]]}


def run(quick: bool) -> Report:
    """All cases that have not been run; 8 with --quick."""
    cases = draw(SEED, 1 if quick else EACH, 3 if quick else CLEAN)
    OUT.mkdir(exist_ok=True)
    path = OUT / f"slow-{SEED}{'-quick' if quick else ''}.jsonl"
    known = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {one["number"] for one in known}
    with hosts(HOSTS) as (bed, ground):
        for case in cases:
            if case.number in done:
                continue
            try:
                line = {**asdict(case), **sample(bed, ground, case)}
            except (RuntimeError, OSError, ValueError) as error:
                line = {**asdict(case), "right": 0, "alarm": 0, "error": str(error)[:300]}
            known.append(line)
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{case.number}: {case.what} at {case.host}: {'right' if line['right'] else 'WRONG'} "
                  f"{line.get('said') or line.get('error') or ''}", flush=True)  # fmt: skip
    report = Report("slow", f"slow: {len(known)} of {len(cases)} seeded runs on {HOSTS} hosts × 1 rank (seed {SEED})")
    for what in (*FAULTS, *QUIET):
        report.samples[what] = [one for one in known if one["what"] == what]
        report.add(f"{what}: right", [float(one["right"]) for one in report.samples[what]])
    share = RIGHT / len(cases)
    report.add("right of all", [sum(one["right"] for one in known) / max(1, len(known))], "", f"≥ {share:.2f}",
               lambda value: value >= share)  # fmt: skip
    report.add("alarms in runs without a fault", [float(sum(one["alarm"] for one in known))], "", "0",
               lambda value: value == 0)  # fmt: skip
    report.add("fault to finding", [one["seconds"] for one in known if one.get("accused")], "s")
    return report
