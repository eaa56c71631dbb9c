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
from ..ranks import Attempt, NodePlan
from .node_launcher import agent, has_gpu, interpreter, through
from .training_command import kept_options, launched_by, no_python, read_training

OURS = (
    "num_machines",
    "num_processes",
    "machine_rank",
    "main_process_ip",
    "main_process_port",
    "rdzv_backend",
    "rdzv_conf",
    "same_network",
    "max_restarts",
    "cpu",
    "mpirun_hostfile",
    "deepspeed_hostfile",
    "deepspeed_multinode_launcher",
)
MODES = ("multi_gpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "tpu")
SINGLE = ("", "NO", "MULTI_CPU")  # distributed_type of a configuration that starts one process a machine


def accelerate(launch: NodeLaunch) -> list[PlannedProcess]:
    """One agent a node; it starts the node's ranks."""
    words = read_training(launch.spec)
    tool = launched_by(launch.spec)
    config = configured(launch.facts)
    mode = ("--multi_gpu",) if launch.world_size > 1 and needs_mode(tool, launch.facts) else ()
    argv = (
        interpreter(words, launch.facts),
        *words.flags,
        "-m",
        "accelerate.commands.launch",
        *kept_options(launch.spec, OURS),
        *mode,
        *arguments(launch.node, launch.attempt),
        *no_python(words),
        *through(words, launch.place),
    )
    on_cpu = not has_gpu(launch.facts) and not uses_deepspeed(tool, config)
    env = {"ACCELERATE_USE_CPU": "true"} if on_cpu or wants_cpu(tool, config) else {}
    return [agent(launch, argv, env)]


def arguments(node: NodePlan, attempt: Attempt) -> tuple[str, ...]:
    """Who the machines are."""
    options = {
        "num_machines": node.of,
        "num_processes": node.nproc * node.of,
        "machine_rank": node.rank,
        "main_process_ip": attempt.master_addr,
        "main_process_port": attempt.master_port,
        "rdzv_backend": "static",
        "max_restarts": 0,
        "deepspeed_multinode_launcher": "standard",  # the others reach out by ssh themselves
    }
    return ("--same_network", *(word for name, value in options.items() for word in (f"--{name}", str(value))))


def configured(facts: NodeFacts) -> AccelerateConfig:
    """Read what accelerate's configuration holds; empty where the node was not checked, or has none."""
    config = facts.accelerate_config
    if config is not None and config.error is None:
        return config
    return AccelerateConfig()


def needs_mode(tool: Tool | None, facts: NodeFacts) -> bool:
    """Whether nothing says that there are several processes."""
    if tool is not None and tool.has(*MODES):
        return False
    config = facts.accelerate_config
    if config is not None and config.error is None:
        return (config.distributed_type or "") in SINGLE
    return tool is None or not tool.has("config_file") or tool.has("cpu")


def uses_deepspeed(tool: Tool | None, config: AccelerateConfig) -> bool:
    """DeepSpeed chooses its device by itself."""
    return bool(tool and tool.has("use_deepspeed")) or config.distributed_type == "DEEPSPEED"


def wants_cpu(tool: Tool | None, config: AccelerateConfig) -> bool:
    """Whether --cpu or use_cpu is set."""
    return bool(tool and tool.has("cpu")) or str(config.use_cpu).lower() == "true"
