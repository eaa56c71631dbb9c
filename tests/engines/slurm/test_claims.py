"""Two runs in one allocation: which nodes each takes."""

import secrets
import subprocess
import sys
from contextlib import closing

import pytest

from allranks.engines.slurm import reach
from allranks.engines.slurm.reach import claim, is_ours
from allranks.errors import UsageError
from allranks.settings import RunSpec


@pytest.mark.parametrize(("count", "spares", "nodes"), [(2, 0, "2"), (3, 1, "4"), (None, 0, "N")])
def test_outside_of_an_allocation_the_hint_asks_for_the_nodes_of_the_command(
    monkeypatch: pytest.MonkeyPatch, count: int | None, spares: int, nodes: str
) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_JOBID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match=rf"with `salloc --nodes={nodes}`\Z"):
        reach.find_nodes(RunSpec.of(slurm=True, nodes=count), spares)


NODES = ["h1", "h2", "h3", "h4"]
OTHER = """import sys
from allranks.engines.slurm.reach import claim
print(*claim(sys.argv[1], sys.argv[3:], int(sys.argv[2]) or None)[0], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def job() -> str:
    """One of this test alone: a process keeps its claims until it ends."""
    return secrets.token_hex(8)


class Other:
    """Another controller of the same user on this host."""

    def __init__(self, job: str, count: int) -> None:
        words = [sys.executable, "-c", OTHER, job, str(count), *NODES]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.nodes = self._process.stdout.readline().split()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_the_second_takes_what_is_free(job: str) -> None:
    with closing(Other(job, 2)) as other:
        assert other.nodes == ["h1", "h2"]
        assert claim(job, NODES, 2) == (["h3", "h4"], ["h1", "h2"])
        assert [is_ours(job, name) for name in NODES] == [False, False, True, True]
        assert claim(f"{job}0", NODES, 1) == (["h1"], []), "another job's nodes are others"


def test_what_is_short_is_shared_and_known(job: str) -> None:
    with closing(Other(job, 3)):
        assert claim(job, NODES, 2) == (["h4"], ["h1", "h2", "h3"])
        assert claim(job, NODES, None) == (["h4"], ["h1", "h2", "h3"]), "ours is ours when it is asked for again"


def test_a_killed_controller_gives_its_nodes_back(job: str) -> None:
    Other(job, 4).close()
    assert claim(job, NODES, None) == (NODES, [])


def test_without_abstract_names_every_node_is_free(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unable(reach.socket.socket):  # type: ignore[misc,name-defined]
        def bind(self, address: object) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(reach.socket, "socket", Unable)
    assert claim(job, NODES, 2) == (["h1", "h2"], [])
    assert is_ours(job, "h1")
