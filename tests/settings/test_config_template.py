"""The commented allranks.toml parses, resolves as it is and with every comment sign removed."""

import re
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.errors import UsageError
from allranks.settings import RunSpec, commented_config, resolve
from allranks.settings.layers import Resolved
from allranks.settings.table import SETTINGS, TARGETS

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

SETTING = re.compile(r"^#?([a-z-]+) = ", re.MULTILINE)


def uncommented(text: str) -> str:
    return re.sub(r"^#(?=[A-Za-z\[])", "", text, flags=re.MULTILINE)


def load(text: str) -> Resolved:
    config: dict[str, Any] = tomllib.loads(text)
    mine = {"cluster": {"lab": {}}}
    return resolve(
        {}, {"WANDB_API_KEY": "x"}, config, config_source="allranks.toml", user_config=mine, user_source="config.toml"
    )


def test_as_written_it_changes_nothing() -> None:
    assert load(commented_config({})) == Resolved(RunSpec())


@pytest.mark.parametrize("found", [{}, {"local": "2"}])
def test_every_setting_can_be_uncommented(found: dict[str, str]) -> None:
    text = uncommented(commented_config(found))
    resolved = load(text)
    assert resolved.notes == ()
    assert resolved.spec.launch.env == {"OMP_NUM_THREADS": "8"}
    assert resolved.spec.launch.forward == ("WANDB_API_KEY",)
    assert resolved.spec.launch.command == ("train.py", "--epochs", "3")


def test_all_fields_and_no_others_are_there() -> None:
    keys = SETTING.findall(commented_config({}))
    assert len(keys) == len(set(keys))
    fields = {key.replace("-", "_") for key in keys}
    in_file = {row.name for row in SETTINGS.values() if row.in_file}
    assert fields == in_file - {"env"} - (set(TARGETS) - {"hosts", "slurm"}) | {"forward"}
    assert "#[env]" in commented_config({})


def test_what_was_found_is_active() -> None:
    text = commented_config({"hosts": "my hosts.txt", "nproc": "8", "python": 'C:\\"x"', "fold": "no", "lease": "5m"})
    spec = load(text).spec
    assert spec == RunSpec.of(hosts="my hosts.txt", nproc=8, python='C:\\"x"', fold=False, lease=300.0)
    assert "(found)" in text
    assert load(commented_config({"local": "4", "nproc": "auto"})).spec == RunSpec.of(local=4)


@pytest.mark.parametrize(
    "found",
    [{"cards": "8"}, {"nproc": "many"}, {"command": "x"}, {"hosts": "a", "local": "2"}, {"workdir": "\ud800"}],
)
def test_what_cannot_be_written_is_refused(found: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"^init"):
        commented_config(found)


@given(st.text(max_size=20))
def test_any_found_text_stays_text(value: str) -> None:
    try:
        text = commented_config({"workdir": value, "prelude": value})
    except UsageError:
        return
    spec = load(text).spec
    assert (spec.launch.workdir, spec.launch.prelude) == (value, value)
