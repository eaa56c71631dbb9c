"""RunSpec: what the user asked, one field a setting, in groups; durations in seconds, sizes in bytes.

The rows of `table.py` say how each is written. None means that allranks chooses, or that nothing was asked. The name
of a field is unique over all groups, so documents, files and options name it without its group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..protocol.jsontext import Json


@dataclass(frozen=True)
class Target:
    """Which nodes. One of local, hosts, slurm, k8s, sky is set; none of them is one virtual node."""

    cluster: str | None = None  # a table of the user's own file, which has given settings
    local: int | None = None  # virtual nodes on this machine
    hosts: str | None = None  # a hostfile's path, or a list
    slurm: bool = False  # the allocation we are in, else a job that is submitted
    partition: str | None = None  # of that job
    sbatch: tuple[str, ...] = ()  # further options of it
    nodes: int | None = None  # the first N hosts, or how many to ask for
    k8s: bool = False  # pods, through kubectl
    sky: bool = False  # machines of SkyPilot
    node_rank: int | None = None  # join: the number of this node
    join_port: int = 29400  # join: node 0 listens there on `master_addr`
    secret_file: str | None = None  # join: holds what all nodes share


@dataclass(frozen=True)
class Launch:
    """What the ranks are and how they start."""

    command: tuple[str, ...] = ()  # the training command; of a Python program without the interpreter
    nproc: int | None = None  # ranks on each node; None: slots of the hostfile, else GPUs, else 1
    launcher: str = "direct"  # one of table.LAUNCHERS
    python: str | None = None  # training interpreter
    agent_python: str | None = None  # interpreter of the agent
    workdir: str | None = None  # working directory on the nodes; None: the caller's
    sync: bool = False  # the caller's working tree is shipped, and the ranks run in it
    prelude: str | None = None  # shell lines before the ranks
    wrap: str | None = None  # command around each rank
    container_image: str | None = None  # of the ranks in a Slurm job
    env: dict[str, str] = field(default_factory=dict)  # set in the ranks
    forward: tuple[str, ...] = ()  # names that are copied from the caller's environment
    ssh_options: tuple[str, ...] = ()  # each as ssh's -o takes it
    allow_exec: bool = False  # join: node 0 may run other commands here and fetch files


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks meet."""

    network: str | None = None  # CIDR networks of the master address, with commas
    master_addr: str | None = None  # None: the best that all nodes reach
    master_port: int = 0  # 0: a free one


@dataclass(frozen=True)
class Preflight:
    """What is checked before ranks start."""

    check: bool = True  # false: ranks start without checks
    allow: tuple[str, ...] = ()  # checks or findings that do not stop the run
    level: str = "full"  # of `check`: quick or full
    only: tuple[str, ...] = ()  # of `check`: these checks; of `test`: these tests
    data_paths: tuple[str, ...] = ()  # every node must have them, with the same content
    expect_gpus: int | None = None  # GPUs of a node; None: nproc, if set
    end_orphans: bool = False  # processes of dead runs are ended first


@dataclass(frozen=True)
class CollectiveTests:
    """Collective tests."""

    test: str = ""  # quick: some before the program; full: nothing but tests, those of `suite`
    suite: str = "sync"  # one of table.SUITES
    backend: str = "auto"  # gloo, nccl, or auto
    size: int = 256 << 20  # the largest payload of a rank
    timeout: float = 60.0  # limit of each test
    min_bandwidth: int | None = None  # bytes/s that every link must carry
    max_latency: float | None = None  # the longest round trip of a link


@dataclass(frozen=True)
class Limits:
    """Time limits."""

    lease: float = 60.0  # ranks live so long without contact with the controller
    grace: float = 1.0  # SIGTERM to SIGKILL after a failure
    stop_grace: float = 30.0  # SIGTERM to SIGKILL at stop
    connect_timeout: float = 12.0  # until a node is reached
    init_timeout: float = 600.0  # until all ranks have initialised
    hang_timeout: float = 600.0  # nothing moves for so long: a suspected hang; 0: never
    hang_pattern: str | None = None  # only a log line that matches is movement
    straggler_interval: float = 30.0  # between looks for slow ranks; 0: never
    pg_timeout: float | None = None  # of the process groups; None: the script's own
    pg_timeout_forced: bool = False  # --pg-timeout was an option: it overrides the script's own


@dataclass(frozen=True)
class Places:
    """Names and directories."""

    name: str = "run"  # first part of the run directory's name
    runs_dir: str = "runs"  # holds the run directories
    node_dir: str | None = None  # scratch directory on the nodes; None: /tmp
    output_dir: str | None = None  # shared ALLRANKS_OUTPUT_DIR of the ranks


@dataclass(frozen=True)
class Recovery:
    """What is done about failures, hangs and data that is not split."""

    retries: int = 0  # further attempts after a failure that may pass
    node_wait: float = 300.0  # a lost node is reached again for so long within one attempt, where no spare is left
    spares: int = 0  # so many nodes at the list's end are hot spares for the retries
    avoid: bool = False  # nodes that earlier runs suspect go to the list's end
    on_hang: str = "stop"  # stop, report or restart
    preload: str = "auto"  # never, retries, auto, torch: which ranks are forked from a process that has imported
    audit_data: int = 0  # batches of each loader whose samples are compared; 0: none
    on_audit: str = "report"  # report or stop


@dataclass(frozen=True)
class Output:
    """What people see of a run."""

    fold: bool = True  # identical lines of all ranks become one
    step_pattern: str | None = None  # matches the step in logs
    debug: bool = False  # the ranks get NCCL_DEBUG=INFO and TORCH_DISTRIBUTED_DEBUG=DETAIL
    detach: bool = False  # the run goes on without this terminal
    notify: tuple[str, ...] = ()  # names whose services hear of failures, hangs, retries and the end
    metrics_port: str | None = None  # [ADDRESS:]PORT that answers with OpenMetrics
    metrics_file: str | None = None  # path of a file in OpenMetrics form


@dataclass(frozen=True)
class Cloud:
    """Pods of Kubernetes and machines of SkyPilot."""

    kind: str = "job"  # of Kubernetes objects; one of table.KINDS
    namespace: str | None = None  # None: that of the context
    context: str | None = None  # of kubectl; None: the current one
    image: str | None = None  # container image
    gpus: str | None = None  # of a node: `8` or `NAME:8`
    shm: int | None = None  # bytes of /dev/shm; None: half of the memory
    pod: str | None = None  # path of a file with settings of the pods
    deadline: float | None = None  # the cluster ends the run after so long
    infra: str | None = None  # where SkyPilot looks
    autostop: float | None = None  # of SkyPilot; None: when the run is over


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
