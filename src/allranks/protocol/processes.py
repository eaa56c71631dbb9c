"""Processes as messages of an agent name them. The controller's documents name them so, too, and load no message."""

from __future__ import annotations

from typing import Mapping, Optional, Tuple

from .codec import omit_none
from .records import NamedTuple


@omit_none
class PortOwner(NamedTuple):
    """Who holds a port, as far as this user may see: the `user` alone where the process is not visible.

    Of a process of an allranks run `run` is that run's uid, and `run_lives` says whether its agent runs."""

    user: Optional[str] = None
    pid: Optional[int] = None
    command: Optional[str] = None
    run: Optional[str] = None
    run_lives: Optional[bool] = None


class Ran(NamedTuple):
    """A command that was run; `code` is None where it could not be started or took too long (see `err`)."""

    code: Optional[int]
    out: str
    err: str

    @property
    def ok(self) -> bool:
        """It ended with 0."""
        return self.code == 0


class RemainingProcess(NamedTuple):
    """A process that could not be ended."""

    pid: int
    state: str = ""
    command: str = ""


@omit_none
class SweptProcess(NamedTuple):
    """A process of an earlier run (`live`: the run still has its agent), or one that is in the way (`why`)."""

    pid: int
    start_time: int
    command: str
    uid: Optional[str] = None
    node: Optional[str] = None
    live: Optional[bool] = None
    why: Optional[str] = None


class AgentBegun(NamedTuple):
    """An agent has started, as its journal begins. `keepers` are agent and supervisor (pid and start), `machine` is
    where pids mean something: host name, boot ID, PID namespace."""

    pid: int = 0
    keepers: Tuple[Tuple[int, int], ...] = ()
    machine: Optional[Tuple[str, str, str]] = None
    t: float = 0.0


class ImportRecord(NamedTuple):
    """What the ranks of a node have imported of installed packages, in that order, with their files.

    `changed`: the variables that the programs, or their imports, have set, as digests of the values; None for one that
    was removed. `own` are the user's files, with a stamp each: where one has changed, nothing here holds. `seconds` is
    how long it took from the start of the ranks until all had a process group. `against` says why no rank can be forked
    from a process that has imported this."""

    modules: Mapping[str, str] = {}
    changed: Mapping[str, Optional[str]] = {}
    own: Mapping[str, str] = {}
    seconds: float = 0.0
    against: str = ""
