"""SkyPilot as an engine: machines of a cloud that run `allranks join`, driven and followed through `sky`."""

from __future__ import annotations

import os

from allranks.engines.following import FollowerView
from allranks.engines.remote import RemoteEngine, read_place
from allranks.runs.directory import RunDirectory
from allranks.runs.opening import take_control
from allranks.runs.result import write_result
from allranks.settings.layers import Resolved

from .following import ClusterOfRun, SkyFollower, call, log_argv, require, without_result
from .launching import TaskLaunch


class SkyPilot(RemoteEngine):
    """The clouds that `sky` can reach."""

    name = "skypilot"

    def prepare(self, resolved: Resolved) -> TaskLaunch:
        """Return the task that a start would launch."""
        return TaskLaunch(resolved.spec)

    def follow(self, run: RunDirectory, view: FollowerView) -> SkyFollower:
        """Follow the newest job's log from its beginning, for which the directory's own logs start again."""
        require()
        place = read_place(run, ClusterOfRun)
        take_control(run)
        for path in (run.path / "logs").glob("**/rank_*.log*"):
            path.unlink()
        return SkyFollower(run, place, view, log_argv(place.name), os.environ)

    def whereabouts(self, run: RunDirectory) -> str:
        """Return the cluster's line of `sky status`."""
        return _cluster_line(read_place(run, ClusterOfRun)) or "no such cluster"

    def settle(self, run: RunDirectory) -> None:
        """Write the end of a run whose machines have been removed."""
        place = read_place(run, ClusterOfRun)
        if not _cluster_line(place):
            message = f"the machines of {place.name} were taken down before its result was read"
            write_result(run, without_result(run, message), stopped=False)


def _cluster_line(place: ClusterOfRun) -> str:
    """Return the cluster's line of `sky status`; empty where the cluster does not exist."""
    for line in call("status", place.name).splitlines():
        if line.startswith(place.name):
            return " ".join(line.split())
    return ""


ENGINE = SkyPilot()
