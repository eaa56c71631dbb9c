"""The Python API as a program uses it: under other launchers' variables, alone, with reasons where it would hang."""

import doctest
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.waiting import BOUND
from tests.ports import free_port

import allranks
from allranks import api, program
from allranks.errors import UsageError
from allranks.protocol.jsontext import read_object

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "train_api.py"
LAUNCHER_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMI_", "MPI_", "SLURM_", "ALLRANKS_", "TORCHEL",
                  "NCCL_", "COLOSSALAI_", "GROUP_", "ROLE_", "NODE_RANK")  # fmt: skip



def environment(**more: str) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_NAMES)}
    return {**own, "OMP_NUM_THREADS": "1", "LC_ALL": "C", "PYTHONPATH": str(ROOT / "src"), **more}


def ended(*variables: dict[str, str]) -> list[tuple[int, str, str]]:
    """Exit code, output and complaints of the example with each of these environments, side by side."""
    processes = [
        subprocess.Popen([sys.executable, str(EXAMPLE), "4"], env=environment(**some), text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for some in variables
    ]  # fmt: skip
    found = [process.communicate(timeout=BOUND) for process in processes]
    return [(process.returncode, out, err) for process, (out, err) in zip(processes, found, strict=True)]


# ---- without torch


def test_import_is_cheap() -> None:
    line = "import sys, allranks as _; print([m for m in sys.modules if m.startswith(('allranks', 'torch', 'typing'))])"
    done = subprocess.run([sys.executable, "-S", "-c", line], env=environment(), capture_output=True, text=True)
    assert done.stdout == "['allranks']\n", done.stderr
    assert {"check", "init_process_group", "launch", "report_step"} <= set(dir(allranks))
    with pytest.raises(AttributeError, match="no attribute 'lunch'"):
        allranks.lunch  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("module", [api, program])
def test_docstrings(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALLRANKS_OUTPUT_DIR", raising=False)
    found = doctest.testmod(module)
    assert found.failed == 0 and found.attempted > 0


SLURM = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1",
         "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_NODEID": "1", "SLURM_STEP_NODELIST": "n[1-2]",
         "SLURM_JOB_ID": "7"}  # fmt: skip


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, (0, 1, 0, 1, "127.0.0.1", 0)),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "h1",
          "MASTER_PORT": "5"},
         (5, 8, 1, 4, "h1", 5)),
        (SLURM, (3, 4, 1, 2, "n1", 20007)),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "x9,3", "SLURM_NODEID": "0"}, (3, 4, 1, 3, "n1", 20007)),
        ({**SLURM, "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "77"}, (3, 4, 1, 2, "10.0.0.9", 77)),
        ({**SLURM, "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "t"}, (0, 2, 0, 1, "t", 29500)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1, 0, 1, "127.0.0.1", 0)),
        ({"WORLD_SIZE": "2"}, (0, 1, 0, 1, "127.0.0.1", 0)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
          "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, (1, 2, 1, 2, "127.0.0.1", 29500)),
        ({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1", "MASTER_ADDR": "a"},
         (1, 4, 0, 1, "a", 29500)),
    ],
)  # fmt: skip
def test_places(variables: dict[str, str], wanted: tuple[Any, ...]) -> None:
    place = program.find_place(variables)
    found = (place.rank, place.world_size, place.local_rank, place.local_world_size, place.address, place.port)
    assert found == wanted


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"RANK": "1"}, "RANK is set and WORLD_SIZE is not"),
        ({"PMI_SIZE": "4"}, "PMI_SIZE is set and PMI_RANK is not"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 with WORLD_SIZE=4: ranks go from 0 to 3"),
        ({"RANK": "one", "WORLD_SIZE": "4"}, "RANK=one: set a whole number"),
        ({"RANK": "1", "WORLD_SIZE": "4"}, "MASTER_ADDR is not set: name the host of rank 0"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, "mpirun -x MASTER_ADDR=HOST"),
        ({"RANK": "1", "WORLD_SIZE": "4", "MASTER_PORT": "99999"}, "MASTER_PORT=99999: set a port from 1 to 65535"),
    ],
)
def test_places_that_cannot_be(variables: dict[str, str], says: str) -> None:
    with pytest.raises(program.StartError, match=says):
        program.find_place(variables)


def test_disagreement_names_both() -> None:
    place = program.find_place({**SLURM, "WORLD_SIZE": "16"})
    assert place.notes == ("WORLD_SIZE=16 is set here, but Slurm started 4 ranks: 4 counts",)
    with pytest.raises(program.StartError, match="NCCL_TIMEOUT=soon: set a duration"):
        program.limit_of(program.GROUP_NAMES, {"NCCL_TIMEOUT": "soon"})


def test_why_a_master_is_not_there() -> None:
    port = free_port()
    assert "no process listens on port" in program.try_master("127.0.0.1", port, 1.0)
    for name in ("no-such-host.invalid", "two..dots", "x" * 64):
        assert f"the name {name} does not resolve here (" in program.try_master(name, port, 1.0)
        assert not program.is_own(name)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert program.try_master("127.0.0.1", server.getsockname()[1], 5.0) == ""


def test_a_master_that_never_comes_is_no_hang(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    why = f"master 127.0.0.1:{port} was not ready within . s: .*no process listens"
    with pytest.raises(program.StartError, match=why):
        program.wait_for_master("127.0.0.1", port, time.monotonic() + 0.7)
    assert capsys.readouterr().out == f"waiting for master 127.0.0.1:{port}\n"


def test_what_is_awaited_is_said_as_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "SAY_EVERY", 0.0)
    with pytest.raises(program.StartError, match=r"the name \{master\} does not resolve"):
        program.wait_for_master("{master}", 5, time.monotonic() + 0.3)
    assert "still waiting for master {master}:5 (0 s): the name {master} does not resolve" in capsys.readouterr().out


def test_steps_become_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "ALLRANKS_OUTPUT_DIR"):
        monkeypatch.delenv(name, raising=False)
    program.report_step(1, 9, note="ä")
    assert capsys.readouterr().out == "step 1/9 note \\xe4\n"
    monkeypatch.setenv("RANK", "3")
    program.report_step(1)
    assert capsys.readouterr().out == "", "one rank speaks"
    monkeypatch.setenv("ALLRANKS_OUTPUT_DIR", str(tmp_path))
    program.report_step(2, 9, loss=0.5)
    (row,) = map(json.loads, (tmp_path / "rank_03_metrics.jsonl").read_text().splitlines())
    assert (row["step"], row["total"], row["loss"]) == (2, 9, 0.5) and row["t"] > 0
    monkeypatch.setenv("ALLRANKS_OUTPUT_DIR", "/nowhere")
    program.report_step(3)


class Scalar:
    """As NumPy's and torch's scalars that are no real numbers: `item` gives a complex number, a date, bytes."""

    def __init__(self, value: object) -> None:
        self.value = value

    def item(self) -> object:
        return self.value

    def __str__(self) -> str:
        return f"scalar {self.value}"


def test_whatever_a_metric_is_the_row_is_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that is NaN is worth a line, and a value of a strange type fails no program."""
    monkeypatch.setenv("ALLRANKS_OUTPUT_DIR", str(tmp_path))
    monkeypatch.setenv("RANK", "0")
    nan = float("nan")
    row = program.report_step(1, loss=nan, low=-float("inf"), tensor=Scalar(nan), phase=Scalar(1j), raw=Scalar(b"x"))
    assert str(row["loss"]) == "nan" and isinstance(row["loss"], float)
    written = read_object((tmp_path / "rank_00_metrics.jsonl").read_bytes())
    del written["t"]
    assert written == {"step": 1, "loss": "nan", "low": "-inf", "tensor": "nan", "phase": "scalar 1j",
                       "raw": "scalar b'x'"}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "options", "says"),
    [(["train.py"], {"nproc": "many"}, "--nproc"), (["train.py"], {"hosts": "/no/such.txt"}, "no such file"),
     (["train.py"], {"json": True}, "command line"), ("train.py", {}, "list of words"),
     (print, {}, r"launch\(print\): a function has no command")],
)  # fmt: skip
def test_calls_with_wrong_words_or_options(command: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        allranks.launch(command, **options)


def test_launch_and_check_give_the_verbs_documents(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, sys; print(os.environ['X'], os.environ['MY_TOKEN']); sys.exit(int(sys.argv[1]))")
    found: list[dict[str, Any]] = []
    more = {"local": 2, "nproc": 1, "runs_dir": tmp_path / "runs", "env": {"X": 1, "MY_TOKEN": "hush"}}
    more["step_pattern"] = "-step ([0-9]+)"  # a value here is never the next option
    thread = threading.Thread(target=lambda: found.append(allranks.launch([str(script), "3"], **more)))
    thread.start()
    thread.join(BOUND)
    (result,) = found
    assert result["exit"] == 1 and result["program_exit"]["code"] == 3
    run = Path(result["directory"])
    assert {**result, "schema": 0} == {**json.loads((run / "result.json").read_text()), "schema": 0}
    # the other rank may be ended before it has said anything
    said = (run / "logs").glob(f"node_0*/rank_{result['program_exit']['rank']:03d}.log")
    assert [log.read_text() for log in said] == ["1 hush\n"] and "hush" not in (run / "run.json").read_text()
    seen = allranks.check(local=2, only="clock", runs_dir=tmp_path / "runs")
    assert seen["ok"] is True and isinstance(seen["findings"], list)


# ---- with torch


@pytest.mark.slow
@pytest.mark.torch
def test_the_example_alone_from_a_single_file(tmp_path: Path) -> None:
    """Where allranks is not installed: two files, and no way to the package."""
    for file in (EXAMPLE, ROOT / "src" / "allranks" / "program.py"):
        shutil.copy(file, tmp_path)
    hidden = "import sys; sys.modules['allranks'] = None; sys.argv[0] = 'train_api.py'; import runpy; "
    hidden += "runpy.run_path('train_api.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", hidden, "4"], env=environment(), cwd=tmp_path, capture_output=True,
                          text=True, timeout=BOUND)  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("rank 0 of 1 (local rank 0) on ") and "backend gloo, device cpu" in first
    assert last.startswith("step 4/4 loss "), done.stdout


@pytest.mark.slow
@pytest.mark.torch
def test_two_ranks_under_the_names_of_mpi() -> None:
    common = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_PORT": str(free_port()),
              "COLOSSALAI_DIST_TIMEOUT": "30m", "NCCL_TIMEOUT": "5m"}  # fmt: skip
    ranks = [{**common, "OMPI_COMM_WORLD_RANK": r, "OMPI_COMM_WORLD_LOCAL_RANK": r} for r in "01"]
    (zero, one) = ended(*ranks)
    assert (zero[0], one[0]) == (0, 0), zero[2] + one[2]
    master = f"master 127.0.0.1:{common['MASTER_PORT']}"
    assert "timeout 1800 s (COLOSSALAI_DIST_TIMEOUT)" in one[1]
    assert one[1].splitlines()[1:] == [f"waiting for {master}", f"{master} is ready for connections",
                                       "initialisation successful"]  # fmt: skip
    assert "step 4/4 loss" in zero[1] and zero[1].isascii()


@pytest.mark.slow
@pytest.mark.torch
def test_who_does_not_come_is_named() -> None:
    """Three ranks are to come: one never does, and one waits for a master that is not there."""
    common = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "COLOSSALAI_MASTER_READY_TIMEOUT": "15"}
    port, other = str(free_port()), str(free_port())
    ranks = [
        {**common, "RANK": r, "LOCAL_RANK": r, "MASTER_PORT": p} for r, p in (("0", port), ("1", port), ("1", other))
    ]
    zero, one, lost = ended(*ranks)
    for code, _, err in (zero, one):
        assert code == 1 and f"1 of 3 ranks did not come to 127.0.0.1:{port} in time: rank 2" in err, err
    assert lost[0] == 1 and f"127.0.0.1:{other} was not ready within 15 s" in lost[2], lost[2]
    assert f"no process listens on port {other}" in lost[2]


@pytest.mark.slow
@pytest.mark.torch
def test_under_torchrun_and_under_allranks(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    command = [*torchrun, str(EXAMPLE), "4"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=BOUND)
    assert done.returncode == 0 and "step 4/4 loss" in done.stdout, done.stderr
    result = allranks.launch([str(EXAMPLE), "4"], local=2, nproc=2, runs_dir=tmp_path, python=sys.executable)
    assert (result["exit"], result["verdict"]) == (0, None)
    assert result["timing"]["first_step"] > 0
    rows = (Path(result["directory"]) / "outputs" / "rank_03_metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [1, 2, 3, 4]
