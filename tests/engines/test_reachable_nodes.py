"""Which nodes `--hosts` means, and what is said of a hostfile that does not exist."""

from pathlib import Path

import pytest

from allranks.engines.reachable_nodes import find_cluster
from allranks.errors import HostfileError
from allranks.settings import RunSpec


@pytest.mark.parametrize(
    ("asked", "meant"), [("host.txt", "hosts.txt"), ("hosts", "hosts.txt"), ("nohosts.list.txt", ""), ("xyz.txt", "")]
)
def test_a_hostfile_that_was_meant_is_near_by_its_stem(tmp_path: Path, asked: str, meant: str) -> None:
    for name in ("hosts.txt", "constraints.txt"):
        (tmp_path / name).write_text("h1\n")
    with pytest.raises(HostfileError, match="no such file") as caught:
        find_cluster(RunSpec.of(hosts=str(tmp_path / asked)))
    hint = f"hint: --hosts {tmp_path / meant}" if meant else ""
    assert str(caught.value).partition("\n")[2] == hint
