"""docs/checks.md out of the checks themselves: python -m tests.checks.catalogue."""

from __future__ import annotations

from pathlib import Path

from allranks.preflight.check import GROUPS, Check
from allranks.preflight.registry import built_in

PAGE = Path(__file__).parents[2] / "docs" / "checks.md"
HEAD = """# Checks
`allranks check --hosts hosts.txt --nproc 8` makes all of them and changes nothing on the nodes; `run` makes the quick ones before every start. `--only ID,…` chooses, `--allow ID` turns a failure into a warning, `--level quick` leaves the slow ones out, `check --from runs/check-…` judges saved evidence again without asking a node.

A check says nothing of what is ok. *fail*: training would fail or be wrong; the exit code is 3 (4 where a node can't be reached). *warn*: slow or risky. *unknown*: it could not look, and says why (a restricted kernel log, a tool that is absent). The norm is what most nodes have, and the odd node is named; where there is no majority, that is said. Every fail and warn has a remedy that can be pasted.

All pairs of nodes try each other up to 32 nodes; beyond, each node tries 4 others and is tried by 4, and the output says so.

## A check of your own
One file in a package of yours, named by an entry point of the group `allranks.checks`; its source ships to the nodes, so it needs nothing but the standard library (Python ≥ 3.8).
```python
\"\"\"The scratch disk is mounted.\"\"\"          # the first line says what passes
from allranks.findings import Finding
from allranks.preflight.compare import names, place

ID, GROUP, LEVEL, SECONDS = "scratch", "storage", "quick", 5.0

def collect(host):                             # on each node; files and commands through `host` only
    return "/scratch" in (host.text("/proc/mounts") or "")

def judge(request, facts_by_node):             # here, over all nodes
    absent = [n for n, facts in facts_by_node.items() if not facts[ID]]
    return [Finding(ID, "fail", f"/scratch is not mounted on {names(absent)}", "sudo mount /scratch",
                    place(absent))] if absent else []
```
`src/allranks/preflight/check.py` has the whole of it, `tests/checks/` the fixtures: recorded files and outputs by node.

"""


def page() -> str:
    """The whole text."""
    parts = [HEAD]
    for group in GROUPS:
        mine = [c for c in built_in().values() if c.group == group]
        parts.append(f"## {group}\n| ID | level | passes |\n|---|---|---|\n" + "".join(map(_row, mine)) + "\n")
    return "".join(parts).rstrip() + "\n"


def _row(check: Check) -> str:
    alone = ", by itself" if check.alone else ""
    return f"| {check.name} | {check.level}{alone} | {check.title.replace('|', '/')} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
