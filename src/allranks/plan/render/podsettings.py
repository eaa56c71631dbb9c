"""--pod FILE: the user's own settings of every pod, checked as a pod before they are laid over ours (pure).

The file cannot change what a run depends on: restarts, host names, the time to save, the command. Unknown fields
are refused by name: the API server would drop them or refuse the object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from allranks.errors import UsageError
from allranks.settings import RunSpec
from allranks.settings.table import suggestion

from .yamltext import Document, read_yaml


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Fields of PodSpec and Container of Kubernetes 1.37 (core/v1); tests compare them with the published schemas.
POD_FIELDS = _names("""
    activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy
    enableServiceLinks ephemeralContainers evictionResponders hostAliases hostIPC hostNetwork hostPID
    hostUsers hostname hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os
    overhead preemptionPolicy priority priorityClassName readinessGates resourceClaims resources
    restartPolicy runtimeClassName schedulerName schedulingGates schedulingGroup securityContext
    serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain
    terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes
""")
CONTAINER_FIELDS = _names(
    "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resizePolicy "
    "resources restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce terminationMessagePath "
    "terminationMessagePolicy tty volumeDevices volumeMounts workingDir"
)
_OURS = ("hostname", "hostnameOverride", "subdomain")
_OURS_IN_THE_CONTAINER = {
    **dict.fromkeys(("command", "args"), "it starts allranks, and the training command ends the command line"),
    "restartPolicy": "a rank that restarts alone waits for the others for ever",
}
KUEUE = "kueue.x-k8s.io"
QUEUE = f"{KUEUE}/queue-name"
_OF_THE_PODS = f"{KUEUE}/podset-"  # topology requests belong to the pod template
OWN_LABELS = ("allranks/run", "app.kubernetes.io/managed-by")


@dataclass(frozen=True)
class PodSettings:
    """The file's settings of the pod, and the labels and annotations of the owner, where Kueue reads them."""

    pod: Document = field(default_factory=dict)
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    pod_annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def read_pod_settings(spec: RunSpec, texts: Mapping[str, str], container: str, grace: int) -> PodSettings:
    """Check and split the settings of --pod.

    `texts` holds the file's text, `container` is the name of ours, `grace` the least seconds from SIGTERM to SIGKILL.
    Raises UsageError, which names the field.
    """
    if spec.cloud.pod is None:
        return PodSettings()
    where = f"--pod {spec.cloud.pod}"
    document = read_yaml(texts[spec.cloud.pod], where)
    if document.get("kind", "Pod") not in ("Pod", "PodTemplate"):
        raise UsageError(f"{where}: kind is {document['kind']}, expected the metadata and spec of a Pod")
    unknown = [key for key in document if key not in ("apiVersion", "kind", "metadata", "spec")]
    if unknown:
        raise UsageError(f"{where}: invalid field {unknown[0]}, expected the metadata and spec of a Pod")
    metadata = _map(document, "metadata", where)
    pod = _map(document, "spec", where)
    _check_metadata(metadata, f"{where}: metadata")
    labels = _texts(metadata, "labels", f"{where}: metadata")
    annotations = _texts(metadata, "annotations", f"{where}: metadata")
    _check_pod(pod, f"{where}: spec", container, grace)
    own_labels, pod_labels = _split(labels)
    own_annotations, pod_annotations = _split(annotations)
    if pod.get("hostNetwork") and "dnsPolicy" not in pod:  # the host's name server knows no pod
        pod = {**pod, "dnsPolicy": "ClusterFirstWithHostNet"}
    return PodSettings(pod, pod_labels, pod_annotations, own_labels, own_annotations)


# -- metadata ------------------------------------------------------------------------------------------


def _check_metadata(metadata: Document, where: str) -> None:
    for key in metadata:
        if key in ("name", "namespace", "generateName"):
            option = "--namespace" if key == "namespace" else "--name"
            raise UsageError(f"{where}: allranks sets {key}. Leave it out and use {option}")
        if key not in ("labels", "annotations"):
            raise UsageError(f"{where}: invalid field {key}, expected labels and annotations")


def _texts(metadata: Document, key: str, where: str) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name, value in _map(metadata, key, where).items():
        if not isinstance(value, str):
            raise UsageError(f"{where}, {key}: {name} is {value!r}, expected a text in quotes")
        if name in OWN_LABELS:
            raise UsageError(f"{where}, {key}: allranks sets {name} and selects its pods by it. Leave it out")
        texts[name] = value
    return texts


def _is_kueue(name: str) -> bool:
    prefix = name.partition("/")[0]
    return (prefix == KUEUE or prefix.endswith(f".{KUEUE}")) and not name.startswith(_OF_THE_PODS)


def _split(entries: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return those that Kueue reads at the owner, and those of the pods."""
    of_owner = {name: value for name, value in entries.items() if _is_kueue(name)}
    return of_owner, {name: value for name, value in entries.items() if name not in of_owner}


# -- spec ----------------------------------------------------------------------------------------------


def _check_pod(pod: Document, where: str, container: str, grace: int) -> None:
    for key in pod:
        if key in _OURS:
            why = "pods find each other by the names that allranks gives"
            raise UsageError(f"{where}: allranks sets {key}, as {why}. Leave it out")
        if key not in POD_FIELDS:
            raise UsageError(f"{where}: a Pod has no field {key}{_meant(key, POD_FIELDS)}")
    if pod.get("restartPolicy", "Never") != "Never":
        raise UsageError(
            f"{where}: restartPolicy is {pod['restartPolicy']}, expected Never. A pod that restarts alone waits for "
            "the others for ever. Leave it out (--retries restarts all of them)"
        )
    seconds = pod.get("terminationGracePeriodSeconds", grace)
    if isinstance(seconds, bool) or not isinstance(seconds, int) or seconds < grace:
        raise UsageError(
            f"{where}: terminationGracePeriodSeconds is {seconds}, expected {grace} or more. Ranks would be killed "
            "while they save. Set more, or a shorter --stop-grace"
        )
    _check_containers(pod.get("containers"), where, container)


def _check_containers(containers: object, where: str, container: str) -> None:
    if containers is None:
        return
    if not isinstance(containers, list) or not all(isinstance(item, dict) for item in containers):
        raise UsageError(f"{where}: containers is invalid, expected a list of maps, each with a name")
    for item in containers:
        if item.get("name") != container:
            raise UsageError(
                f"{where}: the container's name is {item.get('name')}, expected {container}. Another container would "
                "keep the pod from ending. Put it under initContainers with `restartPolicy: Always`"
            )
        for key in item:
            if key in _OURS_IN_THE_CONTAINER:
                why = _OURS_IN_THE_CONTAINER[key]
                raise UsageError(f"{where}, {container}: allranks sets {key}, as {why}. Leave it out")
            if key not in CONTAINER_FIELDS:
                raise UsageError(f"{where}, {container}: a container has no field {key}{_meant(key, CONTAINER_FIELDS)}")


def _map(document: Document, key: str, where: str) -> Document:
    value = document.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"{where}: {key} is {value!r}, expected a map")
    return value


def _meant(word: str, fields: frozenset[str]) -> str:
    near = suggestion(word, fields, least=0.8)
    return f". Is {near} meant?" if near else ""
