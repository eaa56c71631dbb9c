"""One test after the other: its body, the ranks' agreement on what came of it, the line; stops where it has to."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist

from .double import Double
from .job import Job
from .lab import Lab, NotSupported, Test, Unusable
from .options import Options
from .report import Report, plain
from .results import Result, agree
from .watch import Watchdog

PASSED, FAILED = 0, 3


class Runner:
    """One a rank."""

    def __init__(self, job: Job, options: Options, watch: Watchdog, report: Report, double: Double | None) -> None:
        self.job, self.options, self.watch, self.report = job, options, watch, report
        self.lab = report.lab = Lab(job, watch, double, options.size, options.timeout)
        self.lab.quick = options.quick
        self.number = 0

    def run(self, tests: Iterable[Test], show: bool = True) -> bool:
        """False where the process group can't be used any more; `show` is for tests that pass."""
        for test in tests:
            result = self.one(test)
            self.report.result(result, show or result.status != "pass")
            if result.broken:
                return False
        return True

    def one(self, test: Test) -> Result:
        """A test, and what all ranks say of it."""
        number, self.number = self.number, self.number + 1
        self.watch.begin(number, test.name, self.options.timeout)
        self.lab.begin(test.name)
        verdict = self._verdict(test)
        self.watch.finish(verdict["reason"] if verdict["status"] == "error" else "")
        verdicts = self.job.collect(f"verdict/{number}", verdict)
        agreed = agree(test.name, verdicts)._asdict() if verdicts is not None else None
        result = Result(**self.job.announce(f"result/{number}", agreed))
        self.watch.end()
        return result

    def _verdict(self, test: Test) -> dict[str, Any]:
        """status: pass, fail, skip, or error, after which the process group is not to be trusted."""
        began, status, detail, reason = time.monotonic(), "pass", "", ""
        try:
            detail = test.body(self.lab)
            self.lab.settle()
            status = "fail" if self.lab.failure else "pass"
        except NotSupported as error:
            status, reason = "skip", str(error)
        except Unusable as error:
            status, reason = "error", str(error)
        except Exception as error:  # whatever the backend raises: the others have to be told
            status, reason = "error", plain(error)
        return {"status": status, "detail": detail, "reason": reason, "failure": self.lab.failure,
                "seconds": time.monotonic() - began, "arrived": self.lab.arrived or 0.0}  # fmt: skip

    def finish(self, intact: bool) -> int:
        """The statement, and the end of the process group where it is intact; the exit code."""
        failed = any(result.status == "fail" for result in self.report.results)
        code = FAILED if failed else PASSED
        if intact and dist.is_initialized():
            self.watch.begin(self.number, "destroy_process_group", self.options.timeout)
            dist.destroy_process_group()
            self.watch.end()
        self.report.close(code)
        return code
