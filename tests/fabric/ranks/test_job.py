"""What the tests of collectives meet in older releases of torch, and a watchdog that fails by itself."""

from pathlib import Path

import pytest
from tests.fabric import gang
from tests.hosts.waiting import BOUND

pytestmark = pytest.mark.torch


def outcome(role: str, tmp_path: Path, *words: str) -> tuple[int | None, str]:
    """Run a role of store_rank.py as the only rank; give its exit code and output."""
    log = tmp_path / "log"
    script = str(Path(__file__).resolve().parents[1] / "store_rank.py")
    environment = gang.environment(0, 1, 1, gang.free_port())
    process = gang.fork(gang.be_script, environment, script, [role, *words], str(log))
    process.join(BOUND)
    if process.exitcode is None:
        process.kill()
    return process.exitcode, log.read_text()


def test_a_store_without_check_is_asked_whether_a_key_is_set(tmp_path: Path) -> None:
    """Torch before 2.3 has none: every collective test ended as a hang there."""
    assert outcome("old", tmp_path) == (0, "False False True b'1' 1\n")


def test_a_watchdog_that_fails_does_not_blame_the_store(tmp_path: Path) -> None:
    code, output = outcome("broken", tmp_path)
    assert code == 3
    assert "the watchdog of rank 0 failed" in output and "AttributeError" in output
    assert "does not answer" not in output


WORDS = ["no support for _allgather_base in Gloo process group",  # torch 1.13
         "ProcessGroup gloo does not support _reduce_scatter_base",  # torch 1.13
         "ProcessGroupGloo does not support reduce_scatter",
         "[gloo/pair.cc] Connection closed by peer"]  # fmt: skip


def test_what_gloo_does_not_have_is_left_out(tmp_path: Path) -> None:
    code, output = outcome("unsupported", tmp_path, *WORDS)
    *left_out, failure = WORDS
    assert output.splitlines() == [*(f"NotSupported {words}" for words in left_out), f"RuntimeError {failure}"]
    assert code == 0
