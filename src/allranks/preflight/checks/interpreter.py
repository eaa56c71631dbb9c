"""The training interpreter is on every node, new enough, with the same Python and torch."""

from __future__ import annotations

from allranks.findings import Finding
from allranks.text import join_names, plural

from ..compare import Facts, Nodes, by_value, differing, lack, others, part, place, remote
from ..host import Request

ID = "interpreter"
GROUP = "software"
LEVEL = "quick"
OLDEST = (3, 8)
_LABEL = "environment-mismatch"


def judge(request: Request, facts_by_node: Nodes) -> list[Finding]:
    """remote-path-missing (absent), environment-mismatch (does not start, too old, differs), missing-module."""
    interpreters = {n: f.get("interpreter") or {} for n, f in facts_by_node.items()}
    interpreters = {n: i for n, i in interpreters.items() if i and not i.get("skipped")}
    works = {n: i for n, i in interpreters.items() if "error" not in i}
    findings = _absent(interpreters, list(works)) + _broken(request, interpreters) + _lacking(request, works)
    if findings and request.get("wrap"):  # another interpreter may be inside the wrapper
        findings = [Finding(f.id, "warn", f.message, f.remedy, f.where) for f in findings]
    return findings + _too_old(request, works) + _torch(works) + _versions(works)


def _absent(interpreters: Nodes, fine: list[str]) -> list[Finding]:
    absent = [n for n, i in interpreters.items() if i.get("missing")]
    if not absent:
        return []
    how = str(interpreters[absent[0]].get("how") or "python3 on PATH")
    rule, _, word = how.partition(": ")
    wanted = f"{word} (from {rule})" if word else how
    message = lack(absent, fine, wanted)
    remedy = f"name a python that every node has with --python; look: ssh {absent[0]} 'ls /usr/bin/python3*'"
    return [Finding("remote-path-missing", "fail", message, remedy, place(absent))]


def _broken(request: Request, interpreters: Nodes) -> list[Finding]:
    broken = {n: str(i["error"]) for n, i in interpreters.items() if "error" in i and not i.get("missing")}
    findings = []
    for error, nodes in by_value(broken).items():
        path = interpreters[nodes[0]].get("path") or request.get("python") or "the training interpreter"
        findings.append(
            Finding(
                _LABEL,
                "fail",
                f"{path} on {join_names(nodes)}: {error}",
                remote(nodes[0], str(path), "--version"),
                place(nodes),
            )
        )
    return findings


def _lacking(request: Request, works: Nodes) -> list[Finding]:
    """Modules without which nothing starts: the launcher's own, the one that `-m` names."""
    lacking: dict[str, list[str]] = {}
    for node, one in works.items():
        for module in one.get("lacks") or ():
            lacking.setdefault(str(module), []).append(node)
    findings = []
    for module, nodes in lacking.items():
        path = str(works[nodes[0]].get("path"))
        fine = [node for node in works if node not in nodes]
        message = f"{join_names(nodes)} {plural(len(nodes), 'has', 'have')} no module {module} in {path}, which "
        message += f"{_needed_by(request, module)} needs{others(fine, 'have it', 'has it')}"
        install = remote(nodes[0], path, "-m", "pip", "install", module)
        remedy = f"{install}, or choose another with --python"
        if _needed_by(request, module) == "the command":
            remedy = f"-m {module} is looked for in --workdir, PYTHONPATH and the environment of {path}: check these"
        findings.append(Finding("missing-module", "fail", message, remedy, place(nodes)))
    return findings


def _needed_by(request: Request, module: str) -> str:
    launcher = part(request, "launching").get("name")
    if launcher == module or (launcher, module) == ("torchrun", "torch"):
        return f"--launcher {launcher}"
    return "the command" if request.get("command") else "a test"


def _too_old(request: Request, works: Nodes) -> list[Finding]:
    """Not where the command is run as it is: else the runner (Python ≥ 3.8) stands before the script."""
    if request.get("launcher") == "command":
        return []
    old = [n for n, i in works.items() if _minor(i) < OLDEST and i.get("kind") != "python-other"]
    if not old:
        return []
    one = works[old[0]]
    message = f"{one.get('path')} on {join_names(old)} is Python {one.get('version')}; ranks need 3.8 or newer"
    return [
        Finding(_LABEL, "fail", message, "name a newer one with --python, or activate it with --prelude", place(old))
    ]


def _minor(interpreter: Facts) -> tuple[int, ...]:
    words = str(interpreter.get("version") or "").split(".")[:2]
    return tuple(int(w) if w.isdecimal() else 0 for w in words)


def _torch(works: Nodes) -> list[Finding]:
    """torch on some nodes only; where none has it, the program may well not need it."""
    without = [n for n, i in works.items() if not i.get("torch") and "torch" not in (i.get("lacks") or ())]
    fine = [n for n in works if n not in without]
    if not without or not fine:
        return []
    path = works[without[0]].get("path")
    message = f"{path} on {join_names(without)} has no torch{others(fine, 'have it', 'has it')}"
    version = str(works[fine[0]].get("torch")).partition("+")[0]
    install = remote(without[0], str(path), "-m", "pip", "install", f"torch=={version}")
    remedy = f"{install}, or choose another with --python"
    return [Finding(_LABEL, "fail", message, remedy, place(without))]


def _versions(works: Nodes) -> list[Finding]:
    findings = []
    torches = {n: str(i["torch"]) for n, i in works.items() if i.get("torch")}
    pythons = {n: ".".join(str(part) for part in _minor(i)) for n, i in works.items()}
    for what, values in (("torch", torches), ("Python", pythons)):
        groups = list(by_value(values).values())
        if len(groups) > 1:
            message = f"nodes have different versions of {what}: {differing(values)}"
            remedy = f"use the same {what} everywhere (--python names an interpreter)"
            findings.append(Finding(_LABEL, "warn", message, remedy, place(groups[-1])))
    return findings
