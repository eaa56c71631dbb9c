"""The commented allranks.toml parses, resolves as it is and with every comment sign removed."""

import re
import sys
from typing import Any

import pytest

from allranks.settings import RunSpec
from allranks.settings.config_template import commented_config
from allranks.settings.layers import Resolved, resolve
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
    assert load(commented_config()) == Resolved(RunSpec())


def test_every_setting_can_be_uncommented() -> None:
    resolved = load(uncommented(commented_config()))
    assert resolved.notes == ()
    assert resolved.spec.launch.env == {"OMP_NUM_THREADS": "8"}
    assert resolved.spec.launch.forward == ("WANDB_API_KEY",)
    assert resolved.spec.launch.command == ("train.py", "--epochs", "3")


def test_all_fields_and_no_others_are_there() -> None:
    keys = SETTING.findall(commented_config())
    assert len(keys) == len(set(keys))
    fields = {key.replace("-", "_") for key in keys}
    in_file = {row.name for row in SETTINGS.values() if row.in_file}
    assert fields == in_file - {"env"} - (set(TARGETS) - {"hosts", "slurm"}) | {"forward"}
    assert "#[env]" in commented_config()


def test_a_hostfile_that_was_found_is_active() -> None:
    text = commented_config("my hosts.txt")
    assert load(text).spec == RunSpec.of(hosts="my hosts.txt")
    assert "(found)" in text
