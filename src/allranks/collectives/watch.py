"""The watchdog of a rank: says where the rank is, and ends the process with a report when a test does not end.

A thread with its own connection to the store. The main thread may sit in a collective for ever: this one publishes
its place (test, round) and a life sign each second, keeps the time limit, and hears SIGTERM through a pipe, because
Python's own handlers wait for the main thread.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from .hang import BEFORE, END, Hang, Place, decode, describe, silent_ranks, split
from .job import SPARE, Job

BEAT = 1.0
GRACE = 5.0  # seconds that the others have left once a rank has given up
LOOK, LOOK_ENDING = 2.2, 1.3  # seconds between two looks at the life signs; the latter when launchers end the ranks
PATIENCE, PATIENCE_ENDING = 12.0, 4.0  # seconds for rank 0 to report; the latter as above: SIGKILL may follow
HEARD = 3.0  # seconds that whoever reports stays for the others, which hear of it through the store
LAST = 30.0  # seconds for a report: the store may not answer
HANG, TERMINATED = 5, 143


class Watchdog(threading.Thread):
    """One a rank. `tell` is given the report: on rank 0, elsewhere only when rank 0 does not speak."""

    def __init__(self, job: Job, tell: Callable[[Hang], None]) -> None:
        super().__init__(daemon=True, name="allranks watchdog")
        self.job, self.tell, self.store = job, tell, job.client()
        self.test, self.name_of_test, self.part, self.limit = -1, "", "", 0.0
        self.began, self.gave_up = time.monotonic(), 0.0
        self.watching = False
        self.place = Place(-1, BEFORE, 0.0, 0)
        self.last: threading.Timer | None = None
        self.reporting = threading.Lock()
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda number, frame: None)

    # For the main thread.
    def begin(self, number: int, test: str, limit: float) -> None:
        """A test begins; `number` counts them."""
        self.test, self.name_of_test, self.part, self.limit = number, test, "", limit
        self.gave_up = 0.0
        self.renew()
        self.watching = True
        self._move(BEFORE)

    def renew(self) -> None:
        """The limit starts anew."""
        self.began = time.monotonic()

    def arrive(self, turn: int) -> None:
        """Right before a collective."""
        self._move(turn)

    def finish(self, error: str = "") -> None:
        """All collectives of the test are done or have failed; the agreement on the verdict is watched still."""
        self._move(END, error)

    def end(self) -> None:
        """The verdict is known."""
        self.watching = False

    def elapsed(self) -> float:
        """Seconds since the test began."""
        return time.monotonic() - self.began

    def store_lost(self, problem: Exception) -> None:
        """Report that the store has gone, and end the process with 5; also for the main thread."""
        self.reporting.acquire()  # never released: the process ends
        holder = "its holder has gone" if self.job.agents_store else "rank 0, which holds it, has gone"
        first = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        text = f"the store at {self.job.host}:{self.job.port} does not answer: {holder} ({first})"
        missing = [] if self.job.agents_store else [0]
        if self.job.local_rank == 0 or (self.job.node == 0 and self.job.local_rank == 1):
            self.tell(Hang(self.name_of_test, text, [self.job.rank], missing, missing, {}, {}))
        else:  # one a node is enough
            print(f"allranks: {self.name_of_test}: {text}", file=sys.stderr, flush=True)
        leave(HANG)

    def _move(self, turn: int, error: str = "") -> None:
        self.place = Place(self.test, turn, round(self.elapsed(), 3), 0, error)
        with contextlib.suppress(BlockingIOError):  # enough wake-ups are waiting
            os.write(self.writer, b"\0")

    # The thread.
    def run(self) -> None:
        """Until the process ends."""
        threading.Thread(target=self._watch_the_watch, daemon=True, name="allranks last resort").start()
        while True:
            if self._sleep(BEAT):
                self._terminated()
            try:
                self._publish()
                self._hear_of_errors()
            except Exception as problem:  # the store's own error types differ by torch version
                if self.watching:
                    self.store_lost(problem)
                time.sleep(BEAT)  # the main thread will notice by itself
            self._judge()

    def _judge(self) -> None:
        if not self.watching:
            return
        if self.elapsed() > self.limit:
            self._expire(f"no end within {self.limit:g} s", HANG, LOOK)
        if self.gave_up and time.monotonic() > self.gave_up + GRACE:
            self._expire(f"no end within {GRACE:g} s after an error", HANG, LOOK)

    def _watch_the_watch(self) -> None:
        """A store that takes bytes and does not answer blocks the watchdog itself."""
        while True:
            time.sleep(BEAT)
            if self.watching and self.elapsed() > self.limit + SPARE + LAST:
                self.store_lost(TimeoutError(f"no answer within {SPARE + LAST:g} s"))

    def _sleep(self, longest: float) -> bool:
        """Until something happens; True on SIGTERM."""
        if self.watching:
            longest = max(0.0, min(longest, self.limit - self.elapsed() + 0.01))
        ready, _, _ = select.select([self.reader], [], [], longest)
        return bool(ready) and signal.SIGTERM in os.read(self.reader, 4096)

    def _publish(self) -> None:
        beat = int(time.monotonic() * 1000)
        self.store.set(f"place/{self.job.rank}", json.dumps(self.place._replace(beat=beat)))
        if self.place.error:
            self.store.set(f"error/{self.place.test}", "1")

    def _hear_of_errors(self) -> None:
        """After an error on one rank the others may wait for ever: they do not get the whole limit."""
        if self.watching and not self.gave_up and self.store.check([f"error/{self.test}"]):
            self.gave_up = time.monotonic()

    def _terminated(self) -> None:
        if not self.watching:
            leave(TERMINATED)
        self._expire("ended by SIGTERM, which launchers send when a rank has gone", TERMINATED, LOOK_ENDING)

    def _expire(self, reason: str, code: int, look: float) -> None:
        """Stack to stderr and to the store, the report, and out."""
        reason += self.part
        print(f"allranks: {self.name_of_test}: {reason}; stacks of rank {self.job.rank}:", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        last = threading.Timer(LAST, self.store_lost, [TimeoutError(f"no answer within {LAST:g} s")])
        last.daemon = True
        last.start()
        try:
            self._publish()
            self.store.set(f"stack/{self.test}/{self.job.rank}", json.dumps(main_stack()))
            if not self._is_mine(PATIENCE if code == HANG else PATIENCE_ENDING):
                self.store.set(f"heard/{self.test}/{self.job.rank}", "1")
                leave(code)
            report = self._report(reason, look)
            with self.reporting:
                last.cancel()
                self.tell(report)
            self.store.set(f"told/{self.test}", "1")
            self._stay(set(range(self.job.world)) - {self.job.rank, *report.silent})
        except Exception as problem:
            if not self._told_already():
                self.store_lost(problem)
        leave(code)

    def _is_mine(self, patience: float) -> bool:
        """Whether this rank has to report: rank 0, or the first of the others where rank 0 does not."""
        if self.job.rank == 0:
            return True
        if self._told(patience):
            return False
        return bool(self.store.add(f"teller/{self.test}", 1) == 1) or not self._told(patience)

    def _told(self, patience: float) -> bool:
        """Whether another rank has reported; gives signs of life meanwhile."""
        until = time.monotonic() + patience
        while time.monotonic() < until:
            if self._told_already():
                return True
            self._publish()
            time.sleep(0.1)
        return False

    def _told_already(self) -> bool:
        try:
            return bool(self.store.check([f"told/{self.test}"]))
        except Exception:  # the store has gone with its holder
            return False

    def _stay(self, ranks: set[int]) -> None:
        """The store may end with this process."""
        until = time.monotonic() + HEARD
        while ranks and time.monotonic() < until:
            ranks = {rank for rank in ranks if not self.store.check([f"heard/{self.test}/{rank}"])}
            time.sleep(0.05)

    def _report(self, reason: str, look: float) -> Hang:
        time.sleep(0.3)
        before = self._places()
        time.sleep(look)
        self._publish()
        places = self._places()
        silent = silent_ranks(before, places)
        arrived, missing = split(places, self.test)
        text = describe(reason, places, self.test, silent)
        stacks = {str(rank): stack for rank in places for stack in [self._read(f"stack/{self.test}/{rank}")] if stack}
        shown = {str(rank): place._asdict() for rank, place in places.items() if place}
        return Hang(self.name_of_test, text, arrived, missing, silent, shown, stacks)

    def _places(self) -> dict[int, Place | None]:
        raw = {rank: self._read(f"place/{rank}") for rank in range(self.job.world)}
        return {rank: decode(found) if found else None for rank, found in raw.items()}

    def _read(self, key: str) -> Any:
        return json.loads(self.store.get(key)) if self.store.check([key]) else None


def leave(code: int) -> None:
    """End the process now, whatever the main thread waits for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main_stack(deepest: int = 8) -> list[str]:
    """Where the main thread is: `file:line function`, innermost last."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    summary = traceback.extract_stack(frame)[-deepest:] if frame else []
    return [f"{entry.filename}:{entry.lineno} {entry.name}" for entry in summary]
