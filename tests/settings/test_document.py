"""A spec survives run.json, secrets excepted."""

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.errors import ConfigError
from allranks.settings import RunSpec
from allranks.settings.document import from_document, to_document
from allranks.settings.setting import SettingRow
from allranks.settings.table import SETTINGS

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

_WORDS = st.lists(st.sampled_from(["train.py", "--lr", "3", "", "ü", "a b", "x=y"]), max_size=4).map(tuple)
_SECONDS = st.floats(2, 10**6)
_PATHS = st.sampled_from(["/a/b", "runs", "ü x"])


def _maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


_BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "command": _WORDS,
    "name": st.sampled_from(["run", "a.b-c_1"]),
    "local": _maybe(st.integers(1, 1024)),
    "hosts": _maybe(st.sampled_from(["hosts.txt", "n[1-4],m"])),
    "partition": _maybe(st.sampled_from(["gpu", "a,b"])),
    "sbatch": st.lists(st.sampled_from(["--time=1:00:00", "--gres=gpu:8 --qos=x"])).map(tuple),
    "nodes": _maybe(st.integers(1, 4096)),
    "nproc": _maybe(st.integers(1, 1024)),
    "container_image": _maybe(st.sampled_from(["nvcr.io#nvidia/pytorch:24.05-py3", "/images/train.sif"])),
    "gpus": _maybe(st.sampled_from(["8", "amd.com/gpu:8"])),
    "shm": _maybe(st.integers(1 << 20, 1 << 40)),
    "autostop": _maybe(st.floats(60, 10**6)),
    "prelude": _maybe(st.sampled_from(["a\nb", "module load x"])),
    "env": st.dictionaries(st.sampled_from(["A", "B_1"]), st.sampled_from(["", "x", "a=b\nc"])),
    "forward": st.lists(st.sampled_from(["C", "WANDB_API_KEY"]), unique=True).map(tuple),
    "ssh_options": st.lists(st.sampled_from(["Port=22", "ProxyJump gate"])).map(tuple),
    "master_addr": _maybe(st.sampled_from(["h1", "::1"])),
    "master_port": st.integers(0, 65535),
    "audit_data": st.integers(0, 10_000),
    "retries": st.integers(0, 100),
    "spares": st.integers(0, 100),
    "allow": st.lists(st.sampled_from(["shm", "shm-too-small"])).map(tuple),
    "only": st.lists(st.sampled_from(["shm", "own_name"])).map(tuple),
    "data_paths": st.lists(_PATHS).map(tuple),
    "node_rank": _maybe(st.integers(0, 4095)),
    "join_port": st.integers(1, 65535),
    "expect_gpus": _maybe(st.integers(0, 1024)),
    "test": st.sampled_from(["", "quick", "full"]),
    "size": st.integers(1024, 1 << 40),
    "timeout": st.integers(1, 10**6).map(float),
    "min_bandwidth": _maybe(st.integers(1, 1 << 40)),
    "max_latency": _maybe(st.floats(0.001, 10.0)),
    "pg_timeout_forced": st.booleans(),
}


def _of_row(row: SettingRow) -> st.SearchStrategy[Any]:
    """Draw a flag, a choice, a time, a path, or one of the row's default and its example."""
    if row.parser.metavar == "DURATION":
        return st.just(row.default) | _SECONDS
    if row.parser.is_path and not row.parser.repeats:
        return st.just(row.default) | _PATHS
    if row.parser.is_flag:
        return st.booleans()
    if row.parser.choices and not row.parser.repeats:
        return st.sampled_from(row.parser.choices)
    example = tomllib.loads(f"example = {row.example}")["example"]
    return st.sampled_from([row.default, row.parser.read(example)])


_STRATEGIES = _BY_NAME | {name: _of_row(row) for name, row in SETTINGS.items() if name not in _BY_NAME}
_SPECS = st.builds(RunSpec.of, **_STRATEGIES)


def test_every_field_takes_part() -> None:
    """A new row takes part by its example."""
    assert {*_STRATEGIES, "roles"} == {name for name, _ in RunSpec().values()}


@given(_SPECS)
def test_round_trip_through_json(spec: RunSpec) -> None:
    document = json.loads(json.dumps(to_document(spec)))
    assert from_document(document) == spec
    assert to_document(from_document(document)) == document


def test_secrets_are_hidden_everywhere() -> None:
    spec = RunSpec.of(
        command=("train.py", "--api-key", "hunter2"),
        env={"HF_TOKEN": "hunter2", "A": "1"},
        prelude="export MY_SECRET=hunter2",
        wrap="env DB_PASSWORD=hunter2 tool",
    )
    text = json.dumps(to_document(spec))
    assert "hunter2" not in text
    again = from_document(json.loads(text))
    assert again.launch.env == {"HF_TOKEN": "<redacted>", "A": "1"}
    assert again.launch.command == ("train.py", "--api-key", "<redacted>")
    assert to_document(again) == json.loads(text)


def test_missing_fields_are_defaults_and_newer_ones_ignored() -> None:
    assert from_document({"schema": 1, "nproc": 2, "of_the_future": 5}) == RunSpec.of(nproc=2)


@pytest.mark.parametrize("document", [{}, {"schema": 2}, {"schema": "1"}])
def test_another_schema_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="This allranks reads schema 1"):
        from_document(document)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nproc", "x"), ("lease", None), ("env", []), ("env", {"a b": "1"}), ("env", {"A": "\0"}),
        ("forward", "A"), ("forward", ["a b"]), ("command", "x"), ("pg_timeout_forced", 5), ("debug", "perhaps"),
        ("launcher", None),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_with_their_field(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^there: {field}: "):
        from_document({"schema": 1, field: value}, "there")


@given(st.dictionaries(st.sampled_from(sorted(_STRATEGIES)), st.none() | st.text() | st.integers() | st.floats()))
def test_any_document_is_read_or_refused(document: dict[str, Any]) -> None:
    try:
        spec = from_document({"schema": 1, **document})
    except ConfigError:
        return
    assert isinstance(spec, RunSpec)
