"""Engines: where nodes come from. Each engine is one file or package here, and implements `Engine`.

    prepare   what a start would do, as a value; nothing has happened yet, and `--dry-run` prints exactly this
    start     does it, and gives the run that has begun
    follow    follows a run that another process has started, or takes it over (`attach`)
    stop      ends a run that has no controller here (`stop`)
    finish    writes the end of a run, from the facts that the engine has

Callers ask `engine_for` or `engine_of`, and never for a name. This module stays light: `status` imports it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from allranks.errors import AllranksError
from allranks.exitcodes import DONE
from allranks.protocol.codec import omit_none

if TYPE_CHECKING:
    from allranks.cluster import Cluster
    from allranks.gang.transport import NodeReach
    from allranks.runs.directory import RunDirectory
    from allranks.runs.documents import Document, ResultDocument
    from allranks.runs.view import View
    from allranks.settings import RunSpec
    from allranks.settings.layers import Resolved

    from .following import StartedRun


# By the name of an engine: the setting of the target that asks for it, and the module that holds it as ENGINE. A module
# is imported when a run needs it: most runs need one. The run of nodes that `join` is one of this machine's.
ENGINES = {
    "slurm": ("slurm", "allranks.engines.slurm.engine"),
    "kubernetes": ("k8s", "allranks.engines.kubernetes.engine"),
    "skypilot": ("sky", "allranks.engines.skypilot"),
    "ssh": ("hosts", "allranks.engines.hosts"),
    "local": ("local", "allranks.engines.hosts"),
}
DEFAULT = "local"  # of a target that names no engine
# Modules of nodes that this process reaches directly: an allocation's, and those of all other targets. Each has
# `find_nodes`, which gives the nodes, and `reach`, which gives the way to them.
ALLOCATED = "allranks.engines.slurm.reach"
LISTED = "allranks.engines.listed"


class NotStarted(Exception):
    """The engine refused a run. Its end is written: `result`."""

    def __init__(self, run: RunDirectory, result: ResultDocument) -> None:
        super().__init__(run.name)
        self.run = run
        self.result = result


@omit_none
class Stopped(NamedTuple):
    """What became of one run. `how`: over, or by which means it was ended. `code`: what `stop` exits with for it.

    `error` says why it was not stopped. `job` is Slurm's. `unreached` are nodes that did not answer; `pid` is the
    process that took the run over.
    """

    run: str
    how: str
    code: int = DONE
    job: str | None = None  # its controller shows the end; without one this process has written it
    unreached: Sequence[str] | None = None
    pid: int | None = None
    error: str | None = None


class PreparedLaunch(Protocol):
    """What a start would do. The same value is described and started, so that `--dry-run` is the truth."""

    def describe(self, as_json: bool) -> str:
        """Return what would be done, without secrets."""

    def start(self, view: View) -> StartedRun:
        """Do it. Raise NotStarted where the engine refuses the run, AllranksError where nothing has come of it."""


class Engine(ABC):
    """One way to run. The controller is this process, or one in a job, in a pod or on a cloud machine."""

    @abstractmethod
    def prepare(self, resolved: Resolved) -> PreparedLaunch:
        """Return what a start would do, from settings, files and the environment alone."""

    def lives(self, run: RunDirectory) -> bool:
        """Return whether a run whose controller is not on this host goes on; True where the engine does not answer."""
        return False

    def condition(self, run: RunDirectory, state: str) -> Document:
        """Return the fields of the `status` document that this engine knows of a run in `state`."""
        return {}

    @abstractmethod
    def follow(self, run: RunDirectory, view: View) -> StartedRun:
        """Follow a run that has no controller on this host; where it has none at all, become it."""

    @abstractmethod
    def stop(self, run: RunDirectory, grace: float, view: View) -> Stopped:
        """End a run that has no controller on this host, and wait until it is over.

        `grace`: seconds for ranks to save.
        """

    @abstractmethod
    def stop_notice(self, run: RunDirectory, grace: float) -> str:
        """Return the sentence that `stop` begins with."""

    def finish(self, run: RunDirectory, now: float) -> None:
        """Write the end of a run that is over and has no result. `now`: unix seconds. Nothing where it may go on."""
        return


def engine_named(name: str) -> Engine:
    """Return an engine by its name in ENGINES."""
    _, module = ENGINES[name]
    engine: Engine = import_module(module).ENGINE
    return engine


def engine_for(spec: RunSpec) -> Engine:
    """Return the engine of a target: the first that the target asks for."""
    for name, (setting, _) in ENGINES.items():
        if getattr(spec.target, setting):
            return engine_named(name)
    return engine_named(DEFAULT)


def _reaching_module(spec: RunSpec) -> ModuleType:
    if spec.target.slurm:
        return import_module(ALLOCATED)
    return import_module(LISTED)


def find_nodes(spec: RunSpec, spares: int) -> Cluster:
    """Return the nodes of a target that this process reaches directly, with room for `spares` behind them."""
    cluster: Cluster = _reaching_module(spec).find_nodes(spec, spares)
    return cluster


def reach_nodes(spec: RunSpec, cluster: Cluster) -> NodeReach:
    """Return how this process reaches the nodes of a target directly. Its `end` gives them back."""
    reach: NodeReach = _reaching_module(spec).reach(spec, cluster)
    return reach


def engine_of(run: RunDirectory) -> Engine:
    """Return the engine of a run, from its directory."""
    name = "slurm" if run.job is not None else str(run.engine.get("engine"))
    return engine_named(name if name in ENGINES else DEFAULT)


def lives(run: RunDirectory) -> bool:
    """Return whether a run whose controller is not on this host goes on, as its engine knows."""
    return engine_of(run).lives(run)


def settle(run: RunDirectory, now: float) -> None:
    """Write the end of a run that ended without a follower, where its engine knows the end.

    An engine that does not answer, or whose record is damaged, is passed over: `status` names it.
    """
    if run.has_ended:
        return
    with suppress(AllranksError):
        engine_of(run).finish(run, now)
