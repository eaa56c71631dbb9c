"""Kubernetes objects of a run: an Indexed Job, a JobSet, a TrainJob or bare pods (pure).

Every pod runs the same `allranks join`. MASTER_ADDR is the name of pod 0 alone (`NAME-0.NAME`): a label that all
pods carry would resolve to any of them. The Service is headless and publishes addresses before pods are ready,
because nothing is ready before the pods have found each other.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence

from allranks.errors import UsageError
from allranks.exitcodes import CHECK_FAILED, HANG, INTERNAL, PROGRAM_FAILED, USAGE
from allranks.settings import RunSpec
from allranks.settings.roles import as_toml, deal, refuse_sharing

from .pod_spec import (
    ARCHIVE,
    CONTAINER,
    ROLES,
    RUN_LABEL,
    PodJob,
    grace_seconds,
    manifest,
    pod_spec,
    rendered_name,
)
from .podsettings import KUEUE, QUEUE, PodSettings, read_pod_settings
from .request import Rendered, RenderRequest
from .yamltext import Document, yaml_text

OBJECT_LIMIT = 1 << 20  # bytes that a ConfigMap holds (not of their base64)
KEEP_SECONDS = 7 * 86400  # a finished Job or JobSet and its pods' logs, before Kubernetes removes them
GROUP = "node"  # the replicated job of a JobSet
TRAINER_LABEL = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def kubernetes(request: RenderRequest) -> Rendered:
    """Render the run's objects in one file, allranks itself in another, which is too long to read or compare."""
    spec = request.spec
    settings = pod_settings(spec, request.texts)
    job = PodJob(spec, rendered_name(spec), request.archive, variables=request.forwarded, settings=settings)
    objects = manifests(job)
    config = [o for o in objects if o["kind"] == "ConfigMap"]
    others = [o for o in objects if o["kind"] != "ConfigMap"]
    return {
        f"{job.name}.yaml": yaml_text(others, _head(job)),
        f"{job.name}-allranks.yaml": yaml_text(config, [f"allranks itself, for the pods of {job.name}"]).encode(),
        f"{job.name}-rbac.yaml": yaml_text([role(job)], _role_head(job)),
    }


def pod_settings(spec: RunSpec, texts: Mapping[str, str]) -> PodSettings:
    """Read the user's own settings of a pod: the file of --pod, whose text is in `texts`."""
    return read_pod_settings(spec, texts, CONTAINER, grace_seconds(spec))


def _head(job: PodJob) -> list[str]:
    """Say what to do with the file. The secrets are made by hand: a file that lands in git must hold none."""
    space = _space(job)
    make = f"kubectl create{space} secret generic"
    files = f"-f {job.name}-allranks.yaml -f {job.name}.yaml"
    secrets = f"{job.secret} {job.secret_env}" if job.hidden else job.secret
    lines = [
        f"{job.name}: {job.nodes} pods, each runs the same `allranks join`. First make the secret that they prove to",
        "each other, which is in no file:",
        f"  head -c 32 /dev/urandom | base64 | {make} {job.secret} --from-file=secret=/dev/stdin",
    ]
    if job.hidden:
        lines += ["Then the values of variables that are in no file either:"]
        pairs = " ".join(f'"{n}=${n}"' for n in job.hidden)
        lines += [f"  printf '%s\\n' {pairs} | {make} {job.secret_env} --from-env-file=/dev/stdin"]
    return [
        *lines,
        "Then these files with create, as apply keeps a copy in an annotation, which is too small for allranks:",
        f"  kubectl create{space} {files}",
        "The verdict and all output are in the log of pod 0, the verdict in every pod's. What you have to be allowed",
        f"to do is in {job.name}-rbac.yaml. To end it, and remove all:",
        f"  kubectl delete{space} --wait=false {files}",
        f"  kubectl delete{space} --wait=false secret {secrets}",
    ]


def manifests(job: PodJob) -> list[Document]:
    """All objects but the Secrets, in the order in which to make them."""
    refuse_sharing(job.spec, "a pod")
    return KINDS[job.spec.cloud.kind](job)


def master_name(job: PodJob) -> str:
    """Pod 0's own name, as the other pods resolve it."""
    return f"{pod_names(job)[0]}.{job.name}"


def pod_names(job: PodJob) -> list[str]:
    """List the host names of the pods, by node rank."""
    if job.spec.cloud.kind not in ("jobset", "trainjob"):
        return [f"{job.name}-{rank}" for rank in range(job.nodes)]
    return [f"{job.name}-{group}-0-{index}" for group, ranks in _groups(job).items() for index in range(len(ranks))]


def _groups(job: PodJob) -> dict[str, list[int]]:
    """Return the replicated jobs of a JobSet, one a role, with the node ranks of their pods."""
    roles = job.spec.launch.roles
    if not roles:
        return {GROUP: list(range(job.nodes))}
    return {name.replace("_", "-"): ranks for name, ranks in deal(roles, job.nodes, "--nodes").items()}


def secret_manifest(job: PodJob, name: str, values: dict[str, str]) -> Document:
    """Make a Secret: `run --k8s` creates it, and a rendered file asks the user to."""
    return manifest("v1", "Secret", job.metadata(name), type="Opaque", stringData=values)


# -- who may do it -------------------------------------------------------------------------------------

# The verbs that kubectl needs for what allranks has it do (engines/kubernetes): `create -f`, `get -l`, `delete -l`
# lists and then deletes each; parts and Secrets are deleted by name, so the right to list Secrets is not needed.
_PARTS = {"apiGroups": [""], "resources": ["services", "configmaps", "secrets"], "verbs": ["create", "delete"]}
_LOGS = {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}
_EVENTS = {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]}
_OWNERS = {
    "job": {"apiGroups": ["batch"], "resources": ["jobs"]},
    "jobset": {"apiGroups": ["jobset.x-k8s.io"], "resources": ["jobsets"]},
    "trainjob": {"apiGroups": ["trainer.kubeflow.org"], "resources": ["trainjobs", "trainingruntimes"]},
}


def role(job: PodJob) -> Document:
    """Make the Role of a person who makes, follows and ends runs of this kind in a namespace."""
    owner = _OWNERS.get(job.spec.cloud.kind)
    owners = [{**owner, "verbs": ["create", "list", "delete"]}] if owner is not None else []
    made = ["create"] if owner is None else []  # else the owner's controller makes the pods
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": [*made, "get", "list", "delete"]}
    metadata: Document = {"name": f"allranks-{job.spec.cloud.kind}"}
    if job.spec.cloud.namespace:
        metadata["namespace"] = job.spec.cloud.namespace
    metadata["labels"] = {"app.kubernetes.io/managed-by": "allranks"}
    rules = [*owners, _PARTS, pods, _LOGS, _EVENTS]
    return manifest("rbac.authorization.k8s.io/v1", "Role", metadata, rules=rules)


def _space(job: PodJob) -> str:
    return f" --namespace {job.spec.cloud.namespace}" if job.spec.cloud.namespace else ""


def _role_head(job: PodJob) -> list[str]:
    space = _space(job)
    name = f"allranks-{job.spec.cloud.kind}"
    return [
        "For the administrator of a namespace: all that allranks needs there. Once for everyone who may start runs:",
        f"  kubectl apply{space} -f {job.name}-rbac.yaml",
        f"  kubectl create{space} rolebinding {name} --role={name} --user=NAME",
    ]


# -- kinds ---------------------------------------------------------------------------------------------


def _indexed(job: PodJob) -> list[Document]:
    spec = {"ttlSecondsAfterFinished": KEEP_SECONDS, **_job_spec(job, job.spec.recovery.retries * job.nodes)}
    return [_service(job), _archive(job), manifest("batch/v1", "Job", job.owner_metadata, spec=spec)]


def _jobset(job: PodJob) -> list[Document]:
    spec = {"ttlSecondsAfterFinished": KEEP_SECONDS, **_jobset_spec(job)}
    return [_archive(job), manifest("jobset.x-k8s.io/v1alpha2", "JobSet", job.owner_metadata, spec=spec)]


def _trainjob(job: PodJob) -> list[Document]:
    """Make a TrainJob with a TrainingRuntime of its own, so that no runtime that is there has to fit."""
    if job.spec.launch.roles:
        raise UsageError("--kind trainjob has one role\nhint: --kind jobset, which has a replicated job for each")
    group = "trainer.kubeflow.org"
    metadata = job.metadata(job.name, {f"{group}/framework": "torch"})
    runtime = {"mlPolicy": {"numNodes": job.nodes}, "template": {"spec": _jobset_spec(job)}}
    reference = {"apiGroup": group, "kind": "TrainingRuntime", "name": job.name}
    train = {"runtimeRef": reference, "trainer": {"numNodes": job.nodes}}
    return [
        _archive(job),
        manifest(f"{group}/v1alpha1", "TrainingRuntime", metadata, spec=runtime),
        manifest(f"{group}/v1alpha1", "TrainJob", job.owner_metadata, spec=train),
    ]


def _pods(job: PodJob) -> list[Document]:
    objects = [_service(job), _archive(job)]
    group_labels, group_annotations = _pod_group(job)
    labels = {**job.settings.pod_labels, **job.settings.labels, **group_labels}
    annotations = {**job.settings.pod_annotations, **job.settings.annotations, **group_annotations}
    for rank in range(job.nodes):
        spec = {**job.deadline, **pod_spec(job, master_name(job), rank)}
        objects.append(manifest("v1", "Pod", job.metadata(f"{job.name}-{rank}", labels, annotations), spec=spec))
    return objects


def _pod_group(job: PodJob) -> tuple[dict[str, str], dict[str, str]]:
    """Labels and annotations by which Kueue admits bare pods together, or not at all, and takes no failed one's place
    for a new pod."""
    if QUEUE not in job.settings.labels:
        return {}, {}
    count = {f"{KUEUE}/pod-group-total-count": str(job.nodes), f"{KUEUE}/retriable-in-group": "false"}
    return {f"{KUEUE}/pod-group-name": job.name}, count


KINDS: dict[str, Callable[[PodJob], list[Document]]] = {
    "job": _indexed,
    "jobset": _jobset,
    "trainjob": _trainjob,
    "pods": _pods,
}


# -- parts ---------------------------------------------------------------------------------------------


def _service(job: PodJob) -> Document:
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {RUN_LABEL: job.name}}
    return manifest("v1", "Service", job.metadata(job.name), spec=spec)


def _archive(job: PodJob) -> Document:
    text = base64.b64encode(job.archive).decode()
    if len(job.archive) > OBJECT_LIMIT:
        raise UsageError(f"{ARCHIVE} has {len(job.archive)} bytes, a ConfigMap holds {OBJECT_LIMIT}")
    body: Document = {"binaryData": {ARCHIVE: text}}
    if job.spec.launch.roles:
        body["data"] = {ROLES: as_toml(job.spec.launch.roles)}
    return manifest("v1", "ConfigMap", job.metadata(job.name), **body)


def _job_spec(job: PodJob, backoff: int, ranks: Sequence[int] | None = None) -> Document:
    """Make an Indexed Job.

    `join` has made the attempts that make sense where the machines live. The Job starts pods again where a machine, a
    link or a pod was lost. `ranks` are those of one role.
    """
    count = job.nodes if ranks is None else len(ranks)
    final = {
        "containerName": CONTAINER,
        "operator": "In",
        "values": [PROGRAM_FAILED, USAGE, CHECK_FAILED, HANG, INTERNAL],
    }
    lost = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    rules = [*([lost] if backoff else []), {"action": "FailJob", "onExitCodes": final}]
    return {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimit": backoff,
        **job.deadline,
        "podFailurePolicy": {"rules": rules},
        "template": {
            "metadata": job.metadata("", job.settings.pod_labels, job.settings.pod_annotations),
            "spec": pod_spec(job, master_name(job), first=ranks[0] if ranks else None),
        },
    }


def _jobset_spec(job: PodJob) -> Document:
    """Make a JobSet, whose pods fail as one: their Job has no second try, the JobSet starts all of them again.

    It does not where the failure is final or the time is up.
    """
    final = ["PodFailurePolicy", "DeadlineExceeded"]
    rules = [{"name": "final", "action": "FailJobSet", "onJobFailureReasons": final}]
    metadata = {"labels": {**job.labels, **TRAINER_LABEL}}
    replicated = [
        {
            "name": group,
            "replicas": 1,
            "template": {"metadata": metadata, "spec": _job_spec(job, 0, ranks if job.spec.launch.roles else None)},
        }
        for group, ranks in _groups(job).items()
    ]
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": job.name},
        "failurePolicy": {"maxRestarts": job.spec.recovery.retries, "rules": rules},
        "replicatedJobs": replicated,
    }
