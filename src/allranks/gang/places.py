"""Where a run's ranks live on each node, and what a guard is asked to look at (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from allranks.plan.environment import Place
from allranks.plan.launchers.words import read_command
from allranks.spec import RunSpec

from .members import NodeState


@dataclass(frozen=True)
class Setting:
    """What the controller's side adds to the RunSpec: names, caller's directory and environment.

    `token` is what the proof listener answers; `local_nodes` are names of nodes on this machine, whose
    outputs go straight into `run_outputs`.
    """

    run: str
    uid: str
    token: str
    workdir: str
    run_outputs: str
    local_nodes: frozenset[str] = frozenset()
    forwarded: Mapping[str, str] = field(default_factory=dict)
    virtual_env: str | None = None
    conda_prefix: str | None = None
    expected_world_size: int | None = None


def mark(setting: Setting, index: int) -> str:
    """The run mark of a node's processes: uid/node."""
    return f"{setting.uid}/{node_label(index)}"


def node_label(index: int) -> str:
    """The node's directory name; virtual nodes share a machine, so it carries the index."""
    return f"node_{index:02d}"


def setup_message(spec: RunSpec, setting: Setting) -> dict[str, Any]:
    """What a guard is asked to look at."""
    return {
        "type": "setup",
        "workdir": spec.workdir or setting.workdir,
        "command": list(spec.command),
        "kind": read_command(spec.command).kind if spec.command else "program",
        "python": spec.python,
        "virtual_env": setting.virtual_env,
        "conda_prefix": setting.conda_prefix,
        "environ": {**setting.forwarded, **spec.env},
        "prelude": spec.prelude,
        "master_port": spec.master_port,
    }


def place_for(spec: RunSpec, setting: Setting, node: NodeState, interfaces: Mapping[str, str]) -> Place:
    """Directories of a node's ranks."""
    here = node.name in setting.local_nodes and spec.output_dir is None
    if spec.output_dir is not None:
        outputs = spec.output_dir
    else:
        outputs = setting.run_outputs if here else f"{node.node_dir}/outputs"
    return Place(
        node_dir=node.node_dir,
        workdir=spec.workdir or setting.workdir,
        output_dir=outputs,
        outputs_here=here,
        mark=mark(setting, node.index),
        run=setting.run,
        forwarded=setting.forwarded,
        interfaces=interfaces,
    )
