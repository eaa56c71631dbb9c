"""The training interpreter is on every node, new enough, with the same Python and torch."""

from __future__ import annotations

from typing import Dict, List, Mapping

from allranks.protocol.facts import Interpreter
from allranks.text import join_names

from ..compare import (
    Findings,
    Nodes,
    by_entry,
    by_value,
    differing,
    fail,
    having,
    lack,
    nodes_with,
    others,
    pip_install,
    remote,
    those,
    values_of,
    warn,
    who,
)
from ..host import version_of
from ..typed_facts import Request

ID = "interpreter"
GROUP = "software"
LEVEL = "quick"
OLDEST = (3, 8)
OF_RAY = ("ray", "ray-driver")  # settings/ray.py, LAUNCHERS
_LABEL = "environment-mismatch"
_OR_CHOOSE = "or choose another with --python"

Interpreters = Mapping[str, Interpreter]


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """remote-path-missing (absent), environment-mismatch (does not start, too old, differs), missing-module."""
    every = {node: facts.interpreter for node, facts in facts_by_node.items() if any(facts.interpreter)}
    interpreters = those(every, lambda one: not one.skipped)
    works = those(interpreters, lambda one: not one.error)
    for finding in (*_absent(interpreters, list(works)), *_broken(request, interpreters), *_lacking(request, works)):
        # another interpreter may be inside the wrapper
        yield finding._replace(status="warn") if request.asked.wrap else finding
    if request.asked.launcher != "command":  # else the runner (Python ≥ 3.8) stands before the script
        old = nodes_with(works, lambda one: version_of(one.version) < OLDEST and one.kind != "python-other")
        newer = "name a newer one with --python, or activate it with --prelude"
        yield from _unfit(works, old, " (ranks need 3.8 or newer)", newer)
        threaded = nodes_with(works, lambda one: one.version.endswith("t"))
        other = f"name another one with --python. --allow {_LABEL} starts the ranks all the same"
        yield from _unfit(works, threaded, ", a free-threaded build, with which allranks was not tried", other)
    yield from _torch(works)
    pythons = values_of(works, lambda one: ".".join(map(str, version_of(one.version))))
    yield from _torch_versions(request, having(works, lambda one: one.torch))
    if request.asked.launching.name not in OF_RAY:
        yield from _versions("Python", pythons)
        return
    rays = having(works, lambda one: one.ray)
    for finding in (*_versions("Python", pythons), *_versions("Ray", rays)):  # Ray refuses a node that differs
        yield finding._replace(status="fail")


def _absent(interpreters: Interpreters, fine: List[str]) -> Findings:
    missing = those(interpreters, lambda one: one.missing)
    for how, absent in by_value(values_of(missing, lambda one: one.how or "python3 on PATH")).items():
        rule, _, word = how.partition(": ")
        wanted = f"{word} (from {rule})" if word else how
        show = f"ssh {absent[0]} 'ls /usr/bin/python3*'"
        remedy = f"name a python that every node has with --python, or install it on {join_names(absent)}. Look: {show}"
        yield fail("remote-path-missing", absent, lack(absent, fine, wanted), remedy)


def _broken(request: Request, interpreters: Interpreters) -> Findings:
    broken = those(interpreters, lambda one: one.error and not one.missing)
    for (error, known_path), nodes in by_value(values_of(broken, lambda one: (one.error, one.path))).items():
        path = known_path or request.asked.python or "the training interpreter"
        yield fail(_LABEL, nodes, f"{path} on {join_names(nodes)}: {error}", remote(nodes[0], path, "--version"))


def _lacking(request: Request, works: Interpreters) -> Findings:
    """Modules without which nothing starts: the launcher's own, the one that `-m` names."""
    lacking = by_entry(values_of(works, lambda one: [(module, one.path) for module in one.lacks]))
    for (module, path), nodes in lacking.items():
        fine = [node for node, one in works.items() if module not in one.lacks]
        needed_by = _needed_by(request, module)
        message = f"{who(nodes)} no module {module} in {path}, which "
        message += f"{needed_by} needs{others(fine)}"
        remedy = f"{pip_install(nodes[0], works[nodes[0]], module)}, {_OR_CHOOSE}"
        if needed_by == "the command":
            remedy = f"-m {module} is looked for in --workdir, PYTHONPATH and the environment of {path}: check these"
        yield fail("missing-module", nodes, message, remedy)


def _needed_by(request: Request, module: str) -> str:
    launcher = request.asked.launching.name
    if module == "ray" and launcher in OF_RAY:
        return "--ray"
    if launcher == module or (launcher, module) == ("torchrun", "torch"):
        return f"--launcher {launcher}"
    return "the command" if request.asked.command else "a test"


def _unfit(works: Interpreters, nodes: List[str], why: str, remedy: str) -> Findings:
    for (path, version), names in by_value({node: (works[node].path, works[node].version) for node in nodes}).items():
        yield fail(_LABEL, names, f"{path} on {join_names(names)} is Python {version}{why}", remedy)


def _torch(works: Interpreters) -> Findings:
    without = nodes_with(works, lambda one: not one.torch and "torch" not in one.lacks)
    fine = [node for node in works if node not in without]
    for path, nodes in by_value({node: works[node].path for node in without if fine}).items():
        message = f"{path} on {join_names(nodes)} has no torch{others(fine)}"
        version = (works[fine[0]].torch or "").partition("+")[0]
        install = pip_install(nodes[0], works[nodes[0]], f"torch=={version}")
        yield fail(_LABEL, nodes, message, f"{install}, {_OR_CHOOSE}")


def _torch_versions(request: Request, versions: Dict[str, str]) -> Findings:
    """Fail for another minor version: collectives, checkpoints and defaults of two of them need not fit."""
    minors = {version_of(version)[:2] for version in versions.values()}
    for finding in _versions("torch", versions):
        if len(minors) > 1 and not request.asked.wrap:
            remedy = f"{finding.remedy}. --allow {_LABEL} starts the ranks all the same"
            finding = finding._replace(status="fail", remedy=remedy)
        yield finding


def _versions(what: str, versions: Dict[str, str]) -> Findings:
    groups = list(by_value(versions).values())
    if len(groups) > 1:
        message = f"nodes have different versions of {what}: {differing(versions)}"
        yield warn(_LABEL, groups[-1], message, f"use the same {what} everywhere (--python names an interpreter)")
