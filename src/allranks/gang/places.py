"""Where a run's ranks live on each node, and what an agent is asked to look at (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from allranks.cluster import Cluster
from allranks.plan.environment import HandedOver, Place
from allranks.plan.launchers.config_keys import launcher_settings, needed_modules
from allranks.plan.launchers.training_command import launched_by, read_training
from allranks.plan.network import target_words
from allranks.preflight.check import Check
from allranks.protocol.codec import encode, spread
from allranks.protocol.jsontext import Json, JsonObject
from allranks.protocol.node_names import NodeFiles
from allranks.protocol.orders import ORDERS, Environments, KeepOrder, ListenOrder, ProbeOrder, SetupOrder
from allranks.protocol.run_facts import WorkingTree
from allranks.settings import RunSpec
from allranks.settings.document import to_document, with_secrets
from allranks.settings.paths import against
from allranks.settings.runspec import Role

from .members import NodeState

PROBE_SECONDS_A_VIRTUAL_NODE = 0.05  # many virtual nodes share this machine's cores
FACTS_SECONDS = 30.0  # preludes (modules, conda) are slow on shared disks
PROBE_SECONDS = 6.0  # two repeated SYNs (after 1 and 3 s) still count


@dataclass(frozen=True)
class RunContext:
    """What the controller's side adds to the RunSpec: names, caller's directory and environment.

    `token` is what the proof listener answers; `local_nodes` are indexes of nodes on this machine, whose
    outputs go straight into `run_outputs`; `checks` are made before ranks start; `tree` is what --sync ships;
    `dead` are pairs of nodes that --suite pairs need not measure. `keeps_launch`: another controller may take the run
    over, and its agents keep what that one needs. `role` is the part of the run whose nodes these are, `ports` name
    free ports that its commands need, and `peers` has what is known of all roles once their addresses are, by
    placeholder.
    """

    run: str
    uid: str
    token: str
    workdir: str
    run_outputs: str
    local_nodes: frozenset[int] = frozenset()
    forwarded: Mapping[str, str] = field(default_factory=dict)
    handed_over: HandedOver = field(default_factory=HandedOver)
    environments: Environments = field(default_factory=Environments)
    expected_world_size: int | None = None
    checks: tuple[Check, ...] = ()
    tree: WorkingTree | None = None
    dead: tuple[tuple[str, str], ...] = ()
    keeps_launch: bool = False
    role: Role = field(default_factory=Role)
    first: int = 0  # index of its first node
    ports: tuple[str, ...] = ()
    peers: Mapping[str, str] = field(default_factory=dict)


@spread("environments")
class KeptLaunch(NamedTuple):
    """What ranks are started with and run.json does not have: agents keep it for a controller that takes the run over.

    `spec` is all settings, `checks` are names; the rest is as in RunContext.
    """

    spec: Mapping[str, Json]
    token: str
    workdir: str
    forwarded: Mapping[str, str] = {}
    environments: Environments = Environments()
    checks: tuple[str, ...] = ()
    tree: WorkingTree | None = None


def keep_order(spec: RunSpec, context: RunContext) -> KeepOrder:
    """Give an agent what another controller needs to start ranks as this one does."""
    launch = KeptLaunch(
        with_secrets(spec),
        context.token,
        workdir=context.workdir,
        forwarded=context.forwarded,
        environments=context.environments,
        checks=tuple(check.name for check in context.checks),
        tree=context.tree,
    )
    return KeepOrder(encode(launch))


def restored(context: RunContext, launch: KeptLaunch, checks: Mapping[str, Check]) -> RunContext:
    """Add what an agent has kept to the context of a run that is taken over; `checks` are all that there are."""
    return replace(
        context,
        token=launch.token,
        workdir=launch.workdir,
        forwarded=launch.forwarded,
        environments=launch.environments,
        checks=tuple(checks[name] for name in launch.checks if name in checks),
        tree=launch.tree,
    )


def run_tag(context: RunContext, index: int, incarnation: int = 0) -> str:
    """Return the run tag of a node's processes: uid/node."""
    return f"{context.uid}/{node_label(index, incarnation)}"


def node_label(index: int, incarnation: int = 0) -> str:
    """Return the name of a node's directory, with its index: virtual nodes share a machine.

    A further agent on the same node has a directory of its own."""
    return f"node_{index:02d}" + (f"_{incarnation}" if incarnation else "")


def collectors(checks: tuple[Check, ...]) -> list[str]:
    """List the checks that look themselves on a node."""
    return [check.name for check in checks if check.collect is not None]


def collectors_on(spec: RunSpec, context: RunContext, index: int) -> tuple[str, ...]:
    """List the checks that look themselves on a node of a run, by its index.

    Virtual nodes are one machine, at which the first looks for all (`Roster.share_checks`).
    """
    if spec.target.local and index != context.first:
        return ()
    return tuple(collectors(context.checks))


def workdir_on(spec: RunSpec, context: RunContext, node_dir: str) -> str:
    """Return the ranks' working directory on a node."""
    if context.tree is not None:
        return context.tree.workdir(node_dir)
    return spec.launch.workdir or context.workdir


def setup_order(spec: RunSpec, context: RunContext, node_dir: str = "<node dir>") -> SetupOrder:
    """Ask an agent for the facts of its node."""
    workdir = workdir_on(spec, context, node_dir)
    words = read_training(spec)
    if launched_by(spec) is None:
        program = spec.launch.command
    elif words.kind == "program" or words.python is None:
        program = words.program
    else:
        program = (words.python, *words.program)
    if spec.launch.command:
        kind = words.kind
    elif spec.tests.test:
        kind = "python-module"  # tests are Python
    else:
        kind = "program"
    slowest = max((check.seconds for check in context.checks if check.collect is not None), default=0.0)
    return SetupOrder(
        workdir=workdir,
        command=program,
        kind=kind,
        launching=launcher_settings(spec),
        modules=tuple(needed_modules(spec)),
        python=spec.launch.python,
        launcher_python=words.python if words.kind == "program" else None,  # of a launcher of such a program
        environments=context.environments,
        environ={**context.forwarded, **spec.launch.env},
        prelude=spec.launch.prelude,
        master_port=spec.rendezvous.master_port,
        nproc=spec.launch.nproc,
        data_paths=tuple(against(workdir, path) for path in spec.preflight.data_paths),
        expect_gpus=spec.preflight.expect_gpus,
        node_dir=spec.places.node_dir,
        output_dir=spec.places.output_dir,
        target=target_words(spec),
        uid=context.uid,
        checks=tuple(collectors(context.checks)),
        seconds=FACTS_SECONDS + slowest,
    )


def judge_request(spec: RunSpec, context: RunContext, cluster: Cluster) -> JsonObject:
    """Return what the preflight check is judged against: the order, and what only the judge reads."""
    return {
        **ORDERS.write(setup_order(spec, context)),
        "launching": launcher_settings(spec, len(cluster)),
        "virtual": bool(spec.target.local),
        "local": sorted(cluster.logins.local),
        "ssh": dict(cluster.logins.ssh),
        "slots": {n.name: n.slots for n in cluster.everyone},
        "wrap": spec.launch.wrap,
        "launcher": spec.launch.launcher,
        "spec": to_document(spec),
    }


def listen_order(spec: RunSpec, token: str, more: int = 0) -> ListenOrder:
    """Ask the master to open its port for the rendezvous check."""
    return ListenOrder(spec.rendezvous.master_port, token, spec.places.output_dir, more)


def probe_order(spec: RunSpec, addresses: list[str], port: int, token: str) -> ProbeOrder:
    """Ask a node to try the master's addresses."""
    seconds = PROBE_SECONDS + (spec.target.local or 0) * PROBE_SECONDS_A_VIRTUAL_NODE
    return ProbeOrder(tuple(addresses), port, token, seconds, spec.places.output_dir)


def place_for(spec: RunSpec, context: RunContext, node: NodeState, interfaces: Mapping[str, str]) -> Place:
    """Directories of a node's ranks."""
    here = node.index in context.local_nodes and spec.places.output_dir is None
    if spec.places.output_dir is not None:
        outputs = spec.places.output_dir
    else:
        outputs = context.run_outputs if here else NodeFiles(node.node_dir).outputs
    if context.role.name and (here or spec.places.output_dir):  # ranks of two roles have the same numbers
        outputs = f"{outputs}/{context.role.name}"
    return Place(
        node_dir=node.node_dir,
        workdir=workdir_on(spec, context, node.node_dir),
        output_dir=outputs,
        outputs_here=here,
        run_tag=run_tag(context, node.index, node.incarnation),
        run=context.run,
        forwarded=context.forwarded,
        interfaces=interfaces,
        torch=node.plan_facts.interpreter.torch or "",
        role=context.role.name,
        peers=context.peers,
    )
