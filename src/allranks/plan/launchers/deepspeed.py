"""deepspeed: its runner once a node with --no_ssh; who the nodes are stands in a hostfile that allranks writes there.

`--local_rank` goes to the program as with deepspeed alone (`--no_local_rank` among the options leaves it out).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.spec import RunSpec
from allranks.spec.tools import Tool

from ..environment import Place, Process
from ..ranks import Attempt, NodePlan, Plan
from .agent import agent, interpreter, through
from .words import launched_by, read_training

OURS = (
    "H", "hostfile", "i", "include", "e", "exclude", "num_nodes", "num_gpus", "num_accelerators", "master_port",
    "master_addr", "node_rank", "launcher", "launcher_args", "no_ssh", "no_ssh_check", "force_multi", "ssh_port",
)  # fmt: skip


def deepspeed(
    spec: RunSpec, plan: Plan, node: NodePlan, place: Place, attempt: Attempt, facts: Mapping[str, Any]
) -> list[Process]:
    """One launcher a node; it starts the node's ranks."""
    words = read_training(spec)
    path = f"{place.node_dir}/deepspeed_hostfile"
    argv = (
        interpreter(words, facts), *words.flags, "-m", "deepspeed.launcher.runner", *kept(launched_by(spec)),
        *arguments(node, attempt, path), *(("--no_python",) if words.kind == "program" else ()), *through(words, place),
    )  # fmt: skip
    return [agent(plan, node, place, attempt, argv, files={path: hostfile(plan)})]


def arguments(node: NodePlan, attempt: Attempt, path: str) -> tuple[str, ...]:
    """Who the nodes are."""
    return (
        "--hostfile", path, "--no_ssh", "--node_rank", str(node.node.index), "--master_addr", attempt.master_addr,
        "--master_port", str(attempt.master_port),
    )  # fmt: skip


def hostfile(plan: Plan) -> str:
    """A line a node, in the order of ranks."""
    return "".join(f"{n.node.name} slots={n.nproc}\n" for n in plan.nodes)


def kept(tool: Tool | None) -> tuple[str, ...]:
    """The user's own options."""
    return tool.kept(OURS) if tool is not None else ()
