"""A check: what a module in `checks/`, or one named by the entry point group `allranks.checks`, must have.

    ID = "shm"                        # the module's name; names the check in --only, --allow and the table
    GROUP = "host"                    # one of GROUPS
    LEVEL = "quick"                   # before every run; or "full"
    SECONDS = 5.0                     # how long `collect` may take on a node; a check without one reads facts
    BETWEEN_MACHINES = False          # True: says nothing of virtual nodes of one machine
    NEEDS = "pairs"                   # the fact it judges, if it collects none: skipped where that is absent

    def collect(host: Host) -> object: ...                      # runs on the node, Python 3.8
    def judge(request, facts_by_node) -> Iterable[Finding]: ... # all nodes; says nothing of what is ok

The result of `collect`, a JSON value or a record, stands in the node's facts under ID. None means there is nothing to
look at (no GPU, no InfiniBand: `skipped`); {"error": …} that it could not look (an exception, too slow: `unknown`).
"""

from __future__ import annotations

from typing import Callable, Iterable, Optional, Tuple

from allranks.findings import Finding
from allranks.protocol.records import NamedTuple

from .compare import Nodes
from .host import Host
from .typed_facts import Request

Judge = Callable[[Request, Nodes], Iterable[Finding]]
Collect = Callable[[Host], object]

GROUPS = ("host", "gpu", "network", "software", "code", "data", "storage", "leftovers")
LEVELS = ("quick", "full")


class Check(NamedTuple):
    """One check; `title` says what passes, `about` how it is judged.

    Both are the module's docstring, the first line and the paragraphs below it.
    """

    name: str
    group: str
    level: str
    title: str
    judge: Judge
    collect: Optional[Collect] = None
    seconds: float = 5.0
    between_machines: bool = False
    needs: str = ""
    about: Tuple[str, ...] = ()


def read_check(module: object) -> Check:
    """Read the check that a module describes. Raise ValueError that says what it lacks."""
    values = vars(module)
    where = values.get("__name__", "a check")
    name = values.get("ID")
    group = values.get("GROUP")
    level = values.get("LEVEL")
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"{where}: ID is {name!r}, expected a name such as my_check")
    if group not in GROUPS or level not in LEVELS:
        raise ValueError(f"{where}: GROUP {group!r}, LEVEL {level!r}, expected one of {GROUPS} and one of {LEVELS}")
    judge = values.get("judge")
    collect = values.get("collect")
    if not callable(judge) or not (collect is None or callable(collect)):
        raise ValueError(f"{where}: give it judge(request, facts_by_node) and, if it looks itself, collect(host)")
    title, _, about = (values.get("__doc__") or name).strip().partition("\n")
    return Check(
        name,
        group,
        level,
        title.rstrip("."),
        judge,
        collect,
        seconds=float(values.get("SECONDS", 5.0)),
        between_machines=bool(values.get("BETWEEN_MACHINES", False)),
        needs=str(values.get("NEEDS", "")) if collect is None else name,
        about=tuple(" ".join(paragraph.split()) for paragraph in about.split("\n\n") if paragraph.strip()),
    )
