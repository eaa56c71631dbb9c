"""What is printed and written: a line a test as it happens, and the statement at the end of what was tested."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence

import torch

from allranks.exitcodes import HANG
from allranks.protocol.codec import encode, write_json
from allranks.text import count_of, first_line, format_size_option

from ..metric_rows import CollectiveRow, Row, SuiteEndRow, SuiteHang
from .job import SuiteJob
from .lab import Lab
from .options import Options
from .process_group import ProcessGroup

STACKS_SHOWN = 8
NODES_SHOWN = 8
LONGEST = 300  # characters of an error
INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
OTHER_SUITES = {"sync": "speed (--suite bandwidth)", "bandwidth": "correct results (--suite sync)"}
# Gloo's `[…/pair.cc:537] Read error [10.0.0.1]:3811: Connection reset by peer. This is typically caused …`.
SOURCE = re.compile(r"^\[[^\]]*\.(?:cc|cpp|h):\d+\] *")
PORT = re.compile(r"\]:\d+")
ADVICE = re.compile(r"\. This is .*")


class SuiteReport:
    """One a rank: rank 0 prints; another one only when rank 0 has ended."""

    def __init__(self, job: SuiteJob, options: Options, group: ProcessGroup, lab: Lab) -> None:
        self.job = job
        self.options = options
        self.group = group
        self.lab = lab
        self.rows: list[CollectiveRow] = []
        self.planned: Sequence[str] = ()
        self.left_out: Sequence[str] = ()
        self.remarks: list[str] = []
        self.lock = threading.RLock()
        self.closed = False

    def say(self, text: str) -> None:
        """Print a line of rank 0."""
        if self.job.rank == 0:
            print(text, flush=True)

    def write(self, row: Row) -> None:
        """Append a row to rank 0's file."""
        if self.job.rank == 0:
            append_row(self.options.out, row)

    def add(self, row: CollectiveRow, show: bool = True) -> None:
        """Note the end of a test."""
        self.rows.append(row)
        if show:
            self.say(collective_line(row))
            self.write(row)

    def hang(self, hang: SuiteHang) -> None:
        """Print the watchdog's last word, on whichever rank reports."""
        with self.lock:
            if self.closed:
                return
            row = CollectiveRow(hang.test, "hang", reason=hang.text, hang=hang, ranks=self.job.world)
            self.rows.append(row)
            lines = [f"  rank {rank} was in {stack[-1]}" for rank, stack in hang.stacks.items() if stack]
            if len(lines) > STACKS_SHOWN:
                lines[STACKS_SHOWN:] = [f"  and {len(lines) - STACKS_SHOWN} more"]
            lines.append("  the stacks of all threads are in each rank's stderr")
            print("\n".join([collective_line(row), *lines]), flush=True)
            append_row(self.options.out, row)
            self._close(HANG)

    def close(self, code: int) -> None:
        """Print the statement."""
        with self.lock:
            if self.job.rank == 0 and not self.closed:
                self._close(code)

    def _close(self, code: int) -> None:
        self.closed = True
        lines = self.statement()
        first = next((row for row in self.rows if row.status in ("fail", "hang")), None)
        if first is None:
            lines.append("ALL TESTS PASSED!")
        else:
            lines.append(f"FIRST FAILURE in {first.test}: {first.reason}")
        print("\n".join(["", *lines]), flush=True)
        append_row(self.options.out, SuiteEndRow(self.options.suite, code == 0, code, tuple(lines)))

    # -- the statement ---------------------------------------------------------------------------------

    def statement(self) -> list[str]:
        """Write what was tested, on what, and what was not."""
        lab = self.lab
        passed = [row.test for row in self.rows if row.status == "pass"]
        lines = [f"passed: {', '.join(passed) or 'nothing'}", f"on: {self._describe_ranks()}"]
        if lab.payloads:
            ends = dict.fromkeys(format_size_option(size) for size in (min(lab.payloads), max(lab.payloads)))
            lines.append(f"payloads: {' to '.join(ends)} a rank")
        if lab.dtypes:
            lines.append(f"types: {', '.join(lab.dtypes)}")
        values = {name: os.environ.get(name) for name in INTERFACES}
        settings = [f"{name}={value}" if value else f"{name} not set" for name, value in values.items()]
        lines.append(f"interfaces: {', '.join(settings)}")
        lines += self.remarks
        lines += [f"untested: {what}" for what in self._untested()]
        return lines

    def _describe_ranks(self) -> str:
        lab = self.lab
        facts = self.group.facts
        names = {node: facts[ranks[0]].host for node, ranks in lab.nodes.items()}
        names.update(enumerate(self.options.nodes))
        counts = [f"{names[node]} {len(ranks)}" for node, ranks in lab.nodes.items()]
        shown = counts[:NODES_SHOWN]
        if len(counts) > NODES_SHOWN:
            shown.append(f"{len(counts) - NODES_SHOWN} more")
        nodes = "nodes not known"
        if counts:
            nodes = f"{count_of(len(counts), 'node')} ({', '.join(shown)})"
        parts = [f"{self.job.world} ranks", nodes]
        if facts:
            parts += [f"{lab.backend} on {lab.device.type}", " and ".join(sorted({fact.versions for fact in facts}))]
        if lab.backend == "nccl":
            version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]  # torch gives it no types
            parts.append(f"NCCL {'.'.join(map(str, version))}")
        return ", ".join(parts)

    def _untested(self) -> list[str]:
        untested = list(filter(None, [self.group.refusal]))
        untested += [f"{row.test}: {row.reason}" for row in self.rows if row.status == "skip"]
        untested += self.lab.untested
        ran = {row.test for row in self.rows}
        not_reached = [name for name in self.planned if name not in ran]
        if not_reached:
            untested.append(f"{', '.join(not_reached)}: not reached")
        if self.left_out:
            why = "not in --quick"
            if self.options.only:
                why = "not asked for (--only)"
            untested.append(f"{', '.join(self.left_out)}: {why}")
        return [*untested, f"{OTHER_SUITES[self.options.suite]}, every pair of nodes by itself (--suite pairs)"]


def append_row(path: str, row: Row) -> None:
    """Append a row to a file of JSON lines; do nothing without a path."""
    if path:
        with open(path, "ab") as file:
            file.write(write_json(encode(row)) + b"\n")


def collective_line(row: CollectiveRow) -> str:
    """Write `PASS all_reduce            4 ranks  float32 int64   0.012 s`."""
    word = {"pass": "PASS", "skip": "SKIP"}.get(row.status, "FAIL")
    text = row.reason
    if row.status == "pass":
        text = f"{row.seconds:8.3f} s  {row.detail}"
    if row.late:
        text += f"   rank {row.late.rank} came {row.late.seconds:.1f} s late"
    return f"{word} {row.test:<22} {row.ranks:>4} ranks  {text}"


def describe_error(error: BaseException) -> str:
    """Give an error's type and first line, without what differs by rank for one fault: source file, peer's port."""
    text = PORT.sub("]", ADVICE.sub("", SOURCE.sub("", first_line(str(error), LONGEST))))
    return f"{type(error).__name__}: {text}".rstrip(": ")
