"""accelerate: `accelerate launch` once a node, the machine's figures as options (they hold over any configuration).

With more than one process it must go through torch's agent: `--cpu`, and a configuration that names no multi-process
type, start the script once a machine, each trains alone, and all end with 0 (accelerate/commands/launch.py:
simple_launcher). So without GPUs it is --multi_gpu and ACCELERATE_USE_CPU. `--num_processes` is divided by the number
of machines there: nodes with different numbers of ranks each say their own, times the machines.
"""

from __future__ import annotations

from allranks.protocol.plan_facts import AccelerateConfig, NodeFacts
from allranks.settings.tools import Tool

from ..environment import NodeLaunch, PlannedProcess
from .node_launcher import agent, has_gpu, launcher_argv, options_of
from .training_command import launched_by

# Options that allranks sets or has no use for, beside those that say who the nodes are.
_OURS = "rdzv_conf same_network max_restarts cpu mpirun_hostfile deepspeed_hostfile deepspeed_multinode_launcher"
OURS = tuple(_OURS.split())
MODES = ("multi_gpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "tpu")
SINGLE = ("", "NO", "MULTI_CPU")  # distributed_type of a configuration that starts one process a machine


def accelerate(launch: NodeLaunch) -> list[PlannedProcess]:
    """One agent a node; it starts the node's ranks."""
    tool = launched_by(launch.spec)
    mode = ("--multi_gpu",) if launch.world_size > 1 and needs_mode(tool, launch.facts) else ()
    node = launch.node
    own = {
        "num_machines": node.of,
        "num_processes": node.nproc * node.of,
        "machine_rank": node.rank,
        "main_process_ip": launch.attempt.master_addr,
        "main_process_port": launch.attempt.master_port,
        "rdzv_backend": "static",
        "max_restarts": 0,
        "deepspeed_multinode_launcher": "standard",  # the others reach out by ssh themselves
    }
    options = (*mode, "--same_network", *options_of(own))
    env = {"ACCELERATE_USE_CPU": "true"} if on_cpu(tool, launch.facts) else {}
    return [agent(launch, launcher_argv(launch, "accelerate.commands.launch", options, OURS), env)]


def configured(facts: NodeFacts) -> AccelerateConfig | None:
    """Read what accelerate's configuration holds; None where the node was not checked, or has none."""
    config = facts.accelerate_config
    return config if config is not None and config.error is None else None


def needs_mode(tool: Tool | None, facts: NodeFacts) -> bool:
    """Whether nothing says that there are several processes."""
    if tool is not None and tool.has(*MODES):
        return False
    config = configured(facts)
    if config is not None:
        return (config.distributed_type or "") in SINGLE
    return tool is None or not tool.has("config_file") or tool.has("cpu")


def on_cpu(tool: Tool | None, facts: NodeFacts) -> bool:
    """Whether ranks run on CPUs: as --cpu or use_cpu says, else without GPUs. DeepSpeed chooses by itself."""
    config = configured(facts) or AccelerateConfig()
    if (tool is not None and tool.has("cpu")) or str(config.use_cpu).lower() == "true":
        return True
    by_deepspeed = (tool is not None and tool.has("use_deepspeed")) or config.distributed_type == "DEEPSPEED"
    return not has_gpu(facts) and not by_deepspeed
