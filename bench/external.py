"""`make external`: one scoreboard on ground that others wrote: logs, hangs, kernel lines, host lists, public suites.

    python -m bench.external [--shared DIR] [--suites DIR] [--write] [--wrong]

`--shared` (ALLRANKS_SHARED; default: `shared/` beside the project) holds `corpus/*.jsonl` and `external/`. None of it
is part of the project, and no text of it is written anywhere: the page gets counts. `--suites` (ALLRANKS_SUITES) holds
copies of public files, each under its repository's name:

    logpai/loghub/BGL/BGL_2k.log, …/Thunderbird/Thunderbird_2k.log, …/Linux/Linux_2k.log
    NVIDIA/nccl/docs/userguide/source/troubleshooting/ras.rst
    pytorch/pytorch/test/distributed/flight_recorder/test_fr_analysis.py

What is absent is named and left out. `--write` puts the tables into docs/benchmarks.md, `--wrong` prints what was
missed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allranks.cluster.hostlist import expand
from allranks.diagnose.hangs.ras import read_ras
from allranks.diagnose.logs.lines import read_line
from allranks.diagnose.signatures import Sign, row_of
from allranks.errors import UsageError
from allranks.kernel_lines import kernel_line_kind
from allranks.text import count_of
from bench.corpus import Answer, answers

HERE = Path(__file__).resolve()
PAGE = HERE.parents[1] / "docs/benchmarks.md"
HEADING = "## external: logs, hangs, kernel lines and host lists that others wrote (`make external`)"
TIERS = (0.0, 0.5, 0.7, 0.8, 0.9, 1.01)


@dataclass
class Score:
    """A line of the scoreboard: how many of how many, and what is wanted."""

    label: str
    right: int
    total: int
    aim: str = ""
    is_met: bool | None = None

    def line(self) -> str:
        """Write the row of a Markdown table."""
        share = f"{self.right / self.total:.0%}" if self.total else "–"
        verdict = {None: "", True: "met", False: "**not met**"}[self.is_met]
        return f"| {self.label} | {self.right} | {self.total} | {share} | {self.aim} | {verdict} |"


@dataclass
class Board:
    """The scoreboard: rows, tables below them, what is absent, what was answered wrongly."""

    scores: list[Score] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(self, label: str, right: int, total: int, least: float | None = None) -> None:
        """Add a row; `least` is the share of right answers that is wanted."""
        if least is None:
            self.scores.append(Score(label, right, total))
        else:
            is_met = total > 0 and right >= least * total
            self.scores.append(Score(label, right, total, f"≥ {least:.0%}", is_met))

    def text(self) -> str:
        """Write the section of the page."""
        head = ["| | right | of | | aim | |", "|---|---:|---:|---:|---|---|"]
        notes = [f"- {note}" for note in self.notes]
        rows = [score.line() for score in self.scores]
        return "\n".join([HEADING, "", *head, *rows, "", *(f"{table}\n" for table in self.tables), *notes, ""])


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def measure(shared: Path, suites: Path | None) -> Board:
    """Take every part whose data is there."""
    board = Board()
    parts = (
        (logs, shared / "corpus"),
        (hangs, shared / "external/hangs"),
        (kernel_lines, shared / "external/kernel_lines.jsonl"),
        (host_lists, shared / "external/host_lists.jsonl"),
    )
    for part, path in parts:
        if path.exists():
            part(board, path)
        else:
            board.absent.append(str(path))
    for part, name in SUITES:
        path = (suites or Path("SUITES")) / name
        if suites is not None and path.exists():
            part(board, path)
        else:
            board.absent.append(str(path))
    return board


# -- logs and calibration ----------------------------------------------------------------------------------


def logs(board: Board, folder: Path) -> None:
    """Count right answers to logs by decidability, and compare confidences with how often they were right."""
    every: list[Answer] = []
    for name in ("dev", "dev2", "undetermined"):
        path = folder / f"{name}.jsonl"
        if not path.is_file():
            board.absent.append(str(path))
            continue
        given = list(answers([path]))
        every += given
        for decidable in ("yes", "partly", "no"):
            of_kind = [a for a in given if a.decidable == decidable and a.wanted != "unknown"]
            if of_kind:
                right = sum(a.is_first_right for a in of_kind)
                label = {"yes": "decidable", "partly": "partly decidable", "no": "not decidable"}[decidable]
                least = 0.92 if decidable == "yes" else None
                board.add(f"logs of {name}, {label}: first answer", right, len(of_kind), least)
                board.add("… right among the first two", sum(a.wanted in a.ranked[:2] for a in of_kind), len(of_kind))
        unknown = [a for a in given if a.wanted == "unknown"]
        if unknown:
            modest = sum(a.causes[0] == "unknown" or a.confidence < 0.5 for a in unknown)
            board.add(f"logs of {name} without an established cause: `unknown`, or below 50 %", modest, len(unknown))
        board.wrong += [
            f"{a.id} ({a.decidable}): {a.wanted}, answered {', '.join(a.causes)} ({a.confidence:.0%})"
            for a in given
            if not a.is_first_right
        ]
    decidable = [a for a in every if a.decidable == "yes"]
    answered = [a for a in decidable if a.causes[0] != "unknown"]
    sure = [a for a in every if a.confidence >= 0.8]
    board.add("decidable logs that were answered at all (coverage)", len(answered), len(decidable))
    board.add("… of these answers right (precision)", sum(a.is_right for a in answered), len(answered))
    board.add("answers of 80 % and more that were right", sum(a.is_right for a in sure), len(sure), 0.95)
    board.tables.append(reliability(every))
    board.notes.append("The rules were tuned on dev and dev2: their confidences look better here than they are.")


def reliability(given: Sequence[Answer]) -> str:
    """Write how often answers of each tier of confidence were right."""
    lines = ["| confidence | answers | mean confidence | right |", "|---|---:|---:|---:|"]
    for low, high in itertools.pairwise(TIERS):
        tier = [a for a in given if low <= a.confidence < high]
        if tier:
            mean = sum(a.confidence for a in tier) / len(tier)
            right = sum(a.is_right for a in tier) / len(tier)
            lines.append(f"| {low:.0%} to {min(high, 1):.0%} | {len(tier)} | {mean:.0%} | {right:.0%} |")
    return "\n".join(lines)


# -- hangs -------------------------------------------------------------------------------------------------


def diagnosed(folder: Path) -> dict[str, Any]:
    """Run `allranks diagnose FOLDER --json`, as a user does."""
    command = [sys.executable, "-m", "allranks", "diagnose", str(folder), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    try:
        document: dict[str, Any] = json.loads(ran.stdout)
    except ValueError:
        return {}
    verdict = document.get("verdict")
    return verdict if isinstance(verdict, dict) else document


def hangs(board: Board, folder: Path) -> None:
    """Compare the culprits of flight-recorder dumps with the ranks that were injected."""
    right = 0
    cases = sorted(path.parent for path in folder.glob("*/truth.json"))
    for case in cases:
        truth = json.loads((case / "truth.json").read_text())["culprit_ranks"]
        named = diagnosed(case).get("culprits") or []
        right += sorted(named) == sorted(truth)
        if sorted(named) != sorted(truth):
            board.wrong.append(f"hang {case.name}: {truth}, named {named}")
    board.add("hangs that others injected: exactly their ranks are named", right, len(cases), 1.0)


# -- lines of kernels --------------------------------------------------------------------------------------

NOT_OURS = (
    (
        r"ACCESS_REG",
        "no business of training, as a monitor read a register that the adapter's firmware keeps "
        "(prometheus/node_exporter 3434)",
    ),
    (
        r"^(?:\[[\d. ]+\] )?CPU: \d+ PID: \d+ Comm: (?!khungtaskd)",
        "the head of any stack that the kernel prints, and the line before it says why",
    ),
)
OURS = (
    (
        r"Port module event\[error\]",
        "an error by the driver's own word (mlx5 events.c), and not of heat",
    ),
    (r"Out of memory: Killed process \d+", "a kill for lack of memory, which the source counts in another row"),
    (r"segfault at .* in lib", "a crash of native code, and not one of NCCL"),
)


def kernel_lines(board: Board, path: Path) -> None:
    """Count faults that are recognised, and what is taken for one and is none, each with its reason."""
    rows = rows_of(path)
    faults = [row for row in rows if row["fault"]]
    reasons: Counter[str] = Counter()
    right = 0
    for row in faults:
        if names_fault(row["line"]):
            right += 1
            continue
        reason = first_reason(NOT_OURS, row["line"])
        reasons[reason or "not recognised"] += 1
        if not reason:
            board.wrong.append(f"kernel line not recognised: {row['line']}")
    harmless = [row for row in rows if not row["fault"]]
    quiet = 0
    for row in harmless:
        reason = first_reason(OURS, row["line"])
        if not names_fault(row["line"]):
            quiet += 1
        elif reason:
            reasons[f"taken for a fault, as it is {reason}"] += 1
        else:
            board.wrong.append(f"kernel line taken for a fault: {row['line']}")
            reasons["taken for a fault, and is none"] += 1
    named = sum(not first_reason(NOT_OURS, row["line"]) for row in faults)
    board.add("kernel lines collected as faults: recognised by the check and the diagnosis", right, len(faults))
    board.add("… of those that are business of training", right, named, 1.0)
    board.add("kernel lines collected as harmless: no alarm", quiet, len(harmless))
    board.notes += [f"{count_of(count, 'kernel line')}: {reason}." for reason, count in reasons.most_common()]


def names_fault(line: str) -> bool:
    """Tell whether the check of a node and the diagnosis of a log both see a fault."""
    in_check = kernel_line_kind(line) is not None or "Xid" in line
    rows = [row_of(read.text) for read in read_line(line)]
    in_log = any(found is not None and found[0].id.startswith(("kernel-", "xid")) for found in rows)
    return in_check and in_log


def first_reason(table: Iterable[tuple[str, str]], line: str) -> str:
    """Give the reason of the first class that a line belongs to; empty where it belongs to none."""
    return next((reason for pattern, reason in table if re.search(pattern, line)), "")


# -- lists of hosts ----------------------------------------------------------------------------------------


OTHER_LISTS = (
    (r",\s*$", "a comma at the end is tolerated, as a shell's list often ends with one"),
    (r"\[-\d|,-\d", "refused, because negative numbers do not belong into a host's name"),
    (r"\d\[|\]\d|\]\[", "digits beside brackets are text, as in Slurm. ClusterShell takes them into the number"),
)


def host_lists(board: Board, path: Path) -> None:
    """Compare expansions with ClusterShell's; what differs on purpose is listed with the reason."""
    reasons: Counter[str] = Counter()
    rows = rows_of(path)
    wanted = [row for row in rows if row["hosts"] is not None]
    right = 0
    for row in wanted:
        names = expanded(row["text"])
        right += names == set(row["hosts"])
        if names != set(row["hosts"]):
            reasons[first_reason(OTHER_LISTS, row["text"]) or "expanded otherwise"] += 1
            board.wrong.append(f"host list {row['text']!r}: {sorted(names or ())[:4]}")
    refused = [row for row in rows if row["hosts"] is None]
    alike = 0
    for row in refused:
        names = expanded(row["text"])
        alike += names is None
        if names is not None:
            reasons[first_reason(OTHER_LISTS, row["text"]) or "accepted, and refused by ClusterShell"] += 1
            board.wrong.append(f"host list {row['text']!r} is refused by ClusterShell: {sorted(names)[:4]}")
    on_purpose = sum(count for reason, count in reasons.items() if any(reason == why for _, why in OTHER_LISTS))
    board.add("host lists: expanded as ClusterShell does", right, len(wanted))
    board.add("host lists that ClusterShell refuses: refused", alike, len(refused))
    board.add("host lists: alike, or otherwise on purpose", right + alike + on_purpose, len(rows), 1.0)
    board.notes += [f"{count_of(count, 'host list')}: {reason}." for reason, count in reasons.most_common()]


def expanded(text: str) -> set[str] | None:
    """Expand a list; None where it is refused."""
    try:
        return set(expand(text))
    except UsageError:
        return None


# -- public suites -----------------------------------------------------------------------------------------


def loghub(board: Board, folder: Path) -> None:
    """Count alarms on lines of supercomputers that their operators labelled `-`: no alert."""
    for name in ("BGL", "Thunderbird", "Linux"):
        path = folder / name / f"{name}_2k.log"
        if not path.is_file():
            board.absent.append(str(path))
            continue
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        if name != "Linux":  # the only one without labels: what it holds is everyday's
            lines = [line for line in lines if line.startswith("- ")]
        alarms = [line for line in lines if kernel_line_kind(line) is not None]
        blamed = list(blaming(lines))
        count = len(lines)
        board.add(f"LogHub {name}: lines without an alert: none for the check", count - len(alarms), count, 1.0)
        board.add(f"LogHub {name}: … that the diagnosis takes for no cause", count - len(blamed), count)
        if blamed and name == "BGL":
            board.notes.append(
                "LogHub: what the diagnosis takes for causes are jobs whose files or rights are missing."
            )
        board.wrong += [f"LogHub {name}, check: {line}" for line in alarms]
        board.wrong += [f"LogHub {name}, diagnosis ({row}): {line}" for row, line in blamed]


def blaming(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Give the lines that a row takes for the cause of a failure, with the row's name."""
    for line in lines:
        for read in read_line(line):
            taken = row_of(read.text)
            if taken is not None and taken[0].role is Sign.ROOT:
                yield taken[0].id, line


def ras(board: Board, path: Path) -> None:
    """Read the texts of NCCL's RAS that its guide shows: each complaint is read, with the processes it names."""
    text = path.read_text(encoding="utf-8")
    blocks = re.findall(r"\.\. code::\n\n((?:(?:  .*)?\n)+)", text)
    shown = 0
    read = 0
    for block in blocks:
        complaints = [part for part in re.split(r"\n\s*\n", block) if HEAD.match(part.strip())]
        shown += len(complaints)
        read_here = list(read_ras("\n\n".join(complaints)))
        named = [re.findall(r"rocess (\d+) on node", part) for part in complaints]
        if [[str(pid) for pid in pids] for _, pids in read_here] == named:
            read += len(read_here)
        else:
            board.wrong.append(f"RAS: {len(complaints)} complaints are shown, {len(read_here)} read")
    board.add("NCCL's guide to RAS: complaints read, with the processes they name", read, shown, 1.0)


MISMATCHES = frozenset({"collective-mismatch", "collective-shape-mismatch"})
KINDS = {  # of torch's MatchState: the causes that say the same
    "COLLECTIVE_TYPE_MISMATCH": frozenset({"collective-mismatch"}),
    "SIZE_OR_SYNTAX_MISMATCH": frozenset({"collective-shape-mismatch"}),
    "COLLECTIVE_DTYPE_MISMATCH": frozenset({"collective-shape-mismatch"}),
    "COLLECTIVE_STATE_MISMATCH": frozenset({"straggler", "collective-mismatch"}),
}


def flight_recorder(board: Board, path: Path) -> None:
    """Give the pairs of calls that torch's own tests compare to `diagnose`, as the dumps of two ranks."""
    ran = subprocess.run([sys.executable, "-c", PAIRS, str(path)], capture_output=True, text=True, check=False)
    if ran.returncode:
        board.wrong.append(f"torch's tests did not run: {ran.stderr[-300:]}")
        board.absent.append(str(path))
        return
    pairs = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    fine: list[bool] = []
    named: list[bool] = []
    for pair in pairs:
        if pair["state"] == "UNDECIDED":
            continue
        with tempfile.TemporaryDirectory() as scratch:
            for rank, entry in enumerate(pair["entries"]):
                (Path(scratch) / f"_dump_{rank}").write_bytes(pickle.dumps(dump_of(entry)))
            cause = diagnosed(Path(scratch)).get("cause")
        if pair["state"] in KINDS:
            named.append(cause in KINDS[pair["state"]])
        else:
            fine.append(cause not in MISMATCHES)
        if cause not in KINDS.get(pair["state"], {cause} - MISMATCHES):
            board.wrong.append(f"flight recorder: torch says {pair['state']}, the answer is {cause}")
    board.add("torch's tests of its recorder analysis: the same kind of mismatch is named", sum(named), len(named), 1.0)
    board.add("… calls that fit: no mismatch is named", sum(fine), len(fine), 1.0)


def dump_of(entry: dict[str, Any]) -> dict[str, Any]:
    """Make a dump of one call, as torch's FlightRecorder.hpp writes it."""
    group = {"name": "0", "desc": "default", "ranks": "[0, 1]"}
    numbers = {key: int(entry[key]) for key in ("collective_seq_id", "p2p_seq_id")}
    dtypes = {key: [entry[key]] if entry[key] else [] for key in ("input_dtypes", "output_dtypes")}
    rest = {"record_id": 0, "pg_id": 0, "op_id": 1, "is_p2p": False, "retired": entry["state"] == "completed"}
    return {"version": "2.10", "pg_config": {"0": group}, "entries": [{**entry, **numbers, **dtypes, **rest}]}


# Runs torch's tests with a comparison that tells what it was given and what it answered.
PAIRS = """
import importlib.util, json, sys, types, unittest
from torch.distributed.flight_recorder.components import utils
internal = types.ModuleType("torch.testing._internal.common_utils")
internal.TestCase, internal.run_tests = unittest.TestCase, unittest.main
sys.modules["torch.testing._internal.common_utils"] = internal
compare = utils.match_one_event
def telling(one, other, members, group):
    answer = compare(one, other, members, group)
    print(json.dumps({"entries": [one, other], "state": answer.state.name}))
    return answer
utils.match_one_event = telling
spec = importlib.util.spec_from_file_location("suite", sys.argv[1])
suite = importlib.util.module_from_spec(spec)
spec.loader.exec_module(suite)
result = unittest.TestResult()
unittest.defaultTestLoader.loadTestsFromTestCase(suite.FlightRecorderEventTest).run(result)
if result.errors or not result.testsRun:
    sys.exit(str(result.errors[:1]))
"""

HEAD = re.compile(r"(?:#\d+-\d+ \([0-9a-f]+\) )?(?:INCOMPLETE|DEAD|MISMATCH|ERROR|TIMEOUT)\n")
SUITES = (
    (loghub, "logpai/loghub"),
    (ras, "NVIDIA/nccl/docs/userguide/source/troubleshooting/ras.rst"),
    (flight_recorder, "pytorch/pytorch/test/distributed/flight_recorder/test_fr_analysis.py"),
)


# -- the page ----------------------------------------------------------------------------------------------


def written(page: str, section: str) -> str:
    """Put the section into the page, in the place of its older one, else behind the logs of `make corpus`."""
    start = page.find("## external: ")
    if start < 0:
        start = page.find("## scan: ")
        return page[:start] + section + "\n" + page[start:]
    end = page.find("\n## ", start + 1)
    return page[:start] + section + page[end:]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.external", description=__doc__.split("\n", 1)[0])
    beside = HERE.parents[2] / "shared"
    parser.add_argument("--shared", type=Path, default=Path(os.environ.get("ALLRANKS_SHARED") or beside))
    suites = os.environ.get("ALLRANKS_SUITES")
    parser.add_argument("--suites", type=Path, default=Path(suites) if suites else None)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    parser.add_argument("--wrong", action="store_true", help="also what was answered wrongly")
    options = parser.parse_args()
    board = measure(options.shared, options.suites)
    for path in board.absent:
        print(f"left out: {path} is not there (--shared DIR, --suites DIR)")
    if not board.scores:
        return 0
    if options.wrong:
        print("\n".join(board.wrong))
    print(board.text())
    if options.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), board.text()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
