"""What `render skypilot` writes: compared whole with golden files, and read by SkyPilot's own Task.from_yaml.

SkyPilot is half a gigabyte, so it is in no environment of ours: ALLRANKS_SKY_PYTHON names a Python that has it.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.hosts.waiting import BOUND
from tests.plan.render.test_slurm import golden

from allranks.errors import UsageError
from allranks.plan.ranks import Plan
from allranks.plan.render import RENDERERS, RenderRequest
from allranks.plan.render.skypilot import hidden_names, sky_task
from allranks.settings import RunSpec

CLOUD = RunSpec.of(command=("train.py", "--lr", "0.1"), name="demo", nodes=2, gpus="H100:8", infra="aws",
                autostop=600.0, env={"NCCL_DEBUG": "INFO"}, forward=("HF_TOKEN",))  # fmt: skip
PODS = CLOUD.changed(infra="k8s/my-context", image="registry.local/train:1", workdir="/workspace",
                           gpus=None, autostop=None, stop_grace=90.0)  # fmt: skip
CASES = {"cloud": CLOUD, "pods": PODS, "plain": RunSpec.of(command=("-m", "pkg"), name="Plain_1")}
CATALOGUE = "AcceleratorName,Clouds\nH100,\"['AWS', 'Kubernetes']\"\nA10G,['AWS']\n"
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: my-context
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: u, user: {}}]
contexts: [{name: my-context, context: {cluster: c, user: u}}]
"""
READ = """
import json, sys, sky
task = sky.Task.from_yaml(sys.argv[1])
task.validate()
resources = list(task.resources)[0]
print(json.dumps({"name": task.name, "nodes": task.num_nodes, "run": task.run,
                  "accelerators": resources.accelerators, "infra": str(resources.infra)}))
"""


def rendered(spec: RunSpec) -> dict[str, str | bytes]:
    return RENDERERS["skypilot"].render(RenderRequest(spec, Plan(()), "/work", archive=b"zip"))


@pytest.mark.parametrize("case", CASES)
def test_the_file_is_that_of_the_golden_directory(case: str) -> None:
    for name, text in rendered(CASES[case]).items():
        if isinstance(text, bytes):
            assert (name, text) == ("allranks.pyz", b"zip")
        else:
            golden(f"skypilot/{case}.yaml", text)


def test_secrets_are_asked_for_and_never_written() -> None:
    spec = CLOUD.changed(env={"API_KEY": "hunter2"})
    assert hidden_names(spec, {}) == ["ALLRANKS_JOIN_SECRET", "API_KEY", "HF_TOKEN"]
    assert "hunter2" not in json.dumps(sky_task(spec, "demo", "./allranks.pyz", "/work"))
    text = rendered(spec)["demo.yaml"]
    assert isinstance(text, str) and "--secret API_KEY" in text and "hunter2" not in text


@pytest.mark.parametrize("more", [{}, {"sync": True}])
def test_the_directory_that_the_command_was_given_in_is_uploaded(more: dict[str, Any]) -> None:
    """`.` is the one from which `sky launch` is called: that of the rendered file, which has nothing of the program."""
    text = rendered(CLOUD.changed(**more))["demo.yaml"]
    assert yaml.safe_load(text)["workdir"] == "/work"
    assert "workdir" not in yaml.safe_load(rendered(PODS)["demo.yaml"]), "it is on the machines already"


def test_a_number_without_a_model_is_refused() -> None:
    with pytest.raises(UsageError, match="Set --gpus H100:8"):
        rendered(CLOUD.changed(gpus="8"))


@pytest.mark.parametrize("case", CASES)
def test_skypilot_takes_it(case: str, tmp_path: Path) -> None:
    for name, text in rendered(CASES[case]).items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    (name,) = [p.name for p in tmp_path.glob("*.yaml")]
    found = read_by_skypilot(tmp_path, name)
    task: dict[str, Any] = yaml.safe_load((tmp_path / name).read_text())
    assert found["run"] == task["run"]
    assert (found["name"], found["nodes"]) == (task["name"], task["num_nodes"])
    assert (found["accelerators"] or {}) == ({"H100": 8} if case == "cloud" else {})


def read_by_skypilot(directory: Path, name: str) -> dict[str, Any]:
    python = os.environ.get("ALLRANKS_SKY_PYTHON")
    if not python:
        pytest.skip("ALLRANKS_SKY_PYTHON names no Python with skypilot (docs/explanation/skypilot.md)")
    home = directory / "home"
    catalogue = home / ".sky" / "catalogs" / "v8" / "common"
    catalogue.mkdir(parents=True)
    (catalogue / "accelerators.csv").write_text(CATALOGUE)
    (home / "kubeconfig").write_text(KUBECONFIG)
    environ = {**os.environ, "HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
               "KUBECONFIG": str(home / "kubeconfig")}  # fmt: skip
    for variable in ("PYTHONPATH", "VIRTUAL_ENV"):
        environ.pop(variable, None)
    done = subprocess.run([python, "-c", READ, name], cwd=directory, env=environ, capture_output=True, text=True,
                          timeout=BOUND)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document
