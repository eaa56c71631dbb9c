"""What a rank reads before it joins: options, a launcher's environment, interfaces, Gloo's errors."""

from pathlib import Path

import pytest

from allranks.fabric.__main__ import export_rank
from allranks.fabric.ranks import local_links as interfaces
from allranks.fabric.ranks.options import parse


def test_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ALLRANKS_OUTPUT_DIR", str(tmp_path))
    assert parse([], 3).out == str(tmp_path / "rank_03_metrics.jsonl")
    assert parse(["--out", "none"], 3).out == "" and parse(["--size", "1KB"], 0).size == 1024


@pytest.mark.parametrize(("words", "problem"), [
    (["--size", "much"], "expected a size such as 64KB, 256MB, 1GB or a number of bytes, not 'much'"),
    (["--dead", "h1"], "expected pairs of nodes such as h1/h2,h3/h4, not 'h1'"),
])  # fmt: skip
def test_a_wrong_value_is_refused_with_what_is_expected(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(words, 0)
    assert problem in capsys.readouterr().err


def exported(env: dict[str, str]) -> dict[str, str]:
    """What is added to a launcher's environment."""
    after = dict(env)
    export_rank(after)
    return {name: value for name, value in after.items() if name not in env}


def test_torchruns_environment_is_left_alone() -> None:
    env = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "h",
           "MASTER_PORT": "1", "SLURM_PROCID": "7"}  # fmt: skip
    assert exported(env) == {}


def test_ranks_that_know_no_local_size_are_each_on_a_node() -> None:
    env = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
    assert exported(env) == {"LOCAL_WORLD_SIZE": "1"}


def test_slurm() -> None:
    env = {"SLURM_PROCID": "6", "SLURM_NTASKS": "7", "SLURM_LOCALID": "2", "SLURM_NODEID": "1", "SLURM_STEP_ID": "0",
           "SLURM_STEP_TASKS_PER_NODE": "4,3", "SLURM_STEP_NODELIST": "gpu[03-04,9]",
           "SLURM_JOB_ID": "123456"}  # fmt: skip
    assert exported(env) == {
        "RANK": "6", "WORLD_SIZE": "7", "LOCAL_RANK": "2", "GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "3",
        "MASTER_ADDR": "gpu03", "MASTER_PORT": "23456"}  # fmt: skip


def test_which_interface_nccl_takes_first() -> None:
    names = ["lo", "eth0", "eth1", "ib0"]
    patterns = ("eth", "=ib0", "=ib", "^eth", "ib,eth1", "lo", "none")
    matching = [interfaces.matching_interface(pattern, names) for pattern in patterns]
    assert matching == ["eth0", "ib0", "", "ib0", "eth1", "lo", ""]  # by the kernel's order, not the list's


def test_addresses() -> None:
    assert interfaces.gloo_address({"GLOO_SOCKET_IFNAME": "lo"}, "192.0.2.1") == "127.0.0.1"
    assert interfaces.gloo_address({}, "127.0.0.1") == "127.0.0.1"
    assert interfaces.gloo_address({"GLOO_SOCKET_IFNAME": "none0"}, "127.0.0.1") == "127.0.0.1"
    assert interfaces.interface_of("127.0.0.1") == "lo" and interfaces.interface_of("192.0.2.77") == ""


@pytest.mark.torch
def test_gloos_errors_lose_what_differs_by_rank() -> None:
    from allranks.fabric.ranks.printing import describe_error  # noqa: PLC0415 - it imports torch

    text = "[/__w/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.1]:3811: Connection reset by peer. This is typical"
    assert describe_error(RuntimeError(text)) == "RuntimeError: Read error [10.0.0.1]: Connection reset by peer"
    assert describe_error(ValueError()) == "ValueError"
