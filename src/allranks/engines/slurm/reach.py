"""The Slurm allocation that we are in (IO): its nodes, through a step of the job for one command of ours, and its end.

Slurm tells a batch script before the time limit or a preemption by the signal that we asked for (SIGXCPU). SIGTERM is
`allranks stop` where the job goes on, else Slurm's own end: then KILL_WAIT is all that is left.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from allranks.agent.processes import command_of
from allranks.cluster import Cluster
from allranks.cluster.slurm_allocation import (
    MADE_BY_ALLRANKS,
    Allocation,
    allocation_cluster,
    read_allocation,
    refuse_step,
    require_nodes,
)
from allranks.diagnose.slurm_jobs import (
    LIMIT,
    Advice,
    Origin,
    SlurmJob,
    cancelled,
    ended,
    failed_node,
    out_of_memory,
    script_ended,
    time_given,
    warned,
)
from allranks.errors import NodeError, UsageError
from allranks.findings import Finding
from allranks.gang.roles import parts_of
from allranks.gang.transport import BegunSession, NodeReach, TimeLeft
from allranks.plan.render.slurm import run_suffix, warning
from allranks.plan.slurm_commands import WARNING_SIGNAL
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import Document
from allranks.runs.regular import read_end
from allranks.settings import RunSpec
from allranks.text import join_words

from . import jobs
from .step import Step, StepTransport

MARGIN = 2.0  # seconds before Slurm's SIGKILL in which the result is written
LOG_TAIL = 8 << 10
LINGER = 3600.0  # seconds, the longest GraceTime that is waited for
LOOK_EVERY = 5.0


class StepReach(NodeReach):
    """Nodes with an agent in a step of ours. Slurm may take them back: at the time limit, by a preemption, by scancel.

    There is one step for each of `clusters`. `warned_t` is when Slurm announced the end.
    """

    warning_signal = getattr(signal, f"SIG{WARNING_SIGNAL}")

    def __init__(self, spec: RunSpec, clusters: Sequence[Cluster], allocation: Allocation) -> None:
        self.allocation = allocation
        self.run_suffix = run_suffix(allocation.job)
        self.warned_t: float | None = None
        self._stop_grace = spec.limits.stop_grace
        self._advice = Advice(_origin(allocation), warning(self._stop_grace))
        self._began = time.strftime("%Y-%m-%dT%H:%M:%S")  # as slurmstepd writes it
        self._steps = [Step(spec, nodes, allocation.job, _say, self._advice) for nodes in clusters]
        super().__init__(StepTransport(self._steps, spec))

    @property
    def document(self) -> Document:
        """Return where the run is, as run.json's `slurm` has it."""
        job = self.allocation
        return {"job": job.job, "batch": job.batch, "restarts": job.restarts, "nodes": list(job.nodes)}

    def run_directory(self, runs_dir: str) -> RunDirectory | None:
        """Return the run directory of who submitted this job, or of its start before a requeue; else None."""
        named = super().run_directory(runs_dir)
        if named is not None:
            return named
        if not self.allocation.restarts:
            return None
        before = [run for run in RunDirectory.list_runs(Path(runs_dir)) if run.job == self.allocation.job]
        return before[-1] if before else None

    def begin(self, session: BegunSession) -> None:
        """Say where srun's words go, who hears of a SIGTERM, and what Slurm will not give."""
        for number, step in enumerate(self._steps):
            names = {task: name for name, task in step.ranks.items()}
            step.log_to(session.run_dir.path / (f"srun_{number}.log" if number else "srun.log"))
            step.listener.stopped = session.stop_from_afar
            step.listener.signalled = partial(_pass_signal, session, names)
            step.on_end = session.step_ended
        # In a thread, as slurmctld may take its time.
        words = (self.allocation.job, str(session.run_dir.path.absolute()))
        threading.Thread(target=jobs.set_comment, args=words, name="comment", daemon=True).start()
        for text in (*self.remarks(), *self._shared_nodes()):
            session.say_note(text)

    def remarks(self) -> list[str]:
        """Say where Slurm gives ranks less time than asked for."""
        wait = jobs.kill_wait()
        if wait is None or self._stop_grace <= wait - MARGIN:
            return []
        seconds = f"ranks {wait} s to save (Slurm's KillWait), not the {self._stop_grace:g} s of --stop-grace"
        if self._advice.origin is Origin.ALLRANKS:
            return [f"scancel leaves {seconds}. `allranks stop` gives them all of it"]
        return [f"scancel, and a time limit without --signal, leave {seconds}. {self._advice.warning}"]

    def warned(self) -> None:
        """Note that Slurm has announced the end."""
        self.warned_t = time.time()

    def linger(self, cause: str) -> None:
        """Stay after the orderly end before a preemption.

        Slurm puts back into the queue only a job that still runs when the GraceTime is over, and ends this process
        then (SIGTERM).
        """
        if cause != LIMIT or not self.allocation.batch:
            return
        began = time.monotonic()
        while time.monotonic() - began < LINGER:
            job = self._look()
            if job is None or job.state != "RUNNING" or not (job.preempted and job.requeues):
                return
            time.sleep(LOOK_EVERY)

    def time_left(self) -> TimeLeft | None:
        """Return how long ranks have where Slurm is ending the job, or soon will; None where it may go on."""
        job = self._look()
        given = time_given(job, time.time(), jobs.kill_wait() or 0) if job is not None else None
        if given is None:
            return None
        return TimeLeft(max(0.0, given.seconds - MARGIN), f"Slurm's {given.source}")

    def finding(self, is_stopped: bool) -> Finding | None:
        """Return Slurm's own reason for the end of the ranks; None where it has none."""
        job = self._look()
        finding = self._of_the_job(job, is_stopped) if job is not None else None
        return finding or self.step_end()

    def _of_the_job(self, job: SlurmJob, stopped: bool) -> Finding | None:
        """Find Slurm's reason. srun and slurmstepd know it better than slurmctld, whose state is COMPLETING."""
        advice = self._advice
        printed = self.printed()
        if self.warned_t is not None:
            return warned(job, self.warned_t, advice)
        if job.state == "RUNNING" and job.preempted and stopped:
            return warned(job, time.time(), advice)
        node, line = failed_node(printed, self.allocation.nodes)
        if node:
            return ended(job.reported("NODE_FAIL", node), line=line, advice=advice)
        if job.state == "RUNNING" and out_of_memory(printed):
            return ended(job.reported("OUT_OF_MEMORY"), line=out_of_memory(printed), advice=advice)
        own_output = read_end(Path(job.stdout), LOG_TAIL)  # slurmstepd writes there why it ends the batch script
        state, line = cancelled(printed) or cancelled(own_output, self._began) or ("CANCELLED", "")
        if state != "CANCELLED":
            return self._ended_as(job.reported(state), line)
        if job.state in ("RUNNING", "PENDING"):
            return None
        if job.state not in ("COMPLETING", "COMPLETED", "FAILED"):
            return self._ended_as(job, line)
        if job.restarts > self.allocation.restarts:
            return self._ended_as(job.reported("REQUEUED"), line)
        own_end = script_ended(job, line) if self._is_below_the_script() else None
        if own_end is None and stopped:
            return self._ended_as(job.reported(state), line)
        return own_end

    def _ended_as(self, job: SlurmJob, line: str) -> Finding | None:
        return ended(job, jobs.kill_wait(), line, self._advice)

    def _is_below_the_script(self) -> bool:
        """Tell whether a batch script is above us; False where this process has taken its place (exec)."""
        return self.allocation.batch and not command_of(os.getppid()).startswith("slurmstepd")

    def _look(self) -> SlurmJob | None:
        try:
            return jobs.look(self.allocation.job)
        except (NodeError, UsageError):
            return None

    def printed(self) -> str:
        """Return what the steps have printed."""
        return "".join(step.output() for step in self._steps)

    def step_end(self) -> Finding | None:
        """Return why a step ended before the run did."""
        return next(filter(None, (step.end_finding() for step in self._steps)), None)

    def _shared_nodes(self) -> list[str]:
        number = self.allocation.job
        shared = [name for name in self._steps[0].ranks if not is_ours(number, name)]
        if not shared:
            return []
        names = join_words(shared)
        return [f"another allranks run of job {number} has {names} too. With --nodes N a run takes free nodes first"]

    def against_retry(self) -> str:
        """Return why the nodes cannot have another attempt."""
        if self.step_end() is None:
            return ""
        return "Slurm's step has ended, and with it the way to the nodes"

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


def _origin(allocation: Allocation) -> Origin:
    if allocation.made_by_allranks:
        return Origin.ALLRANKS
    return Origin.SCRIPT if allocation.batch else Origin.SHELL


def _pass_signal(session: BegunSession, names: Mapping[int, str], task: int, signal: str) -> None:
    session.signal_at_node(names[task], signal)


def reach(spec: RunSpec, cluster: Cluster) -> StepReach:
    """Return how the nodes of our allocation are reached."""
    allocation = read_allocation(os.environ)
    os.environ.pop(MADE_BY_ALLRANKS, None)  # ranks do not see whose script it is
    if allocation is None:  # a saved run: a cluster of --slurm is made from the allocation
        raise UsageError("the nodes of a Slurm job are reached from within it alone")
    sharing = [part.cluster for part in parts_of(spec, cluster) if part.role.with_]
    return StepReach(spec, [cluster, *sharing], allocation)


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
        if _claim(job, node):
            claimed.append(node)
        else:
            taken.append(node)
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
