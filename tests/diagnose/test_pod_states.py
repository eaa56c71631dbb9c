"""What the API says of pods, as one would see it in `kubectl get -o json`: reasons, findings, the newest of each."""

from typing import Any

import pytest

from allranks.diagnose.causes import CAUSES
from allranks.diagnose.pod_states import PodEvent, hopeless, read_pods, troubles, waiting
from allranks.engines.kubernetes.engine import PIECE, without_times
from allranks.protocol.codec import decode_each

Document = dict[str, Any]
NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def pod(
    index: int, name: str = "", created: str = "2026-11-21T14:00:00Z", indexed: bool = True, **status: Any
) -> Document:  # fmt: skip
    notes = {"batch.kubernetes.io/job-completion-index": str(index)} if indexed else {}
    return {
        "metadata": {"name": name or f"demo-{index}-x7k2p", "annotations": notes, "creationTimestamp": created},
        "spec": {"hostname": f"demo-{index}", "nodeName": "gpu7"},
        "status": {"phase": "Pending", **status},
    }


def container(**state: Any) -> list[Document]:
    return [{"name": "istio-proxy", "state": {"running": {}}}, {"name": "node", "state": state}]


def event(name: str, reason: str, message: str, kind: str = "Pod", at: str = "2026-11-21T14:00:01Z") -> PodEvent:
    document = {"reason": reason, "message": message, "lastTimestamp": at}
    (read,) = decode_each(PodEvent, [{**document, "involvedObject": {"kind": kind, "name": name}}])
    return read


def read(*items: Document) -> list[Any]:
    return read_pods(items, "node")


GATED = pod(0, "p")
GATED["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
RUNNING = pod(0, phase="Running", containerStatuses=container(running={"startedAt": "x"}))


def test_all_started_is_nothing_to_say() -> None:
    assert waiting(read(RUNNING), [], 1) == ""


def test_what_is_missing_is_said_with_who_waits() -> None:
    pods = read(RUNNING, pod(1, "demo-1-a"), pod(2, "demo-2-b"))
    events = [event("demo-1-a", "FailedScheduling", "older", at="2026-11-21T13:59:00Z")]
    events += [event(name, "FailedScheduling", NO_GPU) for name in ("demo-1-a", "demo-2-b")]
    assert waiting(pods, events, 3) == f"1 of 3 pods have started; demo-1 and demo-2: FailedScheduling: {NO_GPU}"


@pytest.mark.parametrize(
    ("item", "events", "said"),
    [
        (pod(0, "p", containerStatuses=container(waiting={"reason": "ContainerCreating"})), [], "ContainerCreating"),
        (pod(0, "p"), [], "starting on gpu7"),
        (GATED, [], "SchedulingGated kueue.x-k8s.io/admission"),
        (pod(0, "p", containerStatuses=container(waiting={"reason": "ContainerCreating"})),
         [event("p", "FailedMount", 'secret "demo-join" not found')], 'FailedMount: secret "demo-join" not found'),
        (pod(0, "p", containerStatuses=container(waiting={"reason": "ErrImagePull", "message": "denied"})),
         [event("p", "Failed", "Error: ErrImagePull")], "ErrImagePull denied"),
    ],
)  # fmt: skip
def test_the_reason_of_each(item: Document, events: list[PodEvent], said: str) -> None:
    assert waiting(read(item), events, 1) == f"0 of 1 pod has started; demo-0: {said}"


def test_pods_that_were_never_made() -> None:
    events = [event("demo", "FailedCreate", 'pods "demo-0" is forbidden: exceeded quota: gpus', kind="Job")]
    assert "2 pods: FailedCreate: pods" in waiting([], events, 2)
    (finding,) = troubles([], events)
    assert finding.id == "k8s-scheduling" and "exceeded quota" in finding.message


CASES = {
    "oom": (pod(2, phase="Failed", containerStatuses=container(terminated={"reason": "OOMKilled", "exitCode": 137})),
            "k8s-out-of-memory", "demo-2 was killed by Kubernetes: it needed more memory than its limit"),
    "evicted-memory": (pod(2, phase="Failed", reason="Evicted", message="The node was low on resource: memory."),
                       "host-out-of-memory", "demo-2 was evicted from gpu7: The node was low on resource: memory."),
    "evicted-disk": (pod(2, phase="Failed", reason="Evicted", message="Usage of EmptyDir volume \"shm\" exceeds"),
                     "disk-full", "exceeds"),
    "preempted": (pod(2, phase="Failed", conditions=[{"type": "DisruptionTarget", "status": "True",
                                                      "reason": "PreemptionByScheduler"}]),
                  "k8s-scheduling", "demo-2 was preempted"),
    "deadline": (pod(2, phase="Failed", reason="DeadlineExceeded", message="Pod was active on the node longer"),
                 "k8s-scheduling", "deadline"),
    "machine": (pod(2, phase="Failed", reason="NodeLost"), "node-network-down", "the machine gpu7 of demo-2 went away"),
    "taint": (pod(2, phase="Failed", conditions=[{"type": "DisruptionTarget", "reason": "DeletionByTaintManager"}]),
              "node-network-down", "DeletionByTaintManager"),
    "no-python": (pod(2, phase="Failed", containerStatuses=container(
        terminated={"reason": "StartError", "exitCode": 128, "message": 'exec: "python3": executable file not found'})),
        "remote-path-missing", 'exec: "python3": executable file not found'),
    "image": (pod(2, containerStatuses=container(waiting={"reason": "ImagePullBackOff", "message": "x: not found"})),
              "k8s-image", "the image of demo-2 cannot be pulled (ImagePullBackOff): x: not found"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_kubernetes_did_is_a_finding_with_a_known_cause(case: str) -> None:
    item, cause, words = CASES[case]
    (finding,) = troubles(read(RUNNING, item), [])
    assert (finding.id, finding.where.node, finding.check) == (cause, "demo-2", "kubernetes")
    assert cause in CAUSES and words in finding.message and finding.remedy


def test_a_pod_that_never_got_a_machine() -> None:
    (finding,) = troubles(read(RUNNING, pod(1, "p")), [event("p", "FailedScheduling", NO_GPU)])
    assert finding.id == "k8s-scheduling"
    assert finding.message == f"demo-1 never started: {NO_GPU}"


def test_a_program_that_failed_is_no_affair_of_kubernetes() -> None:
    failed = pod(1, phase="Failed", containerStatuses=container(terminated={"reason": "Error", "exitCode": 1}))
    done = pod(0, phase="Succeeded", containerStatuses=container(terminated={"reason": "Completed", "exitCode": 0}))
    assert troubles(read(failed, done), []) == []


@pytest.mark.parametrize(
    ("reason", "message", "is_hopeless"),
    [
        ("ImagePullBackOff", "rpc error: manifest unknown", True),
        ("ErrImagePull", "dial tcp: lookup registry.invalid: no such host", True),
        ("ErrImagePull", "net/http: TLS handshake timeout", False),
        ("InvalidImageName", "", True),
        ("CreateContainerConfigError", 'secret "demo-env" not found', True),
        ("ContainerCreating", "", False),
    ],
)
def test_waiting_longer_is_of_no_use(reason: str, message: str, is_hopeless: bool) -> None:
    waits = pod(0, containerStatuses=container(waiting={"reason": reason, "message": message}))
    assert (hopeless(read(waits)) is not None) is is_hopeless


def test_a_pod_that_backs_off_says_why_in_its_events() -> None:
    state = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x/y:1"'}
    pods = read(pod(0, "p", containerStatuses=container(waiting=state)))
    why = 'Failed to pull image "x/y:1": rpc error: code = NotFound desc = not found'
    events = [event("p", "Failed", why), event("p", "Failed", "Error: ImagePullBackOff")]
    assert hopeless(pods) is None
    found = hopeless(pods, events)
    assert found is not None and found.id == "k8s-image" and "code = NotFound" in found.message


def test_of_each_rank_the_newest_pod_counts() -> None:
    found = read(pod(1, "old", "2026-11-21T14:00:00Z"), pod(1, "new", "2026-11-21T14:05:00Z"), pod(0, "first"))
    assert [(p.index, p.name, p.host) for p in found] == [(0, "first", "demo-0"), (1, "new", "demo-1")]


def test_bare_pods_are_ranked_by_their_host_names() -> None:
    assert [p.index for p in read(pod(1, "b", indexed=False), pod(0, "a", indexed=False))] == [0, 1]
    assert read({"metadata": {"name": "other"}, "spec": {}, "status": {}}) == []


def test_an_init_container_that_fails_is_seen() -> None:
    state = {"waiting": {"reason": "ErrImagePull", "message": "x"}}
    item = pod(0, initContainerStatuses=[{"name": "i", "state": state}])
    (found,) = read(item)
    assert (found.why, found.started) == ("ErrImagePull", False)


def test_times_inside_of_long_lines_go() -> None:
    """Kubelets up to 1.2x write the time of every 16 KB piece into the line."""
    stamp = "2026-11-21T14:57:44.651377738Z "
    pieces = ["a" * PIECE, "b" * PIECE, "c" * 5]
    assert without_times(stamp.join(pieces)) == "".join(pieces)
    assert without_times("".join(pieces)) == "".join(pieces)
    assert without_times("short " + stamp) == "short " + stamp
