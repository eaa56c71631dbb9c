"""Kubernetes as an engine: pods that run `allranks join`, driven and followed through kubectl."""

from __future__ import annotations

from allranks.diagnose.pod_states import read_pods
from allranks.engines import Stopped
from allranks.engines.following import FollowedRun, FollowerView, NoView, follow
from allranks.engines.remote import is_failure, read_place, was_followed_here
from allranks.errors import AllranksError
from allranks.plan.render.pod_spec import CONTAINER
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import Document
from allranks.runs.opening import take_control
from allranks.settings.layers import Resolved

from .following import PodsFollower, PodsOfRun
from .kubectl import Kubectl
from .launching import PodsLaunch


class Kubernetes:
    """The cluster that kubectl reaches."""

    def prepare(self, resolved: Resolved) -> PodsLaunch:
        """Return the objects that a start would make."""
        return PodsLaunch(resolved.spec)

    def lives(self, run: RunDirectory) -> bool:
        """Return False: a run whose follower is gone has to be followed again."""
        return False

    def condition(self, run: RunDirectory, state: str) -> Document:
        """Return the phases of the pods of a run that no process follows."""
        if state != "orphaned":
            return {}
        place = read_place(run, PodsOfRun)
        try:
            items = Kubectl(place.context, place.namespace).pods(place.name)
        except AllranksError as error:
            return {"engine": str(error)}
        phases = ", ".join(f"{pod.host} {pod.phase}" for pod in read_pods(items, CONTAINER))
        return {"engine": phases or f"no pod of {place.name} is left"}

    def follow(self, run: RunDirectory, view: FollowerView) -> FollowedRun:
        """Follow the pods from here on; the log goes on where the last follower was."""
        return FollowedRun(_follower(run, view))

    def stop(self, run: RunDirectory, grace: float, view: FollowerView) -> Stopped:
        """Remove the pods and wait for the end."""
        result = follow(_follower(run, view), stop_first=True)
        return Stopped("engine", failed=is_failure(result))

    def stop_notice(self, run: RunDirectory, grace: float) -> str:
        """Return the sentence that `stop` begins with."""
        return f"stopping {run.name} in kubernetes: ranks have {grace:g} s to save"

    def finish(self, run: RunDirectory, now: float) -> None:
        """Write the end of a run whose pods are over, with the log that pod 0 has left."""
        if was_followed_here(run) and not run.controller_alive():
            PodsFollower(run, read_place(run, PodsOfRun), NoView()).settle()


def _follower(run: RunDirectory, view: FollowerView) -> PodsFollower:
    take_control(run)
    return PodsFollower(run, read_place(run, PodsOfRun), view)


ENGINE = Kubernetes()
