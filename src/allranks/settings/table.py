"""Every setting of allranks, one row each (pure data).

From this table come the options of the commands, the keys of allranks.toml and its template, the variables that are
read, the page docs/reference/settings.md, suggestions for misspelt names, and the refusal of options without their
engine. A setting is added by a row here, a field of a group of RunSpec, and the place that uses it.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from ..cluster.hostlist import MAX_HOSTS
from ..protocol.jsontext import Json
from .parsers import (
    CLUSTER_NAME,
    CONTAINER,
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
    RUN_NAME,
    SSH_OPTION,
    WORD,
    Parser,
    choice,
    duration,
    path,
    several,
    size,
    text,
    whole_number,
)  # fmt: skip
from .runspec import GROUP_OF, RunSpec

# The panels of help, in their order; OPTIONS holds what one command alone takes.
WHERE = "Where"
LAUNCH = "Command and environment"
PREFLIGHT = "Preflight"
SLURM = "Slurm"
SKYPILOT = "SkyPilot"
OPTIONS = "Options"
PANELS = (
    WHERE, LAUNCH, "Network", PREFLIGHT, "Collective tests", "Fault tolerance", "Limits", "Output", SLURM, "Kubernetes",
    SKYPILOT,
)  # fmt: skip
# The panel of a group of RunSpec; a row may name another one.
PANEL_OF = {
    "target": WHERE,
    "launch": LAUNCH,
    "rendezvous": "Network",
    "preflight": PREFLIGHT,
    "tests": "Collective tests",
    "limits": "Limits",
    "places": "Output",
    "recovery": "Fault tolerance",
    "output": "Output",
    "cloud": "Kubernetes",
}

LAUNCHERS = ("direct", "torchrun", "accelerate", "deepspeed", "colossalai", "command")
KINDS = ("job", "jobset", "trainjob", "pods")
SUITES = ("sync", "bandwidth", "pairs", "staged")
# Tests that `--only` chooses from, by suite; fabric.ranks, which has them, needs torch.
TESTS_OF = {
    "sync": (
        "barrier", "all_reduce", "broadcast", "reduce", "gather", "all_gather", "all_gather_into_tensor",
        "reduce_scatter", "all_to_all", "send_recv", "gather_object", "all_gather_object", "padded_tokens",
        "many_gathers", "large_payloads", "node_groups", "across_groups", "fsdp_step",
    ),
    "bandwidth": ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "gather", "sendrecv"),
    "pairs": (),
}  # fmt: skip
# Engines by the setting that names them, and by what `render` calls them.
RENDERERS = {"k8s": "kubernetes", "sky": "skypilot", "slurm": "slurm"}


@dataclass(frozen=True)
class SettingRow:
    """One setting, or an option of one command.

    `name` is a field of a group of RunSpec, or the keyword by which a command gets its own option. `commands` are
    those that take it, separated by spaces. `options` are its names on the command line where they do not follow
    from `name`, the first one shown in messages; `former_options` are older names, which are read and not shown.
    `switches` are options that stand for one of its values, as --option=value. `example` is its value in the
    template of allranks.toml, in TOML, where the default would say little. `common` are the commands whose `--help`
    shows it; `--help-all` shows all. `default` and `panel` of a setting come from its field and its group, unless
    the row names a panel. `variables` are read from the environment. `engines` need it: without one of them the
    option is refused. `complete` says what a shell offers: runs, ranks, hosts or checks. `in_file` is false for
    what has no key in allranks.toml. A flag that is on by default has an option that begins with --no- and switches
    it off.
    """

    name: str
    parser: Parser
    help: str
    commands: str = ""
    options: str = ""
    former_options: str = ""
    switches: str = ""
    metavar: str = ""
    example: str = ""
    variables: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    complete: str = ""
    common: str = ""
    default: Json = None
    panel: str = OPTIONS
    in_file: bool = True
    may_hold_secrets: bool = False
    may_begin_with_dash: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names on the command line, the one for messages first."""
        return tuple(self.options.split()) or ("--" + self.name.replace("_", "-"),)

    @property
    def option(self) -> str:
        """The name for messages."""
        return self.names[0]

    @property
    def key(self) -> str:
        """The key in allranks.toml."""
        return self.name.replace("_", "-")

    @property
    def shown_metavar(self) -> str:
        """What stands for the value in help."""
        return self.metavar or self.parser.metavar

    @property
    def shown_default(self) -> str:
        """The default for people; empty where the help says what holds without it."""
        if self.default in (None, "", (), {}) or self.parser.is_flag:
            return ""
        return self.parser.write(self.default)

    def value_of(self, switch: str) -> str:
        """Return the value that one of its `switches` stands for; raise KeyError."""
        return dict(word.split("=", 1) for word in self.switches.split())[switch]

    def is_taken_by(self, command: str) -> bool:
        """Tell whether the command has it as an option."""
        return command in self.commands.split()

    def is_common_in(self, command: str) -> bool:
        """Tell whether the short help of the command shows it; an option of one command always stands there."""
        return not self.commands or command in self.common.split()


_ALL = "run check test render join"
_GANG = "run check test join"
_TRAIN = "run join"
_NODES = "run check test clean exec"  # commands that reach nodes by ssh
_RENDERED = "run join rendered"  # also inside what `render` writes for Slurm, Kubernetes and SkyPilot
_READ = "fetch status logs attach stop report diagnose data clean"

_ROWS = (
    # -- target
    SettingRow("cluster", CLUSTER_NAME, "settings of [cluster.NAME] in ~/.config/allranks/config.toml",
               "run check test render clean exec", example='"lab"', variables=("ALLRANKS_CLUSTER",),
               complete="clusters"),
    SettingRow("local", whole_number(1, 1024), "virtual nodes on this machine", "run check test render clean exec",
               example="2", common="run check test"),
    SettingRow("hosts", HOSTS, "hostfile, or a list such as h1,h2 or node[01-04]. The first host is node 0",
               "run check test render clean exec", "--hosts --hostfile -H", example='"hosts.txt"', complete="hosts",
               common="run check test render clean"),
    SettingRow("slurm", FLAG, "nodes of the Slurm allocation. Outside of one, `run` submits a job",
               "run check test exec", common="run check test"),
    SettingRow("partition", PARTITION, "partition of the Slurm job", "run render", "--partition -p", example='"gpu"',
               engines=("slurm",), panel=SLURM, common="render"),
    SettingRow("sbatch", several(text("", "OPTIONS"), "options of sbatch such as --time=1:00:00"),
               "further options of sbatch", "run render", example='["--time=1:00:00", "--gres=gpu:8"]',
               engines=("slurm",), may_begin_with_dash=True, panel=SLURM, common="render"),
    SettingRow("nodes", NODE_COUNT, "number of nodes: the first N hosts, or how many to ask for",
               _ALL + " clean exec", "--nodes --nnodes -N", example="4", variables=("NNODES",), common=_ALL + " clean"),
    SettingRow("k8s", FLAG, "pods of a Kubernetes cluster, through kubectl", "run", common="run"),
    SettingRow("sky", FLAG, "machines that SkyPilot finds", "run", common="run"),
    SettingRow("node_rank", whole_number(0, MAX_HOSTS - 1), "number of this node [default: as the scheduler says]",
               "join", metavar="R", in_file=False, common="join"),
    SettingRow("join_port", whole_number(1, 65535), "port of node 0 for the other nodes", "join", "--port",
               metavar="PORT", common="join"),
    SettingRow("secret_file", path("the path of a file"),
               "file with the secret of all nodes, or set ALLRANKS_JOIN_SECRET", "join", example='"join.secret"',
               common="join"),
    # -- launch
    SettingRow("command", several(WORD, 'a list of words such as ["train.py", "--epochs", "3"]'),
               "training command, where the command line has none", example='["train.py", "--epochs", "3"]'),
    SettingRow("nproc", whole_number(1, 1024, auto=("auto", "gpu")),
               "ranks on each node (auto: slots of the hostfile, the launcher's own option, GPUs, else 1)", _ALL,
               "--nproc --nproc-per-node", metavar="N|auto", example='"auto"', variables=("NPROC_PER_NODE",),
               common=_ALL),
    SettingRow("launcher", choice(*LAUNCHERS), "what starts the ranks (command: any program, once a node)",
               _RENDERED, metavar="NAME", common="run join"),
    SettingRow("python", path("the name or path of a Python interpreter"), "training interpreter on the nodes",
               _ALL, example='"python3"'),
    SettingRow("agent_python", path("the name or path of a Python interpreter"),
               "interpreter of allranks' agent on the nodes, 3.8 or newer", _NODES, example='"python3"'),
    SettingRow("workdir", path("the path of a directory"), "working directory on the nodes [default: this one]",
               _ALL, example='"/shared/project"', common="render"),
    SettingRow("sync", FLAG, "ship your working tree to every node and run it there", "run", common="run"),
    SettingRow("prelude", text("shell commands to run before the ranks", "SHELL", lines=True),
               "shell lines before the ranks, such as conda activate", _ALL, example='"source /opt/env/bin/activate"',
               may_hold_secrets=True, common=_ALL),
    SettingRow("wrap", text("a command such as 'apptainer exec --nv IMG'", "COMMAND"),
               "command around each rank", "run test render join", example='"apptainer exec --nv image.sif"',
               may_hold_secrets=True),
    SettingRow("container_image", CONTAINER, "image of the ranks' container: pyxis where srun has it, else apptainer",
               "run render", example='"nvcr.io#nvidia/pytorch:24.05-py3"', engines=("slurm",), panel=SLURM,
               common="render"),
    SettingRow("env", several(WORD, "NAME=VALUE or NAME"), "variable of the ranks, or name of one to forward",
               _ALL + " exec", metavar="K=V|NAME", common="run render join"),
    SettingRow("ssh_options", several(SSH_OPTION, "options of ssh_config such as Port=2222"),
               "option of ssh, as its -o takes it", _NODES, "--ssh-option", example='["ConnectTimeout=5"]'),
    SettingRow("allow_exec", FLAG, "let who started node 0 run commands on this node and fetch its files", "join",
               in_file=False, common="join"),
    # -- rendezvous
    SettingRow("network", NETWORKS, "network of the master address [default: the best that all nodes reach]",
               _GANG, example='"10.0.0.0/16"', common=_GANG),
    SettingRow("master_addr", HOST, "address of the master [default: chosen, then checked from every node]",
               _ALL, example='"node01"', variables=("MASTER_ADDR",), common="join"),
    SettingRow("master_port", whole_number(0, 65535), "port of the master (0: a free one)", _ALL + " clean",
               metavar="PORT", variables=("MASTER_PORT",)),
    # -- preflight
    SettingRow("check", FLAG, "check the nodes before ranks start", "run test join", "--no-check"),
    SettingRow("allow", several(ID, "names of checks or findings such as own_name", commas=True),
               "check or cause that does not stop the run", _GANG, example='["shm"]', complete="checks",
               common="check"),
    SettingRow("level", choice("quick", "full"), "which checks `allranks check` makes", "check join", common="check"),
    SettingRow("only", several(ID, "names of checks such as own_name", commas=True),
               "these checks or tests alone", "check test join", example='["gpu_ecc"]', complete="checks",
               common="check test"),
    SettingRow("data_paths", several(path("", "PATH"), "paths of files or directories on the nodes"),
               "data that every node must have, with the same content", "check " + _RENDERED, "--data-path",
               example='["/data/train"]', common="check"),
    SettingRow("expect_gpus", whole_number(0, 1024), "GPUs that a node must have [default: nproc]",
               "run check join", example="8", common="check"),
    SettingRow("end_orphans", FLAG, "end processes of dead runs first", "run", former_options="--end-leftovers"),
    # -- tests
    SettingRow("test", choice("quick"), "quick: some seconds of collective tests before the program", "run",
               example='"quick"', panel=PREFLIGHT),
    SettingRow("suite", choice(*SUITES), "which tests `allranks test` makes", "test", common="test"),
    SettingRow("backend", choice("auto", "gloo", "nccl"), "backend of the tests", "test", common="test"),
    SettingRow("size", size(1024), "largest payload of a rank", "test join", common="test"),
    SettingRow("timeout", duration(1), "limit of each test", "test join"),
    SettingRow("min_bandwidth", size(1), "bytes a second that every link must carry [default: as the others do]",
               "test", example='"1GB"', common="test"),
    SettingRow("max_latency", duration(0, above=True),
               "longest round trip of a link [default: as the others have]", "test", example='"1ms"', common="test"),
    # -- limits
    SettingRow("lease", duration(2), "time that ranks live without contact with allranks", "test " + _RENDERED),
    SettingRow("grace", duration(0), "time from SIGTERM to SIGKILL after a failure", _RENDERED),
    SettingRow("stop_grace", duration(0), "time from SIGTERM to SIGKILL at stop and Ctrl-C", _RENDERED),
    SettingRow("connect_timeout", duration(0, above=True), "time to reach a node", "run check test exec"),
    SettingRow("init_timeout", duration(0, above=True), "time until all ranks have initialised", _RENDERED,
               variables=("COLOSSALAI_MASTER_READY_TIMEOUT",)),
    SettingRow("hang_timeout", duration(0),
               "time without output, metrics or collectives that is a hang (0: never)", _RENDERED, common="run join"),
    SettingRow("hang_pattern", PATTERN, "line that the logs must show again within --hang-timeout", "run",
               example="'step [0-9]+'"),
    SettingRow("straggler_interval", duration(0), "time between looks for slow ranks and links (0: never)", "run",
               example='"30s"'),
    SettingRow("pg_timeout", duration(0, above=True),
               "timeout of the process groups [default: the script's own]", _RENDERED, example='"30m"',
               variables=("COLOSSALAI_DIST_TIMEOUT", "NCCL_TIMEOUT")),
    # -- places
    SettingRow("name", RUN_NAME, "first part of the run directory's name", "run render join"),
    SettingRow("runs_dir", path("the path of a directory", "DIR"), "directory of run directories",
               _GANG + " " + _READ, variables=("ALLRANKS_RUNS_DIR",)),
    SettingRow("node_dir", path("the path of a directory on the nodes", "DIR"),
               "scratch directory on the nodes [default: /tmp]", _GANG + " clean exec", example='"/tmp"', panel=LAUNCH),
    SettingRow("output_dir", path("the path of a directory", "DIR"), "shared ALLRANKS_OUTPUT_DIR of the ranks",
               _TRAIN, example='"outputs"'),
    # -- recovery
    SettingRow("retries", whole_number(0, 10_000), "further attempts after a failure that may pass",
               "run render join", variables=("MAX_RETRIES",), common="run join"),
    SettingRow("node_wait", duration(0), "time in which a lost node may come back in a retry without a spare", _TRAIN,
               example='"5m"'),
    SettingRow("spares", whole_number(0, MAX_HOSTS), "number of the last hosts that stand by as hot spares", "run"),
    SettingRow("avoid", FLAG, "put nodes that earlier runs suspect at the end of the list, where spares come from",
               "run"),
    SettingRow("on_hang", choice("stop", "report", "restart"), "what to do about a hang", _TRAIN),
    SettingRow("preload", choice("never", "retries", "auto", "torch"),
               "which ranks come from a process that has imported once a node (--no-preload: never)",
               "run render join", switches="--no-preload=never"),
    SettingRow("audit_data", whole_number(0, 10_000), "number of batches of each rank to compare (0: none)", "run",
               example="20"),
    SettingRow("on_audit", choice("report", "stop"), "what to do where the data is not split", "run"),
    # -- output
    SettingRow("debug", FLAG, "set NCCL_DEBUG=INFO and TORCH_DISTRIBUTED_DEBUG=DETAIL", "test " + _RENDERED,
               example="true", variables=("DEBUG_DISTRIBUTED",)),
    SettingRow("step_pattern", PATTERN, "pattern of the step in logs, such as 'step (\\d+)'", _TRAIN,
               example=r"'step (\d+)'"),
    SettingRow("fold", FLAG, "fold identical lines of all ranks into one", _TRAIN, "--no-fold"),
    SettingRow("notify", NOTICES,
               "service that hears of failures, hangs, retries, slow ranks, the end: an entry of [notify]",
               "run", example='["slack"]', complete="notices", may_hold_secrets=True),
    SettingRow("metrics_port", LISTEN, "answer Prometheus there with the run's metrics [default address: 127.0.0.1]",
               "run", example='"9400"'),
    SettingRow("metrics_file", path("the path of a file", "FILE"),
               "write the run's metrics there in OpenMetrics form, every 5s", "run",
               example='"/var/lib/node_exporter/allranks.prom"'),
    SettingRow("detach", FLAG, "go on without this terminal", "run", common="run"),
    # -- cloud
    SettingRow("kind", choice(*KINDS), "kind of the Kubernetes objects", "run render", engines=("k8s",),
               common="render"),
    SettingRow("namespace", NAMESPACE, "namespace of Kubernetes [default: the context's]", "run render",
               example='"training"', engines=("k8s",), common="render"),
    SettingRow("context", text("a context of kubectl's configuration", "NAME"),
               "context of kubectl [default: the current one]", "run", example='"my-cluster"', engines=("k8s",)),
    SettingRow("image", IMAGE, "container image of pods and machines: Python and torch are enough", "run render",
               example='"registry/team/train:1"', engines=("k8s", "sky"), panel=LAUNCH, common="render"),
    SettingRow("gpus", GPUS, "GPUs to ask for on each node (Kubernetes, SkyPilot): 8, amd.com/gpu:8, H100:8",
               "run render", example='"8"', engines=("k8s", "sky"), panel=WHERE, common="render"),
    SettingRow("shm", size(1 << 20), "size of /dev/shm in a pod [default: half of the memory]", "run render",
               example='"8GB"', engines=("k8s",)),
    SettingRow("pod", path("the path of a YAML file with settings of a pod", "FILE"),
               "file with settings of the pods: volumes, nodeSelector, …", "run render", example='"pod.yaml"',
               engines=("k8s",)),
    SettingRow("deadline", duration(1), "time after which the cluster ends the run", "run render",
               example='"12h"', engines=("k8s",)),
    SettingRow("infra", text("a cloud, a region or k8s/CONTEXT, as SkyPilot writes them", "WHERE"),
               "where SkyPilot looks: aws/us-east-1, k8s/CONTEXT", "run render", example='"k8s/my-cluster"',
               engines=("sky",), panel=SKYPILOT, common="render"),
    SettingRow("autostop", duration(60),
               "idle time after which SkyPilot's machines go [default: when the run ends]", "run render",
               example='"10m"', engines=("sky",), panel=SKYPILOT),
)  # fmt: skip


def _with_defaults() -> dict[str, SettingRow]:
    """Give each row the default of its field and, unless it names one, the panel of its group."""
    usual = RunSpec()
    rows = {}
    for row in _ROWS:
        panel = PANEL_OF[GROUP_OF[row.name]] if row.panel == OPTIONS else row.panel
        rows[row.name] = dataclasses.replace(row, default=usual.value(row.name), panel=panel)
    return rows


SETTINGS: dict[str, SettingRow] = _with_defaults()
VARIABLES: dict[str, str] = {name: row.name for row in _ROWS for name in row.variables}
OPTION_ONLY = ("node-rank", "allow-exec", "dry-run", "json", "config")  # refused in allranks.toml
# A target is one of two values, or a flag of its group, which names an engine.
ENGINE_FLAGS = tuple(row.name for row in _ROWS if GROUP_OF[row.name] == "target" and row.parser is FLAG)
TARGETS = ("local", "hosts", *ENGINE_FLAGS)


def settings_of(command: str) -> tuple[SettingRow, ...]:
    """Return the rows that a command takes; `rendered` is one that only a rendered command has a use for."""
    return tuple(row for row in SETTINGS.values() if row.is_taken_by(command))


def engine_of(renderer: str) -> str:
    """Return the engine that a renderer writes for; empty where it writes for hosts."""
    return next((engine for engine, name in RENDERERS.items() if name == renderer), "")


def option_name(name: str) -> str:
    """Return the option that sets a field."""
    if name == "command":
        return "the training command"
    row = SETTINGS.get(name)
    return row.option if row is not None else "--" + name.replace("_", "-")


def suggestion(word: str, candidates: Iterable[str]) -> str:
    """Return the word that was meant, if one is near; else an empty text."""
    near = difflib.get_close_matches(word, list(candidates), n=1)
    return next(iter(near), "")
