"""Ray on the nodes of a run, and its driver on the first (ray/scripts/scripts.py, `ray start`)."""

from __future__ import annotations

from allranks.cluster.names import bracketed
from allranks.protocol import node_names as names
from allranks.protocol.command_words import read_command
from allranks.protocol.plan_facts import gpu_count
from allranks.settings.ray import RAY, START, without_head_options

from ..environment import NodeLaunch, PlannedProcess
from .training_command import python_argv

RUNNER = "runner_ray.py"  # agent/runner_ray.py, in the node directory


def ray(launch: NodeLaunch) -> list[PlannedProcess]:
    """Start `ray start` once a node: the head on the first, the others with its address."""
    node = launch.node
    attempt = launch.attempt
    own = launch.spec.launch.command[len(START) :]
    addresses = _addresses(launch)
    files = launch.place.files
    before = ["--logs", files.ray_log(attempt.number), "--ending", files.ending, "--links", files.links]
    if node.rank == 0:
        before += ["--nodes", ",".join(addresses)]
        options = ["--head", f"--port={attempt.master_port}"]
        if not any(option.startswith("--include-dashboard") for option in own):
            options += ["--include-dashboard=false"]
    else:
        own = without_head_options(own)
        options = [f"--address={bracketed(attempt.master_addr)}:{attempt.master_port}"]
    options += [f"--node-ip-address={addresses[node.rank]}", f"--temp-dir={files.ray}"]
    environment: dict[str, str] = {}
    gpus = _gpus(launch)
    if gpus and not any(option.startswith("--num-gpus") for option in own):
        options.append(f"--num-gpus={gpus}")
        if launch.spec.target.local:  # virtual nodes share the GPUs of this machine
            first = node.rank * gpus
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(first, first + gpus)))
    # Without bounds Ray would take the ports from 10002 on, whoever else has them.
    options += ["--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats", *own, "--block"]
    python = launch.facts.interpreter.path or "python3"
    argv = (python, f"{launch.place.node_dir}/{RUNNER}", *before, "start", *options)
    return [PlannedProcess(node.first_rank, 0, argv, environment, per_rank=False)]


def driver(launch: NodeLaunch) -> list[PlannedProcess]:
    """Start the command once, with Ray's address and without the variables of ranks."""
    place = launch.place
    address = place.peers.get(f"{RAY}.address", "<checked address>")
    environment = {
        "RAY_ADDRESS": f"{bracketed(address)}:{place.peers.get(f'{RAY}.port', '<free port>')}",
        names.ERROR_FILE: place.files.error(launch.node.first_rank, launch.attempt.number),
    }
    argv = python_argv(read_command(launch.spec.launch.command), launch.facts, f"{place.node_dir}/runner.py")
    return [PlannedProcess(launch.node.first_rank, 0, argv, environment, per_rank=False)]


def _addresses(launch: NodeLaunch) -> list[str]:
    known = launch.place.peers.get(f"{RAY}.addresses")
    return known.split(",") if known else [f"<address {rank}>" for rank in range(launch.node.of)]


def _gpus(launch: NodeLaunch) -> int:
    """Count the GPUs that Ray gets on a node: its slots, else those found."""
    if launch.node.node.slots is not None:
        return launch.node.node.slots
    return gpu_count(launch.facts) // (launch.node.of if launch.spec.target.local else 1)
