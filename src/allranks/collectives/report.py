"""What is printed and written: a line a test as it happens, and the statement at the end of what was tested."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Sequence

from . import double, results
from .hang import Hang
from .job import Job
from .lab import Lab
from .options import Options
from .results import Result
from .setup import INTERFACES, Setup, nccl_version
from .sizes import say_size

SHOWN = 8  # stacks, nodes
LONGEST = 300  # characters of an error
# Gloo's `[…/pair.cc:537] Read error [10.0.0.1]:3811: Connection reset by peer. This is typically caused …`.
SOURCE = re.compile(r"^\[[^\]]*\.(?:cc|cpp|h):\d+\] *")
PORT, ADVICE = re.compile(r"\]:\d+"), re.compile(r"\. This is .*")


class Report:
    """One a rank: rank 0 prints; another one only when rank 0 has gone."""

    def __init__(self, job: Job, options: Options) -> None:
        self.job, self.options = job, options
        self.setup = Setup(job, options)
        self.lab: Lab | None = None
        self.results: list[Result] = []
        self.planned: Sequence[str] = ()
        self.others: Sequence[str] = ()
        self.remarks: list[str] = []
        self.lock = threading.RLock()
        self.closed = False

    def say(self, text: str) -> None:
        """A line of rank 0."""
        if self.job.rank == 0:
            print(text, flush=True)

    def write(self, content: str) -> None:
        """A row of rank 0's file."""
        if self.job.rank == 0:
            self._append(content)

    def plan(self, names: Sequence[str], every: Sequence[str]) -> None:
        """What is going to be tested, of all that could be."""
        self.planned, self.others = names, [name for name in every if name not in names]

    def note_refusal(self) -> None:
        """Say at once that payloads are smaller than asked for."""
        if self.setup.refused:
            self.say(f"note: {self.setup.refused}")

    def result(self, result: Result, show: bool = True) -> None:
        """A test has ended."""
        self.results.append(result)
        if show:
            self.say(results.line(result, self.job.world))
            self.write(results.as_json(result, self.job.world))

    def hang(self, hang: Hang) -> None:
        """The watchdog's last word, on whichever rank speaks."""
        with self.lock:
            if self.closed:
                return
            found = results.of_hang(hang)
            self.results.append(found)
            stacks = [f"  rank {rank} was in {stack[-1]}" for rank, stack in hang.stacks.items() if stack]
            more = [f"  and {len(stacks) - SHOWN} more"] if len(stacks) > SHOWN else []
            where = ["  the stacks of all threads are in each rank's stderr"]
            lines = [results.line(found, self.job.world), *stacks[:SHOWN], *more, *where]
            print("\n".join(lines), flush=True)
            self._append(results.as_json(found, self.job.world))
            self._close(5)

    def close(self, code: int) -> None:
        """The statement."""
        with self.lock:
            if self.job.rank == 0 and not self.closed:
                self._close(code)

    def _close(self, code: int) -> None:
        self.closed = True
        first = next((result for result in self.results if result.status in ("fail", "hang")), None)
        lines = self.statement()
        failure = {"test": first.test, "reason": first.reason} if first else None
        lines.append(f"FIRST FAILURE: {first.test}: {first.reason}" if first else "ALL TESTS PASSED!")
        print("\n".join(["", *lines]), flush=True)
        end = {"schema": 1, "kind": "end", "suite": self.options.suite, "ok": code == 0, "exit": code}
        self._append(json.dumps({**end, "statement": lines, "first_failure": failure}))

    def _append(self, text: str) -> None:
        if self.options.out:
            with open(self.options.out, "a", encoding="utf-8") as file:
                file.write(text + "\n")

    # The statement.
    def statement(self) -> list[str]:
        """What was tested, on what, and what was not."""
        lab = self.lab
        passed = [result.test for result in self.results if result.status == "pass"]
        lines = [f"passed: {', '.join(passed) or 'nothing'}", f"on: {self._where()}"]
        if lab and lab.payloads:
            ends = dict.fromkeys((say_size(min(lab.payloads)), say_size(max(lab.payloads))))
            lines.append(f"payloads: {' to '.join(ends)} a rank")
        if lab and lab.dtypes:
            lines.append(f"types: {', '.join(lab.dtypes)}")
        said = [f"{name}={os.environ[name]}" if os.environ.get(name) else f"{name} not set" for name in INTERFACES]
        lines.append(f"interfaces: {', '.join(said)}")
        lines += self.remarks
        lines += [f"untested: {what}" for what in self._untested(lab)]
        if os.environ.get(double.NAME):
            lines.append(f"not a test of this cluster: {double.NAME}={os.environ[double.NAME]} falsifies it")
        return lines

    def _where(self) -> str:
        lab, job = self.lab, self.job
        counts = [f"{name} {len(ranks)}" for name, ranks in zip(self.setup.node_names(), job.nodes.values())]  # noqa: B905
        shown = ", ".join([*counts[:SHOWN], *([f"{len(counts) - SHOWN} more"] if len(counts) > SHOWN else [])])
        nodes = f"{len(counts)} node{'s' * (len(counts) != 1)} ({shown})" if counts else "nodes not known"
        parts = [f"{job.world} ranks", nodes]
        if lab and self.setup.facts:
            parts += [f"{lab.backend} on {lab.device.type}", " and ".join(self.setup.versions())]
            parts += [f"NCCL {nccl_version()}"] if lab.backend == "nccl" else []
        return ", ".join(parts)

    def _untested(self, lab: Lab | None) -> list[str]:
        found = [self.setup.refused] if self.setup.refused else []
        found += [f"{r.test}: {r.reason}" for r in self.results if r.status == "skip"]
        found += lab.untested if lab else []
        ran = {result.test for result in self.results}
        left = [name for name in self.planned if name not in ran]
        found += [f"{', '.join(left)}: not reached"] if left else []
        why = "not asked for (--only)" if self.options.only else "not in --quick"
        found += [f"{', '.join(self.others)}: {why}"] if self.others else []
        other = {"sync": "speed (--suite bandwidth)", "bandwidth": "correct results (--suite sync)"}
        return [*found, f"{other[self.options.suite]}, every pair of nodes by itself (--suite pairs)"]


def plain(error: BaseException) -> str:
    """An error's type and first line, without what differs by rank for the same fault: source file, peer's port."""
    lines = str(error).strip().splitlines()
    first = PORT.sub("]", ADVICE.sub("", SOURCE.sub("", lines[0] if lines else "")))
    return f"{type(error).__name__}: {first[:LONGEST]}".rstrip(": ")
