"""Words before a command: variables, programs around it, and what is refused."""

import os
import shlex
import sys
from pathlib import Path

import pytest
from tests import forked

from allranks.errors import UsageError
from allranks.settings import RunSpec
from allranks.settings.frameworks import INNER_PYTHON
from allranks.settings.layers import resolve

INNER = shlex.join(["/bin/sh", "-c", INNER_PYTHON, "sh"])
TORCHRUN = "torchrun --nproc_per_node 2 pg.py"
GROUP = """\
import os
import torch.distributed as dist
dist.init_process_group("gloo")
print(f"RANK {dist.get_rank()} of {dist.get_world_size()} {os.environ.get('INNER', '')}\\n", end="", flush=True)
dist.destroy_process_group()
"""


def resolved(line: str, **options: object) -> tuple[RunSpec, tuple[str, ...]]:
    found = resolve({"command": shlex.split(line), **options}, {}, {}, config_source="allranks.toml")
    return found.spec, found.notes


@pytest.mark.parametrize(
    ("before", "wrap"),
    [
        ("X=1", None),
        ("env X=1", None),
        ("nohup", None),
        ("/usr/bin/time -v", None),
        ("nice -n 5", "nice -n 5"),
        ("numactl --interleave=all -N 0", "numactl --interleave=all -N 0"),
        ("taskset -c 0-3", "taskset -c 0-3"),
        ("timeout -k 5 1h", "timeout -k 5 1h"),
        ("stdbuf -oL", "stdbuf -oL"),
        ("nsys profile -o out --trace=cuda", "nsys profile -o out --trace=cuda"),
        ("uv run --with x", f"uv run --with x {INNER}"),
        ("conda run -n e --no-capture-output", f"conda run -n e --no-capture-output {INNER}"),
        ("poetry run", f"poetry run {INNER}"),
        ("apptainer exec --nv -B /data train.sif", f"apptainer exec --nv -B /data train.sif {INNER}"),
    ],
)
def test_the_launcher_behind_is_seen(before: str, wrap: str | None) -> None:
    spec, _ = resolved(f"{before} {TORCHRUN}")
    assert (spec.launch.launcher, spec.launch.command) == ("torchrun", tuple(TORCHRUN.split()))
    assert spec.launch.wrap == wrap
    assert spec.launch.env == ({"X": "1"} if "X=1" in before else {})


def test_an_interpreter_that_was_asked_for_is_used_inside() -> None:
    assert resolved("conda run -n e torchrun t.py", python="/e/bin/python")[0].launch.wrap == "conda run -n e"
    assert resolved("conda run -n e /e/bin/torchrun t.py")[0].launch.wrap == "conda run -n e"


def test_variables_that_say_who_the_nodes_are_become_the_runs() -> None:
    """LLaMA-Factory's and ms-swift's users write them before the command."""
    line = (
        "FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=3 NODE_RANK=0 RANK=0 MASTER_ADDR=h1 MASTER_PORT=29500 torchrun t.py"
    )
    spec, notes = resolved(line, hosts="h1,h2,h3")
    assert (spec.target.nodes, spec.launch.nproc) == (2, 3)
    assert (spec.rendezvous.master_addr, spec.rendezvous.master_port) == ("h1", 29500)
    assert spec.launch.env == {"FORCE_TORCHRUN": "1"}
    assert any(note.startswith("RANK=0 before the command is left out") for note in notes)


@pytest.mark.parametrize(
    "line", ["wrapped --fast torchrun t.py", "env -i torchrun t.py", "env -u X torchrun t.py", "nohup", "X=1"]
)
def test_what_is_not_understood_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match="hint: "):
        resolved(line)


def test_a_word_that_ends_like_an_option_is_no_program_of_a_launcher() -> None:
    assert resolved("./benchmark torchrun warm-m")[0].launch.launcher == "direct"


def test_python_flags_before_the_module_of_a_launcher_are_kept() -> None:
    spec, _ = resolved("python -u -X faulthandler -m torch.distributed.run --nproc_per_node 2 t.py")
    assert spec.launch.launcher == "torchrun"


def test_a_module_that_uv_starts_is_a_launcher() -> None:
    spec, _ = resolved("uv run --with x -m torch.distributed.run --nproc_per_node 2 pg.py")
    assert (spec.launch.launcher, spec.launch.wrap) == ("torchrun", f"uv run --with x {INNER}")


@pytest.mark.parametrize("line", ["uv run train.py", "srun torchrun --nnodes 2 train.py"])
def test_what_is_no_word_to_wrap_is_started_as_before(line: str) -> None:
    """`uv run train.py` reads what train.py depends on from the file."""
    spec, _ = resolved(line)
    assert (spec.launch.command, spec.launch.wrap) == (tuple(line.split()), None)


@pytest.mark.processes
@pytest.mark.parametrize("before", ["env X=1 nohup numactl -N 0", "uv run"])
def test_two_nodes_are_one_world(tmp_path: Path, before: str) -> None:
    """numactl and uv are stand-ins: they have to be around the launcher, and uv has a python of its own."""
    pytest.importorskip("torch")
    (tmp_path / "pg.py").write_text(GROUP)
    place = tmp_path / "bin"
    (place / "inner").mkdir(parents=True)
    for name, text in {
        "numactl": 'shift 2\nexec "$@"',
        "uv": f'shift\nPATH="{place}/inner:$PATH" exec "$@"',
        "inner/python": f'INNER=inside exec {sys.executable} "$@"',
    }.items():
        (place / name).write_text(f"#!/bin/sh\n{text}\n")
        (place / name).chmod(0o755)
    words = ["run", "--local", "2", *before.split(), "torchrun", "--nproc_per_node", "1", "pg.py"]
    if before == "uv run":  # programs beside the interpreter come first on PATH, and a uv may be there
        words[3] = str(place / "uv")
    done = forked.call(words, cwd=tmp_path, env={**os.environ, "PATH": f"{place}:{os.environ['PATH']}"})
    assert done.returncode == 0, done.stdout + done.stderr
    inner = "inside" if before == "uv run" else ""
    assert all(f"RANK {rank} of 2 {inner}".rstrip() in done.stdout + done.stderr for rank in range(2)), done.stdout
