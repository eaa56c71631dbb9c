"""Findings of the rendezvous check and of the start, in the words a reader gets (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from allranks.diagnose.hangs.compared import UNLIKE_CALLS, UNLIKE_SHAPES, OddCall
from allranks.diagnose.words import name_by_node
from allranks.findings import Finding, Where
from allranks.plan.ranks import Plan
from allranks.protocol.messages import LOW_SPACE, RemarkMessage
from allranks.text import count_of, plural


def unreadable_message(node: str, kind: str, error: str) -> Finding:
    """Return the finding about a message without which a node cannot take part; `error` names the field."""
    return Finding(
        "unknown",
        "fail",
        f"{node}: its agent's {kind} message cannot be read ({error}). Another program may have changed it on its way",
        f"look at {node} with `allranks check`, or take it out of the list",
        Where(node=node),
    )


def not_shared(node: str, master: str, directory: str) -> Finding:
    """Return the finding about an output directory that the nodes do not share."""
    return Finding(
        "output-dir-not-shared",
        "warn",
        f"{directory} on {node} is not the directory that {master} sees: each node keeps its own outputs",
        "name a directory of a shared file system, or leave --output-dir out",
        Where(node=node, peer=master),
    )


def world_size_differs(expected: int, plan: Plan) -> Finding:
    """Return the finding about a WORLD_SIZE in the environment that the plan contradicts."""
    nodes = ", ".join(f"{n.node.name} {n.nproc}" for n in plan.nodes)
    planned = count_of(plan.world_size, "rank")
    message = f"WORLD_SIZE={expected} is set here, but the plan has {planned} ({nodes}). The plan holds"
    return Finding("world-size-mismatch", "warn", message, "unset WORLD_SIZE, or change --nodes or --nproc")


SPARE_UNUSED = "spare-unused"  # the finding of a hot spare that is of no use


def spare_unused(name: str, why: str, remedy: str = "") -> Finding:
    """Return the finding about a hot spare that cannot take a place."""
    message = f"spare {name} is not used: {why}"
    return Finding(SPARE_UNUSED, "warn", message, remedy, Where(node=name), lasts=True)


# What to do about the remarks of agents, by their ids.
REMEDIES = {LOW_SPACE: "free some. hint: ssh {node} 'du -xh -d1 /tmp'"}


def remark_of(node: str, remark: RemarkMessage) -> Finding:
    """Return the warning that an agent's remark is."""
    remedy = REMEDIES.get(remark.id, "").replace("{node}", node)
    return Finding(remark.id, "warn", f"{node}: {remark.message}", remedy, Where(node=node), lasts=True)


def called_unlike(odd: OddCall, nodes: Mapping[int, str], went_on: bool) -> Finding:
    """Return the finding about ranks that called a collective unlike each other; `went_on`: nothing failed after it."""
    where = Where()
    if len(odd.ranks) == 1:
        rank = next(iter(odd.ranks))
        where = Where(node=nodes.get(rank), rank=rank)
    who = "ranks have"
    if odd.ranks:
        named = name_by_node(sorted(odd.ranks), lambda rank: nodes.get(rank, ""))
        who = f"{named} {plural(len(odd.ranks), 'has', 'have')}"
    message = f"{who} called a collective unlike the others: {odd.words}"
    if went_on:
        message += ". It came to an end, so what ranks received there may be wrong"
    check = UNLIKE_SHAPES if odd.is_shape else UNLIKE_CALLS
    remedy = (
        "Give all ranks tensors of one shape and type there. `--debug` (TORCH_DISTRIBUTED_DEBUG=DETAIL) compares calls"
    )
    return Finding(check, "warn", message, remedy, where)


def logs_cut(name: str, node_dir: str, attempt: int) -> Finding:
    """Return the finding about logs that end early: the node gets a new agent, and the old one had more."""
    return Finding(
        "logs-cut",
        "warn",
        f"{name}'s logs of attempt {attempt} end where the node was lost",
        f"the rest, if it lives, is in {node_dir} on {name}",
        Where(node=name),
    )


def too_small(name: str, room: int, need: int) -> Finding:
    """Return the finding about a node that is back with fewer GPUs than its ranks had."""
    return Finding(
        "world-size-mismatch",
        "fail",
        f"{name} has room for {count_of(room, 'rank')} now, and had {need}",
        f"look at its GPUs: ssh {name} 'nvidia-smi -L || amd-smi list'",
        Where(node=name),
    )


def tree_failed(node: str, path: str, error: str, no_room: bool) -> Finding:
    """Return the finding about a node on which the caller's tree could not be put."""
    remedy = "free some space there, name another place with --node-dir, or list what is not code in .gitignore"
    if no_room:
        return Finding(
            "disk-full", "fail", f"{node} has no room for the synced tree in {path}: {error}", remedy, Where(node=node)
        )
    remedy = f"ls -ld {path.rpartition('/')[0]} on the node, then allranks logs --node {node}, or run without --sync"
    return Finding(
        "tree-not-shipped", "fail", f"the synced tree is not in {path} on {node}: {error}", remedy, Where(node=node)
    )


GONE = "No such file or directory"  # strerror(ENOENT)


def run_disk_full(path: str, why: str) -> Finding:
    """Return the finding about a run directory that cannot be written: the run goes on, and no output is lost yet."""
    if why == GONE:
        return Finding(
            "missing-file",
            "warn",
            f"the run directory {path} was removed. Its logs and events are lost, and the run goes on",
            "remove run directories with `allranks clean`, which leaves those of runs that go on",
        )
    return Finding(
        "disk-full",
        "warn",
        f"the run directory {path} cannot be written: {why}. Output that finds no room stays on the nodes. It is "
        "fetched while the run goes on once there is some. Events of that time are lost",
        f"free some space (df -h {path})",
    )


def ended_early(role: str, node: str, rank: int) -> Finding:
    """Return the finding about a process that was to run as long as the other roles, and ended with success."""
    message = f"rank {rank} on {node} ended with code 0, and {role} was to run as long as the others"
    remedy = f'see why with `allranks logs --role {role}`. Where its end is meant, set ends = "any" in [roles.{role}]'
    return Finding("role-ended", "fail", message, remedy, Where(node=node, rank=rank))
