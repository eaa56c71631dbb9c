"""One pod of a run: the container that joins, its environment, its volumes (pure)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from allranks.cluster.schedulers import FIRST_NODE_RANK
from allranks.errors import UsageError
from allranks.settings import RunSpec
from allranks.settings.roles import main_spec, node_count
from allranks.settings.secrets import is_secret_name

from ..joining import gpu_count, join_words, unforced_variables
from ..launchers.training_command import program_name
from .podsettings import PodSettings
from .yamltext import Document


def manifest(api: str, kind: str, metadata: Document, **body: object) -> Document:
    """Make an object as the API takes it; `body` is what stands beside kind and metadata."""
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **body}


def laid_over(base: Document, top: Document, where: str) -> Document:
    """`top` laid over `base`: objects key by key, lists of named things by name, other lists are joined."""
    document = dict(base)
    for key, value in top.items():
        present = document.get(key)
        place = f"{where}: {key}"
        if isinstance(value, dict) and isinstance(present, dict):
            document[key] = laid_over(present, value, place)
        elif isinstance(value, list) and isinstance(present, list):
            document[key] = _joined(present, value, place)
        elif isinstance(present, (dict, list)):
            want = "list" if isinstance(present, list) else "map"
            raise UsageError(f"{place} has the value {value!r}, expected a {want}")
        else:
            document[key] = value
    return document


def _joined(present: Sequence[object], more: Sequence[object], where: str) -> list[object]:
    items = list(present)
    names = [_name_of(item) for item in items]
    for item in more:
        name = _name_of(item)
        if name is None or name not in names:
            items.append(item)
            continue
        at = names.index(name)
        same = items[at]
        if isinstance(same, dict) and isinstance(item, dict):
            items[at] = laid_over(same, item, f"{where}: {name}")
    return items


def _name_of(item: object) -> object:
    return item.get("name") if isinstance(item, dict) else None


CONTAINER = "node"
RUN_LABEL = "allranks/run"
ARCHIVE = "allranks.pyz"
ROLES = "roles.toml"
PROGRAM = "/opt/allranks"  # where the archive and the secret are mounted
SECRET = "/opt/allranks-join"
SCRATCH = "/tmp/allranks-runs"
AFTER_GRACE = 15  # seconds between the last SIGKILL of a rank and that of the pod: logs and the verdict travel then
SHORTEST_GRACE = 30
LONGEST_NAME = 40
_SHM = "/dev/shm"


@dataclass(frozen=True)
class PodJob:
    """A run as Kubernetes will see it.

    `name` is the objects' name; `archive` the allranks zipapp; `stream`: pod 0 writes JSON lines; `variables` are set
    in the pods besides those of the spec; `settings` are the user's own, of --pod.
    """

    spec: RunSpec
    name: str
    archive: bytes
    stream: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    settings: PodSettings = field(default_factory=PodSettings)

    @property
    def nodes(self) -> int:
        """How many pods."""
        return node_count(self.spec)

    @property
    def secret(self) -> str:
        """The Secret that holds what pods prove to each other; never part of a rendered file."""
        return secret_names(self.name)[0]

    @property
    def secret_env(self) -> str:
        """The Secret with the values of variables that must not be written down."""
        return secret_names(self.name)[1]

    @property
    def hidden(self) -> list[str]:
        """Variables whose values come from a Secret: forwarded ones, and those whose name says so."""
        return hidden_names(self.spec, self.variables)

    @property
    def labels(self) -> dict[str, str]:
        """What all objects of the run carry."""
        return {"app.kubernetes.io/managed-by": "allranks", RUN_LABEL: self.name}

    def metadata(
        self, name: str, labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None
    ) -> Document:
        """Of an object, or without a name of a template of pods; what is empty is left out."""
        metadata: Document = {"name": name, "namespace": self.spec.cloud.namespace if name else None}
        metadata["labels"] = {**self.labels, **(labels or {})}
        metadata["annotations"] = dict(annotations or {})
        return {key: value for key, value in metadata.items() if value}

    @property
    def owner_metadata(self) -> Document:
        """Of the object that a queue admits or holds: the Job, JobSet or TrainJob."""
        return self.metadata(self.name, self.settings.labels, self.settings.annotations)

    @property
    def deadline(self) -> Document:
        """The limit of --deadline, where it is set."""
        deadline = self.spec.cloud.deadline
        return {"activeDeadlineSeconds": int(deadline)} if deadline else {}


def hidden_names(spec: RunSpec, variables: Mapping[str, str]) -> list[str]:
    """List variables whose values no file holds: forwarded ones, and those whose name says so."""
    return sorted({*spec.launch.forward, *filter(is_secret_name, (*variables, *spec.launch.env))})


def secret_names(run: str) -> tuple[str, str]:
    """Name the Secrets of a run: what pods prove to each other, and the values of hidden variables."""
    return f"{run}-join", f"{run}-env"


def rendered_name(spec: RunSpec) -> str:
    """Name the rendered objects: --name, else the script's with a digest of what is run.

    Two runs in one namespace must not meet; the same settings give the same file, for a repository.
    """
    if spec.places.name != RunSpec().places.name:
        return object_name(spec.places.name)
    stem = object_name(program_name(main_spec(spec)).removesuffix(".py").removesuffix(".sh") or spec.places.name)
    settings = repr(
        (
            spec.launch.command,
            spec.target.nodes,
            spec.cloud.kind,
            spec.cloud.image,
            spec.cloud.gpus,
            spec.launch.workdir,
            *spec.launch.roles,
        )
    )
    return f"{stem[: LONGEST_NAME - 7].strip('-')}-{hashlib.sha256(settings.encode()).hexdigest()[:6]}"


def object_name(name: str) -> str:
    """Write a run's name as Kubernetes takes it: small letters, digits, '-', a letter first, 40 at most."""
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower()).strip("-")
    return (kept if kept[:1].isalpha() else f"run-{kept}")[:LONGEST_NAME].strip("-")


def pod_spec(job: PodJob, master: str, rank: int | None = None, first: int | None = None) -> Document:
    """Give the spec of a pod. `master` is pod 0's own name; without `rank` the completion index tells the rank.

    It counts from `first` in the replicated job of a role.
    """
    place = {} if rank is None else {"NODE_RANK": str(rank)}
    if first is not None:
        place[FIRST_NODE_RANK] = str(first)
    size = {"sizeLimit": _quantity(job.spec.cloud.shm)} if job.spec.cloud.shm else {}
    spec: Document = {
        "restartPolicy": "Never",
        "subdomain": job.name,
        "terminationGracePeriodSeconds": grace_seconds(job.spec),
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "containers": [_container(job, master, place)],
        "volumes": [
            {"name": "allranks", "configMap": {"name": job.name}},
            {"name": "join", "secret": {"secretName": job.secret}},
            {"name": "shm", "emptyDir": {"medium": "Memory", **size}},
        ],
    }
    resource = gpu_resource(job.spec)
    if resource:
        spec["tolerations"] = [{"key": resource[0], "operator": "Exists", "effect": "NoSchedule"}]
    if rank is not None:
        spec["hostname"] = f"{job.name}-{rank}"
    return laid_over(spec, job.settings.pod, "--pod: spec")


def grace_seconds(spec: RunSpec) -> int:
    """Above --stop-grace, so that the pod's end never cuts a rank's saving short."""
    return max(SHORTEST_GRACE, math.ceil(spec.limits.stop_grace) + AFTER_GRACE)


def _container(job: PodJob, master: str, place: Mapping[str, str]) -> Document:
    if job.spec.cloud.image is None:
        raise UsageError("--image is not set: name a container image that has Python and torch")
    if job.spec.launch.sync:
        raise UsageError("--sync: pods get their code from the image or a volume (a file for --pod). Leave it out")
    resource = gpu_resource(job.spec)
    container: Document = {
        "name": CONTAINER,
        "image": job.spec.cloud.image,
        "command": _command(job, master),
        "env": environment(job, place),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "allranks", "mountPath": PROGRAM, "readOnly": True},
            {"name": "join", "mountPath": SECRET, "readOnly": True},
            {"name": "shm", "mountPath": _SHM},
        ],
    }
    if job.spec.launch.workdir:
        container["workingDir"] = job.spec.launch.workdir
    if resource:
        container["resources"] = {"limits": {resource[0]: resource[1]}}
    return container


def _command(job: PodJob, master: str) -> list[str]:
    python = job.spec.launch.agent_python or "python3"
    where = ["--nnodes", str(job.nodes), "--master-addr", master, "--port", str(job.spec.target.join_port)]
    if job.spec.launch.roles:
        where += ["--roles", f"{PROGRAM}/{ROLES}"]
    # Else of a pod: it may have no place of its own.
    kept = job.spec.places.runs_dir != RunSpec().places.runs_dir and not job.stream
    words = [f"--runs-dir={job.spec.places.runs_dir if kept else SCRATCH}", *join_words(job.spec, job.name)]
    stream = ["--json"] if job.stream else []
    argv = [python, f"{PROGRAM}/{ARCHIVE}", "join", *where, "--secret-file", f"{SECRET}/secret", *stream, *words]
    return [_literal(word) for word in argv]


def environment(job: PodJob, place: Mapping[str, str]) -> list[Document]:
    """List the container's variables; `place` are those that say which node it is."""
    plain = {**unforced_variables(job.spec), **job.variables, **job.spec.launch.env}
    entries: list[Document] = [{"name": name, "value": value} for name, value in place.items()]
    entries += [{"name": k, "value": _literal(plain[k])} for k in sorted(plain) if k not in job.hidden]
    refs = [{"secretKeyRef": {"name": job.secret_env, "key": name}} for name in job.hidden]
    return entries + [{"name": n, "valueFrom": r} for n, r in zip(job.hidden, refs, strict=True)]


def _literal(value: str) -> str:
    """Kubernetes replaces $(NAME) and $$ in commands and values (third_party/forked/golang/expansion); a doubled $
    comes out as one, whatever follows it."""
    return value.replace("$", "$$")


def _quantity(size: int) -> str:
    for unit, power in (("Gi", 30), ("Mi", 20), ("Ki", 10)):
        if size % (1 << power) == 0:
            return f"{size >> power}{unit}"
    return str(size)


def gpu_resource(spec: RunSpec) -> tuple[str, int] | None:
    """Return the resource's name and how many of it a pod asks for."""
    if not spec.cloud.gpus:
        return None
    name = spec.cloud.gpus.rpartition(":")[0] or "nvidia.com/gpu"
    if "/" not in name:
        raise UsageError(
            f"--gpus {spec.cloud.gpus} names a model, but Kubernetes asks for a resource. Set --gpus 8 or "
            "amd.com/gpu:8, and the model by nodeSelector in a file for --pod"
        )
    return name, gpu_count(spec)
