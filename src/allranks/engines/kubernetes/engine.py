"""Kubernetes as an engine: pods that run `allranks join`, driven and followed through kubectl."""

from __future__ import annotations

from allranks.diagnose.pod_states import read_pods
from allranks.engines.remote import RemoteEngine, read_place
from allranks.plan.render.pod_spec import CONTAINER
from allranks.runs.directory import RunDirectory
from allranks.runs.opening import take_control
from allranks.runs.view import View
from allranks.settings.layers import Resolved

from .following import PodsFollower, PodsOfRun
from .kubectl import Kubectl
from .launching import PodsLaunch


class Kubernetes(RemoteEngine):
    """The cluster that kubectl reaches."""

    name = "kubernetes"

    def prepare(self, resolved: Resolved) -> PodsLaunch:
        """Return the objects that a start would make."""
        return PodsLaunch(resolved.spec)

    def follow(self, run: RunDirectory, view: View) -> PodsFollower:
        """Follow the pods from here on; the log goes on where the last follower was."""
        Kubectl.require()
        place = read_place(run, PodsOfRun)
        take_control(run)
        return PodsFollower(run, place, view)

    def whereabouts(self, run: RunDirectory) -> str:
        """Return the phases of the run's pods."""
        place = read_place(run, PodsOfRun)
        items = Kubectl(place.context, place.namespace).pods(place.name)
        phases = ", ".join(f"{pod.host} {pod.phase}" for pod in read_pods(items, CONTAINER))
        return phases or f"no pod of {place.name} is left"

    def settle(self, run: RunDirectory) -> None:
        """Write the end of a run whose pods are over, with the log that pod 0 has left."""
        PodsFollower(run, read_place(run, PodsOfRun), View()).settle()


ENGINE = Kubernetes()
