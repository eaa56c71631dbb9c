"""The agent's side of `allranks.should_save`: numbers that it shares with each rank (program.py has the other side).

A rank writes its step and then reads the request. The agent writes the request, lets a moment pass, and then reads the
rank's step. So a rank whose step is below the proposed one meets the proposal when it comes there, without a lock. The
file is read and written, not mapped: a program that cuts it short must not end the agent (SIGBUS).
"""

from __future__ import annotations

import os
import struct
import time
from typing import Callable, Dict, Optional, Tuple

from allranks.protocol.messages import RankSaving, SavingMessage
from allranks.protocol.node_names import NodeFiles
from allranks.protocol.orders import LARGEST_STEP, SAVE_PHASES, SaveOrder

from .files import open_left

# Places of the numbers, as in program.py.
CALLS, LAST, BEFORE, HOLDS, ANSWERED, ANSWERED_STEP, ANSWERED_CALL = range(7)
REQUEST, PHASE, STEP = range(8, 11)
SHARED_NUMBERS = 12
SIZE = 8 * SHARED_NUMBERS
SETTLE = 0.003  # seconds for a rank that has read the old request to show its step: it needs microseconds
LOOK_EVERY = 0.1
READS = 3  # of numbers that change meanwhile


class SaveForwarding:
    """The request to save that this node has been sent last. `tell` takes what becomes of it."""

    def __init__(self, node_dir: str, tell: Callable[[SavingMessage], None]) -> None:
        self._files = NodeFiles(node_dir)
        self._tell = tell
        self._order: Optional[SaveOrder] = None
        self._told: Dict[int, RankSaving] = {}
        self.next_look = float("inf")  # CLOCK_MONOTONIC seconds

    def obey(self, order: SaveOrder) -> None:
        """Show the ranks an order, and answer with their steps."""
        before = self._order
        is_new = before is None or (before.attempt, before.request) != (order.attempt, order.request)
        self._order = order
        for rank in order.ranks:
            self._write(rank, order, is_new)
        time.sleep(SETTLE)
        self._report(order, is_asked=True)

    def forget(self) -> None:
        """Leave the request: the attempt is over."""
        self._order = None
        self._told = {}
        self.next_look = float("inf")

    def look(self, now: float) -> None:
        """Report what has changed since the last answer."""
        order = self._order
        if order is None or now < self.next_look:
            return
        self._report(order, is_asked=False)

    def _report(self, order: SaveOrder, is_asked: bool) -> None:
        """Tell where the ranks are: if that was asked, or one has begun to call, has saved, or goes on after it."""
        ranks = {rank: self._read(rank, order) for rank in order.ranks}
        self.next_look = time.monotonic() + LOOK_EVERY
        if is_asked or any(_news(one) != _news(self._told.get(rank, RankSaving())) for rank, one in ranks.items()):
            self._told = ranks
            self._tell(SavingMessage(order.attempt, order.request, order.phase, order.step, ranks))

    def _write(self, rank: int, order: SaveOrder, is_new: bool) -> None:
        file = self._open(rank, order)
        if file is None:
            return
        try:
            if is_new:
                _put(file, PHASE, 0)
                _put(file, REQUEST, order.request)
            _put(file, STEP, order.step)
            _put(file, PHASE, 1 + SAVE_PHASES.index(order.phase))
        except OSError:
            pass
        finally:
            os.close(file)

    def _read(self, rank: int, order: SaveOrder) -> RankSaving:
        """Read a rank's numbers; none that count where the program has spoilt the file."""
        file = self._open(rank, order)
        if file is None:
            return RankSaving()
        try:
            data = os.pread(file, SIZE, 0)
            for _ in range(READS):
                again = os.pread(file, SIZE, 0)
                if again == data:
                    break
                data = again
        except OSError:
            return RankSaving()
        finally:
            os.close(file)
        if len(data) < SIZE:
            return RankSaving()
        numbers = struct.unpack("=%dq" % SHARED_NUMBERS, data)
        if any(abs(number) > LARGEST_STEP for number in numbers):
            return RankSaving()
        holds = numbers[HOLDS] == order.request
        rank_saving = RankSaving(numbers[CALLS], numbers[LAST], numbers[BEFORE], holds)
        if numbers[ANSWERED] != order.request:
            return rank_saving
        return rank_saving._replace(saved=numbers[ANSWERED_STEP], is_back=numbers[CALLS] > numbers[ANSWERED_CALL])

    def _open(self, rank: int, order: SaveOrder) -> Optional[int]:
        """Open the file that a rank has, or will have."""
        try:
            file = open_left(self._files.save(rank, order.attempt), os.O_RDWR | os.O_CREAT)
        except OSError:
            return None
        try:
            os.posix_fallocate(file, 0, SIZE)  # changes nothing of what is there
            return file
        except OSError:
            os.close(file)
            return None


def _news(rank: RankSaving) -> Tuple[int, Optional[int], bool]:
    """Return what is said of a rank without a question; steps alone are not."""
    return min(rank.calls, 2), rank.saved, rank.is_back


def _put(file: int, place: int, number: int) -> None:
    os.pwrite(file, struct.pack("=q", number), 8 * place)
