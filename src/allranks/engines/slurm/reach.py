"""The nodes of the Slurm allocation that we are in: one step of the job, for one command of ours."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from allranks.cluster import Cluster
from allranks.cluster.slurm_allocation import (
    MADE_BY_ALLRANKS,
    Allocation,
    allocation_cluster,
    read_allocation,
    refuse_step,
    require_nodes,
)
from allranks.errors import UsageError
from allranks.findings import Finding
from allranks.gang.roles import parts_of
from allranks.gang.transport import BegunSession
from allranks.settings import RunSpec
from allranks.text import join_words

from . import jobs
from .inside import Inside, advice_for
from .step import Step, StepTransport


class StepReach(Inside):
    """Nodes with an agent in a step of ours."""

    def __init__(self, spec: RunSpec, steps: Sequence[Step], allocation: Allocation) -> None:
        super().__init__(StepTransport(steps, spec), allocation, spec.limits.stop_grace)
        self._steps = steps

    def begin(self, session: BegunSession) -> None:
        """Say where srun's words go, who hears of a SIGTERM, and what Slurm will not give."""
        for number, step in enumerate(self._steps):
            names = {task: name for name, task in step.ranks.items()}
            step.log_to(session.run_dir.path / (f"srun_{number}.log" if number else "srun.log"))
            step.listener.stopped = session.stop_from_afar
            step.listener.signalled = partial(_pass_signal, session, names)
            step.on_end(session.step_ended)
        self.announce(session.run_dir)
        for text in (*self.remarks(), *self._shared_nodes()):
            session.say_note(text)

    def printed(self) -> str:
        """Return what the steps have printed."""
        return "".join(step.output() for step in self._steps)

    def step_end(self) -> Finding | None:
        """Return why a step ended before the run did."""
        return next(filter(None, (step.end_finding() for step in self._steps)), None)

    def _shared_nodes(self) -> list[str]:
        number = self.allocation.job
        shared = [name for name in self._steps[0].ranks if not is_ours(number, name)]
        what = f"another allranks run of job {number} has {join_words(shared)} too"
        return [f"{what}. With --nodes N a run takes free nodes first"] if shared else []

    def against_retry(self) -> str:
        """Return why the nodes cannot have another attempt."""
        return "Slurm's step has ended, and with it the way to the nodes" if self.step_end() is not None else ""

    def refuse_requeue(self) -> str:
        """Take the batch job's right to be put back into the queue."""
        allocation = self.allocation
        if not allocation.batch or not jobs.refuse_requeue(allocation.job):
            return ""
        return f"Slurm does not put job {allocation.job} back into the queue (scontrol update Requeue=0)"

    def end(self) -> None:
        """End the steps."""
        for step in self._steps:
            step.finish("the run is over")


def _pass_signal(session: BegunSession, names: Mapping[int, str], task: int, signal: str) -> None:
    session.signal_at_node(names[task], signal)


def reach(spec: RunSpec, cluster: Cluster) -> StepReach:
    """Return how the nodes of our allocation are reached."""
    allocation = read_allocation(os.environ)
    os.environ.pop(MADE_BY_ALLRANKS, None)  # ranks do not see whose script it is
    if allocation is None:  # a saved run: a cluster of --slurm is made from the allocation
        raise UsageError("the nodes of a Slurm job are reached from within it alone")
    sharing = [part.cluster for part in parts_of(spec, cluster) if part.role.with_]
    advice = advice_for(allocation, spec.limits.stop_grace)
    steps = [Step(spec, nodes, allocation.job, _say, advice) for nodes in (cluster, *sharing)]
    return StepReach(spec, steps, allocation)


def _say(text: str) -> None:
    sys.stderr.write(f"note: {text}\n")


_held: dict[tuple[str, str], socket.socket] = {}  # by job and node


def claim(job: str, nodes: Iterable[str], count: int | None) -> tuple[list[str], list[str]]:
    """Claim `count` nodes that no other controller here has, in the order of `nodes`; all where it is None.

    Returns the nodes that are now this process's, and those that others have.
    """
    claimed: list[str] = []
    taken: list[str] = []
    for node in nodes:
        if count is not None and len(claimed) == count:
            break
        (claimed if _claim(job, node) else taken).append(node)
    return claimed, taken


def find_nodes(spec: RunSpec, spares: int) -> Cluster:
    """Return --nodes of our allocation, with spares, that no other run in it has; all of them without --nodes."""
    count = spec.target.nodes
    wanted = count + spares if count is not None else None
    allocation = read_allocation(os.environ)
    if allocation is None:
        raise UsageError(
            "--slurm: this process is outside of an allocation, and only `run` submits a job\n"
            f"hint: begin the command with `salloc --nodes={wanted or 'N'}`"
        )
    refuse_step(os.environ)
    require_nodes(allocation, count)
    free, taken = claim(allocation.job, allocation.nodes, wanted)
    chosen = [*free, *taken][:wanted]
    return allocation_cluster(allocation, chosen)


def is_ours(job: str, node: str) -> bool:
    """Whether this process has claimed a node."""
    return (job, node) in _held


def _claim(job: str, node: str) -> bool:
    """Claim a node; False where another process has it. Where the kernel has no such names, every node is free."""
    if (job, node) in _held:
        return True
    one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        one.bind(f"\0allranks-{os.getuid()}-{job}-{node}".encode()[:107])  # sun_path has 108 bytes
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            one.close()
            return False
    _held[job, node] = one
    return True
