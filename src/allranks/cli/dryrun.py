"""--dry-run: the exact commands and environments, without doing anything."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from allranks.backends.transport import Transport
from allranks.cluster import Cluster, Node
from allranks.gang.members import NodeState
from allranks.gang.places import Setting, place_for
from allranks.plan.environment import forwarded
from allranks.plan.plan import make_plan, orders
from allranks.plan.ranks import Attempt, SuiteNodes
from allranks.plan.tree import Tree
from allranks.preflight.check import Check
from allranks.settings import RunSpec
from allranks.settings.secrets import redact_argv, redact_env
from allranks.text import count_of

from .allocated import step_argv

SYNCED = "<node dir>/tree"


def describe(spec: RunSpec, cluster: Cluster, json_: bool) -> str:
    """What `run` would do. Words in <> are known only once a node has answered."""
    everyone = (*cluster.nodes, *cluster.spares)
    inherit = all(n.is_local for n in everyone)
    tree = _listed(spec) if spec.sync else None
    setting = Setting(
        run=f"{spec.name}-<time>",
        uid="<uid>",
        token="",
        workdir=os.getcwd(),
        run_outputs=os.path.join(os.path.abspath(spec.runs_dir), f"{spec.name}-<time>", "outputs"),
        local_nodes=frozenset(n.index for n in everyone if n.is_local),
        forwarded={} if inherit else forwarded(dict(os.environ), spec.forward),
        tree=tree,
    )
    plan = make_plan(spec, cluster, {})
    reach = reaching(spec, cluster)
    tests = SuiteNodes(tuple(n.name for n in cluster.nodes)) if spec.test else None
    attempt = Attempt(0, spec.master_addr or "<proved address>", spec.master_port, tests=tests)
    nodes = []
    for planned in plan.nodes:
        state = NodeState(planned.node.name, planned.node.index, node_dir="<node dir>")
        place = place_for(spec, setting, state, {})
        message = orders(spec, plan, planned, place, attempt, {})
        nodes.append({"name": planned.node.name, "reached_by": reach(planned.node), "nproc": planned.nproc,
                      **message})  # fmt: skip
    spares = [{"name": n.name, "reached_by": reach(n)} for n in cluster.spares]
    if json_:
        sync = {"sync": {**vars(tree), "to": SYNCED}} if tree is not None else {}
        document = {"schema": 1, "world_size": plan.world_size, **sync, "nodes": [_redacted(n) for n in nodes]}
        return json.dumps({**document, "spares": spares} if spares else document)
    lines = _lines(spec, plan.world_size, [_redacted(n) for n in nodes])
    lines += [f"spare {n['name']}: {shlex.join(n['reached_by'])}   (no ranks: stands by)" for n in spares]
    return "\n".join([*lines, *_sync_lines(tree, len(nodes) + len(spares))])


def _listed(spec: RunSpec) -> Tree:
    from allranks.backends.tree import list_tree

    return list_tree(spec, os.getcwd()).tree


def _sync_lines(tree: Tree | None, nodes: int) -> list[str]:
    if tree is None:
        return []
    what = f"{count_of(tree.files, 'file')} ({count_of(tree.bytes, 'byte')}) of {tree.root}"
    lines = [f"would ship {what} to {SYNCED} on each node"]
    return lines + [f"  left out, a large checkpoint outside of git: {name}" for name in tree.left_out]


def reaching(spec: RunSpec, cluster: Cluster) -> Callable[[Node], list[str]]:
    """The command that reaches a node; in a Slurm allocation one reaches all."""
    if spec.slurm:
        step = step_argv(spec, cluster)
        return lambda node: step
    transport = Transport(spec.ssh_options, spec.guard_python, spec.python)
    return lambda node: ["(this machine, no ssh)"] if node.is_local else transport.argv(node)


def describe_check(spec: RunSpec, cluster: Cluster, checks: Sequence[Check], json_: bool) -> str:
    """What `check` would do: how each node is reached, and what would be looked at there."""
    reach = reaching(spec, cluster)
    nodes = [{"name": n.name, "reached_by": reach(n)} for n in cluster.nodes]
    listed = [{"id": c.name, "group": c.group, "level": c.level, "passes": c.title} for c in checks]
    if json_:
        return json.dumps({"schema": 1, "nodes": nodes, "checks": listed})
    lines = [f"would make {count_of(len(checks), 'check')} on {count_of(len(nodes), 'node')}; nothing was done"]
    lines += [f"  {n['name']}: {shlex.join(n['reached_by'])}" for n in nodes]
    width = max([len(c.name) for c in checks], default=0)
    return "\n".join(lines + [f"  {c.name:<{width}}  {c.level:<5}  {c.title}" for c in checks])


def _redacted(node: dict[str, Any]) -> dict[str, Any]:
    ranks = [{**r, "argv": redact_argv(r["argv"]), "env": redact_env(r["env"])} for r in node["ranks"]]
    return {k: v for k, v in {**node, "ranks": ranks}.items() if k not in ("type", "follow", "make", "attempt")}


def _lines(spec: RunSpec, world_size: int, nodes: list[dict[str, Any]]) -> list[str]:
    what = f"{count_of(world_size, 'rank')} on {count_of(len(nodes), 'node')}"
    lines = [f"would start {what} (launcher {spec.launcher}); nothing was done"]
    for node in nodes:
        lines.append(f"\n{node['name']}: {shlex.join(node['reached_by'])}")
        for rank in node["ranks"]:
            lines.append(f"  rank {rank['rank']}: cd {shlex.quote(rank['workdir'])} && {shlex.join(rank['argv'])}")
        environments = [r["env"] for r in node["ranks"]]
        common = {k: v for k, v in environments[0].items() if all(e.get(k) == v for e in environments)}
        lines += [f"    {k}={shlex.quote(v)}" for k, v in sorted(common.items())]
        for rank in node["ranks"]:
            own = {k: v for k, v in rank["env"].items() if k not in common}
            if own:
                lines.append(f"  rank {rank['rank']}: " + " ".join(f"{k}={shlex.quote(v)}" for k, v in own.items()))
    if "PATH" not in spec.env and spec.launcher == "direct":
        lines.append("\nPATH begins with the directory of the training interpreter, as after `activate`")
    lines.append("\nnproc auto counts GPUs only on the nodes themselves; addresses and ports are proved at the gate")
    return lines
