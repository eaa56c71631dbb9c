"""What Kubernetes says of a run's pods, as findings: why they wait, why they ended (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from allranks.findings import Finding, Where
from allranks.protocol.codec import decode_each
from allranks.protocol.jsontext import Json
from allranks.text import count_of, join_words, plural, with_reason

from .words import short

CHECK = "kubernetes"
INDEX = "batch.kubernetes.io/job-completion-index"
_LIMIT = 400
_FATAL_IMAGE = ("InvalidImageName", "ErrImageNeverPull")
IMAGE = (*_FATAL_IMAGE, "ImagePullBackOff", "ErrImagePull", "ImageInspectError")
_NO_SUCH_IMAGE = re.compile(
    r"not found|manifest unknown|denied|unauthorized|no such host|does not exist|forbidden", re.I
)
_NOT_STARTED = ("StartError", "ContainerCannotRun", "RunContainerError", "CreateContainerError")
_CONFIG = "CreateContainerConfigError"
# Of the events: what keeps a pod from starting, the more telling first.
_WAITS = ("FailedScheduling", "FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedCreate", "Failed")


# -- the API server's objects, as far as a run cares ----------------------------------------------------

Names = Mapping[str, str]


@dataclass(frozen=True)
class PodMetadata:
    """Of a pod. Names as in the API: Kubernetes API reference, v1."""

    name: str = ""
    uid: str = ""
    labels: Names | None = None
    annotations: Names | None = None
    creationTimestamp: str | None = None
    deletionGracePeriodSeconds: int | None = None


@dataclass(frozen=True)
class ContainerReason:
    """Why a container is in a state, a pod is disrupted, or a gate's name."""

    reason: str | None = None
    message: str | None = None
    exitCode: int | None = None
    type: str = ""
    name: str = ""


@dataclass(frozen=True)
class ContainerStatus:
    """A container's status. Its state is running, terminated or waiting."""

    name: str = ""
    state: Mapping[str, ContainerReason] | None = None


@dataclass(frozen=True)
class Spec:
    """What a pod is to be."""

    hostname: str | None = None
    nodeName: str | None = None
    terminationGracePeriodSeconds: int | None = None
    schedulingGates: tuple[ContainerReason, ...] | None = None


@dataclass(frozen=True)
class Status:
    """What a pod is."""

    phase: str = "Pending"
    reason: str | None = None
    message: str | None = None
    conditions: tuple[ContainerReason, ...] | None = None
    initContainerStatuses: tuple[ContainerStatus, ...] | None = None
    containerStatuses: tuple[ContainerStatus, ...] | None = None


@dataclass(frozen=True)
class Item:
    """A pod of the API server's list."""

    metadata: PodMetadata = field(default_factory=PodMetadata)
    spec: Spec = field(default_factory=Spec)
    status: Status = field(default_factory=Status)


@dataclass(frozen=True)
class PodEvent:
    """What Kubernetes reports of an object."""

    reason: str | None = None
    message: str | None = None
    lastTimestamp: str | None = None
    eventTime: str | None = None
    involvedObject: Names = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What it speaks of; empty where it does not say."""
        return self.involvedObject.get("kind", "")

    def is_about(self, pod: Pod) -> bool:
        """Tell whether it speaks of a pod."""
        return (self.kind, self.involvedObject.get("name")) == ("Pod", pod.name)


@dataclass(frozen=True)
class Pod:
    """A pod as far as a run cares. `host` is its name as a node of the run, `index` its node rank; `why` the reason
    that Kubernetes gives for the state it is in, `grace` its seconds from SIGTERM to SIGKILL, with their field."""

    name: str
    host: str
    index: int
    uid: str
    phase: str
    created: str
    machine: str = ""
    started: bool = False
    ended: bool = False
    why: str = ""
    message: str = ""
    exit_code: int | None = None
    node_reason: str = ""
    grace: str = ""


def read_pods(items: Json, container: str) -> list[Pod]:
    """Read the newest pod of each node rank, in order of the ranks; what cannot be read is left out."""
    newest: dict[int, Pod] = {}
    for item in decode_each(Item, items):
        pod = _read(item, container)
        if pod is not None and (pod.index not in newest or pod.created >= newest[pod.index].created):
            newest[pod.index] = pod
    return [newest[index] for index in sorted(newest)]


def _read(item: Item, container: str) -> Pod | None:
    metadata = item.metadata
    status = item.status
    host = item.spec.hostname or ""
    notes = {**(metadata.labels or {}), **(metadata.annotations or {})}
    index = notes.get(INDEX) or host.rpartition("-")[2]
    if not index.isdecimal():
        return None
    state = _state(status, container)
    why = state.get("terminated") or state.get("waiting") or ContainerReason()
    gates = ", ".join(gate.name for gate in item.spec.schedulingGates or ())
    disrupted = [c.reason or "" for c in status.conditions or () if c.type == "DisruptionTarget"]
    return Pod(
        metadata.name,
        host or metadata.name,
        int(index),
        metadata.uid,
        status.phase,
        metadata.creationTimestamp or "",
        machine=item.spec.nodeName or "",
        started="running" in state or "terminated" in state,
        ended="terminated" in state or status.phase in ("Failed", "Succeeded"),
        why=why.reason or ("SchedulingGated" if gates else ""),
        message=why.message or status.message or gates,
        exit_code=why.exitCode,
        node_reason=status.reason or "".join(disrupted[:1]),
        grace=_grace(item),
    )


def _grace(item: Item) -> str:
    """Say how long a pod has to end: what it was deleted with stands above its own."""
    seconds = item.metadata.deletionGracePeriodSeconds
    if seconds is not None:
        return f"{seconds} s (deletionGracePeriodSeconds)"
    seconds = item.spec.terminationGracePeriodSeconds
    if seconds is not None:
        return f"{seconds} s (terminationGracePeriodSeconds)"
    return ""


def _state(status: Status, container: str) -> Mapping[str, ContainerReason]:
    """Find the state of our container; before it, that of an init container that does not go on."""
    for one in status.initContainerStatuses or ():
        ended = (one.state or {}).get("terminated")
        if ended is None or ended.exitCode != 0:
            return {name: why for name, why in (one.state or {}).items() if name != "running"}
    return next((c.state or {} for c in status.containerStatuses or () if c.name == container), {})


# -- before it begins ----------------------------------------------------------------------------------


_LESS = "ask for less, or for another quota, with --nodes, --gpus or another --namespace"


# Go's net and crypto/tls, client-go's transport, and the API server's Status messages (apimachinery, api/errors)
_UNREACHED = re.compile(
    r"connection refused|was refused - did you|no such host|i/o timeout|no route to host|network is unreachable|"
    r"deadline exceeded|TLS handshake timeout|Unable to connect to the server|failed to verify certificate|"
    r"no answer in|\bEOF\b|connection reset",
    re.I,
)
# The words by which they tell another reason, what those mean, and what to do.
_NOT_YOU = re.compile(r"Unauthorized|provide credentials|must be logged in|getting credentials")
_REFUSALS = (
    (
        _NOT_YOU,
        "the Kubernetes API server does not accept your credentials",
        "log in again as your cluster asks for, then check with `kubectl auth whoami`",
    ),
    (re.compile(r"exceeded quota"), "a quota of the namespace is used up", _LESS),
    (
        re.compile(r'forbidden: User "[^"]{1,300}" cannot'),
        "you may not make the objects of the run",
        "`allranks render kubernetes … --output DIR` writes a Role with all rights that it takes (NAME-rbac.yaml)",
    ),
    (
        re.compile(r'namespaces "[^"]{1,300}" not found'),
        "the namespace does not exist",
        "`kubectl get namespaces` lists those that do, and --namespace chooses one",
    ),
    (
        re.compile(r"no matches for kind|doesn't have a resource type"),
        "the cluster does not know the kind of the run",
        "install its controller (JobSet, Kubeflow Trainer), or use --kind job",
    ),
)


def not_reached(answer: str) -> bool:
    """Tell whether the API server was not reached, or did not know who asked, by kubectl's reason."""
    return bool(_UNREACHED.search(answer) or _NOT_YOU.search(answer))


def refusal(answer: str) -> Finding:
    """Say why the objects of a run could not be made, from kubectl's reason."""
    reason = _short(answer)
    if _UNREACHED.search(answer):
        remedy = "run `kubectl cluster-info; kubectl config get-contexts`, and choose one with --context"
        return _fail("k8s-scheduling", f"the Kubernetes API server was not reached: {reason}", remedy)
    for words, meaning, remedy in _REFUSALS:
        if words.search(answer):
            return _fail("k8s-scheduling", f"{meaning}: {reason}", remedy)
    return _fail("k8s-scheduling", f"Kubernetes refused the objects of the run: {reason}", "")


# -- while it waits ------------------------------------------------------------------------------------


def waiting(pods: Sequence[Pod], events: Sequence[PodEvent], nodes: int) -> str:
    """Say which pods have not started, and why; empty where all have."""
    absent = [p for p in pods if not p.started]
    missing = max(0, nodes - len(pods))
    if not absent and not missing:
        return ""
    reasons: dict[str, list[str]] = {}
    for pod in absent:
        reasons.setdefault(_why(pod, events), []).append(pod.host)
    if missing:
        why = _of_events([e for e in events if e.kind not in ("Pod", "")]) or "not made yet"
        reasons.setdefault(why, []).append(f"{missing} more" if pods else count_of(missing, "pod"))
    parts = [f"{join_words(hosts, limit=4)}: {why}" for why, hosts in reasons.items()]
    return f"{_started(nodes - len(absent) - missing, nodes)}; {'; '.join(parts)}"


def suspended(nodes: int, queue: str) -> str:
    """Say that a queue has suspended the object that makes the pods, so that none exists."""
    by = "spec.suspend is true"
    if queue:
        by = f"the queue {queue} has not admitted it yet"
    return f"{_started(0, nodes)}, as the run is suspended: {by}"


def _started(count: int, nodes: int) -> str:
    return f"{count} of {count_of(nodes, 'pod')} {plural(nodes, 'has', 'have')} started"


def _why(pod: Pod, events: Sequence[PodEvent]) -> str:
    state = _short(f"{pod.why} {pod.message}")
    if pod.why in (*IMAGE, _CONFIG, *_NOT_STARTED):
        return state
    reason = _of_pod(pod, events) or state
    if not reason and pod.machine:
        return f"starting on {pod.machine}"
    return reason or "not scheduled yet"


def _of_pod(pod: Pod, events: Sequence[PodEvent]) -> str:
    return _of_events([e for e in events if e.is_about(pod)])


def _of_events(events: Sequence[PodEvent]) -> str:
    for reason in _WAITS:
        of_kind = [e for e in events if e.reason == reason]
        if of_kind:
            newest = max(of_kind, key=lambda e: e.lastTimestamp or e.eventTime or "")
            return _short(f"{reason}: {newest.message}")
    return ""


def _short(text: str) -> str:
    return short(text, _LIMIT)


# -- findings ------------------------------------------------------------------------------------------

_LOST = (
    "node-network-down",
    "the machine {machine} of {host} went away ({reason})",
    "run `kubectl describe node {machine}`",
)
# By the reason that a pod's status or its disruption has: cause, message, remedy. (Kubernetes: pod_status, disruption)
_ENDED_BY_CLUSTER = {
    "PreemptionByScheduler": (
        "k8s-scheduling",
        "{host} was preempted: a pod of higher priority took its place",
        "set a priorityClassName in a file for --pod, or --retries",
    ),
    "DeadlineExceeded": (
        "k8s-scheduling",
        "the run was ended at its deadline: {host} was active for too long",
        "raise --deadline, or save and go on in another run",
    ),
    "NodeLost": _LOST,
    "NodeShutdown": _LOST,
    "Terminated": _LOST,
    "Shutdown": _LOST,
    "NodeAffinity": _LOST,
    "DeletionByTaintManager": _LOST,
    "DeletionByPodGC": _LOST,
    "TerminationByKubelet": _LOST,
}
_ENDED_BY_CLUSTER["Preempting"] = _ENDED_BY_CLUSTER["PreemptionByScheduler"]
# Pods are deleted with their own grace then. A shutdown of the machine has another, set at the kubelet.
_GRACEFUL = ("PreemptionByScheduler", "DeadlineExceeded")


def troubles(pods: Sequence[Pod], events: Sequence[PodEvent]) -> list[Finding]:
    """Find what Kubernetes did to pods, or could not do for them; the first is the likeliest cause."""
    findings = [finding for pod in pods for finding in _troubles(pod, events)]
    quota = _of_events([e for e in events if e.reason == "FailedCreate" and e.kind != "Pod"])
    if quota and not pods:
        findings.append(_fail("k8s-scheduling", f"no pod could be made: {quota}", _LESS, evidence=quota))
    return findings


def hopeless(pods: Sequence[Pod], events: Sequence[PodEvent] = (), late: bool = False) -> Finding | None:
    """Find a pod that waits for what will not come; where it is `late`, also one that waits for its image."""
    for pod in pods:
        is_wrong = late or _NO_SUCH_IMAGE.search(_pull_words(pod, events))
        if pod.why in _FATAL_IMAGE or (pod.why in IMAGE and is_wrong):
            return _image(pod, events)
        if pod.why == _CONFIG:
            message = f"{pod.host} cannot be configured: {_short(pod.message)}"
            return _fail("k8s-scheduling", message, "make what it names in the same namespace", pod.host)
    return None


def _troubles(pod: Pod, events: Sequence[PodEvent]) -> Iterator[Finding]:
    message = _short(pod.message)
    if pod.why == "OOMKilled":
        yield _fail(
            "k8s-out-of-memory",
            f"{pod.host} was killed by Kubernetes: it needed more memory than its limit",
            "raise the memory limit (a file for --pod), count /dev/shm in it, or use less: fewer data-loader "
            "workers, a smaller batch",
            pod.host,
            f"state OOMKilled, exit code {pod.exit_code}",
        )
    elif pod.node_reason == "Evicted":
        yield _evicted(pod, events)
    elif pod.node_reason in _ENDED_BY_CLUSTER:
        cause, what, remedy = _ENDED_BY_CLUSTER[pod.node_reason]
        words = {"host": pod.host, "machine": pod.machine, "reason": pod.node_reason}
        what = what.format(**words)
        if pod.grace and pod.node_reason in _GRACEFUL:
            what = f"{what}. Ranks had {pod.grace}"
        yield _fail(cause, what, remedy.format(**words), pod.host, message)
    elif pod.why in _NOT_STARTED:
        remedy = "the image must have what is started: python3 (--agent-python) and --workdir"
        yield _fail(
            "remote-path-missing", f"the container of {pod.host} cannot be started: {message}", remedy, pod.host
        )
    elif pod.why in IMAGE:
        yield _image(pod, events)
    elif not pod.started:
        text = _of_pod(pod, events)
        reason = text.removeprefix("FailedScheduling: ")
        remedy = ""
        if reason != text:
            remedy = "free what is missing, ask for less with --gpus or --nodes, or choose other machines in a file "
            remedy += "for --pod"
        if text:
            yield _fail("k8s-scheduling", f"{pod.host} never started: {reason}", remedy, pod.host, text)


def _pull_words(pod: Pod, events: Sequence[PodEvent]) -> str:
    """Say why an image was not pulled: a pod that backs off does not tell it, its events do."""
    messages = [e.message or "" for e in events if e.reason == "Failed" and e.is_about(pod)]
    telling = [text for text in messages if "pull" in text and not text.startswith("Error: ")]
    return [pod.message, *telling][-1]


def _image(pod: Pod, events: Sequence[PodEvent]) -> Finding:
    message = with_reason(f"the image of {pod.host} cannot be pulled ({pod.why})", _short(_pull_words(pod, events)))
    remedy = "check --image, and for a private registry imagePullSecrets in a file for --pod"
    return _fail("k8s-image", message, remedy, pod.host)


def _evicted(pod: Pod, events: Sequence[PodEvent]) -> Finding:
    why = pod.message or _of_pod(pod, events)
    cause = "host-out-of-memory"
    remedy = "ask for the memory it needs"
    if re.search(r"ephemeral-storage|disk|inodes|emptyDir", why, re.I):
        cause = "disk-full"
        remedy = "write less into the container and /dev/shm, or mount a volume"
    message = f"{pod.host} was evicted from {pod.machine}: {_short(why)}"
    return _fail(cause, message, f"{remedy} (resources in a file for --pod)", pod.host)


def _fail(cause: str, message: str, remedy: str, node: str = "", evidence: str = "") -> Finding:
    return Finding(
        cause,
        "fail",
        message,
        remedy,
        where=Where(node=node or None),
        evidence=tuple(filter(None, [evidence])),
        check=CHECK,
    )
