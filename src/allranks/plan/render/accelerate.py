"""accelerate: a configuration and a script for each node.

A configuration that the command names (--config_file) is the base: its figures of nodes and ranks are replaced, the
rest stays word for word. Static rendezvous on one network: main_process_ip and main_process_port as they stand.
"""

from __future__ import annotations

from allranks.errors import UsageError

from ..launchers.accelerate import OURS
from ..launchers.training_command import launched_by
from ..ranks import NodePlan
from .request import Rendered, RenderRequest, script_name
from .shell import Here, script

BASE = """compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_GPU
main_training_function: main
mixed_precision: 'no'
use_cpu: false
"""


def accelerate(request: RenderRequest) -> Rendered:
    """Render the configuration and the script of each node."""
    if request.plan.world_size < 2:
        raise UsageError("render accelerate: one rank needs no launcher. Set --nproc, or name more hosts")
    files: Rendered = {}
    for node in request.plan.nodes:
        name = script_name(node)
        config = name.removesuffix(".sh") + ".yaml"
        files[config] = _config(request, node)
        options = ["--config_file", Here(config)]
        files[name] = script(request, node, "accelerate.commands.launch", options, (*OURS, "config_file"))
    return files


def _config(request: RenderRequest, node: NodePlan) -> str:
    """num_processes is divided by the nodes there: each says its own ranks, times the nodes (launchers/accelerate)."""
    figures = {
        "machine_rank": node.rank,
        "main_process_ip": _text(request.master_addr),
        "main_process_port": request.master_port,
        "num_machines": node.of,
        "num_processes": node.nproc * node.of,
        "rdzv_backend": "static",
        "same_network": "true",
    }
    lines = [line for line in _base(request).splitlines() if line.partition(":")[0].rstrip() not in figures]
    return "\n".join([f"# {node.node.name}", *lines, *(f"{key}: {value}" for key, value in figures.items())]) + "\n"


def _base(request: RenderRequest) -> str:
    tool = launched_by(request.spec)
    named = tool.value("config_file") if tool is not None else None
    if not named:
        return BASE
    if named.endswith(".json"):
        raise UsageError(f"render accelerate: {named} is JSON, expected YAML as `accelerate config` writes it")
    if named not in request.texts:
        raise UsageError(f"render accelerate: --config_file {named} does not exist here")
    return request.texts[named]


def _text(word: str) -> str:
    """Quote a YAML text: an address such as ::1 is none of YAML's other things."""
    return "'" + word.replace("'", "''") + "'"
