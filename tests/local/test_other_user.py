"""Another user of one host and the port of a join: what belongs to the run is who knows its secret."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hosts.waiting import wait_until
from tests.local.running import BOUND
from tests.ports import free_port

import allranks

NOBODY = 65534
PYTHON = "/usr/bin/python3"  # that others may start, as this one may lie in a home
PACKAGES = [str(Path(allranks.__file__).parents[1]), *(p for p in sys.path if p.endswith("site-packages"))]
SECRET = "0123456789abcdef0123456789abcdef"

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="a second user needs root")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of all users, with the program of both nodes."""
    directory = Path(tempfile.mkdtemp(prefix="other-user-"))
    directory.chmod(0o777)
    program = directory / "node.sh"
    program.write_text(f"#!/bin/sh\nenv > {directory}/env-$(id -u)\n")
    program.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


class Node:
    """`allranks join` of a user, and what it says."""

    def __init__(self, place: Path, port: int, rank: int, *options: str, user: int = 0, secret: str = "") -> None:
        self._said = place / f"said-{user}-{rank}-{len(list(place.iterdir()))}"
        home = place / f"home-{user}"
        home.mkdir(exist_ok=True)
        os.chown(home, user, user)
        environ = {"PATH": os.defpath, "HOME": str(home), "PYTHONPATH": os.pathsep.join(PACKAGES), "LANG": "C.UTF-8"}
        if secret:
            environ["ALLRANKS_JOIN_SECRET"] = secret
        words = ["--nnodes", "2", "--node-rank", str(rank), "--master-addr", "127.0.0.1", "--port", str(port)]
        words += ["--init-timeout", "60s", "--lease", "20s", "--no-check", "--launcher", "command", *options]
        with self._said.open("wb") as output:
            self.process = subprocess.Popen(
                [PYTHON, "-m", "allranks", "join", *words, "--", str(place / "node.sh")],
                env=environ, cwd=home, user=user, group=user, extra_groups=[], stdin=subprocess.DEVNULL,
                stdout=output, stderr=output,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self._said.read_text()

    def code(self) -> int:
        return self.process.wait(BOUND)


@pytest.fixture(autouse=True)
def interpreter() -> None:
    """Skip where no interpreter of all users has what allranks needs."""
    words = [PYTHON, "-c", "import allranks.__main__, click"]
    environ = {"PYTHONPATH": os.pathsep.join(PACKAGES)}
    try:
        done = subprocess.run(words, env=environ, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True)
    except OSError:
        pytest.skip(f"there is no {PYTHON}")
    if done.returncode != 0:
        pytest.skip(f"{PYTHON} of another user cannot import allranks here")


@pytest.mark.parametrize("told", [SECRET, ""], ids=["a-secret-in-the-environment", "a-secret-that-the-first-makes"])
def test_another_user_takes_no_rank_without_the_secret(place: Path, told: str) -> None:
    """It took rank 1, and got the command and MY_TOKEN."""
    port = free_port()
    first = Node(place, port, 0, "--env", "MY_TOKEN=hush", secret=told)
    wait_until(lambda: "listens on port" in first.said, BOUND, "node 0 listens")
    for own in ("", "f" * 32):
        other = Node(place, port, 1, user=NOBODY, secret=own)
        assert other.code() == 2, other.said
        assert "secret" in other.said and "hush" not in other.said
    assert not list(place.glob("env-*")), "nothing has begun"
    assert "a connection from 127.0.0.1 was refused" in first.said
    second = Node(place, port, 1, secret=told)
    assert (first.code(), second.code()) == (0, 0), first.said + second.said
    assert not (place / f"env-{NOBODY}").exists()


def test_another_user_with_the_secret_is_in_the_run_and_gets_no_variable_of_the_first(place: Path) -> None:
    port = free_port()
    first = Node(place, port, 0, "--env", "MY_TOKEN=hush", secret=SECRET)
    other = Node(place, port, 1, user=NOBODY, secret=SECRET)
    assert (first.code(), other.code()) == (0, 0), first.said + other.said
    assert "MY_TOKEN=hush\n" in (place / "env-0").read_text()
    variables = (place / f"env-{NOBODY}").read_text()
    assert "ALLRANKS_MARK=" in variables and "MY_TOKEN" not in variables


def test_a_user_who_has_the_port_first_runs_nothing_as_another(place: Path) -> None:
    """`join --allow-exec` without a secret gave it a shell as root."""
    port = free_port()
    first = Node(place, port, 0, user=NOBODY)
    wait_until(lambda: "listens on port" in first.said, BOUND, "node 0 listens")
    second = Node(place, port, 1, "--allow-exec")
    assert second.code() == 2, second.said
    assert "secret" in second.said and not list(place.glob("env-*"))
    first.process.terminate()
    assert first.code() == 143
