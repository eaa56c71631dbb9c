"""What Kubernetes says of a run's pods, as findings: why they wait, why they ended (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from allranks.findings import Finding, Where
from allranks.text import count_of, plural, with_reason

CHECK = "kubernetes"
INDEX = "batch.kubernetes.io/job-completion-index"
_LIMIT = 400
_FATAL_IMAGE = ("InvalidImageName", "ErrImageNeverPull")
IMAGE = (*_FATAL_IMAGE, "ImagePullBackOff", "ErrImagePull", "ImageInspectError")
_NO_SUCH_IMAGE = re.compile(
    r"not found|manifest unknown|denied|unauthorized|no such host|does not exist|forbidden", re.I
)
_NOT_STARTED = ("StartError", "ContainerCannotRun", "RunContainerError", "CreateContainerError")
_CONFIG = ("CreateContainerConfigError",)
_LOST = ("NodeLost", "NodeShutdown", "Terminated", "Shutdown", "NodeAffinity")
# Of the events: what keeps a pod from starting, the more telling first.
_WAITS = ("FailedScheduling", "FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedCreate", "Failed")


@dataclass(frozen=True)
class Pod:
    """A pod as far as a run cares. `host` is its name as a node of the run, `index` its node rank; `why` the reason
    that Kubernetes gives for the state it is in."""

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
    leaving: bool = False
    node_reason: str = ""


def read_pods(items: Sequence[Mapping[str, Any]], container: str) -> list[Pod]:
    """Of each node rank the newest pod, in order of the ranks."""
    newest: dict[int, Pod] = {}
    for item in items:
        pod = _read(item, container)
        if pod is not None and (pod.index not in newest or pod.created >= newest[pod.index].created):
            newest[pod.index] = pod
    return [newest[index] for index in sorted(newest)]


def _read(item: Mapping[str, Any], container: str) -> Pod | None:
    metadata = item.get("metadata") or {}
    spec = item.get("spec") or {}
    status = item.get("status") or {}
    notes = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
    text = str(notes.get(INDEX) or str(spec.get("hostname") or "").rpartition("-")[2])
    if not text.isdecimal():
        return None
    state = _state(status, container)
    terminated = state.get("terminated") or {}
    waiting = state.get("waiting") or {}
    disrupted = [c for c in status.get("conditions") or [] if c.get("type") == "DisruptionTarget"]
    reason = str(status.get("reason") or (disrupted[0].get("reason") if disrupted else "") or "")
    gates = ", ".join(str(gate.get("name")) for gate in spec.get("schedulingGates") or [])
    return Pod(
        name=str(metadata.get("name")),
        host=str(spec.get("hostname") or metadata.get("name")),
        index=int(text),
        uid=str(metadata.get("uid")),
        phase=str(status.get("phase") or "Pending"),
        created=str(metadata.get("creationTimestamp") or ""),
        machine=str(spec.get("nodeName") or ""),
        started=bool(state.get("running") or terminated),
        ended=bool(terminated) or status.get("phase") in ("Failed", "Succeeded"),
        why=str(terminated.get("reason") or waiting.get("reason") or ("SchedulingGated" if gates else "")),
        message=str(terminated.get("message") or waiting.get("message") or status.get("message") or gates),
        exit_code=terminated.get("exitCode"),
        leaving="deletionTimestamp" in metadata,
        node_reason=reason,
    )


def _state(status: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    """The state of our container; before it, of an init container that does not go on."""
    for one in status.get("initContainerStatuses") or []:
        state: Mapping[str, Any] = one.get("state") or {}
        ended = state.get("terminated")
        if not (ended and ended.get("exitCode") == 0):
            return {**state, "running": None} if not ended else state
    ours = [c for c in status.get("containerStatuses") or [] if c.get("name") == container]
    return (ours[0].get("state") or {}) if ours else {}


# -- before it begins ----------------------------------------------------------------------------------


class _Refusal(NamedTuple):
    """Words by which kubectl or the API server tells a reason, what they mean, and what to do."""

    words: re.Pattern[str]
    meaning: str
    remedy: str


# Go's net and crypto/tls, client-go's transport, and the API server's Status messages (apimachinery, api/errors)
_UNREACHED = re.compile(
    r"connection refused|was refused - did you|no such host|i/o timeout|no route to host|network is unreachable|"
    r"deadline exceeded|TLS handshake timeout|Unable to connect to the server|failed to verify certificate|"
    r"no answer in|\bEOF\b|connection reset",
    re.I,
)
_REFUSALS = (
    _Refusal(
        re.compile(r"Unauthorized|provide credentials|must be logged in|getting credentials"),
        "the Kubernetes API server does not accept your credentials",
        "log in again as your cluster asks for, then: kubectl auth whoami",
    ),
    _Refusal(
        re.compile(r"exceeded quota"),
        "a quota of the namespace is used up",
        "ask for less, or for another quota, with --nodes, --gpus or another --namespace",
    ),
    _Refusal(
        re.compile(r'forbidden: User "[^"]{1,300}" cannot'),
        "you may not make the objects of the run",
        "`allranks render kubernetes … --output DIR` writes a Role with all rights that it takes (NAME-rbac.yaml)",
    ),
    _Refusal(
        re.compile(r'namespaces "[^"]{1,300}" not found'),
        "the namespace does not exist",
        "kubectl get namespaces; choose one with --namespace",
    ),
    _Refusal(
        re.compile(r"no matches for kind|doesn't have a resource type"),
        "the cluster does not know the kind of the run",
        "install its controller (JobSet, Kubeflow Trainer), or use --kind job",
    ),
)


def not_reached(answer: str) -> bool:
    """True where kubectl's reason says that the API server was never asked or did not know who asks."""
    return bool(_UNREACHED.search(answer) or _REFUSALS[0].words.search(answer))


def refusal(answer: str) -> Finding:
    """Say why the objects of a run could not be made, from kubectl's reason."""
    reason = _short(answer)
    if _UNREACHED.search(answer):
        remedy = "kubectl cluster-info; kubectl config get-contexts; choose one with --context"
        return _fail("k8s-scheduling", f"the Kubernetes API server was not reached: {reason}", remedy, "", ())
    for one in _REFUSALS:
        if one.words.search(answer):
            return _fail("k8s-scheduling", f"{one.meaning}: {reason}", one.remedy, "", ())
    return _fail("k8s-scheduling", f"Kubernetes refused the objects of the run: {reason}", "", "", ())


# -- while it waits ------------------------------------------------------------------------------------


def waiting(pods: Sequence[Pod], events: Sequence[Mapping[str, Any]], nodes: int) -> str:
    """Who is not there yet, and why; empty where all pods have started."""
    absent = [p for p in pods if not p.started]
    missing = nodes - len(pods)
    if not absent and missing <= 0:
        return ""
    reasons: dict[str, list[str]] = {}
    for pod in absent:
        reasons.setdefault(_why(pod, events), []).append(pod.host)
    if missing > 0:
        why = _of_events([e for e in events if _about(e)[0] not in ("Pod", "")]) or "not made yet"
        reasons.setdefault(why, []).append(f"{missing} more" if pods else count_of(missing, "pod"))
    parts = [f"{_names(names)}: {why}" for why, names in reasons.items()]
    return (
        f"{nodes - len(absent) - max(0, missing)} of {count_of(nodes, 'pod')} {plural(nodes, 'has', 'have')} started; "
        + "; ".join(parts)
    )


def suspended(nodes: int, queue: str) -> str:
    """Why no pod is there: a queue holds the object that makes them."""
    by = f"the queue {queue} has not admitted it yet" if queue else "spec.suspend is true"
    return f"0 of {count_of(nodes, 'pod')} {plural(nodes, 'has', 'have')} started; the run is suspended: {by}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _why(pod: Pod, events: Sequence[Mapping[str, Any]]) -> str:
    event = _of_events([e for e in events if _about(e) == ("Pod", pod.name)])
    state = " ".join(part for part in (pod.why, pod.message) if part)
    if pod.why in (*IMAGE, *_CONFIG, *_NOT_STARTED):
        return _short(state)
    return event or _short(state) or (f"starting on {pod.machine}" if pod.machine else "not scheduled yet")


def _of_events(events: Sequence[Mapping[str, Any]]) -> str:
    """The newest event of the most telling kind."""
    for reason in _WAITS:
        of_kind = [e for e in events if e.get("reason") == reason]
        if of_kind:
            newest = max(of_kind, key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or ""))
            return _short(f"{reason}: {newest.get('message')}")
    return ""


def _about(event: Mapping[str, Any]) -> tuple[str, str]:
    about = event.get("involvedObject") or {}
    return str(about.get("kind") or ""), str(about.get("name") or "")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LIMIT else line[: _LIMIT - 4] + " ..."


# -- findings ------------------------------------------------------------------------------------------


def troubles(pods: Sequence[Pod], events: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """What Kubernetes itself did to pods, or could not do for them; the first is the likeliest cause."""
    findings = [finding for pod in pods for finding in _troubles(pod, events)]
    quota = [e for e in events if e.get("reason") == "FailedCreate" and _about(e)[0] != "Pod"]
    if quota and not pods:
        text = _of_events(quota)
        findings.append(
            _fail(
                "k8s-scheduling",
                f"no pod could be made: {text}",
                "ask for less, or for another quota, with --nodes, --gpus or another --namespace",
                "",
                (text,),
            )
        )
    return sorted(findings, key=lambda f: f.status != "fail")


def hopeless(pods: Sequence[Pod], events: Sequence[Mapping[str, Any]] = (), late: bool = False) -> Finding | None:
    """A pod that waits for what will not come, or has waited for its image for too long: more time is of no use."""
    for pod in pods:
        pull_error = _pull_words(pod, events)
        if pod.why in _FATAL_IMAGE or (pod.why in IMAGE and (late or _NO_SUCH_IMAGE.search(pull_error))):
            return _image(pod, events)
        if pod.why in _CONFIG:
            return _fail(
                "k8s-scheduling",
                f"{pod.host} can't be configured: {_short(pod.message)}",
                "make what it names in the same namespace",
                pod.host,
                (),
            )
    return None


def _troubles(pod: Pod, events: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    if pod.why == "OOMKilled":
        yield _fail(
            "k8s-out-of-memory",
            f"{pod.host} was killed by Kubernetes: it needed more memory than its limit",
            "raise the memory limit (a file for --pod), count /dev/shm in it, or use less: fewer data-loader "
            "workers, a smaller batch",
            pod.host,
            (f"state OOMKilled, exit code {pod.exit_code}",),
        )
    elif pod.node_reason == "Evicted":
        yield _evicted(pod, events)
    elif pod.node_reason in ("PreemptionByScheduler", "Preempting"):
        yield _fail(
            "k8s-scheduling",
            f"{pod.host} was preempted: a pod of higher priority took its place",
            "set a priorityClassName in a file for --pod, or --retries",
            pod.host,
            (_short(pod.message),),
        )
    elif pod.node_reason == "DeadlineExceeded":
        yield _fail(
            "k8s-scheduling",
            f"the run was ended at its deadline: {pod.host} was active for too long",
            "raise --deadline, or save and go on in another run",
            pod.host,
            (_short(pod.message),),
        )
    elif pod.node_reason in (*_LOST, "DeletionByTaintManager", "DeletionByPodGC", "TerminationByKubelet"):
        yield _fail(
            "node-network-down",
            f"the machine {pod.machine} of {pod.host} went away ({pod.node_reason})",
            f"kubectl describe node {pod.machine}",
            pod.host,
            (_short(pod.message),),
        )
    elif pod.why in _NOT_STARTED:
        yield _fail(
            "remote-path-missing",
            f"the container of {pod.host} can't be started: {_short(pod.message)}",
            "the image must have what is started: python3 (--agent-python) and --workdir",
            pod.host,
            (),
        )
    elif pod.why in IMAGE:
        yield _image(pod, events)
    elif not pod.started:
        text = _of_events([e for e in events if _about(e) == ("Pod", pod.name)])
        if text.startswith("FailedScheduling"):
            yield _fail(
                "k8s-scheduling",
                f"{pod.host} never started: {text.partition(': ')[2]}",
                "free what is "
                "missing, ask for less with --gpus or --nodes, or choose other machines in a file for --pod",
                pod.host,
                (text,),
            )
        elif text:
            yield _fail("k8s-scheduling", f"{pod.host} never started: {text}", "", pod.host, (text,))


def _pull_words(pod: Pod, events: Sequence[Mapping[str, Any]]) -> str:
    """Why an image was not pulled: a pod that backs off does not say it, its events do."""
    messages = [str(e.get("message")) for e in events if e.get("reason") == "Failed" and _about(e) == ("Pod", pod.name)]
    telling = [text for text in messages if "pull" in text and not text.startswith("Error: ")]
    return telling[-1] if telling else pod.message


def _image(pod: Pod, events: Sequence[Mapping[str, Any]]) -> Finding:
    return _fail(
        "k8s-image",
        with_reason(f"the image of {pod.host} can't be pulled ({pod.why})", _short(_pull_words(pod, events))),
        "check --image; a private registry needs imagePullSecrets in a file for --pod",
        pod.host,
        (),
    )


def _evicted(pod: Pod, events: Sequence[Mapping[str, Any]]) -> Finding:
    """The kubelet needed memory or disk back."""
    why = pod.message or _of_events([e for e in events if _about(e) == ("Pod", pod.name)])
    disk = re.search(r"ephemeral-storage|disk|inodes|emptyDir", why, re.I)
    remedy = "write less into the container and /dev/shm, or mount a volume" if disk else "ask for the memory it needs"
    cause = "disk-full" if disk else "host-out-of-memory"
    return _fail(
        cause,
        f"{pod.host} was evicted from {pod.machine}: {_short(why)}",
        f"{remedy} (resources in a file for --pod)",
        pod.host,
        (),
    )


def _fail(cause: str, message: str, remedy: str, node: str, evidence: tuple[str, ...]) -> Finding:
    lines = tuple(text for text in evidence if text)
    return Finding(cause, "fail", message, remedy, Where(node=node or None), lines, CHECK)
