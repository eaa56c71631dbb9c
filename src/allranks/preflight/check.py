"""A check: what a module in `checks/`, or one named by the entry point group `allranks.checks`, must have.

    ID = "shm"                        # the module's name; names the check in --only, --allow and the table
    GROUP = "host"                    # one of GROUPS
    LEVEL = "quick"                   # before every run; or "full"
    SECONDS = 5.0                     # how long `collect` may take on a node; a check without one reads facts
    BETWEEN_MACHINES = False          # True: says nothing of virtual nodes of one machine
    ALONE = False                     # True: measures, so it runs after the others, by itself
    NEEDS = "pairs"                   # the fact it judges, if it collects none: skipped where that is absent
    COMPARES = (Differs(…), …)        # in the place of `judge` where the judgement is nothing but comparisons

    def collect(host: Host) -> object: ...                  # JSON; runs on the node, Python 3.8
    def judge(request, facts_by_node) -> list[Finding]: ... # all nodes; says nothing of what is ok

The result of `collect` stands in the node's facts under ID. None means there is nothing to look at (no
GPU, no InfiniBand: `skipped`); {"error": …} that it could not look (an exception, too slow: `unknown`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, List, Optional, Sequence

from allranks.findings import Finding

from .compare import Differs, Nodes
from .host import Host, Request

Judge = Callable[[Request, Nodes], List[Finding]]
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
    name = getattr(module, "ID", None)
    group = getattr(module, "GROUP", None)
    level = getattr(module, "LEVEL", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"{where}: ID is {name!r}; set a name such as my_check")
    if group not in GROUPS or level not in LEVELS:
        raise ValueError(f"{where}: GROUP {group!r}, LEVEL {level!r}; set one of {GROUPS} and one of {LEVELS}")
    judge = getattr(module, "judge", None)
    compares = getattr(module, "COMPARES", ())
    if judge is None and compares:
        judge = _comparison(name, compares)
    collect = getattr(module, "collect", None)
    if not callable(judge) or not (collect is None or callable(collect)):
        raise ValueError(f"{where}: give it judge(request, facts_by_node) and, if it looks itself, collect(host)")
    title = (getattr(module, "__doc__", None) or name).strip().partition("\n")[0].rstrip(".")
    return Check(
        name,
        group,
        level,
        title,
        judge,
        collect,
        seconds=float(getattr(module, "SECONDS", 5.0)),
        between_machines=bool(getattr(module, "BETWEEN_MACHINES", False)),
        alone=bool(getattr(module, "ALONE", False)),
        needs=name if collect is not None else str(getattr(module, "NEEDS", "")),
    )


def _comparison(name: str, compares: Sequence[Differs]) -> Judge:
    """The judge of a check that is declared."""

    def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
        return [finding for one in compares for finding in one.judge(name, facts_by_node)]

    return judge
