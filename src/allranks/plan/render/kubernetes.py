"""Kubernetes objects of a run: an Indexed Job, a JobSet, a TrainJob or bare pods (pure).

Every pod runs the same `allranks join`. MASTER_ADDR is the name of pod 0 alone (`NAME-0.NAME`): a label that all
pods carry would resolve to any of them. The Service is headless and publishes addresses before pods are ready,
because nothing is ready before the pods have found each other.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping

from allranks.diagnose.outcomes import CHECK, HANG, PROGRAM
from allranks.errors import UsageError
from allranks.settings import RunSpec

from .pods import ARCHIVE, CONTAINER, RUN_LABEL, Document, Job, object_name, pod_template
from .request import Rendered, Request
from .yamltext import read_yaml, yaml_text

USAGE = 2
OBJECT_LIMIT = 1 << 20  # bytes that a ConfigMap holds (not of their base64)
GROUP = "node"  # the replicated job of a JobSet
TRAINER_LABEL = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def kubernetes(request: Request) -> Rendered:
    """The run's objects in one file, allranks itself in another: nobody wants to read or compare that one."""
    spec = request.spec
    job = Job(spec, object_name(spec.name), request.archive, overlay=overlay(spec, request.texts))
    objects = manifests(job)
    config = [o for o in objects if o["kind"] == "ConfigMap"]
    others = [o for o in objects if o["kind"] != "ConfigMap"]
    return {
        f"{job.name}.yaml": yaml_text(others, _head(job)),
        f"{job.name}-allranks.yaml": yaml_text(config, [f"allranks itself, for the pods of {job.name}"]).encode(),
    }


def overlay(spec: RunSpec, texts: Mapping[str, str]) -> Document:
    """The settings of --pod: a pod's `metadata` and `spec`."""
    if spec.pod is None:
        return {}
    found = read_yaml(texts[spec.pod], f"--pod {spec.pod}")
    unknown = [key for key in found if key not in ("apiVersion", "kind", "metadata", "spec")]
    if unknown:
        raise UsageError(f"--pod {spec.pod}: found {unknown[0]}, set metadata and spec as a pod has them")
    return {key: found[key] for key in ("metadata", "spec") if key in found}


def _head(job: Job) -> list[str]:
    """What to do with the file. The secrets are made by hand: a file that lands in git must hold none."""
    space = f" --namespace {job.spec.namespace}" if job.spec.namespace else ""
    make = f"kubectl create{space} secret generic"
    files = f"-f {job.name}-allranks.yaml -f {job.name}.yaml"
    secrets = " ".join([job.secret, *([job.secret_env] if job.hidden else [])])
    lines = [
        f"{job.name}: {job.nodes} pods, each runs the same `allranks join`. First the secret that they prove to each",
        "other; it is in no file:",
        f"  head -c 32 /dev/urandom | base64 | {make} {job.secret} --from-file=secret=/dev/stdin",
    ]
    if job.hidden:
        lines += ["Then the values of variables that are in no file either:"]
        pairs = " ".join(f'"{n}=${n}"' for n in job.hidden)
        lines += [f"  printf '%s\\n' {pairs} | {make} {job.secret_env} --from-env-file=/dev/stdin"]
    return [
        *lines,
        "Then these files (create, not apply: apply keeps a copy in an annotation, which is too small for allranks):",
        f"  kubectl create{space} {files}",
        "The verdict and all output are in the log of pod 0, the verdict in every pod's. To end it, and remove all:",
        f"  kubectl delete{space} {files}; kubectl delete{space} secret {secrets}",
    ]


def manifests(job: Job) -> list[Document]:
    """All objects but the Secrets, in the order in which to make them."""
    return [*KINDS[job.spec.kind](job)]


def master_name(job: Job) -> str:
    """Pod 0's own name, as the other pods resolve it."""
    pod = f"{job.name}-{GROUP}-0-0" if job.spec.kind in ("jobset", "trainjob") else f"{job.name}-0"
    return f"{pod}.{job.name}"


def pod_names(job: Job) -> list[str]:
    """The host names of the pods, by node rank."""
    first = master_name(job).partition(".")[0]
    return [f"{first[:-1]}{rank}" for rank in range(job.nodes)]


def secret_manifest(job: Job, name: str, values: dict[str, str]) -> Document:
    """A Secret: what `run --k8s` makes, and what a rendered file asks the user to make."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": job.metadata(name), "type": "Opaque",
            "stringData": values}  # fmt: skip


# -- kinds ---------------------------------------------------------------------------------------------


def _indexed(job: Job) -> list[Document]:
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": job.metadata(job.name)}
    return [_service(job), _archive(job), {**body, "spec": _job_spec(job, job.spec.retries * job.nodes)}]


def _jobset(job: Job) -> list[Document]:
    body = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": job.metadata(job.name)}
    return [_archive(job), {**body, "spec": _jobset_spec(job)}]


def _trainjob(job: Job) -> list[Document]:
    """A TrainingRuntime of its own, so that no runtime that is there has to fit."""
    api = "trainer.kubeflow.org/v1alpha1"
    runtime = {
        "apiVersion": api,
        "kind": "TrainingRuntime",
        "metadata": {**job.metadata(job.name), "labels": {**job.labels, "trainer.kubeflow.org/framework": "torch"}},
        "spec": {"mlPolicy": {"numNodes": job.nodes}, "template": {"spec": _jobset_spec(job)}},
    }
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": job.name}
    train = {
        "apiVersion": api,
        "kind": "TrainJob",
        "metadata": job.metadata(job.name),
        "spec": {"runtimeRef": reference, "trainer": {"numNodes": job.nodes}},
    }
    return [_archive(job), runtime, train]


def _pods(job: Job) -> list[Document]:
    found = [_service(job), _archive(job)]
    for rank in range(job.nodes):
        template = pod_template(job, master_name(job), rank)
        limit = {"activeDeadlineSeconds": int(job.spec.deadline)} if job.spec.deadline else {}
        metadata = {**job.metadata(f"{job.name}-{rank}"), **_rest(template["metadata"])}
        labels = {**job.labels, **template["metadata"].get("labels", {})}
        found.append({"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "labels": labels},
                      "spec": {**limit, **template["spec"]}})  # fmt: skip
    return found


KINDS: dict[str, Callable[[Job], list[Document]]] = {
    "job": _indexed, "jobset": _jobset, "trainjob": _trainjob, "pods": _pods,
}  # fmt: skip


def _rest(metadata: Document) -> Document:
    """What --pod adds to a template's metadata; a pod's name and labels are set beside it."""
    return {k: v for k, v in metadata.items() if k not in ("labels", "name", "namespace")}


# -- parts ---------------------------------------------------------------------------------------------


def _service(job: Job) -> Document:
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {RUN_LABEL: job.name}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": job.metadata(job.name), "spec": spec}


def _archive(job: Job) -> Document:
    text = base64.b64encode(job.archive).decode()
    if len(job.archive) > OBJECT_LIMIT:
        raise UsageError(f"{ARCHIVE} has {len(job.archive)} bytes, a ConfigMap holds {OBJECT_LIMIT}")
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": job.metadata(job.name), "binaryData": {ARCHIVE: text}}


def _job_spec(job: Job, backoff: int) -> Document:
    """An Indexed Job. `join` has made the attempts that make sense where the machines live; the Job starts pods again
    where a machine, a link or a pod was lost."""
    final = {"containerName": CONTAINER, "operator": "In", "values": [PROGRAM, USAGE, CHECK, HANG]}
    lost = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    rules = [*([lost] if backoff else []), {"action": "FailJob", "onExitCodes": final}]
    limit = {"activeDeadlineSeconds": int(job.spec.deadline)} if job.spec.deadline else {}
    return {
        "completionMode": "Indexed",
        "completions": job.nodes,
        "parallelism": job.nodes,
        "backoffLimit": backoff,
        **limit,
        "podFailurePolicy": {"rules": rules},
        "template": pod_template(job, master_name(job)),
    }


def _jobset_spec(job: Job) -> Document:
    """The pods fail as one: their Job has no second try, the JobSet starts all of them again."""
    rules = [{"name": "final", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}]
    replicated = {
        "name": GROUP,
        "replicas": 1,
        "template": {"metadata": {"labels": {**job.labels, **TRAINER_LABEL}}, "spec": _job_spec(job, 0)},
    }
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": job.name},
        "failurePolicy": {"maxRestarts": job.spec.retries, "rules": rules},
        "replicatedJobs": [replicated],
    }
