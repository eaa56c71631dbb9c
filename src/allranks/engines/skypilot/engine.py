"""SkyPilot as an engine: machines of a cloud that run `allranks join`, driven and followed through `sky`."""

from __future__ import annotations

import os

from allranks.engines import Stopped
from allranks.engines.following import FollowedRun, FollowerView, NoView, follow
from allranks.engines.remote import is_failure, read_place, was_followed_here
from allranks.errors import NodeError
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import Document
from allranks.runs.opening import take_control
from allranks.settings.layers import Resolved

from .following import ClusterOfRun, SkyFollower, call, log_argv
from .launching import TaskLaunch


class SkyPilot:
    """The clouds that `sky` can reach."""

    def prepare(self, resolved: Resolved) -> TaskLaunch:
        """Return the task that a start would launch."""
        return TaskLaunch(resolved.spec)

    def lives(self, run: RunDirectory) -> bool:
        """Return False: a run whose follower is gone has to be followed again."""
        return False

    def condition(self, run: RunDirectory, state: str) -> Document:
        """Return what SkyPilot says of the cluster of a run that no process follows, in a line."""
        if state != "orphaned":
            return {}
        try:
            return {"engine": _cluster_line(read_place(run, ClusterOfRun)) or "no such cluster"}
        except NodeError as error:
            return {"engine": str(error)}

    def follow(self, run: RunDirectory, view: FollowerView) -> FollowedRun:
        """Follow the newest job's log from its beginning."""
        return FollowedRun(_follower(run, view))

    def stop(self, run: RunDirectory, grace: float, view: FollowerView) -> Stopped:
        """Cancel the job, and take the machines down once it is over."""
        return Stopped("engine", failed=is_failure(follow(_follower(run, view), stop_first=True)))

    def stop_notice(self, run: RunDirectory, grace: float) -> str:
        """Return the sentence that `stop` begins with."""
        return f"stopping {run.name} in skypilot: ranks have {grace:g} s to save"

    def finish(self, run: RunDirectory, now: float) -> None:
        """Write the end of a run whose machines are gone."""
        if not was_followed_here(run) or run.controller_alive():
            return
        place = read_place(run, ClusterOfRun)
        try:
            is_there = bool(_cluster_line(place))
        except NodeError:
            return
        if not is_there:
            SkyFollower(run, place, NoView(), (), {}).settle()


def _follower(run: RunDirectory, view: FollowerView) -> SkyFollower:
    """Return a follower of the whole log, for which the directory's own logs start again."""
    take_control(run)
    for path in (run.path / "logs").glob("**/rank_*.log*"):
        path.unlink()
    place = read_place(run, ClusterOfRun)
    return SkyFollower(run, place, view, log_argv(place.name), os.environ)


def _cluster_line(place: ClusterOfRun) -> str:
    """Return the cluster's line of `sky status`; empty where there is no such cluster."""
    for line in call("status", place.name).splitlines():
        if line.startswith(place.name):
            return " ".join(line.split())
    return ""


ENGINE = SkyPilot()
