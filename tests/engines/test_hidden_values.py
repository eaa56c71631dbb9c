"""Variables whose values travel as secrets of pods and cloud machines."""

import os
from collections.abc import Callable, Mapping

import pytest

from allranks.engines.kubernetes.engine import PodsLaunch, secret_objects
from allranks.engines.skypilot import TaskLaunch
from allranks.settings import RunSpec


def of_machines(spec: RunSpec) -> Mapping[str, str]:
    return TaskLaunch(spec).hidden_environment()


def of_pods(spec: RunSpec) -> Mapping[str, str]:
    return dict(secret_objects(PodsLaunch(spec).job, os.environ)[1]["stringData"])


@pytest.mark.parametrize("values", [of_machines, of_pods])
def test_env_goes_before_the_forwarded_value(
    values: Callable[[RunSpec], Mapping[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on hosts reached by ssh. On cloud machines --forward had overwritten what --env set."""
    names = ("HF_TOKEN", "WANDB_API_KEY")
    for name in names:
        monkeypatch.setenv(name, "of-the-caller")
    given = values(RunSpec.of(env={"HF_TOKEN": "of-env"}, forward=names, nodes=2, command=("train.py",), image="i"))
    assert [given[name] for name in names] == ["of-env", "of-the-caller"]
