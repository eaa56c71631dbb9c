"""The nodes of the Slurm allocation that we are in, and how they are reached, for every verb that has a gang."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from allranks.cluster import Cluster
from allranks.engines.slurm.claims import is_ours
from allranks.settings import RunSpec
from allranks.text import join_words

if TYPE_CHECKING:
    from allranks.engines.slurm.inside import Inside
    from allranks.engines.slurm.step import Step
    from allranks.engines.transport import Transport
    from allranks.gang.session import Session


class Reach:
    """One step of the job, for one command of ours."""

    def __init__(self, step: Step, engine: Inside) -> None:
        self.step = step
        self.engine = engine
        self.transport: Transport = step.transport()
        engine.told = step.output
        engine.step_end = step.end_finding

    def begin(self, session: Session) -> None:
        """Before a run: where srun's words go, who is told of a SIGTERM, what Slurm will not give."""
        self.step.log_to(session.run_dir.path / "srun.log")
        self.step.listener.stopped = session.stop_from_afar
        names = {task: name for name, task in self.step.ranks.items()}
        self.step.listener.signalled = lambda task, signal: session.signal_at_node(names[task], signal)
        self.step.on_end(session.step_ended)
        self.engine.announce(session.run_dir)
        for text in (*self.engine.remarks(), *self._shared_nodes()):
            session.say_note(text)

    def _shared_nodes(self) -> list[str]:
        """Where another run of this allocation has a node too."""
        job = self.engine.allocation.job
        shared = [name for name in self.step.ranks if not is_ours(job, name)]
        if not shared:
            return []
        names = join_words(shared)
        return [f"another allranks run of job {job} has {names} too. With --nodes N a run takes free nodes first"]

    def end(self) -> None:
        """The step ends."""
        self.step.finish("the run is over")


def allocated(spec: RunSpec, cluster: Cluster) -> Reach | None:
    """None where the target is not Slurm's."""
    if not spec.target.slurm:
        return None
    from allranks.engines.slurm.inside import inside  # imported late: few runs are Slurm's
    from allranks.engines.slurm.step import Step

    engine = inside(os.environ, spec.limits.stop_grace)
    assert engine is not None  # find_cluster has seen to it
    return Reach(Step(spec, cluster, engine.allocation.job, _say, engine.advice), engine)


def step_argv(spec: RunSpec, cluster: Cluster) -> list[str]:
    """The command that starts all agents, its script left out."""
    reach = allocated(spec, cluster)
    assert reach is not None
    return [*reach.step.argv()[:-1], "<boot script>"]


def with_step(spec: RunSpec, cluster: Cluster, act: Callable[[Transport | None], int]) -> int:
    """`act` with the transport of the target, None for ssh; the step ends after it."""
    reach = allocated(spec, cluster)
    try:
        return act(reach.transport if reach is not None else None)
    finally:
        if reach is not None:
            reach.end()


def _say(text: str) -> None:
    sys.stderr.write(f"note: {text}\n")
