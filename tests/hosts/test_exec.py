"""allranks exec on real hosts: what is alike is said once, a dead host is named, and nothing stays behind."""

import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hosts.bed import Bed
from tests.hosts.launching import BOUND, Launch
from tests.hosts.waiting import wait_until


@pytest.fixture
def launch(bed4: Bed, tmp_path: Path) -> Iterator[Launch]:
    made = Launch(bed4, tmp_path)
    yield made
    if made.process is not None:
        made.process.kill()


def hosts(bed: Bed) -> list[str]:
    return ["--hosts", str(bed.hostfile_names)]


def left_on(bed: Bed, word: str) -> list[str]:
    return [p.command for host in bed.hosts for p in host.pids(system=True) if word in p.command]


def test_alike_is_said_once_and_the_odd_host_by_name(launch: Launch) -> None:
    bed = launch.bed
    line = '[ "$(hostname)" = h3 ] && echo odd && exit 3; echo "alike on $HOME_OF_THIS"'
    done = launch.call("exec", *hosts(bed), "--env", "HOME_OF_THIS=all", line)
    assert done.stdout == "h[1-2,4]: alike on all\nh3: odd\nh3: (exit 3)\n"
    assert done.returncode == 1


def test_a_host_that_is_down_is_named_and_the_others_answer(launch: Launch) -> None:
    bed = launch.bed
    bed.host("h2").link_down()
    done = launch.call("exec", *hosts(bed), "--connect-timeout", "3s", "--json", "hostname")
    report = json.loads(done.stdout)
    assert (done.returncode, report["exit"]) == (4, 4)
    said = {node["node"]: node["output"] for node in report["nodes"]}
    assert said == {"h1": "h1\n", "h2": "", "h3": "h3\n", "h4": "h4\n"}
    (down,) = [node for node in report["nodes"] if node.get("error")]
    assert (down["node"], down["code"]) == ("h2", None)
    assert "h2" in down["error"]


def test_secrets_are_in_no_command_line(launch: Launch) -> None:
    """Not in ssh's here, not in any on the hosts: the value comes over the channel, into the environment alone."""
    line = 'test ${#MY_TOKEN} = 13 && cat /proc/[0-9]*/cmdline | grep -a -c "hunter[2]secret"'
    done = launch.call("exec", *hosts(launch.bed), "--env", "MY_TOKEN", line, env={"MY_TOKEN": "hunter2secret"})
    assert done.stdout == "h[1-4]: 0\nh[1-4]: (exit 1)\n", done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_nothing_stays_after_an_interrupt(launch: Launch, number: int, code: int) -> None:
    bed = launch.bed
    line = "trap '' TERM; echo begun; sleep 1; env -i setsid sleep 98765 & sleep 98765"
    place = Path(tempfile.mkdtemp(prefix="ar-", dir="/tmp"))  # short: a Unix socket's path is
    launch.begin("exec", *hosts(bed), "--node-dir", str(place), line)
    wait_until(lambda: len(left_on(bed, "sleep 98765")) >= 8, BOUND, "all sleeps on all hosts")
    launch.signal(number)
    assert launch.wait() == code
    assert left_on(bed, "98765") == []
    assert launch.stdout.splitlines()[0] == "h[1-4]: begun"
    assert list(place.iterdir()) == []
    place.rmdir()


@pytest.mark.slow
def test_nothing_stays_after_the_command_was_killed(launch: Launch) -> None:
    """Its lease of 30 s ends it."""
    bed = launch.bed
    launch.begin("exec", *hosts(bed), "sleep 87654")
    wait_until(lambda: len(left_on(bed, "sleep 87654")) >= 4, BOUND, "the command on all hosts")
    assert launch.process is not None
    launch.process.kill()
    wait_until(lambda: not left_on(bed, "87654"), BOUND, "the end of the lease")
