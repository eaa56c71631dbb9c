"""One gang: whatever fails, nothing of the run stays alive anywhere."""

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from tests.hosts.bed import Bed
from tests.hosts.launching import Launch, program
from tests.hosts.waiting import wait_until
from tests.processes import parent_of

RANKS = 6


def begun(
    bed: Bed, place: Path, *words: str, options: tuple[str, ...] = (), user: str = "root", hosts: int = 3
) -> Launch:
    """Two ranks on each of these hosts, up and with their children."""
    names = ",".join(host.name for host in bed.hosts[:hosts])
    launch = Launch(bed, place, user).start(program("nasty.py", *words), *options, nproc=2, hosts=names)
    launch.until_running(2 * hosts)
    assert len(launch.alive()) >= 2 * hosts * 4
    return launch


def go(launch: Launch) -> None:
    (launch.work / "go").touch()


def test_an_exception_ends_every_rank_and_child(bed4: Bed, tmp_path: Path) -> None:
    launch = begun(bed4, tmp_path, "raise", "3", hosts=4)
    go(launch)
    result = launch.over()
    verdict = result["verdict"]
    assert result["exit"] == 1
    assert (verdict["where"]["node"], verdict["where"]["rank"]) == ("h2", 3)
    assert "ValueError" in verdict["message"] and "bad batch" in verdict["message"]
    assert sorted(verdict["victims"]) == [0, 1, 2, 4, 5, 6, 7]
    assert result["left"] == {}


def test_sigkill_of_a_rank(bed4: Bed, tmp_path: Path) -> None:
    launch = begun(bed4, tmp_path, "wait")
    os.kill(launch.rank_pid(5), signal.SIGKILL)
    result = launch.over()
    assert result["exit"] in (1, 4)
    assert result["verdict"]["where"]["rank"] == 5
    assert "SIGKILL" in result["verdict"]["message"]


@pytest.mark.parametrize(
    ("who", "number"),
    [
        ("agent", signal.SIGKILL),
        ("supervisor", signal.SIGSTOP),
        pytest.param("agent", signal.SIGSTOP, marks=pytest.mark.slow),
        pytest.param("supervisor", signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_a_agent_or_supervisor_that_dies_or_stops(bed4: Bed, tmp_path: Path, who: str, number: int) -> None:
    launch = begun(bed4, tmp_path, "wait")
    agent = launch.agent_pid(2)
    pid = agent if who == "agent" else parent_of(agent)
    os.kill(pid, number)
    result = launch.over()
    assert result["exit"] == 4
    assert result["verdict"]["where"]["node"] == "h2"
    assert who in result["verdict"]["message"]


def test_a_host_that_vanishes(bed4: Bed, tmp_path: Path) -> None:
    launch = begun(bed4, tmp_path, "wait", options=("--lease", "4s"))
    host = bed4.host("h3")
    host.link_down()
    host.power_off()
    result = launch.over()
    assert result["exit"] == 4
    assert result["verdict"]["cause"] == "node-network-down"
    assert result["verdict"]["where"]["node"] == "h3"


def test_a_cut_network_ends_both_sides(bed4: Bed, tmp_path: Path) -> None:
    launch = begun(bed4, tmp_path, "wait", options=("--lease", "4s"))
    bed4.host("h3").link_down()
    result = launch.result()
    launch.all_gone()
    assert result["verdict"]["where"]["node"] == "h3"
    assert result["verdict"]["cause"] == "node-network-down"


def test_launcher_killed(bed4: Bed, tmp_path: Path) -> None:
    launch = begun(bed4, tmp_path, "wait", options=("--lease", "4s"))
    launch.kill_launcher()
    launch.all_gone()


def test_another_users_run(bed4: Bed, tmp_path: Path) -> None:
    """The same without root on the nodes."""
    place = Path(tempfile.mkdtemp(prefix="trainer-", dir="/tmp"))
    place.chmod(0o755)
    (place / "work").mkdir()
    (place / "work").chmod(0o777)
    launch = begun(bed4, place, "raise", "3", user="trainer")
    go(launch)
    assert launch.over()["verdict"]["where"]["rank"] == 3
    shutil.rmtree(place)


def test_a_rank_that_exits_0_early_is_no_failure(bed4: Bed, tmp_path: Path) -> None:
    launch = begun(bed4, tmp_path, "exit0", "4")
    go(launch)
    exits = launch.until("rank-exit")
    assert (exits[0]["rank"], exits[0]["code"]) == (4, 0)
    assert len(launch.alive()) > RANKS
    (launch.work / "done").touch()
    launch.done()


def test_stop_lets_ranks_save_and_keeps_their_children(bed4: Bed, tmp_path: Path) -> None:
    launch = begun(bed4, tmp_path, "save-on-term")
    workers = len(launch.alive())
    stopping = launch.call("stop", bound=120)
    assert stopping.returncode == 0, stopping.stderr
    assert workers >= RANKS * 4
    assert sorted(p.name for p in launch.work.glob("saved-*")) == [f"saved-{i}" for i in range(RANKS)]
    assert launch.over()["exit"] == 143


def test_ctrl_c_once_is_orderly(bed4: Bed, tmp_path: Path) -> None:
    launch = begun(bed4, tmp_path, "save-on-term")
    launch.signal(signal.SIGINT)
    assert launch.over()["exit"] == 130
    assert len(list(launch.work.glob("saved-*"))) == RANKS


def test_ctrl_c_twice_is_now(bed4: Bed, tmp_path: Path) -> None:
    launch = begun(bed4, tmp_path, "ignore-term", options=("--stop-grace", "10m"))
    launch.signal(signal.SIGINT)
    launch.until("ending")
    launch.signal(signal.SIGINT)
    assert launch.over()["exit"] == 130


def test_two_runs_at_once_and_a_job_of_the_users_own(bed4: Bed, tmp_path: Path) -> None:
    """Ending goes by lineage and run identity: a second run with the same command is not touched."""
    first = begun(bed4, tmp_path / "a", "raise", "0")
    second = begun(bed4, tmp_path / "b", "wait")
    other = bed4.host("h1").popen([sys.executable, str(program("nasty.py")[0])], cwd=str(tmp_path))
    before = len(second.alive())
    go(first)
    assert first.over()["exit"] == 1
    assert len(second.alive()) == before
    assert other.poll() is None
    second.signal(signal.SIGTERM)
    assert second.over()["exit"] == 143
    assert other.poll() is None
    other.kill()
    wait_until(lambda: other.poll() is not None)
