"""--dry-run: the exact commands and environments, without doing anything."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import Sequence
from typing import Any

from allranks.agent.node_check import choose_interpreter, read_program
from allranks.agent.rank_start import environment_of
from allranks.cluster import Cluster
from allranks.gang.members import NodeState
from allranks.gang.places import Setting, Tree, place_for, setup_order
from allranks.gang.session import RunNames, make_setting
from allranks.gang.working_tree import list_tree
from allranks.plan.environment import NodeLaunch
from allranks.plan.plan import make_plan, orders
from allranks.plan.ranks import Attempt, Plan, SuiteNodes
from allranks.preflight.check import Check
from allranks.protocol.orders import ORDERS, RankOrder
from allranks.protocol.plan_facts import read_facts
from allranks.settings import RunSpec
from allranks.settings.secrets import redact_argv, redact_env
from allranks.text import count_of

from . import reach_nodes

SYNCED = "<node dir>/tree"


def describe(spec: RunSpec, cluster: Cluster, json_: bool) -> str:
    """What `run` would do. Words in <> are known only once a node has answered."""
    run = f"{spec.places.name}-<time>"
    names = RunNames(run, "<uid>", "", os.path.join(os.path.abspath(spec.places.runs_dir), run, "outputs"))
    tree = _listed(spec) if spec.launch.sync else None
    setting = dataclasses.replace(make_setting(spec, cluster, os.environ, os.getcwd(), names, ()), tree=tree)
    plan = make_plan(spec, cluster, {})
    reach = reach_nodes(spec, cluster).transport.described
    suite = SuiteNodes(tuple(node.name for node in cluster.nodes))
    tests = _nodes(spec, cluster, setting, plan, 0, suite) if spec.tests.test else []
    tests_first = tests if spec.launch.command else []
    nodes = tests
    if spec.launch.command or not tests:
        number = 1 if tests_first else 0
        nodes = _nodes(spec, cluster, setting, plan, number, None)
    spares = [{"name": n.name, "reached_by": reach(n)} for n in cluster.spares]
    if json_:
        sync = {"sync": {**vars(tree), "to": SYNCED}} if tree is not None else {}
        document = {"schema": 1, "world_size": plan.world_size, **sync, "nodes": nodes}
        document |= {"tests": tests_first} if tests_first else {}
        return json.dumps({**document, "spares": spares} if spares else document)
    lines = []
    if tests_first:
        lines += [*_lines(spec, plan.world_size, tests_first, "collective tests first: "), ""]
    lines += _lines(spec, plan.world_size, nodes)
    lines += [f"spare {n['name']}: {shlex.join(n['reached_by'])}   (stands by, without ranks)" for n in spares]
    return "\n".join([*lines, *_sync_lines(tree, len(nodes) + len(spares))])


def _nodes(
    spec: RunSpec, cluster: Cluster, setting: Setting, plan: Plan, number: int, tests: SuiteNodes | None
) -> list[dict[str, Any]]:
    """What each node would be ordered to start in an attempt, made as `run` makes it, without secrets."""
    reach = reach_nodes(spec, cluster).transport.described
    port: int | str = spec.rendezvous.master_port or "<free port>"
    attempt = Attempt(number, spec.rendezvous.master_addr or "<checked address>", port, repeats=number, tests=tests)
    nodes = []
    for planned in plan.nodes:
        node = planned.node
        is_known = node.is_local and spec.launch.prelude is None  # its environment is this process's
        facts = known_facts(spec, setting) if is_known else {}
        state = NodeState(node.name, node.index, node_dir="<node dir>")
        place = place_for(spec, setting, state, _chosen_later(spec, setting, is_known))
        order = orders(NodeLaunch(spec, plan.world_size, planned, place, attempt, read_facts(facts)))
        if is_known:
            order = order._replace(ranks=tuple(_as_started(rank) for rank in order.ranks))
        start = ORDERS.write(order)
        nodes.append({"name": node.name, "reached_by": reach(node), "nproc": planned.nproc, **start})
    return [_redacted(node) for node in nodes]


def known_facts(spec: RunSpec, setting: Setting) -> dict[str, Any]:
    """What the agent of a local node would find of the training interpreter, by its own rules."""
    order = setup_order(spec, setting)
    program = read_program(order.command, order.kind)
    path, how = choose_interpreter(order, program, order.workdir or os.getcwd(), os.environ)
    return {"interpreter": {"kind": program.kind, "how": how, "path": path}} if path is not None else {}


def _chosen_later(spec: RunSpec, setting: Setting, is_known: bool) -> dict[str, str]:
    """Variables of the network whose values the rendezvous check chooses."""
    name = "GLOO_SOCKET_IFNAME"
    is_set = name in spec.launch.env or name in setting.forwarded or (is_known and name in os.environ)
    return {} if is_set else {name: "<interface>"}


def _as_started(rank: RankOrder) -> RankOrder:
    """A rank with the variables that it would get from this process's environment below the order."""
    base = dict(os.environ)
    environment = environment_of(rank, base)
    shown = {name: environment[name] for name in rank.env}
    if environment["PATH"] != base.get("PATH"):
        shown["PATH"] = environment["PATH"]
    return rank._replace(env=shown)


def _listed(spec: RunSpec) -> Tree:
    return list_tree(spec, os.getcwd()).tree


def _sync_lines(tree: Tree | None, nodes: int) -> list[str]:
    if tree is None:
        return []
    what = f"{count_of(tree.files, 'file')} ({count_of(tree.bytes, 'byte')}) of {tree.root}"
    lines = [f"would ship {what} to {SYNCED} on each node"]
    return lines + [f"  left out, a large checkpoint outside of git: {name}" for name in tree.left_out]


def describe_check(spec: RunSpec, cluster: Cluster, checks: Sequence[Check], json_: bool) -> str:
    """What `check` would do: how each node is reached, and what would be looked at there."""
    reach = reach_nodes(spec, cluster).transport.described
    nodes = [{"name": n.name, "reached_by": reach(n)} for n in cluster.nodes]
    listed = [{"id": c.name, "group": c.group, "level": c.level, "passes": c.title} for c in checks]
    if json_:
        return json.dumps({"schema": 1, "nodes": nodes, "checks": listed})
    lines = [f"would make {count_of(len(checks), 'check')} on {count_of(len(nodes), 'node')}, and nothing was done"]
    lines += [f"  {n['name']}: {shlex.join(n['reached_by'])}" for n in nodes]
    width = max([len(c.name) for c in checks], default=0)
    return "\n".join(lines + [f"  {c.name:<{width}}  {c.level:<5}  {c.title}" for c in checks])


def _redacted(node: dict[str, Any]) -> dict[str, Any]:
    ranks = [{**r, "argv": redact_argv(r["argv"]), "env": redact_env(r["env"])} for r in node["ranks"]]
    return {k: v for k, v in {**node, "ranks": ranks}.items() if k not in ("type", "follow", "make", "attempt")}


def _lines(spec: RunSpec, world_size: int, nodes: list[dict[str, Any]], head: str = "") -> list[str]:
    what = head + f"{count_of(world_size, 'rank')} on {count_of(len(nodes), 'node')}"
    lines = [f"would start {what} (launcher {spec.launch.launcher}), and nothing was done"]
    for node in nodes:
        lines.append(f"\n{node['name']}: {shlex.join(node['reached_by'])}")
        for rank in node["ranks"]:
            lines.append(f"  rank {rank['rank']}: cd {shlex.quote(rank['workdir'])} && {shlex.join(rank['argv'])}")
        environments = [r["env"] for r in node["ranks"]]
        common = {k: v for k, v in environments[0].items() if all(e.get(k) == v for e in environments)}
        lines += [f"    {k}={shlex.quote(v)}" for k, v in sorted(common.items())]
        for rank in node["ranks"]:
            rank_only = {k: v for k, v in rank["env"].items() if k not in common}
            if rank_only:
                lines.append(
                    f"  rank {rank['rank']}: " + " ".join(f"{k}={shlex.quote(v)}" for k, v in rank_only.items())
                )
    if "PATH" not in spec.launch.env and spec.launch.launcher == "direct":
        lines.append("\nPATH begins with the directory of the training interpreter, as after `activate`")
    lines.append("\nnproc auto counts GPUs only on the nodes. Addresses and ports are checked before ranks start")
    return lines
