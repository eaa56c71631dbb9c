"""Variables whose values travel as secrets of pods and cloud machines."""

import os

import pytest

from allranks.engines.kubernetes.engine import PodsLaunch, secret_objects
from allranks.engines.skypilot import TaskLaunch
from allranks.settings import RunSpec


def spec() -> RunSpec:
    names = ("HF_TOKEN", "WANDB_API_KEY")
    return RunSpec.of(env={"HF_TOKEN": "of-env"}, forward=names, nodes=2, command=("train.py",), image="i")


def of_machines() -> dict[str, str]:
    return TaskLaunch(spec()).hidden_environment()


def of_pods() -> dict[str, str]:
    hidden = secret_objects(PodsLaunch(spec()).job, os.environ)[1]
    return dict(hidden["stringData"])


@pytest.mark.parametrize("values", [of_machines, of_pods])
def test_env_goes_before_the_forwarded_value(values: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on hosts reached by ssh. On cloud machines --forward had overwritten what --env set."""
    monkeypatch.setenv("HF_TOKEN", "of-the-caller")
    monkeypatch.setenv("WANDB_API_KEY", "of-the-caller")
    assert callable(values)
    given = values()
    assert given["HF_TOKEN"] == "of-env"
    assert given["WANDB_API_KEY"] == "of-the-caller"
