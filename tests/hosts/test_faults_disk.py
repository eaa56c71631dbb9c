"""A full disk never blocks or fails a rank: under the run directory, and under the node directory."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.hosts.bed import Bed
from tests.hosts.launching import BOUND, Launch, program
from tests.hosts.programs.v_lines import complete, taken
from tests.hosts.test_faults_start import done, refused, told
from tests.hosts.waiting import wait_until

from allranks.agent.outlet import Budget, Spool
from allranks.runs.directory import RunDirectory

LINE = 100  # bytes of a line of printer.py


@pytest.fixture
def place(bed2: Bed) -> Iterator[Path]:
    """A place that is not below /tmp: hosts may lose theirs."""
    if Path(__file__).is_relative_to("/tmp"):
        pytest.skip("this checkout lies below /tmp, which the test takes away from a host")
    path = Path(tempfile.mkdtemp(prefix="allranks-faults-", dir="/var/tmp"))
    yield path
    shutil.rmtree(path)


def here(words: list[str]) -> None:
    """Run on this machine, as `Host.run` does on a host."""
    subprocess.run(words, check=True)


@contextmanager
def mounted(path: Path, *words: str, run: Callable[[list[str]], object] = here) -> Iterator[None]:
    path.mkdir()
    run(["mount", *words, str(path)])
    try:
        yield
    finally:
        run(["umount", "-l", str(path)])


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[None]:
    """A disk of this machine, where the run directories go."""
    with mounted(path, "-t", "tmpfs", "-o", f"size={size}", "bed-runs"):
        yield


@contextmanager
def ext4_disk(path: Path, run: Callable[[list[str]], object] = here) -> Iterator[None]:
    """A disk that can be frozen."""
    image = path.with_name("disk.img")
    with image.open("wb") as file:
        file.truncate(64 << 20)
    here(["mkfs.ext4", "-q", str(image)])
    with mounted(path, "-o", "loop,noatime", str(image), run=run):
        yield
    image.unlink()


@contextmanager
def frozen(path: Path, run: Callable[[list[str]], object] = here) -> Iterator[None]:
    """Who writes to the disk waits meanwhile, as for a server that is away."""
    run(["fsfreeze", "-f", str(path)])
    try:
        yield
    finally:
        run(["fsfreeze", "-u", str(path)])


def no_agent_is_left(bed: Bed) -> None:
    wait_until(lambda: not any(h.pids() for h in bed.hosts), BOUND, "no agent after the lease")


def written(launch: Launch, rank: int) -> int:
    return int((launch.work / f"written-{rank}").read_text())


# -- the run directory's ---------------------------------------------------------------------------


def test_a_disk_that_fills_up_under_the_run_directory(bed2: Bed, tmp_path: Path) -> None:
    """The run goes on and succeeds; what has not been fetched is said, and where it is."""
    launch = Launch(bed2, tmp_path)
    with small_disk(launch.runs, "512k"):
        launch.start(program("printer.py", "20000", "100"), "--lease", "3s")
        result = launch.done()
        assert written(launch, 1) == 20000 * LINE
        (full,) = [f for f in result["findings"] if f["id"] == "disk-full"]
        assert (full["status"], str(launch.runs) in full["message"]) == ("warn", True)
        rest = result["unfetched"]["h2"]
        arrived = len(launch.log(1))
        assert rest["fetched_bytes"]["0/1/0"] == arrived < written(launch, 1)
        directory = Path(rest["node_dir"])
        kept = sum(p.stat().st_size for p in (directory / "spool").iterdir() if "rank_1" in p.name)
        assert kept >= written(launch, 1) - arrived
        no_agent_is_left(bed2)
        assert directory.is_dir()
        shutil.rmtree(directory.parent)


def test_a_person_is_told_of_a_full_disk_once(bed2: Bed, tmp_path: Path) -> None:
    launch = Launch(bed2, tmp_path)
    with small_disk(launch.runs, "256k"):
        launch.start(program("printer.py", "20000", "100"), "--lease", "2s", json_=False)
        assert launch.wait() == 0
        assert launch.stdout.count(f"{launch.runs}")
        assert launch.stdout.count(" cannot be written: No space left on device. Output") == 1
        assert "h2's logs end early" in launch.stdout
        numbers = [int(line.split()[-1]) for line in launch.stdout.splitlines() if line.startswith("[h2 1] 1 0")]
        assert numbers == sorted(set(numbers))  # what was sent again is not shown again
        no_agent_is_left(bed2)
        (left,) = {line.split()[-1] for line in launch.stdout.splitlines() if "logs end early" in line and "h2" in line}
        shutil.rmtree(Path(left).parent)


def test_events_that_find_no_room_are_told(bed2: Bed, tmp_path: Path) -> None:
    """Ranks that print nothing fill no disk, somebody else does: what the run directory lacks is said all the same."""
    launch = Launch(bed2, tmp_path)
    with small_disk(launch.runs, "512k"):
        launch.start(program("printer.py", "1", "100", "wait")).until("rank-started", 2)
        wait_until((launch.work / "written-1").exists, BOUND, "all printed")
        logs = (launch.run_dir / "logs").glob
        wait_until(lambda: [p.stat().st_size for p in logs("*/rank_001.log")] == [written(launch, 1)], BOUND, "fetched")
        with contextlib.suppress(OSError), open(launch.runs / "filler", "wb", buffering=0) as filler:
            while filler.write(bytes(4096)) == 4096:
                pass
        (launch.work / "go").touch()
        result = launch.result()
        (full,) = [f for f in result["findings"] if f["id"] == "disk-full"]
        assert (result["exit"], full["status"]) == (0, "warn")
        assert f"{launch.run_dir} cannot be written: No space left on device" in full["message"]
        state, _, written_down = RunDirectory(launch.run_dir).condition()
        assert (state, written_down and written_down.run) == ("done", launch.run_dir.name)
        assert (launch.run_dir / "result.json").is_file()


def test_a_disk_that_has_room_again(bed2: Bed, tmp_path: Path) -> None:
    """What waited on the node arrives, and nothing is missing."""
    launch = Launch(bed2, tmp_path)
    with small_disk(launch.runs, "512k"):
        launch.start(program("printer.py", "20000", "100", "wait"))
        wait_until((launch.work / "written-1").exists, BOUND, "all printed")
        wait_until(lambda: os.statvfs(launch.runs).f_bavail == 0, BOUND, "the disk full")
        here(["mount", "-o", "remount,size=16m", str(launch.runs)])
        wait_until(lambda: len(launch.log(1)) == written(launch, 1), BOUND, "all fetched")
        (launch.work / "go").touch()
        result = done(bed2, launch)
        assert result["unfetched"] == {}
        numbers = [int(line.split()[1]) for line in launch.log(1).splitlines()]
        assert numbers == list(range(20000))


def test_a_full_disk_under_the_run_directory_at_the_start(bed2: Bed, tmp_path: Path) -> None:
    launch = Launch(bed2, tmp_path)
    with small_disk(launch.runs, "16k"):
        (launch.runs / "filler").write_bytes(bytes(16 << 10))
        launch.start(program("printer.py", "100", "100"), "--lease", "2s")
        result = launch.done()
        assert set(result["unfetched"]) == {"h1", "h2"}
        no_agent_is_left(bed2)
        for rest in result["unfetched"].values():
            shutil.rmtree(rest["node_dir"])
        Path(rest["node_dir"]).parent.rmdir()


@pytest.mark.parametrize("lease", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_a_disk_that_stalls_under_the_run_directory(bed2: Bed, tmp_path: Path, lease: int) -> None:
    """For longer than the lease: no rank ends for it, no line is lost, and the wait is said."""
    launch = Launch(bed2, tmp_path)
    with ext4_disk(launch.runs):
        launch.start(program("v_lines.py", "0.002"), "--lease", f"{lease}s").until_running(2)
        with frozen(launch.runs):
            began = [taken(str(launch.work), rank) for rank in range(2)]
            time.sleep(2.5 * lease)
            assert [taken(str(launch.work), rank) for rank in range(2)] > began
        (paused,) = launch.until("launcher-paused")
        (launch.work / "done").touch()
        launch.done()
        assert paused["waited"] is True, paused
        assert paused["seconds"] == pytest.approx(2.5 * lease, abs=2.0)
        for rank in range(2):
            assert complete(launch.log(rank).encode(), rank, taken(str(launch.work), rank)) > 0


def test_ctrl_c_while_the_disk_of_the_run_directory_stalls(bed2: Bed, tmp_path: Path) -> None:
    """Ranks end at once, and the command says what it waits for. It ends in order when the disk answers again."""
    launch = Launch(bed2, tmp_path)
    with ext4_disk(launch.runs):
        launch.start(program("v_lines.py", "0.002"), "--lease", "4s", "--stop-grace", "2s").until_running(2)
        with frozen(launch.runs):
            time.sleep(2.0)
            launch.signal(signal.SIGINT)
            clients = 2  # of ssh, which this machine runs in the same directory
            wait_until(lambda: len(launch.alive()) <= clients, 10.0, "no rank")
            assert launch.process is not None and launch.process.poll() is None
            wait_until(lambda: "ranks are asked to end" in launch.stderr, BOUND, "what it waits for")
        result = launch.over()
        assert (result["exit"], result["verdict"]) == (130, None)


# -- the node directory's --------------------------------------------------------------------------


def test_a_full_tmp_on_one_node(bed2: Bed, place: Path) -> None:
    """The next place is taken, and nothing is left in the full one."""
    bed2.host("h2").full_disk("/tmp")
    launch = Launch(bed2, place).start(program("tell.py"))
    done(bed2, launch)
    assert told(launch, 1)["env"]["ALLRANKS_OUTPUT_DIR"].startswith("/var/tmp/allranks-0/")
    assert told(launch, 0)["env"]["ALLRANKS_OUTPUT_DIR"].startswith("/tmp/allranks-0/")
    assert bed2.host("h2").run("ls /tmp").stdout == ""


def test_a_node_directory_without_room(bed2: Bed, place: Path) -> None:
    """Where the user has named the one place."""
    bed2.host("h2").full_disk("/tmp")
    launch = Launch(bed2, place).start(program("tell.py"), "--node-dir", "/tmp")
    verdict = refused(bed2, launch, "disk-full", "h2")
    assert "/tmp: No space left on device" in verdict["message"]
    assert "--node-dir" in verdict["remedy"]
    assert bed2.host("h2").run("ls /tmp").stdout == ""


def test_a_node_disk_that_stalls(bed2: Bed, place: Path) -> None:
    """Its agent waits for it, and cannot end the ranks: its supervisor does, once no word of it has come for long."""
    h2 = bed2.host("h2")
    node_dir = place / "n"
    launch = Launch(bed2, place)
    with ext4_disk(node_dir, h2.run):
        options = ("--lease", "4s", "--grace", "1s", "--node-dir", str(node_dir))
        launch.start(program("v_lines.py", "0.002"), *options).until_running(2)
        pid = launch.rank_pid(1)
        with frozen(node_dir, h2.run):
            wait_until(lambda: pid not in launch.alive(), BOUND, "no rank while the disk stalls")
            result = launch.result()
        assert (result["exit"], result["verdict"]["where"]["node"]) == (4, "h2"), result["verdict"]
        assert launch.alive() == []
        no_agent_is_left(bed2)


@pytest.mark.parametrize(
    ("lines", "block"),
    [pytest.param(1_200_000, 1000, marks=pytest.mark.slow), (400_000, 1)],
    ids=["large writes", "small writes"],
)
def test_a_node_disk_that_fills_up_while_ranks_print(bed2: Bed, place: Path, lines: int, block: int) -> None:
    """Disk, then memory, then nothing: the rank ends with 0, and every byte that is not there is counted."""
    bed2.host("h2").small_tmpfs("/tmp", "1m")
    launch = Launch(bed2, place).start(program("printer.py", str(lines), str(block)))
    result = done(bed2, launch)
    assert written(launch, 1) == lines * LINE
    dropped = sum(e["bytes"] for e in launch.events("dropped") if e["rank"] == 1)
    (path,) = launch.run_dir.glob("logs/node_01_h2/rank_001.log")
    assert path.stat().st_size + dropped == written(launch, 1)
    assert dropped or block == 1, "nothing was dropped: print more"
    assert result["dropped"].get("h2", {}).get("1", 0) == dropped
    assert result["unfetched"] == {}


def test_the_spool_is_bounded_while_the_controller_is_away(bed2: Bed, place: Path) -> None:
    """Half of the node's disk stays free, the rank ends with 0, and what was dropped is counted and told."""
    lines, block = 1_000_000, 1000
    bed2.host("h2").small_tmpfs("/tmp", "200m")
    launch = Launch(bed2, place).start(program("printer.py", str(lines), str(block), "wait"), "--lease", "60s")
    launch.until("rank-started", 2)
    launch.signal(signal.SIGSTOP)
    wait_until((launch.work / "written-1").exists, BOUND, "all printed")
    free = int(bed2.host("h2").run("df -B1 --output=avail /tmp | tail -1").stdout)
    launch.signal(signal.SIGCONT)
    (launch.work / "go").touch()
    result = done(bed2, launch)
    assert free > 120 << 20, "the spool has taken more than a share"
    drops = [e for e in launch.events("dropped") if e["rank"] == 1]
    assert {e["why"] for e in drops} == {"bound"}
    (path,) = launch.run_dir.glob("logs/node_01_h2/rank_001.log")
    assert path.stat().st_size + sum(e["bytes"] for e in drops) == written(launch, 1) == lines * LINE
    assert result["unfetched"] == {}
    assert "output is dropped" in (launch.run_dir / "logs" / "node_01_h2" / "node.log").read_text()


def test_what_waits_in_memory_takes_few_descriptors(bed2: Bed, tmp_path: Path) -> None:
    """Many small writes on a full disk: the agent may open 1024 files only."""
    disk = tmp_path / "spool"
    with small_disk(disk, "4k"):
        (disk / "filler").write_bytes(bytes(4096))
        spool, before = Spool(str(disk), "a0_rank_0", Budget()), len(os.listdir("/proc/self/fd"))
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        for number in range(2000):
            os.write(write_end, b"%04d\n" % number)
            spool.pump(read_end)
        assert len(os.listdir("/proc/self/fd")) < before + 10
        assert (spool.end, spool.dropped) == (10_000, 0)
        assert spool.read(9_990, 100) == (9_990, b"1998\n1999\n")
        os.close(read_end)
        os.close(write_end)
