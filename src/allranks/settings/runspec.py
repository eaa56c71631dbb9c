"""Every setting of allranks, one field each in the groups of RunSpec; durations in seconds, sizes in bytes.

A field has the setting's type, its default, how it is written, its help, and the commands that take it. From here come
the options of the commands, the keys of allranks.toml and its template, the variables that are read, the page
docs/reference/settings.md, and the refusal of options without their engine. None means that allranks chooses, or that
nothing was asked. The name of a field is unique over all groups, so documents, files and options name it without its
group. A setting is added by a field here, and the place that uses it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..cluster.hostlist import MAX_HOSTS
from ..protocol.jsontext import Json
from .failrules import EXPECTED as EXPECTED_RULES
from .parsers import (
    BIND,
    CLUSTER_NAME,
    CONTAINER,
    FAIL_RULE,
    FLAG,
    GPUS,
    HOST,
    HOSTS,
    ID,
    IMAGE,
    LISTEN,
    NAMESPACE,
    NETWORKS,
    NODE_COUNT,
    NOTICES,
    PARTITION,
    PATTERN,
    REACH,
    READY,
    ROLE_COMMAND,
    ROLE_GPUS,
    ROLE_LINE,
    ROLE_NAME,
    RUN_NAME,
    SSH_OPTION,
    VARIABLES_TABLE,
    WORD,
    byte_count,
    choice,
    duration,
    path,
    several,
    text,
    whole_number,
)  # fmt: skip
from .setting import LAUNCH, PREFLIGHT, SKYPILOT, SLURM, WHERE, setting

LAUNCHERS = ("direct", "torchrun", "accelerate", "deepspeed", "colossalai", "command")
KINDS = ("job", "jobset", "trainjob", "pods")
FIRST_NODE = "first-node"  # of --controller
HERE = "here"
SSH = "ssh"  # of --reach
SUITES = ("sync", "bandwidth", "pairs", "staged")
_SYNC = (
    "barrier all_reduce broadcast reduce gather all_gather all_gather_into_tensor reduce_scatter all_to_all "
    "send_recv gather_object all_gather_object padded_tokens many_gathers large_payloads node_groups across_groups "
    "fsdp_step"
)
# Tests that `--only` chooses from, by suite; fabric.ranks, which has them, needs torch.
TESTS_OF = {
    "sync": tuple(_SYNC.split()),
    "bandwidth": ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "gather", "sendrecv"),
    "pairs": (),
}

_ALL = "run check test render join"
_GANG = "run check test join"
_TRAIN = "run join"
_NODES = "run check test clean exec"  # commands that reach nodes by ssh
_RENDERED = "run join rendered"  # also inside what `render` writes for Slurm, Kubernetes and SkyPilot
_READ = "fetch status logs attach stop report diagnose data clean"

# fmt: off

@dataclass(frozen=True)
class Target:
    """Which nodes. One of local, hosts, slurm, k8s, sky is set; none of them is one virtual node."""

    cluster: str | None = setting(None, CLUSTER_NAME, "settings of [cluster.NAME] in ~/.config/allranks/config.toml",
        "run check test render clean exec", example='"lab"', variables=("ALLRANKS_CLUSTER",))
    local: int | None = setting(None, whole_number(1, 1024), "virtual nodes on this machine",
        "run check test render clean exec", example="2", common="run check test")
    hosts: str | None = setting(None, HOSTS,
        "hostfile, or a list such as h1,h2 or node[01-04]. The first host is node 0",
        "run check test render clean exec", "--hosts --hostfile -H", example='"hosts.txt"',
        common="run check test render clean")
    slurm: bool = setting(False, FLAG, "nodes of the Slurm allocation. Outside of one, `run` submits a job",
        "run check test exec", common="run check test")
    partition: str | None = setting(None, PARTITION, "partition of the Slurm job", "run render", "--partition -p",
        example='"gpu"', engines=("slurm",), panel=SLURM, common="render")
    sbatch: tuple[str, ...] = setting((), several(text("", "OPTIONS"), "options of sbatch such as --time=1:00:00"),
        "further options of sbatch", "run render", example='["--time=1:00:00", "--gres=gpu:8"]', engines=("slurm",),
        may_begin_with_dash=True, panel=SLURM, common="render")
    nodes: int | None = setting(None, NODE_COUNT,
        "number of nodes: the first N hosts, or how many to ask for. MIN:MAX may change",
        _ALL + " clean exec", "--nodes --nnodes -N", example="4", variables=("NNODES",), common=_ALL + " clean")
    min_nodes: int | None = setting(None, NODE_COUNT,
        "fewest nodes to start or go on with, as --nodes MIN:MAX sets it", "run", example="2")
    gather_timeout: float = setting(30.0, duration(0),
        "time in which missing nodes may come before a run with --min-nodes starts without them", "run",
        example='"30s"')
    regrow: str = setting("save", choice("save", "now", "never"),
        "when nodes that are back get a place: once ranks have saved, at once, or after a failure", "run",
        example='"now"')
    k8s: bool = setting(False, FLAG, "pods of a Kubernetes cluster, through kubectl", "run", common="run")
    sky: bool = setting(False, FLAG, "machines that SkyPilot finds", "run", common="run")
    node_rank: int | None = setting(None, whole_number(0, MAX_HOSTS - 1),
        "number of this node [default: as the scheduler says]", "join", metavar="R", in_file=False, common="join")
    join_port: int = setting(29400, whole_number(1, 65535), "port of node 0 for the other nodes", "join", "--port",
        metavar="PORT", common="join")
    secret_file: str | None = setting(None, path("the path of a file"),
        "file with the secret of all nodes, or set ALLRANKS_JOIN_SECRET", "join", example='"join.secret"',
        common="join")


@dataclass(frozen=True)
class Role:
    """A part of a run with its own command, nodes and world: a table [roles.NAME] of allranks.toml.

    The one role of a plain run has no name, and `settings.roles` makes it of the run's own settings.
    """

    name: str = ""
    command: tuple[str, ...] = setting((), ROLE_COMMAND, "its command", example='"vllm serve MODEL"')
    nodes: int | None = setting(None, NODE_COUNT, "number of its nodes [default: those that no other role takes]",
        example="2")
    with_: str = setting("", ROLE_NAME, "the role whose nodes it shares", example='"trainer"')
    gpus: str = setting("", ROLE_GPUS, "its GPUs on shared nodes, or none", example='"0-3"')
    nproc: int | None = setting(None, whole_number(1, 1024, auto=("auto", "gpu")),
        "ranks on each of its nodes [default: the run's]", example="8")
    launcher: str = setting("", choice(*LAUNCHERS),
        "what starts its ranks [default: as the command says. A server starts once a node]",
        example='"command"')
    wrap: str = ""  # what stands before its command
    env: dict[str, str] = setting({}, VARIABLES_TABLE, "variables of its ranks, beside those of the run",
        example='{ OMP_NUM_THREADS = "8" }', may_hold_secrets=True)
    prelude: str | None = setting(None, text("shell commands to run before the ranks", "SHELL", lines=True),
        "shell lines before its ranks [default: the run's]", example='"source /opt/vllm/bin/activate"',
        may_hold_secrets=True)
    ready: str = setting("", READY, "what says that it has started [default: its processes run]",
        example='"http://{address}:8000/health"')
    ready_timeout: float = setting(600.0, duration(0, above=True), "time until it is ready", example='"10m"')
    after: tuple[str, ...] = setting((), several(ROLE_NAME, "a list of roles"), "roles that are ready before it starts",
        example='["rollout"]')
    ends: str = setting("", choice("run", "never", "any"),
        "whether its success ends the run, is a failure, or means nothing [default: never for one that others "
        "start after, else run]", example='"run"')
    on_failure: str = setting("end", choice("end", "restart", "ignore"), "what its failure means for the run",
        example='"restart"')
    retries: int = setting(3, whole_number(1, 10_000), "how often it is restarted", example="3")
    hang: bool | None = setting(None, FLAG, "watch it for hangs [default: where its success ends the run]",
        example="true")

    @property
    def is_plain(self) -> bool:
        """Whether it is all that the run has."""
        return not self.name


@dataclass(frozen=True)
class Launch:
    """What the ranks are and how they start."""

    command: tuple[str, ...] = setting((), several(WORD, 'a list of words such as ["train.py", "--epochs", "3"]'),
        "training command, where the command line has none", example='["train.py", "--epochs", "3"]')
    nproc: int | None = setting(None, whole_number(1, 1024, auto=("auto", "gpu")),
        "ranks on each node (auto: slots of the hostfile, the launcher's own option, GPUs, else 1)", _ALL,
        "--nproc --nproc-per-node", metavar="N|auto", example='"auto"', variables=("NPROC_PER_NODE",), common=_ALL)
    launcher: str = setting("direct", choice(*LAUNCHERS), "what starts the ranks (command: any program, once a node)",
        _RENDERED, metavar="NAME", common="run join")
    python: str | None = setting(None, path("the name or path of a Python interpreter"),
        "training interpreter on the nodes", _ALL, example='"python3"')
    agent_python: str | None = setting(None, path("the name or path of a Python interpreter"),
        "interpreter of allranks' agent on the nodes, 3.8 or newer", _NODES, example='"python3"')
    workdir: str | None = setting(None, path("the path of a directory"),
        "working directory on the nodes [default: this one]", _ALL, example='"/shared/project"', common="render")
    sync: bool = setting(False, FLAG, "ship your working tree to every node and run it there", "run", common="run")
    prelude: str | None = setting(None, text("shell commands to run before the ranks", "SHELL", lines=True),
        "shell lines before the ranks, such as conda activate", _ALL, example='"source /opt/env/bin/activate"',
        may_hold_secrets=True, common=_ALL)
    wrap: str | None = setting(None, text("a command such as 'apptainer exec --nv IMG'", "COMMAND"),
        "command around each rank", "run test render join", example='"apptainer exec --nv image.sif"',
        may_hold_secrets=True)
    bind: str = setting("none", BIND,
        "CPUs of each rank: those of its GPU's NUMA node, a share of their cores, …", _TRAIN, metavar="RULE",
        example='"numa"')
    container_image: str | None = setting(None, CONTAINER,
        "image of the ranks' container: pyxis where srun has it, else apptainer", "run render",
        example='"nvcr.io#nvidia/pytorch:24.05-py3"', engines=("slurm",), panel=SLURM, common="render")
    env: dict[str, str] = setting({}, several(WORD, "NAME=VALUE or NAME"),
        "variable of the ranks, or name of one to forward", _ALL + " exec", metavar="K=V|NAME",
        common="run render join")
    forward: tuple[str, ...] = ()  # names that are copied from the caller's environment
    roles_file: str | None = setting(None, path("the path of a TOML file", "FILE"),
        "file with the roles of the run, as [roles.NAME] of allranks.toml has them", "run join render",
        "--roles", in_file=False, example='"roles.toml"')
    role: tuple[str, ...] = setting((), several(ROLE_LINE, "NAME:NODES and a command"),
        "a role of the run, its nodes and its command. It starts after those before it", "run join render",
        metavar="NAME:NODES COMMAND", in_file=False, example="[\"server:1 'python serve.py'\"]")
    roles: tuple[Role, ...] = ()  # of a run with several commands
    ray: bool = setting(False, FLAG, "start Ray on all nodes, and the command once on the first node", "run",
        in_file=False)
    ray_start: tuple[str, ...] = setting((), several(text("", "OPTIONS"), "options of ray start such as --num-cpus=8"),
        "further options of `ray start` on each node", "run", example='["--object-store-memory=8000000000"]',
        may_begin_with_dash=True, in_file=False)
    ssh_options: tuple[str, ...] = setting((), several(SSH_OPTION, "options of ssh_config such as Port=2222"),
        "option of ssh, as its -o takes it", _NODES, "--ssh-option", example='["ConnectTimeout=5"]')
    reach: str = setting(SSH, REACH,
        "way to the nodes: ssh, or dial, where they dial the controller and ssh ends", "run", example='"dial"')
    allow_exec: bool = setting(False, FLAG, "let who started node 0 run commands on this node and fetch its files",
        "join", in_file=False, common="join")


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks meet."""

    network: str | None = setting(None, NETWORKS,
        "network of the master address [default: the best that all nodes reach]", _GANG, example='"10.0.0.0/16"',
        common=_GANG)
    master_addr: str | None = setting(None, HOST,
        "address of the master [default: chosen, then checked from every node]", _ALL, example='"node01"',
        variables=("MASTER_ADDR",), common="join")
    master_port: int = setting(0, whole_number(0, 65535), "port of the master (0: a free one)", _ALL + " clean",
        metavar="PORT", variables=("MASTER_PORT",))


@dataclass(frozen=True)
class Preflight:
    """What is checked before ranks start."""

    check: bool = setting(True, FLAG, "check the nodes before ranks start", "run test join", "--no-check")
    allow: tuple[str, ...] = setting((), several(ID, "names of checks or findings such as own_name", commas=True),
        "check or cause that does not stop the run", _GANG, example='["shm"]', common="check")
    level: str = setting("full", choice("quick", "full"), "which checks `allranks check` makes", "check join",
        common="check")
    only: tuple[str, ...] = setting((), several(ID, "names of checks such as own_name", commas=True),
        "these checks or tests alone", "check test join", example='["gpu_ecc"]', common="check test")
    data_paths: tuple[str, ...] = setting((), several(path("", "PATH"), "paths of files or directories on the nodes"),
        "data that every node must have, with the same content", "check " + _RENDERED, "--data-path",
        example='["/data/train"]', common="check")
    expect_gpus: int | None = setting(None, whole_number(0, 1024), "GPUs that a node must have [default: nproc]",
        "run check join", example="8", common="check")
    end_orphans: bool = setting(False, FLAG, "end processes of dead runs first", "run")


@dataclass(frozen=True)
class CollectiveTests:
    """Collective tests."""

    test: str = setting("", choice("quick"), "quick: some seconds of collective tests before the program", "run",
        example='"quick"', panel=PREFLIGHT)
    suite: str = setting("sync", choice(*SUITES), "which tests `allranks test` makes", "test", common="test")
    backend: str = setting("auto", choice("auto", "gloo", "nccl"), "backend of the tests", "test", common="test")
    size: int = setting(256 << 20, byte_count(1024), "largest payload of a rank", "test join", common="test")
    timeout: float = setting(60.0, duration(1), "limit of each test", "test join")
    min_bandwidth: int | None = setting(None, byte_count(1),
        "bytes a second that every link must carry [default: as the others do]", "test", example='"1GB"', common="test")
    max_latency: float | None = setting(None, duration(0, above=True),
        "longest round trip of a link [default: as the others have]", "test", example='"1ms"', common="test")


@dataclass(frozen=True)
class Limits:
    """Time limits."""

    lease: float = setting(60.0, duration(2), "time that ranks live without contact with allranks", "test " + _RENDERED)
    grace: float = setting(1.0, duration(0), "time from SIGTERM to SIGKILL after a failure", _RENDERED)
    stop_grace: float = setting(30.0, duration(0), "time from SIGTERM to SIGKILL at stop and Ctrl-C", _RENDERED)
    connect_timeout: float = setting(12.0, duration(0, above=True), "time to reach a node", "run check test exec")
    init_timeout: float = setting(600.0, duration(0, above=True), "time until all ranks have initialised", _RENDERED,
        variables=("COLOSSALAI_MASTER_READY_TIMEOUT",))
    hang_timeout: float = setting(600.0, duration(0),
        "time without output, metrics or collectives that is a hang (0: never)", _RENDERED, common="run join")
    hang_pattern: str | None = setting(None, PATTERN, "line that the logs must show again within --hang-timeout", "run",
        example="'step [0-9]+'")
    straggler_interval: float = setting(30.0, duration(0), "time between looks for slow ranks and links (0: never)",
        "run", example='"30s"')
    straggler_timing: bool = setting(False, FLAG,
        "time collectives of NCCL: without it no slow rank is named there (5 µs each)", _RENDERED)
    pg_timeout: float | None = setting(None, duration(0, above=True),
        "timeout of the process groups [default: the script's own]", _RENDERED, example='"30m"',
        variables=("COLOSSALAI_DIST_TIMEOUT", "NCCL_TIMEOUT"))
    pg_timeout_forced: bool = False  # --pg-timeout was an option: it overrides the script's own


def beat_of(lease: float) -> float:
    """Return the seconds between two signs of life of the controller; three that are missing renew a channel."""
    return max(0.5, min(5.0, lease / 6))


@dataclass(frozen=True)
class Places:
    """Names and directories."""

    name: str = setting("run", RUN_NAME, "first part of the run directory's name", "run render join")
    runs_dir: str = setting("runs", path("the path of a directory", "DIR"), "directory of run directories",
        _GANG + " " + _READ, variables=("ALLRANKS_RUNS_DIR",))
    node_dir: str | None = setting(None, path("the path of a directory on the nodes", "DIR"),
        "scratch directory on the nodes [default: /tmp]", _GANG + " clean exec", example='"/tmp"', panel=LAUNCH)
    output_dir: str | None = setting(None, path("the path of a directory", "DIR"),
        "shared ALLRANKS_OUTPUT_DIR of the ranks", _TRAIN, example='"outputs"')


@dataclass(frozen=True)
class Recovery:
    """What is done about failures, hangs and data that is not split."""

    retries: int = setting(0, whole_number(0, 10_000), "further attempts after a failure that may pass",
        "run render join", variables=("MAX_RETRIES",), common="run join")
    no_requeue_code: int | None = setting(None, whole_number(1, 255),
        "exit code where another try would fail too [default: that of the failure]", _TRAIN, example="42")
    node_wait: float = setting(300.0, duration(0), "time in which a lost node may come back in a retry without a spare",
        _TRAIN, example='"5m"')
    spares: int = setting(0, whole_number(0, MAX_HOSTS), "number of the last hosts that stand by as hot spares", "run")
    avoid: bool = setting(False, FLAG,
        "put nodes that earlier runs suspect at the end of the list, where spares come from", "run")
    on_hang: str = setting("stop", choice("stop", "report", "restart"), "what to do about a hang", _TRAIN)
    fail_on: tuple[str, ...] = setting((), several(FAIL_RULE, EXPECTED_RULES),
        "rule for metrics, steps and output that ends the run, such as 'loss=nan'", _TRAIN, example="['loss=nan']")
    on_rule: str = setting("stop", choice("stop", "warn"), "what to do where a rule of --fail-on holds", _TRAIN)
    preload: str = setting("auto", choice("never", "retries", "auto", "torch"),
        "which ranks come from a process that has imported once a node (--no-preload: never)", "run render join",
        switches="--no-preload=never")
    audit_data: int = setting(0, whole_number(0, 10_000), "number of batches of each rank to compare (0: none)", "run",
        example="20")
    on_audit: str = setting("report", choice("report", "stop"), "what to do where the data is not split", "run")


@dataclass(frozen=True)
class Output:
    """What people see of a run."""

    fold: bool = setting(True, FLAG, "fold identical lines of all ranks into one", _TRAIN, "--no-fold")
    step_pattern: str | None = setting(None, PATTERN, "pattern of the step in logs, such as 'step (\\d+)'", _TRAIN,
        example=r"'step (\d+)'")
    debug: bool = setting(False, FLAG, "set NCCL_DEBUG=INFO and TORCH_DISTRIBUTED_DEBUG=DETAIL", "test " + _RENDERED,
        example="true", variables=("DEBUG_DISTRIBUTED",))
    detach: bool = setting(False, FLAG, "go on without this terminal", "run", common="run")
    controller: str | None = setting(None, text("first-node, a host of the list, or here", "HOST"),
        "host that runs the controller, or first-node. This terminal may go", "run", example='"first-node"')
    notify: tuple[str, ...] = setting((), NOTICES,
        "service that hears of failures, hangs, retries, slow ranks, the end: an entry of [notify]", "run",
        example='["slack"]', may_hold_secrets=True)
    metrics_port: str | None = setting(None, LISTEN,
        "answer Prometheus there with the run's metrics [default address: 127.0.0.1]", "run", example='"9400"')
    metrics_file: str | None = setting(None, path("the path of a file", "FILE"),
        "write the run's metrics there in OpenMetrics form, every 5s", "run",
        example='"/var/lib/node_exporter/allranks.prom"')


@dataclass(frozen=True)
class Cloud:
    """Pods of Kubernetes and machines of SkyPilot."""

    kind: str = setting("job", choice(*KINDS), "kind of the Kubernetes objects", "run render", engines=("k8s",),
        common="render")
    namespace: str | None = setting(None, NAMESPACE, "namespace of Kubernetes [default: the context's]", "run render",
        example='"training"', engines=("k8s",), common="render")
    context: str | None = setting(None, text("a context of kubectl's configuration", "NAME"),
        "context of kubectl [default: the current one]", "run", example='"my-cluster"', engines=("k8s",))
    image: str | None = setting(None, IMAGE, "container image of pods and machines: Python and torch are enough",
        "run render", example='"registry/team/train:1"', engines=("k8s", "sky"), panel=LAUNCH, common="render")
    gpus: str | None = setting(None, GPUS,
        "GPUs to ask for on each node (Kubernetes, SkyPilot): 8, amd.com/gpu:8, H100:8", "run render", example='"8"',
        engines=("k8s", "sky"), panel=WHERE, common="render")
    shm: int | None = setting(None, byte_count(1 << 20), "size of /dev/shm in a pod [default: half of the memory]",
        "run render", example='"8GB"', engines=("k8s",))
    pod: str | None = setting(None, path("the path of a YAML file with settings of a pod", "FILE"),
        "file with settings of the pods: volumes, nodeSelector, …", "run render", example='"pod.yaml"',
        engines=("k8s",))
    deadline: float | None = setting(None, duration(1), "time after which the cluster ends the run", "run render",
        example='"12h"', engines=("k8s",))
    infra: str | None = setting(None, text("a cloud, a region or k8s/CONTEXT, as SkyPilot writes them", "WHERE"),
        "where SkyPilot looks: aws/us-east-1, k8s/CONTEXT", "run render", example='"k8s/my-cluster"', engines=("sky",),
        panel=SKYPILOT, common="render")
    autostop: float | None = setting(None, duration(60),
        "idle time after which SkyPilot's machines go [default: when the run ends]", "run render", example='"10m"',
        engines=("sky",), panel=SKYPILOT)

# fmt: on


@dataclass(frozen=True)
class RunSpec:
    """What the user asked."""

    target: Target = Target()
    launch: Launch = field(default_factory=Launch)
    rendezvous: Rendezvous = Rendezvous()
    preflight: Preflight = Preflight()
    tests: CollectiveTests = CollectiveTests()
    limits: Limits = Limits()
    places: Places = Places()
    recovery: Recovery = Recovery()
    output: Output = Output()
    cloud: Cloud = Cloud()

    @classmethod
    def of(cls, **values: Json) -> RunSpec:
        """Make a spec of settings by name, each as its parser returns it; raise TypeError for an unknown name."""
        return cls().changed(**values)

    def changed(self, **values: Json) -> RunSpec:
        """Return a copy with these settings, by name; raise TypeError for an unknown name."""
        by_group: dict[str, dict[str, Json]] = {}
        for name, value in values.items():
            if name not in GROUP_OF:
                raise TypeError(f"{name} is not a setting")
            by_group.setdefault(GROUP_OF[name], {})[name] = value
        replace: Callable[..., RunSpec] = dataclasses.replace  # a group, or the whole
        return replace(self, **{group: replace(getattr(self, group), **new) for group, new in by_group.items()})

    @property
    def tries_again(self) -> bool:
        """Whether an attempt may follow on one that has failed."""
        return self.recovery.retries > 0 or self.target.min_nodes is not None

    def with_roles(self, roles: tuple[Role, ...]) -> RunSpec:
        """Return a copy with these roles."""
        launch = dataclasses.replace(self.launch, roles=roles, roles_file=None, role=())
        return dataclasses.replace(self, launch=launch)

    def value(self, name: str) -> Json:
        """Return a setting by its name; raise KeyError for an unknown name."""
        value: Json = getattr(getattr(self, GROUP_OF[name]), name)
        return value

    def values(self) -> Iterator[tuple[str, Json]]:
        """Yield all settings with their names."""
        for name in GROUP_OF:
            yield name, self.value(name)


# The group of each setting, in the order of the groups.
GROUP_OF = {
    setting.name: group.name
    for group in dataclasses.fields(RunSpec)
    for setting in dataclasses.fields(getattr(RunSpec(), group.name))
}
