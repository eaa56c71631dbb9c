"""The runner and torch: reports and timeouts of process groups, with real ranks over gloo."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.test_runner import RUNNER, reported
from tests.hosts.waiting import BOUND
from tests.ports import free_port

from allranks.agent.processes import Process, read_process
from allranks.protocol.node_names import NodeFiles

PROGRAM = str(Path(__file__).parent / "programs" / "groups.py")
pytestmark = pytest.mark.torch
Ranks = list["subprocess.Popen[str]"]


def start(
    *words: str, world: int = 2, runner: bool = True, program: str = PROGRAM, cwd: Path | None = None, **more: str
) -> Ranks:
    base = {name: value for name, value in os.environ.items() if not name.startswith("ALLRANKS_")}
    base.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(world), OMP_NUM_THREADS="1")
    command = [sys.executable, *([str(RUNNER)] if runner else []), program, *words]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    places = [{"RANK": rank, "LOCAL_RANK": rank} for rank in map(str, range(world))]
    return [
        subprocess.Popen(command, cwd=cwd, env={**base, **place, **more}, text=True, **streams) for place in places
    ]


def start_with_sockets(place: Path, *words: str, **options: Any) -> Ranks:
    """Two ranks that can be asked; `start` gives all ranks the same variables, so each is started alone."""
    ranks: Ranks = []
    port = str(free_port())
    for rank in map(str, range(2)):
        socket = NodeFiles(str(place)).asked(int(rank))
        more = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_PORT": port, **options}
        ranks += start(*words, world=1, ALLRANKS_ASK_SOCKET=socket, **more)
    return ranks


def processes(ranks: Ranks) -> dict[int, Process]:
    """Those that have not been reaped, by rank."""
    found = {rank: read_process(process.pid) for rank, process in enumerate(ranks)}
    return {rank: process for rank, process in found.items() if process is not None}


def finish(ranks: Ranks) -> list[tuple[int, str]]:
    """Exit code and output of each rank; none is left behind."""
    try:
        outputs = [rank.communicate(timeout=BOUND)[0] for rank in ranks]
        return [(rank.returncode, output) for rank, output in zip(ranks, outputs, strict=True)]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.fixture
def full_socket(tmp_path: Path) -> Iterator[str]:
    """A report socket that is not read and that takes no more."""
    path = str(tmp_path / "reports")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    sender.sendto(b"full", path)
        yield path


OPTION = {"ALLRANKS_PG_TIMEOUT": "41.5"}
FORCED = {**OPTION, "ALLRANKS_PG_TIMEOUT_FORCED": "1"}


@pytest.mark.parametrize(
    ("words", "more", "expected"),
    [
        pytest.param([], {}, "1800.0", marks=pytest.mark.slow),
        ([], OPTION, "41.5"),
        pytest.param(["explicit"], OPTION, "777.0", marks=pytest.mark.slow),
        (["explicit"], FORCED, "41.5"),
        pytest.param([], {**FORCED, "ALLRANKS_PG_TIMEOUT": "never"}, "1800.0", marks=pytest.mark.slow),
    ],
    ids=["torch's", "default", "the script's wins", "forced", "nonsense"],
)
def test_timeouts_of_groups(words, more, expected, full_socket, tmp_path):
    """A report socket that is full blocks nothing, nor does one that is absent."""
    target = full_socket if words else str(tmp_path / "absent")
    ((code, output),) = finish(start("timeouts", *words, world=1, ALLRANKS_REPORT_SOCKET=target, **more))
    assert (code, output.split("\n")[-2]) == (0, " ".join([expected] * 4)), output


def test_absent_rank_ends_the_collective_by_the_timeout(tmp_path):
    """Torch's default is 30 minutes: that rank 0 ends within the test's bound is the timeout's work."""
    file = str(tmp_path / "error.json")
    ranks = start("absent", ALLRANKS_PG_TIMEOUT="10", TORCHELASTIC_ERROR_FILE=file)
    try:
        assert [rank.stdout.readline() for rank in ranks] == ["imported\n"] * 2
        for rank in ranks:
            rank.stdin.write("go\n")
            rank.stdin.flush()
        assert ranks[0].wait(timeout=BOUND) == 1
        assert ranks[1].poll() is None, "rank 1 only stays away"
    finally:
        results = finish(ranks)
    assert "RuntimeError" in results[0][1] and "stays away" in results[1][1]
    facts = json.loads(Path(file).read_text())["allranks"]
    assert (facts["rank"], facts["type"], facts["function"]) == (0, "RuntimeError", "absent")
    assert "imed out" in facts["text"]


def test_reports(tmp_path):
    path = tmp_path / "reports"
    with reported(path) as said:
        ranks = start("life", ALLRANKS_REPORT_SOCKET=str(path))
        results = finish(ranks)
        assert [code for code, _ in results] == [0, 0], results
    for number, rank in enumerate(ranks):
        own = [report for report in said if report["rank"] == number]
        events = [report["event"] for report in own]
        assert events == ["init-entered", "initialised", "destroyed"], "the end of a subgroup is none"
        assert {(report["pid"], report["world_size"]) for report in own} == {(rank.pid, 2)}
        assert [report["t"] for report in own] == sorted(report["t"] for report in own)


STARTS = {
    "spawn": ("torch.multiprocessing.spawn(work, nprocs=1)", []),
    "Process": ("p = multiprocessing.Process(target=work, args=(0,)); p.start(); p.join()", []),
    "DataLoader": ("list(torch.utils.data.DataLoader(range(4), num_workers=1))", ["never-joined"]),
    "Pool": ("multiprocessing.Pool(1).map(work, [0])", ["never-joined"]),
    "nothing": ("pass", ["never-joined"]),
}


@pytest.mark.parametrize("how", ["spawn", *(pytest.param(how, marks=pytest.mark.slow) for how in [*STARTS][1:])])
def test_who_starts_its_ranks_itself_is_not_said_to_train_alone(tmp_path, how):
    """Processes that run the program's own functions may have a process group; helpers of torch and Python have not."""
    body, expected = STARTS[how]
    script = tmp_path / "train.py"
    script.write_text(
        "import multiprocessing, torch, torch.distributed, torch.multiprocessing\n"
        f"def work(i): pass\nif __name__ == '__main__':\n    {body}\n"
    )
    path = tmp_path / "reports"
    with reported(path) as said:
        environment = {**os.environ, "RANK": "0", "ALLRANKS_REPORT_SOCKET": str(path)}
        subprocess.run([sys.executable, str(RUNNER), str(script)], env=environment, check=True, timeout=BOUND)
    assert [one["event"] for one in said] == expected


WORLD = """import os, sys, time, torch.multiprocessing
from torch.distributed import barrier, init_process_group
def work(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PORT"])
    init_process_group("gloo", rank=rank, world_size=2)
    barrier()
    time.sleep(1)  # the end of one is no failure of the other
if __name__ == "__main__":
    torch.multiprocessing.start_processes(work, nprocs=2, start_method=sys.argv[1])
"""


@pytest.mark.parametrize("method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_processes_of_the_program_say_which_world_they_are_in(tmp_path, method):
    """Each node's may be a world of its own. The rank itself makes none."""
    script = tmp_path / "train.py"
    script.write_text(WORLD)
    path = tmp_path / "reports"
    port = str(free_port())
    with reported(path) as said:
        environment = {**os.environ, "RANK": "5", "PORT": port, "ALLRANKS_REPORT_SOCKET": str(path)}
        subprocess.run([sys.executable, str(RUNNER), str(script), method], env=environment, check=True, timeout=BOUND)
    assert [(one["event"], one["rank"], one["world_size"], one["meets"]) for one in said] == [
        ("below", 5, 2, f"127.0.0.1:{port}")
    ] * 2
    assert {one["place"] for one in said} == {0, 1} and len({one["pid"] for one in said}) == 2


def test_what_fails_in_a_process_of_the_program_shows_no_frame_of_ours(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(WORLD.replace('"gloo"', '"gloo", timeout=1'))
    environment = {**os.environ, "RANK": "0", "PORT": str(free_port()), "ALLRANKS_REPORT_SOCKET": "/nowhere"}
    words = [sys.executable, str(RUNNER), str(script), "spawn"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=BOUND)
    assert done.returncode == 1 and "Expected timeout argument to be of type" in done.stderr
    assert "allranks" not in done.stderr


FEATURES = {"ALLRANKS_REPORT_SOCKET": "/nowhere", "ALLRANKS_PG_TIMEOUT": "9", "ALLRANKS_PG_TIMEOUT_FORCED": "1"}


@pytest.mark.parametrize("word", ["introspect", pytest.param("wrong", marks=pytest.mark.slow)])
def test_wrapped_functions_look_like_torchs_own(word):
    """Names, signatures, sources, pickles, import specs; and no frame of a wrapper in a traceback."""
    plain, through = finish([*start(word, world=1, runner=False), *start(word, world=1, **FEATURES)])
    assert through == plain
