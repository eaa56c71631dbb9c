"""RunSpec: one field for every option of `run`; durations in seconds, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RunSpec:
    """What the user asked. Every option of `allranks run` names one of these fields.

    Target: `local` virtual nodes on this machine, or `hosts` (a file's path or a list), or `slurm`: the allocation we
    are in, else a job that is submitted to `partition` with the further options `sbatch`. `nodes` takes the first N
    (of a job to be submitted: how many it has); for `join`, this is node `node_rank` of them, node 0 listens on
    `join_port` of `master_addr`, and `secret_file` holds what all share. `nproc` None means auto. The last `spares`
    nodes of the list stand by without ranks, to take the place of a node that fails, at one of the `retries`.
    `pg_timeout_forced` is true only where --pg-timeout was an option, and then overrides the script's own value.
    `sync` ships the caller's working tree to every node and runs there. `env` is set in the ranks; `forward` names are
    copied from the caller's environment. `workdir` None means the caller's directory. `check` False leaves out the
    look before ranks start; `allow` names checks or findings that do not stop it; `level` and `only` say what
    `allranks check` looks at (`only`: which tests `allranks test` makes); `expect_gpus` None means `nproc`, if set.
    `test` "quick" runs a few collective tests before the program, "full" nothing but tests: those of `suite`, up to
    `size` bytes a rank, each within `timeout` seconds; a run in which nothing moves for `hang_timeout` seconds (0:
    never) is looked at, and stopped or, with `on_hang` "report", told of, or with "restart" tried again; with
    `hang_pattern` nothing else moves it than a log line that matches; `min_bandwidth` (bytes/s) and `max_latency`
    (seconds) are asked of every link. `audit_data`: of so many batches of each loader the ranks' samples are noted and
    compared (0: none); `on_audit` "stop" ends a run whose data is not split.

    `k8s` and `sky` are targets whose nodes are pods and SkyPilot's machines: `nodes` says how many. `kind` of objects,
    `namespace`, kubectl's `context`, `image`, `shm` bytes of /dev/shm (None: half of the memory), `pod` a file of
    pod settings; SkyPilot's `infra` and `autostop` (None: when the run is over); `gpus` a node as `8` or `NAME:8`;
    after `deadline` seconds the cluster ends the run.
    """

    command: tuple[str, ...] = ()
    name: str = "run"
    # target
    local: int | None = None
    hosts: str | None = None
    slurm: bool = False
    partition: str | None = None
    sbatch: tuple[str, ...] = ()
    nodes: int | None = None
    nproc: int | None = None
    node_rank: int | None = None
    join_port: int = 29400
    secret_file: str | None = None
    k8s: bool = False
    sky: bool = False
    # pods and cloud machines
    kind: str = "job"
    namespace: str | None = None
    context: str | None = None
    image: str | None = None
    gpus: str | None = None
    shm: int | None = None
    pod: str | None = None
    deadline: float | None = None
    infra: str | None = None
    autostop: float | None = None
    # how
    launcher: str = "direct"
    python: str | None = None
    guard_python: str | None = None
    workdir: str | None = None
    sync: bool = False
    prelude: str | None = None
    wrap: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    forward: tuple[str, ...] = ()
    ssh_options: tuple[str, ...] = ()
    # network
    network: str | None = None
    master_addr: str | None = None
    master_port: int = 0
    # checks
    check: bool = True
    allow: tuple[str, ...] = ()
    level: str = "full"
    only: tuple[str, ...] = ()
    data_paths: tuple[str, ...] = ()
    expect_gpus: int | None = None
    # tests
    test: str = ""
    suite: str = "sync"
    backend: str = "auto"
    size: int = 256 << 20
    timeout: float = 60.0
    min_bandwidth: int | None = None
    max_latency: float | None = None
    # times, seconds
    lease: float = 60.0
    grace: float = 1.0
    stop_grace: float = 30.0
    connect_timeout: float = 12.0
    init_timeout: float = 600.0
    hang_timeout: float = 600.0
    hang_pattern: str | None = None
    pg_timeout: float | None = None
    pg_timeout_forced: bool = False
    # places
    runs_dir: str = "runs"
    node_dir: str | None = None
    output_dir: str | None = None
    # behaviour
    retries: int = 0
    spares: int = 0
    audit_data: int = 0
    on_audit: str = "report"
    on_hang: str = "stop"
    debug: bool = False
    step_pattern: str | None = None
    fold: bool = True
    end_leftovers: bool = False
    detach: bool = False
    dry_run: bool = False
    json: bool = False
