"""The text that `allranks init` writes: every setting of allranks.toml with a comment.

Settings found on this machine are active; the others are commented out with their default or an
example, as `#key = value` (no space), so that removing the `#` is enough.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..cluster.names import show
from ..errors import UsageError
from .fields import READERS, option_name

# field, example in TOML, comment; a field None starts a section
_SETTINGS: tuple[tuple[str | None, str, str], ...] = (
    (None, "", "Where to run"),
    (
        "hosts",
        '"hosts.txt"',
        'a hostfile, or a list such as "node[01-04],login1"; the first is the master; or local = 2',
    ),
    ("slurm", "false", "Slurm: the allocation we are in, else a job is submitted; or local, or hosts"),
    ("partition", '"gpu"', "of the job that is submitted"),
    ("sbatch", '["--time=1:00:00", "--gres=gpu:8"]', "further options of sbatch"),
    ("nodes", "4", "only the first N hosts, or how many the job has"),
    ("nproc", '"auto"', "ranks on each node; auto: slots of the hostfile, else the GPUs"),
    (None, "", "What to run"),
    ("command", '["train.py", "--epochs", "3"]', "used when nothing follows -- on the command line"),
    ("name", '"run"', "first part of the run directory's name"),
    ("launcher", '"direct"', "direct, torchrun, accelerate, deepspeed, colossalai, or command (anything, once a node)"),
    ("python", '"python3"', "the training interpreter on the nodes"),
    ("guard-python", '"python3"', "the interpreter allranks itself uses on the nodes, 3.8 or newer"),
    ("workdir", '"/shared/project"', "default: the directory allranks is called from"),
    ("sync", "false", "ship your working tree to every node and run it there, uncommitted changes included"),
    ("prelude", '"source /opt/env/bin/activate"', "shell commands before the ranks"),
    ("wrap", '"apptainer exec --nv image.sif"', "goes around each rank"),
    (None, "", "Network"),
    ("ssh-options", '["ConnectTimeout=5"]', "options of ssh_config; your own configuration holds too"),
    ("network", '"10.0.0.0/16"', "the network of the master address; default: the best that all nodes reach"),
    ("master-addr", '"node01"', "default: chosen and proved"),
    ("master-port", "0", "0: a free one"),
    (None, "", "Checks"),
    ("check", "true", "look at the nodes before ranks start"),
    ("allow", '["shm"]', "checks or findings that do not stop a run"),
    ("level", '"full"', "of `allranks check`: quick or full"),
    ("only", '["gpu_ecc"]', "of `allranks check`: these alone"),
    ("data-paths", '["/data/train"]', "must be on all nodes, with the same content"),
    ("expect-gpus", "8", "GPUs a node must have; default: nproc"),
    (None, "", "Tests"),
    ("test", '"quick"', "a few seconds of collective tests before the program"),
    ("suite", '"sync"', "of `allranks test`: sync, bandwidth, pairs or staged"),
    ("backend", '"auto"', "auto, gloo or nccl"),
    ("size", '"256MB"', "the largest payload a rank"),
    ("timeout", '"60s"', "the limit of each test"),
    ("min-bandwidth", '"1GB"', "bytes a second that every link must carry; default: as the cluster's others do"),
    ("max-latency", '"1ms"', "the longest round trip of a link; default: as the cluster's others do"),
    (None, "", "Times"),
    ("lease", '"60s"', "how long the ranks live without allranks"),
    ("grace", '"1s"', "from SIGTERM to SIGKILL after a failure"),
    ("stop-grace", '"30s"', "from SIGTERM to SIGKILL at stop and Ctrl-C"),
    ("connect-timeout", '"12s"', "for reaching a node"),
    ("init-timeout", '"10m"', "until all ranks have initialised"),
    ("hang-timeout", '"10m"', "no output, metrics or collectives for so long: every rank is looked at; 0: never"),
    ("hang-pattern", "'step [0-9]+'", "what the logs must say again within that time, whatever else they say"),
    ("pg-timeout", '"30m"', "timeout of the process groups; default: torch's own"),
    (None, "", "Places"),
    ("secret-file", '"join.secret"', "of `allranks join`: the same on all nodes, private"),
    ("join-port", "29400", "of `allranks join`: node 0 listens there"),
    ("runs-dir", '"runs"', "run directories"),
    ("node-dir", '"/tmp"', "working directory of allranks on the nodes"),
    ("output-dir", '"outputs"', "ALLRANKS_OUTPUT_DIR of the ranks"),
    (None, "", "Behaviour"),
    ("retries", "0", "further attempts after a failure that may pass: see docs/retries.md"),
    ("spares", "0", "the last hosts of the list stand by, for nodes that fail"),
    ("on-hang", '"stop"', "stop, report and go on, or restart (a retry)"),
    ("audit-data", "20", "compare the samples of each rank's first N batches; 0: off"),
    ("on-audit", '"report"', "where the data is not split: report and go on, or stop"),
    ("debug", "true", "TORCH_DISTRIBUTED_DEBUG=DETAIL, NCCL_DEBUG=INFO"),
    ("step-pattern", r"'step (\d+)'", "finds the step in the output"),
    ("fold", "true", "fold identical lines of many ranks into one"),
    ("end-leftovers", "false", "end processes of earlier runs first"),
    ("detach", "false", "go on without the terminal"),
    (None, "", "Pods (--k8s) and SkyPilot (--sky); nodes says how many"),
    ("kind", '"job"', "job, jobset, trainjob or pods"),
    ("namespace", '"training"', "of Kubernetes; default: the context's"),
    ("context", '"my-cluster"', "of kubectl; default: the current one"),
    ("image", '"registry/team/train:1"', "container image: Python and torch are all it needs"),
    ("gpus", '"8"', "a node: 8, amd.com/gpu:8; for SkyPilot H100:8"),
    ("shm", '"8GB"', "size of /dev/shm in a pod; default: half of the node's memory"),
    ("pod", '"pod.yaml"', "settings laid over the pod: volumes, nodeSelector, resources"),
    ("deadline", '"12h"', "the cluster ends the run after so long"),
    ("infra", '"k8s/my-cluster"', "of SkyPilot: a cloud, a region or k8s/CONTEXT"),
    ("autostop", '"10m"', "SkyPilot's machines go after so long idle; default: when the run is over"),
    (None, "", "Variables of the ranks"),
    ("forward", '["WANDB_API_KEY"]', "copied from your environment"),
)
_HEAD = "# allranks.toml: what `allranks run` assumes. An option or a variable overrides it.\n"
_TAIL = '\n#[env]\n#OMP_NUM_THREADS = "8"\n'


def commented_config(found: Mapping[str, str]) -> str:
    """The file's text; `found` maps settings (`hosts`, `nproc`, `local`, …) to the values found."""
    values = {key.replace("_", "-"): value for key, value in found.items()}
    lines = [_HEAD]
    for key, example, comment in _settings("local" in values):
        if key is None:
            lines.append(f"\n# {comment}\n")
        elif key in values:
            lines.append(f"{key} = {_toml(key, values.pop(key))}  # {comment} (found)\n")
        else:
            lines.append(f"#{key} = {example}  # {comment}\n")
    if values:
        raise UsageError(f"init: {', '.join(sorted(values))} is not a setting of allranks.toml")
    return "".join(lines) + _TAIL


def _settings(is_local: bool) -> list[tuple[str | None, str, str]]:
    """The settings with one target: a file cannot have both."""
    settings = list(_SETTINGS)
    if is_local:
        settings[1] = ("local", "2", 'virtual nodes on this machine; or hosts = "hosts.txt" for real ones')
    return settings


def _toml(key: str, text: str) -> str:
    """A found value as TOML, if the setting takes it."""
    field = key.replace("-", "_")
    if field not in READERS or field in ("command", "ssh_options"):
        raise UsageError(f"init: {key}: a found value cannot be written for this setting")
    try:
        value = READERS[field](text)
        text.encode("utf-8")
    except ValueError as error:
        raise UsageError(f"init: {option_name(field)}: found {show(text)}, set {error}") from None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
