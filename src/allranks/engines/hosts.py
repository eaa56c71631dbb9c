"""ssh and local as engines: this process reaches the nodes directly, and its controller is here.

`status` asks this engine too, so the modules of a controller are imported where one begins.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from allranks.engines import Engine, PreparedLaunch, Stopped
from allranks.exitcodes import NODE_FAILED, code_if
from allranks.runs.directory import RunDirectory

if TYPE_CHECKING:
    from allranks.runs.view import View
    from allranks.settings.layers import Resolved

    from .following import StartedRun


class Hosts(Engine):
    """Nodes that the user names, virtual nodes of this machine, or those of the allocation that we are in."""

    def prepare(self, resolved: Resolved) -> PreparedLaunch:
        """Return the launch on these nodes."""
        from .controlled import ControlledLaunch  # imported late: `status` needs no controller

        return ControlledLaunch(resolved)

    def follow(self, run: RunDirectory, view: View) -> StartedRun:
        """Become the controller of the run."""
        from .controlled import take_over  # imported late: `status` needs no controller

        return take_over(run, view)

    def stop(self, run: RunDirectory, grace: float, view: View) -> Stopped:
        """Look for the run's agents on the nodes, and make them end their ranks."""
        from .controlled import end_without_controller  # imported late: `status` needs no controller

        unreached = end_without_controller(run, grace, view)
        return Stopped(run.name, "nodes", code_if(bool(unreached), NODE_FAILED), unreached=unreached, pid=os.getpid())

    def stop_notice(self, run: RunDirectory, grace: float) -> str:
        """Return the sentence that `stop` begins with."""
        return f"the controller of {run.name} is dead: looking for its agents on the nodes"


ENGINE = Hosts()
