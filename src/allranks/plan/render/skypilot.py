"""A SkyPilot task: every machine runs the same `allranks join`, and learns who it is from SKYPILOT_* (pure)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from allranks.errors import UsageError
from allranks.settings import RunSpec

from ..joining import SECRET, join_words, unforced_variables
from . import pod_spec
from .pod_spec import ARCHIVE, rendered_name
from .request import Rendered, RenderRequest
from .yamltext import Document, yaml_text

REMOTE = "~/.allranks/allranks.pyz"
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*:[0-9]+")
# What `join` reads of SkyPilot: SKYPILOT_NODE_RANK, SKYPILOT_NODE_IPS, SKYPILOT_NUM_NODES, SKYPILOT_NUM_GPUS_PER_NODE.
_MASTER = '"$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"'


def skypilot(request: RenderRequest) -> Rendered:
    """Render the task, and the zipapp that it ships."""
    name = rendered_name(request.spec)
    task = sky_task(request.spec, name, f"./{ARCHIVE}", request.workdir, variables=request.forwarded)
    options = " ".join(f"--secret {n}" for n in hidden_names(request.spec, request.forwarded))
    head = [
        f"{name}: {task['num_nodes']} machines, each runs the same `allranks join`. From this file's directory, with",
        "the secret that they prove to each other in the environment only:",
        f"  export {SECRET}=$(head -c 32 /dev/urandom | base64)",
        f"  sky launch -c {name} {options} {name}.yaml",
        f"  sky logs {name}",
        f"  sky down {name}",
    ]
    return {f"{name}.yaml": yaml_text([task], head), ARCHIVE: request.archive}


def sky_task(
    spec: RunSpec,
    name: str,
    archive: str,
    workdir: str,
    stream: bool = False,
    variables: Mapping[str, str] | None = None,
) -> Document:
    """Make the task as `Task.from_yaml` takes it; `archive` is the zipapp's path beside the file.

    `workdir` is what SkyPilot uploads: the directory that the command was given in, whole, as `.` would be the one from
    which `sky launch` is called, and the file's own has nothing of the program.
    """
    plain = {**unforced_variables(spec), **(variables or {}), **spec.launch.env}
    shown = {k: plain[k] for k in sorted(plain) if k not in hidden_names(spec, plain)}
    task: Document = {"name": name, "num_nodes": spec.target.nodes or 1, "resources": _resources(spec)}
    if spec.launch.sync or spec.launch.workdir is None:
        task["workdir"] = spec.launch.workdir or workdir
    if shown:
        task["envs"] = shown
    task["file_mounts"] = {REMOTE: archive}
    task["run"] = run_script(spec, name, stream)
    return task


def hidden_names(spec: RunSpec, variables: Mapping[str, str]) -> list[str]:
    """List what --secret NAME gives at launch and no file holds (a null under `secrets:` means another store)."""
    return sorted({*pod_spec.hidden_names(spec, variables), SECRET})


def run_script(spec: RunSpec, name: str, stream: bool = False) -> str:
    """Write the task's `run:` part, the same on every machine."""
    python = spec.launch.agent_python or "python3"
    change = f"cd {shlex.quote(spec.launch.workdir)}\n" if spec.launch.workdir and not spec.launch.sync else ""
    words = ["--port", str(spec.target.join_port), *(["--json"] if stream else []), *join_words(spec, name)]
    return (
        "# The same on every machine. The rank, the number of nodes and GPUs come from SKYPILOT_*\n"
        f"{change}exec {shlex.quote(python)} {REMOTE} join --master-addr {_MASTER} \\\n"
        f"  {shlex.join(words)}\n"
    )


def _resources(spec: RunSpec) -> Document:
    cloud = spec.cloud
    resources: Document = {}
    if cloud.infra:
        resources["infra"] = cloud.infra
    if cloud.gpus:
        if not _MODEL.fullmatch(cloud.gpus):
            number = cloud.gpus.rpartition(":")[2]
            raise UsageError(f"--gpus {cloud.gpus} names no model, which SkyPilot asks for. Set --gpus H100:{number}")
        resources["accelerators"] = cloud.gpus
    if cloud.image:
        resources["image_id"] = cloud.image if cloud.image.startswith("docker:") else f"docker:{cloud.image}"
    if cloud.autostop is not None:
        resources["autostop"] = {"idle_minutes": max(1, round(cloud.autostop / 60)), "down": True}
    return resources
