"""One test after the other: its body, the ranks' agreement on what came of it, the line; stops where it has to."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch.distributed as dist

from allranks.exitcodes import CHECK_FAILED, code_if

from ..analysis.agreement import END, RankVerdict, agree
from ..metric_rows import CollectiveRow
from . import process_group
from .job import SuiteJob
from .lab import Lab, NotSupported, Test, Unusable
from .options import Options
from .printing import SuiteReport, describe_error
from .process_group import ProcessGroup
from .watchdog import Watchdog


class Runner:
    """One a rank."""

    def __init__(self, job: SuiteJob, options: Options) -> None:
        self.job = job
        self.options = options
        self.watch = Watchdog(job)
        self.lab = Lab(job, self.watch, options)
        self.group = ProcessGroup(job, options)
        self.report = SuiteReport(job, options, self.group, self.lab)
        self.number = 0
        self.intact = True  # the process group can still be used
        self.watch.launch(self.report.hang)

    def run(self, tests: Mapping[str, Test], every: Sequence[str], show_passed: bool = True) -> None:
        """Make the process group and run the tests, of `every` one that there is, until it cannot be used."""
        self.report.planned = list(tests)
        self.report.left_out = [name for name in every if name not in tests]
        self._add(process_group.NAME, self.group.make, True)
        if self.group.refusal:
            self.report.say(f"note: {self.group.refusal}")
        for name, test in tests.items():
            if self.intact:
                self._add(name, test, show_passed)

    def _add(self, name: str, test: Test, show_passed: bool) -> None:
        row = self._agreed(name, test)
        self.report.add(row, show_passed or row.status != "pass")
        self.intact = not row.broken

    def _agreed(self, name: str, test: Test) -> CollectiveRow:
        number = self.number
        self.number += 1
        self.watch.begin(number, name, self.options.timeout)
        self.lab.begin(name)
        verdict = self._verdict(test)
        self.watch.move(END, verdict.reason if verdict.status == "error" else "")
        verdicts = self.job.collect(f"verdict/{number}", verdict)
        row = self.job.announce(f"result/{number}", CollectiveRow, agree(name, verdicts) if verdicts else None)
        self.watch.end()
        return row

    def _verdict(self, test: Test) -> RankVerdict:
        began = time.monotonic()
        status = "pass"
        detail = ""
        reason = ""
        try:
            detail = test(self.lab)
            self.lab.settle()
            if self.lab.difference:
                status = "fail"
        except NotSupported as error:
            status = "skip"
            reason = str(error)
        except Unusable as error:
            status = "error"
            reason = str(error)
        except Exception as error:  # whatever the backend raises: the others wait for this rank's verdict
            status = "error"
            reason = describe_error(error)
        seconds = time.monotonic() - began
        return RankVerdict(status, detail, reason, self.lab.difference, seconds, self.lab.arrived or 0.0)

    def finish(self) -> int:
        """End the process group where it is intact, print the statement, and give the exit code."""
        code = code_if(any(row.status == "fail" for row in self.report.rows), CHECK_FAILED)
        if self.intact and dist.is_initialized():
            self.watch.begin(self.number, "destroy_process_group", self.options.timeout)
            dist.destroy_process_group()
            self.watch.end()
        self.report.close(code)
        return code
