"""localise: 60 clusters of 8 hosts, each with one fault or none: does `allranks test --suite pairs` name it?"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hosts.bed import Bed
from tests.hosts.bed.bed import Host

from bench.launch import ALLRANKS, Ground, hosts
from bench.table import Report, Sample, alternate

HOSTS = 8
EACH = 15  # cases of a kind
SEED = 20261122  # drawn after the thresholds of allranks.fabric.analysis were frozen
BOUND = 300.0
CLEAN, SLOW_NODE, SLOW_LINK, DEAD_LINK = "nothing is wrong", "a slow node", "a slow link", "a dead link"
RIGHT, ALARMS = 58, 0
WAYS = ("delay", "rate", "loss")


@dataclass(frozen=True)
class Fault:
    """`what` happens to the host `nodes[0]`, or between both of `nodes`."""

    kind: str
    what: str
    nodes: tuple[str, ...]

    @property
    def culprit(self) -> str:
        """As a finding names it: "h3", "h1-h5", or nothing."""
        return "-".join(sorted(self.nodes))

    def apply(self, bed: Bed) -> None:
        """50 ms more each way, 50 Mbit/s, 5 % lost, or nothing passes."""
        found = [bed.host(name) for name in self.nodes]
        if self.nodes:
            DOING[(self.what, len(self.nodes))](*found)


def _dead(one: Host, other: Host) -> None:
    one.loss(100, peer=other)


DOING: dict[tuple[str, int], Callable[..., None]] = {
    ("delay", 1): lambda host: host.delay(50),
    ("rate", 1): lambda host: host.rate("50mbit"),
    ("loss", 1): lambda host: host.loss(5),
    ("delay", 2): lambda one, other: one.delay_to(other, 50),
    ("rate", 2): lambda one, other: one.rate_to(other, "50mbit"),
    ("loss", 2): lambda one, other: one.loss(5, peer=other),
    ("dead", 2): _dead,
}


def draw(seed: int, each: int) -> list[Fault]:
    """The cases in a random order, hosts drawn evenly, the three ways of being slow in turn."""
    dice = random.Random(seed)
    names = [f"h{i}" for i in range(1, HOSTS + 1)]
    found = [Fault(CLEAN, "", ()) for _ in range(each)]
    for at in range(each):
        way = WAYS[at % len(WAYS)]
        found.append(Fault(SLOW_NODE, way, (dice.choice(names),)))
        found.append(Fault(SLOW_LINK, way, tuple(dice.sample(names, 2))))
        found.append(Fault(DEAD_LINK, "dead", tuple(dice.sample(names, 2))))
    dice.shuffle(found)
    return found


def sample(bed: Bed, ground: Ground, fault: Fault) -> Sample:
    """One test of the cluster; `right` where all that is blamed is the culprit, and it is blamed."""
    place = ground.place()
    argv = [*ALLRANKS, "test", "--suite", "pairs", "--hosts", str(bed.hostfile_names), "--python", sys.executable,
            "--runs-dir", str(place / "runs"), "--json"]  # fmt: skip
    try:
        fault.apply(bed)
        began = time.monotonic()
        done = subprocess.run(argv, cwd=place / "work", env=bed.env(), stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=BOUND, check=False)  # fmt: skip
        seconds = time.monotonic() - began
    finally:
        bed.heal()
    blamed, document = blamed_by(done.stdout)
    if not document.get("links") and fault.kind != DEAD_LINK:
        raise RuntimeError(f"nothing was measured: exit {done.returncode}: {done.stdout[-300:]} {done.stderr[-600:]}")
    said = [f["message"] for f in document.get("findings") or () if f["status"] == "fail"]
    return {"right": int(blamed == ({fault.culprit} - {""})), "seconds": seconds, "exit": done.returncode,
            "fault": f"{fault.what} {fault.culprit}".strip(), "blamed": sorted(blamed), "said": said,
            "alarm": int(fault.kind == CLEAN and bool(blamed))}  # fmt: skip


def blamed_by(out: str) -> tuple[set[str], dict[str, Any]]:
    """Nodes and links of the findings that say fail."""
    lines = [line for line in out.splitlines() if line.startswith('{"schema"')]
    document: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    found = set()
    for finding in document.get("findings") or ():
        where = finding.get("where") or {}
        names = [n for n in (where.get("node"), where.get("peer")) if n] or where.get("nodes") or ["?"]
        if finding["status"] == "fail":
            found.add("-".join(sorted(names)))
    return found, document


def run(quick: bool) -> Report:
    """60 cases; 8 with --quick."""
    faults = draw(SEED, 2 if quick else EACH)
    report = Report(
        "localise",
        f"localise: {len(faults)} seeded cases on {HOSTS} hosts (seed {SEED}): "
        "50 ms, 50 Mbit/s or 5 % loss on a node or a link, a dead link, or nothing",
    )
    with hosts(HOSTS) as (bed, ground):
        for at, fault in enumerate(faults):
            label = f"{fault.kind} ({at}: {fault.what} {fault.culprit})"
            report.samples.update(alternate({label: lambda fault=fault: sample(bed, ground, fault)}, 1))  # type: ignore[misc]
            _keep(report, Path(__file__).parent / "out" / "localise-partial.json")
    every = [s for found in report.samples.values() for s in found]
    right = sum(int(s.get("right") or 0) for s in every)
    aim = RIGHT if not quick else len(every)
    report.add("cases of which the culprit was named, and no other", [right], f"of {len(every)}", f">= {aim}",
               lambda value: value >= aim)  # fmt: skip
    alarms = sum(int(s.get("alarm") or 0) for s in every)
    clean = sum(label.startswith(CLEAN) for label in report.samples)
    report.add("clean clusters with an alarm", [alarms], f"of {clean}", f"{ALARMS}", lambda value: value <= ALARMS)
    for kind in (SLOW_NODE, SLOW_LINK, DEAD_LINK):
        mine = [s for label, found in report.samples.items() if label.startswith(kind) for s in found]
        report.add(f"right: {kind}", [sum(int(s.get("right") or 0) for s in mine)], f"of {len(mine)}")
    report.add("one test", [float(s["seconds"]) for s in every if "seconds" in s])
    for label, found in report.samples.items():
        for s in found:
            if not s.get("right"):
                report.notes.append(f"wrong: {label}: blamed {s.get('blamed')}: {(s.get('said') or ['-'])[0][:160]}")
    report.remark()
    return report


def _keep(report: Report, path: Path) -> None:
    """What there is so far: half an hour is long."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report.samples, indent=1))
