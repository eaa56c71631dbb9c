"""The manifests in examples/ are what the command on their page writes, and what their readers take.

ALLRANKS_GOLDEN=write writes them again; look at the difference before you commit it.
"""

import os
from pathlib import Path

import pytest
import yaml
from tests.examples.pages import ROOT, render_words
from tests.plan.render.test_kubernetes import schema_faults
from tests.plan.render.test_skypilot import read_by_skypilot
from tests.shell import Shell

from allranks.plan.environment import forwarded

KUBERNETES = ROOT / "examples" / "kubernetes"
SKYPILOT = ROOT / "examples" / "skypilot"
WRITE = os.environ.get("ALLRANKS_GOLDEN") == "write"  # a shell of the tests has no ALLRANKS_*


@pytest.fixture
def render(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Render by the command of a page, as from a shell that sets nothing for ranks."""

    def call(page: Path) -> Path:
        for name in forwarded(os.environ, ()):
            monkeypatch.delenv(name)
        monkeypatch.chdir(ROOT)
        answer = shell(*render_words(page, tmp_path / "files"))
        assert answer.code == 0, answer.err
        return tmp_path / "files"

    return call


def assert_kept(path: Path, text: str) -> None:
    if WRITE:
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, f"{path} differs; see this file's docstring"


def test_the_manifests_of_kubernetes_are_rendered_and_keep_its_schemas(render) -> None:
    files = render(KUBERNETES / "README.md")
    for name in ("demo.yaml", "demo-rbac.yaml"):
        assert_kept(KUBERNETES / name, (files / name).read_text(encoding="utf-8"))
        for document in yaml.safe_load_all((KUBERNETES / name).read_text(encoding="utf-8")):
            assert schema_faults(document) == []


def test_the_task_of_skypilot_is_rendered_but_for_what_it_uploads(render) -> None:
    files = render(SKYPILOT / "README.md")
    text = (files / "train.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text)["workdir"] == str(ROOT)
    assert_kept(SKYPILOT / "train.yaml", text.replace(f"workdir: {ROOT}\n", "workdir: ..\n"))


def test_skypilot_takes_the_task(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_bytes((SKYPILOT / "train.yaml").read_bytes())
    (tmp_path / "allranks.pyz").write_bytes(b"zip")
    task = read_by_skypilot(tmp_path, "train.yaml")
    assert (task["name"], task["nodes"], task["accelerators"]) == ("train", 2, {"A10G": 1})
