"""What is looked at while ranks run: their stacks, counters, times of collectives, profiles, and what the machine does.

The questions are answered in tasks, and what answers them is loaded there: the start of ranks is not to wait for it,
and an agent without a descriptor left can still say so.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Dict, List, Optional

from allranks.protocol.frames import TRACE, Stream
from allranks.protocol.messages import (
    LITTLE_SPACE,
    LOW_SPACE,
    CallTimesMessage,
    CountersMessage,
    Message,
    ProfiledMessage,
    RemarkMessage,
    StacksMessage,
)
from allranks.protocol.node_names import NodeFiles
from allranks.protocol.orders import CallTimesOrder, CountersOrder, ProfileOrder, StacksOrder, UsageOrder

from .attempt import RankAttempt
from .files import names_in
from .forked_tasks import Work
from .link import describe_error, log
from .processes import Process
from .ranks import Ranks
from .this_node import ThisNode

if TYPE_CHECKING:
    from .counters import CounterWatch
    from .gpufacts import SeenGpus
    from .usage import Sampler

LEAST_USAGE = 1.0  # seconds between samples of the machine, whatever is asked for
CALL_TIMES_SECONDS = 40.0  # with a look at suspects; gang/stragglers.py waits a little longer
SPACE_EVERY = 5.0  # seconds between looks at the room for what ranks write
SAMPLE_SECONDS = 20.0  # gang/hangwatch.py waits a little longer
PROFILE_SECONDS = 150.0  # for traces to be made and packed; gang/questions.py waits a little longer


class SpaceWatch:
    """Notices once that the file system of a directory, which has had room, runs full."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._next = float("inf") if self._little_left() is not None else 0.0

    def look(self, now: float) -> Optional[RemarkMessage]:
        """Look where that is due, by the monotonic clock; give what is to be said of it."""
        if now < self._next:
            return None
        self._next = now + SPACE_EVERY
        left = self._little_left()
        if left is None:
            return None
        self._next = float("inf")
        return RemarkMessage(LOW_SPACE, "%d MB are left in %s" % (left >> 20, self._directory))

    def _little_left(self) -> Optional[int]:
        """Give the bytes that are left where they are few; None too where the directory cannot be looked at."""
        try:
            disk = os.statvfs(self._directory)
        except OSError:
            return None
        left = disk.f_bavail * disk.f_frsize
        return left if left < LITTLE_SPACE else None


class NodeSamples:
    """Answers what the controller asks of running ranks, and samples the machine as often as it wants."""

    def __init__(self, node: ThisNode, ranks: Ranks) -> None:
        self._node = node
        self._ranks = ranks
        self._every = 0.0  # seconds between samples of this machine; 0: none are wanted
        self._next = 0.0
        self._sampler: Optional[Sampler] = None
        self._watch: Optional[CounterWatch] = None
        self._placed: Dict[int, Process] = {}  # the ranks of which it is known which GPU is theirs
        self._by_gpu: Dict[str, List[int]] = {}
        self._space = SpaceWatch(node.directory)

    def on_stacks(self, order: StacksOrder) -> None:
        """Sample ranks. A rank is signalled once: its attempt keeps which have been."""
        attempt = self._ranks.attempt
        signalled = attempt.signalled if attempt is not None else set()
        processes = self._ranks.chosen(order.ranks) if order.asked else self._ranks.sampled(order.ranks)

        def look() -> StacksMessage:
            from .sample import sample

            for_person = order.asked > 0
            return sample(processes, self._node.directory, order.ask, signalled, for_person, order.native)

        def message(samples: Optional[StacksMessage], error: str) -> Message:
            if samples is None:
                return StacksMessage(error=error, asked=order.asked)
            signalled.update(rank for rank, sample in samples.ranks.items() if sample.get("signalled"))
            return samples._replace(asked=order.asked)

        self._node.tasks.answer(Work("the stack sample", look, StacksMessage, SAMPLE_SECONDS), message)

    def on_profile(self, order: ProfileOrder) -> None:
        """Begin to profile ranks, or end it."""
        processes = self._ranks.chosen(order.ranks)

        def ask() -> ProfiledMessage:
            from .asking import profile

            if order.is_end:
                os.nice(10)  # of this task's own process: traces are packed, and the ranks come first
            return profile(processes, self._node.directory, order)

        work = Work("the profile", ask, ProfiledMessage, PROFILE_SECONDS)
        self._node.tasks.answer(work, partial(self._profiled, order))

    def _profiled(self, order: ProfileOrder, answer: Optional[ProfiledMessage], error: str) -> Message:
        """Let the traces travel."""
        if answer is None:
            return ProfiledMessage(error=error, asked=order.asked)
        for rank, profile in answer.ranks.items():
            if profile.size:
                path = NodeFiles(self._node.directory).trace(rank, order.number)
                self._node.outlet.add_file(Stream(TRACE, rank, order.number), path)
        return answer

    def on_counters(self, order: CountersOrder) -> None:
        """Say how far the ranks' process groups are."""
        processes = self._ranks.sampled(order.ranks)

        def ask() -> CountersMessage:
            from .asking import counters

            return counters(processes, self._node.directory)

        self._node.tasks.answer_with(Work("the counters", ask, CountersMessage, SAMPLE_SECONDS))

    def on_call_times(self, order: CallTimesOrder) -> None:
        """Say when ranks called their newest collectives, and what slows the suspects among them."""
        processes = self._ranks.sampled(order.ranks)

        def ask() -> CallTimesMessage:
            from .calltimes import answer

            return answer(processes, order.suspects, self._node.directory, max(1, order.most))

        self._node.tasks.answer_with(Work("the times of collectives", ask, CallTimesMessage, CALL_TIMES_SECONDS))

    def on_usage(self, order: UsageOrder) -> None:
        """Sample this machine so often from now on."""
        self._every = max(LEAST_USAGE, order.every)
        self._next = 0.0
        self._sampler = None
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def look(self, attempt: RankAttempt, now: float) -> None:
        """Say what this machine has done since the last sample. A sample that fails is the last: ranks go on."""
        remark = self._space.look(now)
        if remark is not None:
            self._node.tell(remark)
        watch = self._watch
        if watch is not None:
            watch.look(now)
        if not self._every or (now < self._next and not (watch is not None and watch.is_urgent)):
            return
        self._next = now + self._every
        try:
            if self._sampler is None:
                from .usage import Sampler  # late: the start of ranks is not to wait for it

                self._sampler = Sampler()
                self._watch = _watch_devices(self._node, self._processes(attempt), self._every)
            processes = self._processes(attempt)
            pids = [process.pid for process in processes.values()]
            usage = self._sampler.sample(pids, now, time.time())
            if self._watch is not None and usage is not None:
                usage = self._watch.added_to(usage, self._ranks_by_gpu(processes))
        except Exception as error:
            self._every = 0.0
            log("this machine is not sampled any more: %s" % describe_error(error))
            return
        if usage is not None:
            self._node.tell(usage)

    def _processes(self, attempt: RankAttempt) -> Dict[int, Process]:
        return self._ranks.sampled(tuple(attempt.ranks))

    def _ranks_by_gpu(self, processes: Dict[int, Process]) -> Dict[str, List[int]]:
        """Give the ranks of each GPU by its address, which is found out again where other processes are the ranks."""
        from .gpufacts import own_gpus

        if processes != self._placed:
            self._placed = processes
            self._by_gpu = own_gpus(_seen_gpus(processes))
        return self._by_gpu


def _seen_gpus(processes: Dict[int, Process]) -> Dict[int, SeenGpus]:
    """Read which GPUs each rank sees, by the environment that it was started with. Parts of GPUs are left out."""
    from .gpufacts import VISIBLE, SeenGpus, addresses
    from .processes import variable_of

    seen = {}
    for rank, process in processes.items():
        values = {name: variable_of(process.pid, name) for name in VISIBLE}
        local_rank = variable_of(process.pid, "LOCAL_RANK") or ""
        try:
            gpus = addresses({name: value for name, value in values.items() if value is not None})
        except ValueError:
            continue
        if local_rank.isdecimal():
            seen[rank] = SeenGpus(int(local_rank), tuple(gpus))
    return seen


def _watch_devices(node: ThisNode, processes: Dict[int, Process], every: float) -> Optional[CounterWatch]:
    """Begin to read the GPUs that any of the ranks see, and the ports; None where there are none."""
    from .gpufacts import addresses

    seen = _seen_gpus(processes)
    gpus = list(dict.fromkeys(address for one in seen.values() for address in one.addresses))
    if len(seen) < len(processes):  # parts of GPUs, or a launcher's ranks to come: all that the node has are read
        gpus = addresses({})
    if not gpus and not names_in("/sys/class/infiniband"):
        return None
    from .counters import CounterWatch  # with ctypes: where there is something to read

    return CounterWatch(node.selector, gpus, every)
