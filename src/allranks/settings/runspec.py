"""RunSpec: what the user asked, one field a setting; durations in seconds, sizes in bytes.

The rows of `table.py` say how each is written. None means that allranks chooses, or that nothing was asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RunSpec:
    """What the user asked."""

    command: tuple[str, ...] = ()  # the training command; of a Python program without the interpreter
    name: str = "run"

    # target: one of local, hosts, slurm, k8s, sky; none of them is one virtual node
    local: int | None = None  # virtual nodes on this machine
    hosts: str | None = None  # a hostfile's path, or a list
    slurm: bool = False  # the allocation we are in, else a job that is submitted
    partition: str | None = None  # of that job
    sbatch: tuple[str, ...] = ()  # further options of it
    nodes: int | None = None  # the first N; of what is asked for: how many
    nproc: int | None = None  # ranks on each node
    node_rank: int | None = None  # join: the number of this node
    join_port: int = 29400  # join: node 0 listens there on `master_addr`
    secret_file: str | None = None  # join: holds what all nodes share
    k8s: bool = False
    sky: bool = False

    # pods and cloud machines
    kind: str = "job"  # of Kubernetes objects
    namespace: str | None = None
    context: str | None = None  # of kubectl
    image: str | None = None
    gpus: str | None = None  # of a node: `8` or `NAME:8`
    shm: int | None = None  # bytes of /dev/shm; None: half of the memory
    pod: str | None = None  # path of a file with settings of the pods
    deadline: float | None = None  # the cluster ends the run after so long
    infra: str | None = None  # of SkyPilot
    autostop: float | None = None  # of SkyPilot; None: when the run is over

    # launch
    launcher: str = "direct"
    python: str | None = None  # training interpreter
    agent_python: str | None = None  # of the agent
    workdir: str | None = None  # None: the caller's directory
    sync: bool = False  # the caller's working tree is shipped, and the ranks run in it
    prelude: str | None = None  # shell lines before the ranks
    wrap: str | None = None  # command around each rank
    env: dict[str, str] = field(default_factory=dict)  # set in the ranks
    forward: tuple[str, ...] = ()  # names that are copied from the caller's environment
    ssh_options: tuple[str, ...] = ()

    # network
    network: str | None = None  # CIDR networks of the master address, with commas
    master_addr: str | None = None
    master_port: int = 0  # 0: a free one

    # preflight checks
    check: bool = True  # false: ranks start without them
    allow: tuple[str, ...] = ()  # checks or findings that do not stop the run
    level: str = "full"  # of `check`
    only: tuple[str, ...] = ()  # of `check`: these checks; of `test`: these tests
    data_paths: tuple[str, ...] = ()
    expect_gpus: int | None = None  # None: nproc, if set

    # collective tests
    test: str = ""  # quick: some before the program; full: nothing but tests, those of `suite`
    suite: str = "sync"
    backend: str = "auto"
    size: int = 256 << 20  # the largest payload of a rank
    timeout: float = 60.0  # limit of each test
    min_bandwidth: int | None = None  # bytes/s that every link must carry
    max_latency: float | None = None  # the longest round trip of a link

    # limits
    lease: float = 60.0  # ranks live so long without contact with the controller
    grace: float = 1.0  # SIGTERM to SIGKILL after a failure
    stop_grace: float = 30.0  # SIGTERM to SIGKILL at stop
    connect_timeout: float = 12.0
    init_timeout: float = 600.0
    hang_timeout: float = 600.0  # nothing moves for so long: a suspected hang; 0: never
    hang_pattern: str | None = None  # only a log line that matches is movement
    pg_timeout: float | None = None  # of the process groups
    pg_timeout_forced: bool = False  # --pg-timeout was an option: it overrides the script's own

    # places
    runs_dir: str = "runs"
    node_dir: str | None = None
    output_dir: str | None = None

    # behaviour
    retries: int = 0
    spares: int = 0  # so many nodes at the list's end are hot spares for the retries
    audit_data: int = 0  # batches of each loader whose samples are compared; 0: none
    on_audit: str = "report"
    on_hang: str = "stop"
    debug: bool = False
    step_pattern: str | None = None
    fold: bool = True
    end_leftovers: bool = False
    detach: bool = False
