"""What `render kubernetes` writes: compared whole with golden files, and checked against the published schemas.

ALLRANKS_GOLDEN=write writes the golden files anew; look at the difference before you commit it.
"""

import base64
import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from allranks.errors import UsageError
from allranks.plan.ranks import Plan
from allranks.plan.render import RENDERERS, Request
from allranks.plan.render.kubernetes import manifests, master_name, pod_names, secret_manifest
from allranks.plan.render.pods import Job, grace_seconds, laid_over, object_name, pod_template
from allranks.plan.render.yamltext import read_yaml, yaml_text
from allranks.settings import RunSpec

GOLDEN = Path(__file__).parents[1] / "golden" / "kubernetes"
KINDS = ("job", "jobset", "trainjob", "pods")
PLAIN = RunSpec(command=("train.py", "--lr", "0.1"), name="demo", nodes=2, image="registry.local/train:1", kind="job")
POD_FILE = """
metadata: {annotations: {team: vision}}
spec:
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-H200}
  containers:
  - name: node
    resources: {requests: {memory: 200Gi}}
    volumeMounts: [{name: data, mountPath: /data, readOnly: true}]
  volumes:
  - name: data
    persistentVolumeClaim: {claimName: imagenet}
"""
FULL = dataclasses.replace(
    PLAIN, nodes=4, gpus="8", namespace="training", shm=64 << 30, workdir="/workspace", deadline=43200.0, retries=2,
    stop_grace=120.0, env={"NCCL_DEBUG": "INFO", "ODD": "a $(X) b", "HF_TOKEN": "hunter2"}, forward=("WANDB_API_KEY",),
    python="/opt/conda/bin/python", prelude="source /opt/conda/bin/activate\nulimit -c 0", allow=("shm",),
    pod="pod.yaml", data_paths=("/data/train",), init_timeout=90.0, debug=True, check=False,
)  # fmt: skip


def rendered(spec: RunSpec, archive: bytes = b"zip") -> dict[str, str]:
    request = Request(spec, Plan(()), "/work", {"pod.yaml": POD_FILE}, archive=archive)
    files = RENDERERS["kubernetes"].render(request)
    return {name: text.decode() if isinstance(text, bytes) else text for name, text in files.items()}


def documents(spec: RunSpec) -> list[dict[str, Any]]:
    return [d for text in rendered(spec).values() for d in yaml.safe_load_all(text)]


def one(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(d for d in found if d["kind"] == kind)


def pod_specs(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The spec of every pod or pod template."""
    if isinstance(found, dict):
        here = [found] if "containers" in found else []
        return here + [s for value in found.values() for s in pod_specs(value)]
    return [s for item in found for s in pod_specs(item)] if isinstance(found, list) else []


def variables(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The variables of a pod's container by name."""
    return {e["name"]: e for e in spec["containers"][0]["env"]}


# -- golden files --------------------------------------------------------------------------------------

CASES = {**{kind: dataclasses.replace(PLAIN, kind=kind) for kind in KINDS}, "full": FULL,
         "full-jobset": dataclasses.replace(FULL, kind="jobset")}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_files_are_those_of_the_golden_directory(case: str) -> None:
    for name, text in rendered(CASES[case]).items():
        path = GOLDEN / case / name
        if os.environ.get("ALLRANKS_GOLDEN") == "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), f"{path} differs; see this file's docstring"


@pytest.mark.parametrize("case", CASES)
def test_twice_the_same_and_no_secret_in_it(case: str) -> None:
    text = "".join(rendered(CASES[case]).values())
    assert text == "".join(rendered(CASES[case]).values())
    assert "hunter2" not in text
    assert "kind: Secret" not in text


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
    job = Job(PLAIN, "demo", b"zip")
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
    found = documents(dataclasses.replace(PLAIN, kind=kind))
    job = Job(dataclasses.replace(PLAIN, kind=kind), "demo", b"")
    pod, _, subdomain = master_name(job).partition(".")
    assert pod == pod_names(job)[0]
    assert pod_names(job)[1].endswith("-1")
    for spec in pod_specs(found):
        words = spec["containers"][0]["command"]
        assert words[words.index("--master-addr") + 1] == f"{pod}.{subdomain}"
        assert spec["subdomain"] == subdomain == "demo"
    if kind in ("job", "pods"):
        service = one(found, "Service")
        assert service["metadata"]["name"] == subdomain
        assert service["spec"] == {"clusterIP": "None", "publishNotReadyAddresses": True,
                                   "selector": {"allranks/run": "demo"}}  # fmt: skip
    if kind == "pods":
        ranks = [variables(s)["NODE_RANK"]["value"] for s in pod_specs(found)]
        assert ranks == ["0", "1"]
        assert [s["hostname"] for s in pod_specs(found)] == ["demo-0", "demo-1"]


@pytest.mark.parametrize("case", CASES)
def test_every_pod_has_what_it_needs_and_no_secret_in_its_words(case: str) -> None:
    for spec in pod_specs(documents(CASES[case])):
        volumes = {v["name"]: v for v in spec["volumes"]}
        assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
        assert volumes["join"]["secret"]["secretName"] == "demo-join"
        assert "/dev/shm" in [m["mountPath"] for m in spec["containers"][0]["volumeMounts"]]
        assert spec["restartPolicy"] == "Never"
        assert spec["enableServiceLinks"] is False  # a service called "master" would set MASTER_PORT=tcp://…
        assert "--secret-file" in spec["containers"][0]["command"]


@pytest.mark.parametrize("grace", [0.0, 1.0, 29.5, 600.0])
def test_the_pods_grace_is_longer_than_the_ranks(grace: float) -> None:
    assert grace_seconds(dataclasses.replace(PLAIN, stop_grace=grace)) >= grace + 5


def test_secrets_and_dollars_in_variables() -> None:
    env = variables(pod_specs(documents(FULL))[0])
    spec = dataclasses.replace(PLAIN, command=("sh", "-c", "echo $(date)"))
    assert pod_specs(documents(spec))[0]["containers"][0]["command"][-1] == "echo $$(date)"
    assert env["NCCL_DEBUG"]["value"] == "INFO"
    assert env["ODD"]["value"] == "a $$(X) b"  # Kubernetes would put the variable X there
    for name in ("HF_TOKEN", "WANDB_API_KEY"):
        assert env[name]["valueFrom"] == {"secretKeyRef": {"name": "demo-env", "key": name}}


def test_retries_are_those_of_the_whole_gang() -> None:
    job = one(documents(FULL), "Job")["spec"]
    assert job["backoffLimit"] == 2 * 4  # each attempt costs every pod
    assert one(documents(PLAIN), "Job")["spec"]["backoffLimit"] == 0
    jobset = one(documents(CASES["full-jobset"]), "JobSet")["spec"]
    assert jobset["failurePolicy"]["maxRestarts"] == 2
    assert jobset["replicatedJobs"][0]["template"]["spec"]["backoffLimit"] == 0


def test_what_is_final_is_not_tried_again() -> None:
    """1, 2, 3, 5: the program, usage, a check, a hang; 4 is a lost node, 143 a pod that was told to go."""
    lost, final = one(documents(FULL), "Job")["spec"]["podFailurePolicy"]["rules"]
    assert (lost["action"], final["action"]) == ("Ignore", "FailJob")
    assert final["onExitCodes"]["values"] == [1, 2, 3, 5]
    assert "--retries=2" in pod_specs(documents(FULL))[0]["containers"][0]["command"]


def test_a_timeout_that_is_not_forced_stays_weak() -> None:
    found = pod_specs(documents(dataclasses.replace(PLAIN, pg_timeout=600.0)))[0]
    assert variables(found)["COLOSSALAI_DIST_TIMEOUT"]["value"] == "600"
    forced = pod_specs(documents(dataclasses.replace(PLAIN, pg_timeout=600.0, pg_timeout_forced=True)))[0]
    assert "--pg-timeout=600" in forced["containers"][0]["command"]


@pytest.mark.parametrize("more", [{"test": "quick"}, {"spares": 1}, {"hang_pattern": "x"}, {"sync": True}])
def test_what_pods_do_not_have_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="^--"):
        rendered(dataclasses.replace(PLAIN, **more))


def test_the_archive_comes_through_as_it_was() -> None:
    data = bytes(range(256)) * 40
    job = Job(PLAIN, "demo", data)
    assert base64.b64decode(one(manifests(job), "ConfigMap")["binaryData"]["allranks.pyz"]) == data
    with pytest.raises(UsageError, match="a ConfigMap holds 1048576"):
        manifests(Job(PLAIN, "demo", bytes((1 << 20) + 1)))


# -- settings ------------------------------------------------------------------------------------------


def test_an_image_is_asked_for() -> None:
    with pytest.raises(UsageError, match="--image is not set"):
        rendered(dataclasses.replace(PLAIN, image=None))


@pytest.mark.parametrize(("gpus", "expected"), [("8", {"nvidia.com/gpu": 8}), ("amd.com/gpu:4", {"amd.com/gpu": 4})])
def test_gpus_are_limits_and_ranks(gpus: str, expected: dict[str, int]) -> None:
    spec = pod_specs(documents(dataclasses.replace(PLAIN, gpus=gpus)))[0]
    assert spec["containers"][0]["resources"]["limits"] == expected
    words = spec["containers"][0]["command"]
    assert f"--nproc={sum(expected.values())}" in words


def test_a_model_of_gpu_is_no_resource() -> None:
    with pytest.raises(UsageError, match="set --gpus 8 or amd.com/gpu:8"):
        rendered(dataclasses.replace(PLAIN, gpus="H100:8"))


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
    with pytest.raises(UsageError, match="^--pod: b: found int, set a map"):
        laid_over({"b": {}}, {"b": 1}, "--pod")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "found list"),
        ("a: [", "line 1: no YAML"),
        ("kind: Pod\nstatus: {}", "found status"),
        ("a: 1\n---\nb: 1", "no YAML"),
    ],
)
def test_a_pod_file_that_is_none_is_refused(text: str, message: str) -> None:
    request = Request(dataclasses.replace(PLAIN, pod="pod.yaml"), Plan(()), "/", {"pod.yaml": text})
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


def test_a_template_without_settings_is_as_it_was() -> None:
    job = Job(PLAIN, "demo", b"")
    assert pod_template(job, "m") == pod_template(dataclasses.replace(job, overlay={}), "m")


def test_join_takes_every_setting_that_a_pod_is_started_with() -> None:
    """A new option of `run` either goes to `join`, or stands in OUTSIDE."""
    import inspect

    from allranks.cli.join import command
    from allranks.plan.joining import OUTSIDE
    from allranks.settings.fields import READERS
    from allranks.settings.words import _NOT_OF_RUN

    passed = set(READERS) - set(OUTSIDE) - set(_NOT_OF_RUN) - {"test"}
    taken = {"check" if name == "no_check" else name for name in inspect.signature(command).parameters}
    assert passed <= taken, f"join has no {sorted(passed - taken)}: add them to plan/joining.py OUTSIDE"
    assert {"lease", "stop_grace", "hang_timeout", "python", "retries", "allow"} <= passed
