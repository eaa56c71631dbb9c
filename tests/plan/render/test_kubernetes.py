"""What `render kubernetes` writes: compared whole with golden files, and checked against the published schemas.

ALLRANKS_GOLDEN=write writes the golden files again; look at the difference before you commit it.
"""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.hosts.kubelet import expanded
from tests.plan.render.test_slurm import golden

from allranks.diagnose.pod_states import read_pods, troubles
from allranks.engines.kubernetes import kubectl
from allranks.errors import UsageError
from allranks.plan.joining import OUTSIDE
from allranks.plan.ranks import Plan
from allranks.plan.render import RENDERERS, RenderRequest
from allranks.plan.render.kubernetes import manifests, master_name, pod_names, secret_manifest
from allranks.plan.render.pod_spec import (
    PodJob,
    grace_seconds,
    laid_over,
    object_name,
    rendered_name,
    secret_names,
)
from allranks.plan.render.podsettings import CONTAINER_FIELDS, POD_FIELDS
from allranks.plan.render.yamltext import read_yaml, yaml_text
from allranks.settings import RunSpec
from allranks.settings.layers import resolve
from allranks.settings.table import settings_of

KINDS = ("job", "jobset", "trainjob", "pods")
PLAIN = RunSpec.of(command=("train.py", "--lr", "0.1"), name="demo", nodes=2, image="registry.local/train:1")
POD_FILE = """
metadata:
  labels: {kueue.x-k8s.io/queue-name: team-queue, cost-centre: "17"}
  annotations: {team: vision, kueue.x-k8s.io/podset-preferred-topology: example.com/rack}
spec:
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-H200}
  hostNetwork: true
  containers:
  - name: node
    resources: {requests: {memory: 200Gi}}
    volumeMounts: [{name: data, mountPath: /data, readOnly: true}]
  volumes:
  - name: data
    persistentVolumeClaim: {claimName: imagenet}
"""
FULL = PLAIN.changed(
    nodes=4, gpus="8", namespace="training", shm=64 << 30, workdir="/workspace", deadline=43200.0, retries=2,
    stop_grace=120.0, env={"NCCL_DEBUG": "INFO", "ODD": "a $(X) $$b $c", "HF_TOKEN": "hunter2"},
    forward=("WANDB_API_KEY",), python="/opt/conda/bin/python", allow=("shm",),
    prelude="source /opt/conda/bin/activate\nulimit -c 0",
    pod="pod.yaml", data_paths=("/data/train",), init_timeout=90.0, debug=True, check=False,
)  # fmt: skip


def rendered(spec: RunSpec, archive: bytes = b"zip", pod: str = POD_FILE) -> dict[str, str]:
    request = RenderRequest(spec, Plan(()), "/work", {"pod.yaml": pod}, archive=archive)
    files = RENDERERS["kubernetes"].render(request)
    return {name: text.decode() if isinstance(text, bytes) else text for name, text in files.items()}


def documents(spec: RunSpec, pod: str = POD_FILE) -> list[dict[str, Any]]:
    return [d for text in rendered(spec, pod=pod).values() for d in yaml.safe_load_all(text)]


def one(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(d for d in found if d["kind"] == kind)


def templates(found: Any) -> list[dict[str, Any]]:
    """Every pod, and every template of pods."""
    if isinstance(found, dict):
        here = [found] if "containers" in (found.get("spec") or ()) else []
        return here + [t for value in found.values() for t in templates(value)]
    return [t for item in found for t in templates(item)] if isinstance(found, list) else []


def pod_specs(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [template["spec"] for template in templates(found)]


def variables(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The variables of a pod's container by name."""
    return {e["name"]: e for e in spec["containers"][0]["env"]}


# -- golden files --------------------------------------------------------------------------------------

CASES = {**{kind: PLAIN.changed(kind=kind) for kind in KINDS}, "full": FULL,
         "full-jobset": FULL.changed(kind="jobset")}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_files_are_those_of_the_golden_directory(case: str) -> None:
    for name, text in rendered(CASES[case]).items():
        golden(f"kubernetes/{case}/{name}", text)
        assert "hunter2" not in text and "kind: Secret" not in text


# -- published schemas ---------------------------------------------------------------------------------


def schema_faults(document: dict[str, Any]) -> list[str]:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install 'allranks[dev]' has the schemas")
    try:
        validate.validate(document, validate.latest_version(), strict=True)
    except (validate.ValidationError, validate.SchemaNotFoundError) as error:
        return [str(error)]
    return []


@pytest.mark.parametrize("case", ["job", "pods", "full"])
def test_the_schemas_of_kubernetes_are_kept(case: str) -> None:
    for document in documents(CASES[case]):
        assert schema_faults(document) == [], document["kind"]


def test_the_secret_keeps_its_schema_and_faults_are_seen() -> None:
    job = PodJob(PLAIN, "demo", b"zip")
    assert schema_faults(secret_manifest(job, job.secret, {"secret": "x"})) == []
    broken = one(documents(PLAIN), "Job")
    broken["spec"]["template"]["spec"]["subdomian"] = "demo"
    assert schema_faults(broken) != []


@pytest.mark.parametrize("case", ["jobset", "trainjob", "full-jobset"])
def test_the_models_of_jobset_and_trainer_are_kept(case: str) -> None:
    """The models drop unknown fields silently, so what comes back is compared."""
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="pip install 'allranks[dev]' has the models")
    classes = {"JobSet": models.JobsetV1alpha2JobSet, "TrainJob": models.TrainerV1alpha1TrainJob,
               "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime}  # fmt: skip
    checked = 0
    for document in documents(CASES[case]):
        if document["kind"] in classes:
            assert classes[document["kind"]].from_dict(document).to_dict() == document
            checked += 1
        else:
            assert schema_faults(document) == []
    assert checked == (2 if case == "trainjob" else 1)


# -- what the usual recipes get wrong ------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_master_is_pod_0_alone(kind: str) -> None:
    """Its name is the host name of one pod in the subdomain of a headless service that does not wait for readiness."""
    job = PodJob(PLAIN.changed(kind=kind), "demo", b"")
    pod, _, subdomain = master_name(job).partition(".")
    assert pod == pod_names(job)[0] and pod_names(job)[1].endswith("-1")
    for spec in pod_specs(documents(job.spec)):
        words = spec["containers"][0]["command"]
        assert words[words.index("--master-addr") + 1] == f"{pod}.{subdomain}"
        assert spec["subdomain"] == subdomain


@pytest.mark.parametrize("grace", [0.0, 1.0, 29.5, 600.0])
def test_the_pods_grace_is_longer_than_the_ranks(grace: float) -> None:
    assert grace_seconds(PLAIN.changed(stop_grace=grace)) >= grace + 5


@given(st.text(alphabet="$()aX b", max_size=24))
def test_every_word_and_value_comes_through_the_kubelet_as_it_was_written(text: str) -> None:
    """`$$` was halved, so that a shell's own pid became a dollar."""
    assert expanded("$(X) $$ $(Y)", {"X": "1"}) == "1 $ $(Y)", "as in Kubernetes' own tests"
    spec = PLAIN.changed(command=("sh", "-c", text), env={"V": text}, prelude=text or None)
    container = pod_specs(documents(spec))[0]["containers"][0]
    assert expanded(container["command"][-1], {"X": "1", "a": "2"}) == text
    assert expanded(variables({"containers": [container]})["V"]["value"], {"X": "1", "a": "2"}) == text
    words = [expanded(word, {"X": "1", "a": "2"}) for word in container["command"]]
    assert not text or f"--prelude={text}" in words


def test_a_timeout_that_is_not_forced_stays_weak() -> None:
    found = pod_specs(documents(PLAIN.changed(pg_timeout=600.0)))[0]
    assert variables(found)["COLOSSALAI_DIST_TIMEOUT"]["value"] == "600"
    forced = pod_specs(documents(PLAIN.changed(pg_timeout=600.0, pg_timeout_forced=True)))[0]
    assert "--pg-timeout=600" in forced["containers"][0]["command"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"test": "quick"}, "^--"), ({"spares": 1}, "^--"), ({"hang_pattern": "x"}, "^--"), ({"sync": True}, "^--"),
        ({"image": None}, "--image is not set"), ({"gpus": "H100:8"}, r"Set --gpus 8 or amd\.com/gpu:8"),
    ],
)  # fmt: skip
def test_what_pods_do_not_have_is_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        rendered(PLAIN.changed(**more))


def test_the_archive_comes_through_as_it_was() -> None:
    data = bytes(range(256)) * 40
    job = PodJob(PLAIN, "demo", data)
    assert base64.b64decode(one(manifests(job), "ConfigMap")["binaryData"]["allranks.pyz"]) == data
    with pytest.raises(UsageError, match="a ConfigMap holds 1048576"):
        manifests(PodJob(PLAIN, "demo", bytes((1 << 20) + 1)))


# -- settings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gpus", "expected"), [("8", {"nvidia.com/gpu": 8}), ("amd.com/gpu:4", {"amd.com/gpu": 4})])
def test_gpus_are_limits_and_ranks(gpus: str, expected: dict[str, int]) -> None:
    spec = pod_specs(documents(PLAIN.changed(gpus=gpus)))[0]
    assert spec["containers"][0]["resources"]["limits"] == expected
    words = spec["containers"][0]["command"]
    assert f"--nproc={sum(expected.values())}" in words


@pytest.mark.parametrize(
    ("name", "expected"),
    [("demo", "demo"), ("My_Run.1", "my-run-1"), ("7b", "run-7b"), ("a" * 60, "a" * 40), ("x" * 39 + "--y", "x" * 39)],
)
def test_names_are_those_that_kubernetes_takes(name: str, expected: str) -> None:
    assert object_name(name) == expected


def test_what_the_pod_file_says_is_laid_over() -> None:
    found = laid_over({"a": [{"name": "x", "k": 1}], "b": {"c": 1}, "l": [1]},
                      {"a": [{"name": "x", "j": 2}, {"name": "y"}], "b": {"d": 2}, "l": [2], "n": 0}, "")  # fmt: skip
    assert found == {"a": [{"name": "x", "k": 1, "j": 2}, {"name": "y"}], "b": {"c": 1, "d": 2}, "l": [1, 2], "n": 0}
    with pytest.raises(UsageError, match=r"^--pod: b has the value 1, expected a map"):
        laid_over({"b": {}}, {"b": 1}, "--pod")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "is a list"),
        ("a: [", "is not YAML in line 1"),
        ("kind: Pod\nstatus: {}", "invalid field status"),
        ("a: 1\n---\nb: 1", "is not YAML"),
    ],
)
def test_a_pod_file_that_is_none_is_refused(text: str, message: str) -> None:
    request = RenderRequest(PLAIN.changed(pod="pod.yaml"), Plan(()), "/", {"pod.yaml": text})
    with pytest.raises(UsageError, match=f"^--pod pod.yaml.*{message}"):
        RENDERERS["kubernetes"].render(request)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), _VALUES, max_size=4))
def test_any_document_comes_back_from_its_text(document: dict[str, Any]) -> None:
    assert list(yaml.safe_load_all(yaml_text([document, document]))) == [document, document]
    assert read_yaml(yaml_text([document], ["a comment"]), "x") == document


@given(st.text(min_size=1, max_size=60))
def test_any_name_becomes_one_that_kubernetes_takes(name: str) -> None:
    found = object_name(name)
    assert 0 < len(found) <= 40
    assert found[0].isalpha() and found[-1].isalnum()
    assert all(c.isascii() and (c.islower() or c.isdigit() or c == "-") for c in found)


def test_a_pod_is_started_with_what_join_takes() -> None:
    passed = {row.name for row in settings_of("join")} - set(OUTSIDE)
    assert {"lease", "stop_grace", "hang_timeout", "python", "retries", "allow"} <= passed


# -- as an expert reads it -----------------------------------------------------------------------------


def test_a_deadline_of_a_trainjob_is_final() -> None:
    """Its Job fails with DeadlineExceeded, and a set with restarts left would begin again with the same deadline."""
    spec = one(documents(FULL.changed(kind="trainjob")), "TrainingRuntime")["spec"]["template"]["spec"]
    (rule,) = spec["failurePolicy"]["rules"]
    assert (rule["action"], spec["failurePolicy"]["maxRestarts"]) == ("FailJobSet", 2)
    assert set(rule["onJobFailureReasons"]) == {"PodFailurePolicy", "DeadlineExceeded"}
    assert spec["replicatedJobs"][0]["template"]["spec"]["activeDeadlineSeconds"] == 43200


@pytest.mark.parametrize(("said", "expected"), [("", "ClusterFirstWithHostNet"), ("dnsPolicy: Default", "Default")])
def test_on_the_hosts_network_pods_still_find_each_other(said: str, expected: str) -> None:
    (first, *_) = pod_specs(documents(FULL, pod=f"spec:\n  hostNetwork: true\n  {said}"))
    assert first["dnsPolicy"] == expected
    (first, *_) = pod_specs(documents(FULL, pod="spec: {hostNetwork: false}"))
    assert "dnsPolicy" not in first


QUEUE = "kueue.x-k8s.io/queue-name"
IN_A_QUEUE = f"""
metadata:
  labels: {{{QUEUE}: team, kueue.x-k8s.io/priority-class: high, app: x}}
  annotations: {{kueue.x-k8s.io/podset-required-topology: rack, provreq.kueue.x-k8s.io/maxRunDurationSeconds: "600"}}
"""


@pytest.mark.parametrize(("kind", "owner"), [("job", "Job"), ("jobset", "JobSet"), ("trainjob", "TrainJob")])
def test_a_queue_is_asked_at_the_owner(kind: str, owner: str) -> None:
    """Kueue reads its labels at the object that it suspends; a topology request stands at the pods' template."""
    found = documents(FULL.changed(kind=kind), pod=IN_A_QUEUE)
    metadata = one(found, owner)["metadata"]
    assert metadata["labels"][QUEUE] == "team"
    assert metadata["labels"]["kueue.x-k8s.io/priority-class"] == "high"
    assert metadata["annotations"] == {"provreq.kueue.x-k8s.io/maxRunDurationSeconds": "600"}
    assert "app" not in metadata["labels"]
    (template,) = [t["metadata"] for t in templates(found)]
    assert template["annotations"] == {"kueue.x-k8s.io/podset-required-topology": "rack"}
    assert not any(name.startswith("kueue") for name in template["labels"]) and template["labels"]["app"] == "x"


def test_bare_pods_are_a_group_for_the_queue() -> None:
    """Admitted one by one, the first would hold their GPUs and wait for the others."""
    every = documents(FULL.changed(kind="pods"), pod=IN_A_QUEUE)
    found = [d["metadata"] for d in every if d["kind"] == "Pod"]
    assert {m["labels"]["kueue.x-k8s.io/pod-group-name"] for m in found} == {"demo"}
    assert {m["annotations"]["kueue.x-k8s.io/pod-group-total-count"] for m in found} == {"4"}
    assert {m["annotations"]["kueue.x-k8s.io/retriable-in-group"] for m in found} == {"false"}
    assert {m["labels"][QUEUE] for m in found} == {"team"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("spec: {restartPolicy: OnFailure}", "restartPolicy is OnFailure, expected Never"),
        ("spec: {suspend: true}", "a Pod has no field suspend$"),
        ("spec: {backoffLimit: 3}", "a Pod has no field backoffLimit$"),
        ("spec: {terminationGracePeriodSeconds: 30}", "terminationGracePeriodSeconds is 30, expected 135 or more"),
        ("spec: {terminationGracePeriodSeconds: '200'}", "terminationGracePeriodSeconds is 200"),
        ("spec: {nodeSelectors: {a: b}}", "no field nodeSelectors. Is nodeSelector meant"),
        ("spec: {hostname: x}", "allranks sets hostname"),
        ("spec: {subdomain: x}", "allranks sets subdomain"),
        ("spec: {containers: [{name: node, command: [x]}]}", "allranks sets command"),
        ("spec: {containers: [{name: node, resource: {}}]}", "no field resource. Is resources meant"),
        ("spec: {containers: [{name: train, image: x}]}", "container's name is train, expected node"),
        ("metadata: {name: x}", "allranks sets name. Leave it out and use --name"),
        ("metadata: {namespace: x}", "allranks sets namespace. Leave it out and use --namespace"),
        ("metadata: {labels: {a: 1}}", "a is 1, expected a text in quotes"),
        ("metadata: {labels: {allranks/run: x}}", "allranks sets allranks/run"),
        ("kind: Job\nspec: {template: {}}", "kind is Job, expected"),
        ("spec: 3", "spec is 3, expected a map"),
        ("spec: {containers: [train]}", "containers is invalid, expected a list of maps"),
        ("spec: {containers: {node: {}}}", "containers is invalid, expected a list of maps"),
    ],
)  # fmt: skip
def test_a_pod_file_is_checked_as_a_pod(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=f"^--pod pod.yaml.*{says}"):
        rendered(FULL, pod=text)


@pytest.mark.parametrize("stop_grace", [30.0, 120.0])
def test_a_preempted_pod_says_the_grace_that_it_was_rendered_with(stop_grace: float) -> None:
    """As the API server gives the pods back: with the grace of a deletion, where they were deleted with another."""
    (spec, *_) = pod_specs(documents(PLAIN.changed(stop_grace=stop_grace, kind="pods")))
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    item = {"metadata": {"name": "demo-1"}, "spec": spec, "status": {"phase": "Failed", "conditions": [disrupted]}}
    (finding,) = troubles(read_pods([item], "node"), [])
    assert finding.message.endswith(f"Ranks had {stop_grace + 15:.0f} s (terminationGracePeriodSeconds)")
    item["metadata"]["deletionGracePeriodSeconds"] = 5
    (finding,) = troubles(read_pods([item], "node"), [])
    assert finding.message.endswith("Ranks had 5 s (deletionGracePeriodSeconds)")


def test_the_fields_are_those_of_the_published_schemas() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install 'allranks[dev]' has the schemas")
    version = f"v{validate.latest_version()}-local-strict"
    schemas = Path(validate.__file__).parent / "kubernetes-json-schema" / version
    for name, ours in (("podspec-v1.json", POD_FIELDS), ("container-v1.json", CONTAINER_FIELDS)):
        assert set(json.loads((schemas / name).read_text())["properties"]) == ours


# -- names ---------------------------------------------------------------------------------------------

UNNAMED = PLAIN.changed(name=RunSpec().places.name)


def test_two_runs_of_one_namespace_do_not_meet() -> None:
    """Both were called `run`: the second one's Service, ConfigMap and Secret were the first one's."""
    first = rendered_name(UNNAMED)
    second = rendered_name(UNNAMED.changed(command=("train.py", "--lr", "1")))
    assert first != second and first.startswith("train-") and second.startswith("train-")
    assert rendered_name(UNNAMED) == first, "the same file again, for a repository"
    assert rendered_name(PLAIN) == "demo"
    names = {d["metadata"]["name"] for d in documents(UNNAMED)} - {"allranks-job"}
    assert names == {first}


@pytest.mark.parametrize(
    ("command", "stem"),
    [
        (("python", "-m", "pkg.tool"), "pkg-tool-"), (("a" * 80 + ".py",), "a" * 33 + "-"),
        (("./7b/Train_Me.sh",), "train-me-"), (("sh", "-c", "x"), "sh-"), (("torchrun", "train.py"), "t"),
    ],
)  # fmt: skip
def test_names_from_scripts_are_those_that_kubernetes_takes(command: tuple[str, ...], stem: str) -> None:
    name = rendered_name(UNNAMED.changed(command=command))
    assert name == object_name(name) and len(name) <= 40
    assert name.startswith(stem)


# -- who may do it -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_role_allows_what_is_done_and_lists_no_secret(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = PLAIN.changed(kind=kind)
    role = one(documents(spec), "Role")
    assert schema_faults(role) == []
    calls: list[list[str]] = []

    def run(argv: list[str], **options: Any) -> Any:
        calls.append(argv[1:])
        return kubectl.subprocess.CompletedProcess(argv, 0, '{"items": []}', "")

    monkeypatch.setattr(kubectl.subprocess, "run", run)
    one_cluster = kubectl.Kubectl(None, None)
    one_cluster.pods("demo")
    one_cluster.events("demo")
    one_cluster.queue_holding("demo", kind)
    one_cluster.last_words("demo-0")
    one_cluster.remove("demo", kind)
    one_cluster.remove("demo", kind, 0)
    one_cluster.remove_parts("demo")
    needed = {pair for words in calls for pair in rights(words)}
    needed |= {("create", plural(d["kind"])) for d in documents(spec) if d["kind"] != "Role"} | {("create", "secrets")}
    allowed = {(verb, resource) for rule in role["rules"] for verb in rule["verbs"] for resource in rule["resources"]}
    assert needed <= allowed, needed - allowed
    assert ("list", "secrets") not in allowed and ("get", "secrets") not in allowed
    assert not any("*" in rule[key] for rule in role["rules"] for key in ("verbs", "resources", "apiGroups"))


def plural(kind: str) -> str:
    return f"{kind.lower()}s"


def rights(words: list[str]) -> set[tuple[str, str]]:
    """What a call of kubectl needs: deleting by label lists first, a log needs its pod."""
    kinds = [kind.partition(".")[0] for kind in words[1].split(",")]
    if words[0] == "logs":
        return {("get", "pods"), ("get", "pods/log")}
    if "/" in words[1]:
        return {(words[0], plural(word.partition("/")[0])) for word in words[1:] if "/" in word}
    verbs = {"get": ["list"], "delete": ["list", "delete"]}[words[0]]
    return {(verb, kind) for verb in verbs for kind in kinds}


def test_secrets_are_removed_by_the_names_they_were_made_with() -> None:
    job = PodJob(PLAIN, "demo", b"")
    assert secret_names("demo") == (job.secret, job.secret_env)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pod_has_one_role(kind: str) -> None:
    """Ray's driver shares the first node, and so may any role elsewhere: refused before a pod starts."""
    options = {"ray": True, "command": ("python", "ppo.py"), "nodes": 2, "image": "x:1", "kind": kind}
    spec = resolve(options, {}, {}, config_source="").spec
    with pytest.raises(UsageError, match=r"driver shares the nodes of ray, and a pod has one role\nhint: --hosts or"):
        manifests(PodJob(spec, "demo", b"zip"))
