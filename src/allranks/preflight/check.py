"""A check: what a module in `checks/`, or one named by the entry point group `allranks.checks`, must have.

    ID = "shm"                        # the module's name; names the check in --only, --allow and the table
    GROUP = "host"                    # one of GROUPS
    LEVEL = "quick"                   # before every run; or "full"
    SECONDS = 5.0                     # how long `collect` may take on a node; a check without one reads facts
    BETWEEN_MACHINES = False          # True: says nothing of virtual nodes of one machine
    ALONE = False                     # True: measures, so it runs after the others, by itself
    NEEDS = "pairs"                   # the fact it judges, if it collects none: skipped where that is absent

    def collect(host: Host) -> object: ...                  # JSON; runs on the node, Python 3.8
    def judge(request, facts_by_node) -> list[Finding]: ... # all nodes; says nothing of what is ok

The result of `collect` stands in the node's facts under ID. None means there is nothing to look at (no
GPU, no InfiniBand: `skipped`); {"error": …} that it could not look (an exception, too slow: `unknown`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, List, Mapping, Optional

from allranks.findings import Finding

from .host import Host

Facts = Mapping[str, Any]
Nodes = Mapping[str, Facts]
Judge = Callable[[Mapping[str, Any], Nodes], List[Finding]]
Collect = Callable[[Host], Any]

GROUPS = ("host", "gpu", "network", "software", "code", "data", "storage", "leftovers")
LEVELS = ("quick", "full")


@dataclass(frozen=True)
class Check:
    """One check; `title` says what passes."""

    name: str
    group: str
    level: str
    title: str
    judge: Judge
    collect: Optional[Collect] = None
    seconds: float = 5.0
    between_machines: bool = False
    alone: bool = False
    needs: str = ""


def read_check(module: Any) -> Check:
    """The check a module describes; raises ValueError that says what it lacks."""
    where = getattr(module, "__name__", "a check")
    name, group, level = (getattr(module, key, None) for key in ("ID", "GROUP", "LEVEL"))
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"{where}: ID is {name!r}; set a name such as my_check")
    if group not in GROUPS or level not in LEVELS:
        raise ValueError(f"{where}: GROUP {group!r}, LEVEL {level!r}; set one of {GROUPS} and one of {LEVELS}")
    judge, collect = getattr(module, "judge", None), getattr(module, "collect", None)
    if not callable(judge) or not (collect is None or callable(collect)):
        raise ValueError(f"{where}: give it judge(request, facts_by_node) and, if it looks itself, collect(host)")
    title = (getattr(module, "__doc__", None) or name).strip().partition("\n")[0].rstrip(".")
    seconds = float(getattr(module, "SECONDS", 5.0))
    between, alone = bool(getattr(module, "BETWEEN_MACHINES", False)), bool(getattr(module, "ALONE", False))
    needs = name if collect is not None else str(getattr(module, "NEEDS", ""))
    return Check(name, str(group), str(level), title, judge, collect, seconds, between, alone, needs)
