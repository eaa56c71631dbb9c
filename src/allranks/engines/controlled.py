"""A run whose controller is this process: on named hosts, on this machine, or in the allocation that we are in (IO)."""

from __future__ import annotations

import os
import time

from allranks.cluster import Cluster
from allranks.gang import session as sessions
from allranks.gang.session import Session
from allranks.gang.transport import NodeReach
from allranks.preflight.pasted_figures import refuse_contradictions
from allranks.protocol.run_facts import PlainNote, Stamped
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import Document, ResultDocument
from allranks.runs.result import over_when_interrupted
from allranks.settings.layers import Resolved
from allranks.settings.secrets import redact_argv

from . import reach_nodes
from .dry_run import describe
from .following import FollowerView, Watched, follow
from .keys import KeyQuestion
from .orphans import end_dead_runs
from .reachable_nodes import find_cluster


class ControlledLaunch:
    """A gang on nodes that this process reaches directly."""

    def __init__(self, resolved: Resolved) -> None:
        self._resolved = resolved
        self._cluster = find_cluster(resolved.spec, spares=resolved.spec.recovery.spares)

    def describe(self, as_json: bool) -> str:
        """Return each node's commands and environments. Raise UsageError where the checks of a run would refuse it."""
        refuse_contradictions(self._resolved.spec, self._cluster)
        return describe(self._resolved.spec, self._cluster, as_json)

    def start(self, view: FollowerView) -> ControlledRun:
        """Make the run directory and the session; its ranks start once the run is followed."""
        spec = self._resolved.spec
        if spec.preflight.end_orphans:
            nodes = (*self._cluster.nodes, *self._cluster.spares)
            end_dead_runs(spec, Cluster(nodes, self._cluster.source))
        return begin(self._resolved, self._cluster, reach_nodes(spec, self._cluster), view)


def begin(resolved: Resolved, cluster: Cluster, reach: NodeReach, view: FollowerView) -> ControlledRun:
    """Make the run directory and the session of a run on these nodes, and show what begins."""
    session = sessions.create(
        resolved.spec,
        cluster,
        reach,
        os.environ,
        os.getcwd(),
        lambda: view,
        resolved.expected_world_size,
    )
    with over_when_interrupted(session.run_dir):
        view.opening(opening(session))
        for sentence in cluster.avoided:
            session.say_note(sentence)
        reach.begin(session)
    return ControlledRun(session, view)


def opening(session: Session) -> Document:
    """Return what a view opens with."""
    cluster = session.cluster
    return {
        "run": session.setting.run,
        "directory": str(session.run_dir.path),
        "command": redact_argv(session.spec.launch.command),
        "launcher": session.spec.launch.launcher,
        "source": cluster.source,
        "environment": session.setting.handed_over.sentence,
        "nodes": [{"name": n.name, "host": n.host, "slots": n.slots} for n in cluster.nodes],
        "spares": [{"name": n.name, "host": n.host, "slots": n.slots} for n in cluster.spares],
    }


class ControlledRun:
    """A run in the hands of this process. Its ranks start when it is followed."""

    job: str | None = None
    leaves_page = True
    awaits_ranks = True

    def __init__(self, session: Session, view: FollowerView) -> None:
        self.session = session
        self.run = session.run_dir
        self._view = view

    def show_in(self, view: FollowerView) -> None:
        """Show what comes in another view from now on."""
        self._view = view
        self.session.take_view(view)

    def follow(self, asks: bool) -> ResultDocument | None:
        """Control the run until it is over; None where a daemon of this terminal's has taken it over.

        Where another's command has taken it over, it is followed to its end: exit 0 says that the program has ended.
        """
        question = KeyQuestion()
        try:
            result = self.session.run(question.ask if asks else None)
        finally:
            question.close()
            self.session.reach.end()
        if not self.session.controller.replaced:
            return result
        if self.session.handed_over:
            return None
        self.leaves_page = False  # the controller does
        return follow(Watched(self.run, self._view))

    def linger(self, result: ResultDocument) -> None:
        """Stay as long as the engine needs this process after the end."""
        if result.verdict is not None:
            self.session.reach.linger(result.verdict.cause or "")


def take_over(run: RunDirectory, view: FollowerView) -> ControlledRun:
    """Become the controller of a run, in the place of one that has died or lets go."""
    view.event(Stamped("", time.time(), None, PlainNote(f"taking over {run.name}")))
    return ControlledRun(sessions.adopt(run, view, reach_nodes), view)


def end_without_controller(run: RunDirectory, grace: float, view: FollowerView) -> list[str]:
    """End a run through the agents on its nodes; return the nodes that were not reached. `grace`: seconds."""
    session = sessions.adopt(run, view, reach_nodes)
    session.spec = session.spec.changed(stop_grace=grace)
    session.run(stop_first="stop")
    return [node.name for node in session.controller.roster.nodes.values() if node.gone]
