"""The watchdog of a rank: says where the rank is, and ends the process with a report when a test does not end.

A thread with its own connection to the store. The main thread may sit in a collective for ever: this one publishes
its place (test, round) and a life sign each second, keeps the time limit, and hears SIGTERM through a pipe, because
Python's own handlers wait for the main thread.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace

from allranks.exitcodes import CHECK_FAILED, HANG, TERMINATED
from allranks.text import error_line

from ..analysis.agreement import BEFORE, NOWHERE, describe_hang, silent_ranks, split_arrived
from ..metric_rows import SuiteHang, SuitePlace
from .job import SLACK, STORE_ERRORS, SuiteJob, is_set, put, take

BEAT = 1.0  # seconds between life signs
GRACE = 5.0  # seconds that the others have left once a rank has given up
SAMPLING = 2.2  # seconds between two samples of the life signs
SAMPLING_ENDING = 1.3  # … when launchers end the ranks: SIGKILL may follow
PATIENCE = 12.0  # seconds for rank 0 to report
PATIENCE_ENDING = 4.0
GATHERING = 0.3  # seconds until the other ranks have noticed, too
FAREWELL = 3.0  # seconds that whoever reports stays for the others, which hear of it through the store
LAST = 30.0  # seconds for a report: the store may not answer
STACK_DEPTH = 8


class Watchdog(threading.Thread):
    """One a rank. It gives `report_hang` the report: on rank 0, elsewhere only when rank 0 does not report."""

    report_hang: Callable[[SuiteHang], None]

    def __init__(self, job: SuiteJob) -> None:
        super().__init__(daemon=True, name="allranks watchdog")
        self.job = job
        self.store = job.connect()
        self.test = -1
        self.name_of_test = ""
        self.part = ""
        self.limit = 0.0
        self.began = time.monotonic()
        self.gave_up = 0.0
        self.watching = False
        self.place = NOWHERE
        self.reporting = threading.Lock()
        self.reader, self.writer = os.pipe()

    def launch(self, report_hang: Callable[[SuiteHang], None]) -> None:
        """Start the thread, and take SIGTERM over."""
        self.report_hang = report_hang
        os.set_blocking(self.writer, False)
        signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        self.start()

    # -- for the main thread ---------------------------------------------------------------------------

    def begin(self, number: int, test: str, limit: float) -> None:
        """Note that a test begins; `number` counts them."""
        self.test = number
        self.name_of_test = test
        self.part = ""
        self.limit = limit
        self.gave_up = 0.0
        self.renew()
        self.watching = True
        self.move(BEFORE)

    def renew(self) -> None:
        """Start the limit again."""
        self.began = time.monotonic()

    def end(self) -> None:
        """Note that the verdict is there."""
        self.watching = False

    def elapsed(self) -> float:
        """Give the seconds since the test began."""
        return time.monotonic() - self.began

    def store_lost(self, problem: Exception) -> None:
        """Report that the store is lost, and end the process with 5; also for the main thread."""
        self.reporting.acquire()  # never released: the process ends
        job = self.job
        holder = "rank 0, which holds it, has ended"
        missing: tuple[int, ...] = (0,)
        if job.agents_store:
            holder = "its holder has ended"
            missing = ()
        text = f"the store at {job.host}:{job.port} does not answer: {holder} ({error_line(problem)})"
        if job.local_rank == 0 or (job.node == 0 and job.local_rank == 1):
            self.report_hang(
                SuiteHang(self.name_of_test, text, arrived=(job.rank,), missing=missing, silent=missing, stacks={})
            )
        else:  # one a node is enough
            print(f"allranks: {self.name_of_test}: {text}", file=sys.stderr, flush=True)
        leave(HANG)

    def move(self, turn: int, error: str = "") -> None:
        """Note that a round comes next; END: all are done or have failed, and the agreement is still watched."""
        self.place = SuitePlace(self.test, turn, 0, error)
        with contextlib.suppress(BlockingIOError):  # enough wake-ups are waiting
            os.write(self.writer, b"\0")

    # -- the thread ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Watch until the process ends. It ends where the watchdog itself fails: a test might wait for ever."""
        threading.Thread(target=self._watch_store, daemon=True, name="allranks last resort").start()
        try:
            self._watch()
        except Exception:
            print(f"allranks: the watchdog of rank {self.job.rank} failed", file=sys.stderr)
            traceback.print_exc()
            leave(CHECK_FAILED)

    def _watch(self) -> None:
        while True:
            if self._wait(BEAT):
                if not self.watching:
                    leave(TERMINATED)
                self._expire("ended by SIGTERM, which launchers send when a rank has ended", TERMINATED)
            try:
                self._publish()
                if self.watching and not self.gave_up and is_set(self.store, f"error/{self.test}"):
                    # After an error on one rank the others may wait for ever: they do not get all of the limit.
                    self.gave_up = time.monotonic()
            except STORE_ERRORS as problem:
                if self.watching:
                    self.store_lost(problem)
                time.sleep(BEAT)  # the main thread will notice by itself
            if self.watching and self.elapsed() > self.limit:
                self._expire(f"no end within {self.limit:g} s", HANG)
            if self.watching and self.gave_up and time.monotonic() > self.gave_up + GRACE:
                self._expire(f"no end within {GRACE:g} s after an error", HANG)

    def _watch_store(self) -> None:
        """End the process where a store that takes bytes and does not answer blocks the watchdog itself."""
        while True:
            time.sleep(BEAT)
            if self.watching and self.elapsed() > self.limit + SLACK + LAST:
                self.store_lost(TimeoutError(f"no answer within {SLACK + LAST:g} s"))

    def _wait(self, longest: float) -> bool:
        """Wait until something happens; tell whether it is SIGTERM."""
        if self.watching:
            longest = max(0.0, min(longest, self.limit - self.elapsed() + 0.01))
        ready, _, _ = select.select([self.reader], [], [], longest)
        return bool(ready) and signal.SIGTERM in os.read(self.reader, 4096)

    def _publish(self) -> None:
        beat = int(time.monotonic() * 1000)
        put(self.store, f"place/{self.job.rank}", replace(self.place, beat=beat))
        if self.place.error:
            self.store.set(f"error/{self.place.test}", "1")

    def _expire(self, reason: str, code: int) -> None:
        reason += self.part
        patience = PATIENCE
        sampling = SAMPLING
        if code == TERMINATED:
            patience = PATIENCE_ENDING
            sampling = SAMPLING_ENDING
        print(f"allranks: {self.name_of_test} {reason}, stacks of rank {self.job.rank}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        last = threading.Timer(LAST, self.store_lost, [TimeoutError(f"no answer within {LAST:g} s")])
        last.daemon = True
        last.start()
        try:
            self._publish()
            self.store.set(f"stack/{self.test}/{self.job.rank}", "\n".join(main_stack()))
            if not self._must_report(patience):
                self.store.set(f"heard/{self.test}/{self.job.rank}", "1")
                leave(code)
            report = self._sample(reason, sampling)
            with self.reporting:
                last.cancel()
                self.report_hang(report)
            self.store.set(f"reported/{self.test}", "1")
            self._stay(set(range(self.job.world)) - {self.job.rank, *report.silent})
        except STORE_ERRORS as problem:
            if not self._is_reported():
                self.store_lost(problem)
        leave(code)

    def _must_report(self, patience: float) -> bool:
        """Tell whether this rank has to report: rank 0, or the first of the others where rank 0 does not."""
        if self.job.rank == 0:
            return True
        if self._wait_for_report(patience):
            return False
        return self.store.add(f"reporter/{self.test}", 1) == 1 or not self._wait_for_report(patience)

    def _wait_for_report(self, patience: float) -> bool:
        """Tell whether another rank has reported; give life signs meanwhile."""
        until = time.monotonic() + patience
        while time.monotonic() < until:
            if self._is_reported():
                return True
            self._publish()
            time.sleep(0.1)
        return False

    def _is_reported(self) -> bool:
        try:
            return is_set(self.store, f"reported/{self.test}")
        except STORE_ERRORS:  # the store has ended with its holder
            return False

    def _stay(self, ranks: set[int]) -> None:
        """Wait for the others: the store may end with this process."""
        until = time.monotonic() + FAREWELL
        while ranks and time.monotonic() < until:
            ranks = {rank for rank in ranks if not is_set(self.store, f"heard/{self.test}/{rank}")}
            time.sleep(0.05)

    def _sample(self, reason: str, seconds: float) -> SuiteHang:
        time.sleep(GATHERING)
        before = self._places()
        time.sleep(seconds)
        self._publish()
        places = self._places()
        silent = silent_ranks(before, places)
        arrived, missing = split_arrived(places, self.test)
        stacks: dict[int, tuple[str, ...]] = {}
        for rank in places:
            key = f"stack/{self.test}/{rank}"
            if is_set(self.store, key):
                stacks[rank] = tuple(self.store.get(key).decode().splitlines())
        return SuiteHang(
            self.name_of_test,
            describe_hang(reason, places, self.test, silent),
            arrived=tuple(arrived),
            missing=tuple(missing),
            silent=tuple(silent),
            stacks=stacks,
        )

    def _places(self) -> dict[int, SuitePlace]:
        places = dict.fromkeys(range(self.job.world), NOWHERE)
        for rank in places:
            if is_set(self.store, f"place/{rank}"):
                places[rank] = take(self.store, f"place/{rank}", SuitePlace)
        return places


def leave(code: int) -> None:
    """End the process now, whatever the main thread waits for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main_stack() -> list[str]:
    """Tell where the main thread is: `file:line function`, innermost last."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return []
    entries = traceback.extract_stack(frame)[-STACK_DEPTH:]
    return [f"{entry.filename}:{entry.lineno} {entry.name}" for entry in entries]
