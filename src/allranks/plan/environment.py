"""The environment of a rank: torchrun's whole contract, allranks' own names, the user's settings.

Order, later wins: what the node's session and the prelude give (known only there), forwarded names, allranks' own,
interface settings, [env] and --env. What tunes communication is forwarded to other hosts: FORWARDED_PREFIXES and
FORWARDED_NAMES. What names a place or a secret of this machine is not, unless --env names it: WITHHELD_NAMES. Local
nodes inherit all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from allranks.protocol import node_names as names
from allranks.protocol.node_names import NodeFiles
from allranks.protocol.plan_facts import NodeFacts
from allranks.settings import RunSpec
from allranks.settings.frameworks import LIGHTNING
from allranks.settings.ray import DRIVER, RAY
from allranks.settings.roles import fill_roles, variable_of
from allranks.settings.tools import is_one_process

from .ranks import Attempt, NodePlan

# FI_ is libfabric's (fabric(7)), UCX_ that of UCX (openucx.readthedocs.io, "UCX environment parameters").
FORWARDED_PREFIXES = ("NCCL_", "RCCL_", "GLOO_", "TORCH_", "FI_", "UCX_")
# CUDA_DEVICE_MAX_CONNECTIONS: Megatron-LM's overlap of communication asks for 1 (its README).
FORWARDED_NAMES = ("CUDA_DEVICE_MAX_CONNECTIONS", "OMP_NUM_THREADS")
# Paths, devices and secrets of this machine: on another one they may be wrong. The run says which are set here.
_WITHHELD = "CUDA_VISIBLE_DEVICES HF_HOME HF_HUB_CACHE HF_TOKEN LD_LIBRARY_PATH LD_PRELOAD PYTHONPATH WANDB_API_KEY"
WITHHELD_NAMES = tuple(_WITHHELD.split())
# Set unless the node's own session, the prelude or the user says otherwise.
RECORDER = "TORCH_FR_BUFFER_SIZE"
OLD_RECORDER = "TORCH_NCCL_TRACE_BUFFER_SIZE"
TIMING = "TORCH_NCCL_ENABLE_TIMING"
WEAK = (
    "MLFLOW_RUN_NAME",
    "NCCL_DEBUG",
    names.NCCL_FILE,
    "OMP_NUM_THREADS",
    "PYTHONUNBUFFERED",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    RECORDER,
    OLD_RECORDER,
    names.DUMPS,
    names.OLD_DUMPS,
    "WANDB_NAME",
    "WANDB_RUN_GROUP",
)
# Variables by which trackers take the name of a run, by the prefix of variables that say that the tracker is in use:
# W&B (docs.wandb.ai, "Environment variables"), MLflow (mlflow/environment_variables.py).
TRACKERS = {"WANDB_": ("WANDB_NAME", "WANDB_RUN_GROUP"), "MLFLOW_": ("MLFLOW_RUN_NAME",)}
# Read by allranks itself (they set --pg-timeout) and by no library.
NOT_FORWARDED = ("NCCL_TIMEOUT",)
RECORDED = "2000"  # collectives that torch's flight recorder keeps a rank


@dataclass(frozen=True)
class Place:
    """Where a node's ranks live. `outputs_here`: outputs are written straight into the run directory.

    `torch` is the version in the training interpreter, where it is known. `role` is the part of the run that they are,
    `peers` what is known of all roles, by placeholder.
    """

    node_dir: str
    workdir: str
    output_dir: str
    outputs_here: bool
    run_tag: str
    run: str
    forwarded: Mapping[str, str] = field(default_factory=dict)
    interfaces: Mapping[str, str] = field(default_factory=dict)
    torch: str = ""
    role: str = ""
    peers: Mapping[str, str] = field(default_factory=dict)

    @property
    def files(self) -> NodeFiles:
        """Name the files in the node directory."""
        return NodeFiles(self.node_dir)


@dataclass(frozen=True)
class PlannedProcess:
    """A process a launcher asks for; `env` holds what only this launcher sets, `files` what it reads: {path: text}."""

    rank: int
    local_rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    per_rank: bool = True
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeLaunch:
    """All that a launcher makes the processes of one node from."""

    spec: RunSpec
    world_size: int
    node: NodePlan
    place: Place
    attempt: Attempt
    facts: NodeFacts


def older_than(version: str, limit: tuple[int, int]) -> bool:
    """Whether a version of torch is older than a limit; False where it is not known."""
    parts = version.split(".")
    if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return False
    return (int(parts[0]), int(parts[1])) < limit


def forwarded(environ: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """Pick what of the caller's environment goes to the ranks on other hosts."""
    return {
        k: v
        for k, v in environ.items()
        if k in names or ((k.startswith(FORWARDED_PREFIXES) or k in FORWARDED_NAMES) and k not in NOT_FORWARDED)
    }


class HandedOver(NamedTuple):
    """Names of the caller's variables: those that the ranks on other hosts get, and known ones that they do not."""

    forwarded: tuple[str, ...] = ()
    not_forwarded: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Say it, without values; empty where there is neither."""
        parts = []
        if self.forwarded:
            parts.append(f"forwarded: {', '.join(self.forwarded)}")
        if self.not_forwarded:
            names = ", ".join(self.not_forwarded)
            word = "Set" if parts else "set"
            parts.append(f"{word} here and not forwarded: {names} (--env NAME forwards one)")
        return ". ".join(parts)


def handed_over(spec: RunSpec, environ: Mapping[str, str], names: Iterable[str]) -> HandedOver:
    """Return what becomes of the caller's variables on hosts that are reached by ssh; `names` are forwarded.

    Nothing is said for other targets: local nodes and the steps of a Slurm job inherit the caller's environment.
    """
    if spec.target.hosts is None:
        return HandedOver()
    passed_on = {*names, *spec.launch.env}
    return HandedOver(
        tuple(sorted(names)), tuple(name for name in WITHHELD_NAMES if environ.get(name) and name not in passed_on)
    )


def rank_environment(launch: NodeLaunch, process: PlannedProcess) -> dict[str, str]:
    """Everything set for one process, without the node's own base environment."""
    environment = dict(launch.place.forwarded)
    environment.update(_names_of_allranks(launch))
    if process.per_rank:
        environment.update(_contract(launch, process))
    environment.update(_debug(launch, process, environment))
    environment.update(_recorder(launch))
    if launch.spec.limits.straggler_timing:
        environment[TIMING] = "1"
    environment.update(launch.place.interfaces)
    environment.update(_trackers({**environment, **launch.spec.launch.env}, launch.place.run))
    peers = launch.place.peers
    environment.update({name: fill_roles(value, peers) for name, value in launch.spec.launch.env.items()})
    if LIGHTNING in environment:
        environment.setdefault("LT_DEVICES", str(launch.node.nproc))
        environment.setdefault("LT_NUM_NODES", str(launch.node.of))
    return environment


def weak_names(spec: RunSpec, place: Place) -> list[str]:
    """Names among those of `rank_environment` that yield to what the node's session or the prelude set."""
    strong = {*spec.launch.env, *place.forwarded, *(("NCCL_DEBUG",) if spec.output.debug else ())}
    return [name for name in WEAK if name not in strong]


def _contract(launch: NodeLaunch, process: PlannedProcess) -> dict[str, str]:
    """Set what torchrun sets for a worker (torch/distributed/elastic/agent/server/local_elastic_agent.py)."""
    node = launch.node
    place = launch.place
    attempt = launch.attempt
    contract = {
        "RANK": process.rank,
        "LOCAL_RANK": process.local_rank,
        "WORLD_SIZE": launch.world_size,
        "LOCAL_WORLD_SIZE": node.nproc,
        "GROUP_RANK": node.rank,
        "GROUP_WORLD_SIZE": node.of,
        "ROLE_RANK": process.rank,
        "ROLE_WORLD_SIZE": launch.world_size,
        "ROLE_NAME": place.role or "default",
        "MASTER_ADDR": attempt.master_addr,
        "MASTER_PORT": attempt.master_port,
        "NODE_RANK": node.rank,
        "TORCHELASTIC_RESTART_COUNT": attempt.number - attempt.repeats,
        "TORCHELASTIC_MAX_RESTARTS": launch.spec.recovery.retries,
        "TORCHELASTIC_RUN_ID": place.run,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        names.ERROR_FILE: place.files.error(process.rank, attempt.number),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1,
        names.STACKS_FILE: place.files.stacks(process.rank),
        names.ASK_SOCKET: place.files.asked(process.rank),
        names.SAVE_FILE: place.files.save(process.rank, attempt.number),
    }
    if node.nproc > 1:
        contract["OMP_NUM_THREADS"] = 1  # as torchrun does
    return {k: str(v) for k, v in contract.items() if k not in WEAK or k not in place.forwarded}


def _names_of_allranks(launch: NodeLaunch) -> dict[str, str]:
    spec = launch.spec
    place = launch.place
    number = launch.attempt.number
    ours = {
        names.RUN: place.run,
        names.RUN_TAG: place.run_tag,
        names.OUTPUT_DIR: place.output_dir,
        names.REPORT_SOCKET: place.files.reports,
        names.ATTEMPT: str(number),
    }
    launcher = spec.launch.launcher
    hides_ranks = launcher in (RAY, DRIVER) or is_one_process(launcher, spec.launch.command)
    if spec.launch.bind != "none" and not hides_ranks:
        ours[names.BIND] = spec.launch.bind
    if place.role:
        ours[names.ROLE] = place.role
    ours.update({variable_of(name): value for name, value in place.peers.items()})
    if launch.attempt.last_verdict:
        ours[names.LAST_VERDICT] = launch.attempt.last_verdict
    if launch.attempt.former_world_size not in (0, launch.world_size):
        ours[names.FORMER_WORLD_SIZE] = str(launch.attempt.former_world_size)
    if "PYTHONUNBUFFERED" not in place.forwarded:
        ours["PYTHONUNBUFFERED"] = "1"
    if spec.limits.pg_timeout is not None:
        ours[names.PG_TIMEOUT] = f"{spec.limits.pg_timeout:g}"
        if spec.limits.pg_timeout_forced:
            ours[names.PG_TIMEOUT_FORCED] = "1"
    if spec.recovery.audit_data and not launch.attempt.tests:
        ours[names.AUDIT_FILE] = place.files.audit(names.ANY, number)
        ours[names.AUDIT_BATCHES] = str(spec.recovery.audit_data)
    return ours


def _trackers(environment: Mapping[str, str], run: str) -> dict[str, str]:
    """Give trackers that are in use the name of the run; what the user set stays."""
    present = "\n".join(["", *environment])  # one text, as this is asked for each of thousands of ranks
    used = [names for prefix, names in TRACKERS.items() if f"\n{prefix}" in present]
    return {name: run for names in used for name in names if name not in environment}


def _recorder(launch: NodeLaunch) -> dict[str, str]:
    """Switch torch's flight recorder on, with its dumps in the run's own place. Under an old name a newer torch would
    warn, an earlier one knows no other; what the user set under either stays."""
    place = launch.place
    dumps = place.files.torch_dump("", launch.attempt.number)
    old_dumps = older_than(place.torch, (2, 8))
    named = (
        (OLD_RECORDER if older_than(place.torch, (2, 9)) else RECORDER, {RECORDER, OLD_RECORDER}, RECORDED),
        (names.OLD_DUMPS if old_dumps else names.DUMPS, {names.DUMPS, names.OLD_DUMPS}, dumps),
    )
    set_already = {*launch.spec.launch.env, *place.forwarded}
    return {name: value for name, either, value in named if not either & set_already}


def _debug(launch: NodeLaunch, process: PlannedProcess, so_far: Mapping[str, str]) -> dict[str, str]:
    """NCCL's log level and file; what the user set stays."""
    settings: dict[str, str] = {}
    if launch.spec.output.debug:
        settings = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "NCCL_DEBUG": "INFO"}
    elif "NCCL_DEBUG" not in so_far:
        settings["NCCL_DEBUG"] = "WARN"
    if names.NCCL_FILE not in so_far and process.per_rank:
        settings[names.NCCL_FILE] = launch.place.files.nccl_log(process.rank, launch.attempt.number)
    return settings
