"""Worlds that another launcher makes below the ranks are seen in /proc."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.hosts.waiting import wait_until

from allranks.agent.processes import command_line
from allranks.agent.worlds import Worlds, starts_others
from allranks.protocol.foreign import ReportMessage
from allranks.protocol.messages import WorldMessage

GIVEN = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
OWN = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501", "TORCHELASTIC_RUN_ID": "x"}
NODE_DIR = "/tmp/allranks-0/run/node_00"
SLEEP = [sys.executable, "-c", "import time; time.sleep(120)"]


@contextmanager
def started(*environments: dict[str, str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A process with each of these environments, until the end of the block."""
    processes = [subprocess.Popen(SLEEP, env={**os.environ, **variables}) for variables in environments]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def look_until(worlds: Worlds, told: list[WorldMessage], here: int) -> WorldMessage:
    """Look until so many ranks were seen: between fork and exec a process has its parent's environment."""

    def were_seen() -> bool:
        worlds.look(running=True)
        return any(message.here == here for message in told)

    wait_until(were_seen)
    return told[-1]


def test_a_world_of_its_own_and_one_that_is_inherited() -> None:
    told: list[WorldMessage] = []
    worlds = Worlds(3, told.append, NODE_DIR)
    worlds.given(GIVEN)
    with started(GIVEN, {**OWN, "RANK": "0", "WORLD_SIZE": "2"}, {**OWN, "RANK": "1", "WORLD_SIZE": "2"}):
        assert look_until(worlds, told, here=2) == WorldMessage(3, 0, 2, 2, lives=True, is_all=True)
        assert {message.size for message in told} == {2}, "what was given to the ranks is no world of its own"
    worlds.look(running=True)
    assert told[-1] == WorldMessage(3, 0, 2, 2, lives=False, is_all=True)
    assert worlds.told() == (told[-1],), "a controller that comes later is told again"


JOINS = """import os, socket, time
with socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"]))):
    time.sleep(120)
"""


def pids(worlds: Worlds) -> dict[int, int]:
    """The programs that are looked at in the place of what has started them, by rank."""
    return {rank: process.pid for rank, process in worlds.programs().items()}


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        (["bash", "-c", "sleep 120; true"], True),
        (["bin/torchrun"], True),
        (["train.py"], False),
    ],
)
def test_a_program_stands_for_itself_unless_it_only_starts_others(
    tmp_path: Path, words: list[str], starts: bool
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("train.py", "bin/torchrun"):
        (tmp_path / name).write_text("import time; time.sleep(120)")
    command = words if words[0] == "bash" else [sys.executable, *words]
    process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
    try:
        wait_until(lambda: command_line(process.pid)[1:2] == command[1:2])
        assert starts_others(process.pid) is starts
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_program_of_a_script_that_is_connected_to_the_master(tmp_path: Path) -> None:
    """Neither a launcher, whose ranks make the world, nor what the runner reports."""
    told: list[WorldMessage] = []
    worlds = Worlds(3, told.append, str(tmp_path / "node"))
    programs = [tmp_path / "bin" / "torchrun", tmp_path / "node" / "runner.py", tmp_path / "train.py"]
    processes = []
    with socket.create_server(("127.0.0.1", 0)) as master:
        try:
            for rank, program in enumerate(programs):
                program.parent.mkdir(exist_ok=True)
                program.write_text(JOINS)
                given = {**GIVEN, "RANK": str(rank), "MASTER_PORT": str(master.getsockname()[1])}
                worlds.given(given)
                processes.append(subprocess.Popen([sys.executable, str(program)], env={**os.environ, **given}))
                master.accept()[0].detach()
            assert look_until(worlds, told, here=1) == WorldMessage(3, 0, 4, 1, lives=True)
            worlds.look(running=True)
            assert len(told) == 1
            younger = subprocess.Popen([sys.executable, str(programs[-1])], env={**os.environ, **given})
            processes.append(younger)
            worlds.look(running=True)
            assert pids(worlds) == {2: processes[2].pid}
            processes[2].kill()
            processes[2].wait()
            wait_until(lambda: worlds.look(running=True) or pids(worlds) == {2: younger.pid})
        finally:
            for process in processes:
                process.kill()
                process.wait()


def test_the_file_to_which_a_program_of_a_script_writes(tmp_path: Path) -> None:
    """Not a file of the same name that is another: in a container it may be."""
    worlds = Worlds(3, lambda message: None, str(tmp_path / "node"))
    program = tmp_path / "train.py"
    program.write_text("import time; time.sleep(600)")
    processes = []
    logs = [tmp_path / f"{rank}.log" for rank in range(3)]
    try:
        for rank, log in enumerate(logs):
            log.write_text("of the run before\n")
            given = {**GIVEN, "RANK": str(rank)}
            worlds.given(given)
            output = log.open("a") if rank else subprocess.DEVNULL
            command = [sys.executable, str(program)]
            processes.append(subprocess.Popen(command, env={**os.environ, **given}, stdout=output, stderr=output))
        logs[2].unlink()
        logs[2].write_text("another file\n")
        wait_until(lambda: worlds.look(running=True) or len(pids(worlds)) == 3)
        worlds.look(running=True)
        written = [worlds.written([rank], is_alone=False) for rank in range(3)]
        assert written == [None, (str(logs[1]), len("of the run before\n")), None]
        assert worlds.written([7], is_alone=True) == written[1] and worlds.written([7], is_alone=False) is None
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_the_file_of_errors_counts_from_where_it_stood_when_it_was_first_seen(tmp_path: Path) -> None:
    """Each look began anew where standard output had another file."""
    worlds = Worlds(3, lambda message: None, str(tmp_path / "node"))
    program = tmp_path / "train.py"
    program.write_text("import time; time.sleep(600)")
    worlds.given(GIVEN)
    output, errors = (tmp_path / "out.log").open("a"), (tmp_path / "err.log").open("a")
    command = [sys.executable, str(program)]
    process = subprocess.Popen(command, env={**os.environ, **GIVEN}, stdout=output, stderr=errors)
    try:
        wait_until(lambda: worlds.look(running=True) or pids(worlds))
        for file in (output, errors):
            print("Traceback", file=file, flush=True)
        for _ in range(4):
            worlds.look(running=True)
        assert worlds.written([int(GIVEN["RANK"])], is_alone=False) == (errors.name, 0)
    finally:
        process.kill()
        process.wait()


def test_a_world_of_processes_that_the_program_has_started() -> None:
    told: list[WorldMessage] = []
    worlds = Worlds(3, told.append, NODE_DIR)
    with started({}) as (process,):
        said = ReportMessage("below", 0, pid=process.pid, world_size=2, place=1, meets="localhost:29500")
        worlds.heard(said)
        worlds.heard(said._replace(place=0))
        worlds.heard(said._replace(place=7))
        world = WorldMessage(3, 0, 2, 2, lives=True, is_own=True)
        assert told == [world._replace(here=1), world], "there is no rank 7 of 2"
        worlds.heard(said._replace(meets="localhost:29501"))
        assert told[-1] == world._replace(number=1, here=1), "it meets elsewhere"
    worlds.look(running=True)
    assert [world.lives for world in worlds.told()] == [False, False]


def test_nothing_is_read_once_the_run_has_its_own_world() -> None:
    told: list[WorldMessage] = []
    worlds = Worlds(0, told.append, NODE_DIR)
    worlds.settle(4, ranks=2)
    with started({**OWN, "RANK": "0", "WORLD_SIZE": "1"}):
        for _ in range(3):
            time.sleep(0.1)
            worlds.look(running=True)
    assert told == []


RANK = "sh rank.sh"


@pytest.mark.parametrize(
    ("script", "is_all"),
    [
        (f"export A=1\n# python prepare.py\n{RANK}\necho done\n", True),
        (f"bash -c '{RANK}; true'\n", True),
        (f"{RANK}\npython train.py\n", False),
        (f"{RANK}\nsrun \\\n  program\n", False),
        (f"bash -c '{RANK} && python train.py'\n", False),
        ("sh ./inner.sh\n", False),
    ],
)
def test_a_script_with_another_command_may_train_later(tmp_path: Path, script: str, is_all: bool) -> None:
    (tmp_path / "run.sh").write_text(script)
    (tmp_path / "inner.sh").write_text(f"{RANK}\n./train.sh\n")
    assert seen(["bash", "run.sh"], tmp_path).is_all is is_all


@pytest.mark.parametrize(
    ("place", "is_all"), [("bin/torchrun", True), ("torch/__main__.py", True), ("launch.py", False), ("-c", False)]
)
def test_a_program_of_pythons_may_train_later_unless_it_is_a_launcher(tmp_path: Path, place: str, is_all: bool) -> None:
    text = f"import subprocess; subprocess.run({RANK.split()})"
    words = [sys.executable, place]
    if place == "-c":
        words.append(text)
    else:
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(text)
    if place.startswith("torch/"):
        (tmp_path / "torch" / "__init__.py").touch()
        words[1:] = ["-u", "-m", "torch"]
    assert seen(words, tmp_path).is_all is is_all


def seen(words: list[str], cwd: Path) -> WorldMessage:
    """Look at the world of one rank that a command makes."""
    (cwd / "rank.sh").write_text("RANK=0 WORLD_SIZE=1 MASTER_PORT=29501 exec sleep 120\n")
    told: list[WorldMessage] = []
    process = subprocess.Popen(words, cwd=cwd, start_new_session=True)
    try:
        return look_until(Worlds(0, told.append, NODE_DIR), told, here=1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
