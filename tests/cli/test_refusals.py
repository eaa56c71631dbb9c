"""Options that would be ignored, and words that would be misread, are refused (exit 2) before anything starts.

Each answer names what was given and what to give instead.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.shell import Answer, Shell

from allranks import exitcodes
from allranks.agent.processes import read_process
from allranks.runs.directory import RunDirectory


def refused(answer: Answer, *says: str) -> None:
    """Exit 2, one sentence, and nothing was started or written."""
    assert answer.code == exitcodes.USAGE, answer
    assert answer.out == ""
    for part in says:
        assert part in answer.err
    assert not Path("runs").exists()


# -- an option without its engine ------------------------------------------------------------------------

# option, value, the engines that it needs (any of them)
OF_ENGINES = [
    ("--gpus", "8", ("--k8s", "--sky")),
    ("--image", "registry/name:tag", ("--k8s", "--sky")),
    ("--kind", "jobset", ("--k8s",)),
    ("--namespace", "team", ("--k8s",)),
    ("--context", "prod", ("--k8s",)),
    ("--shm", "8GB", ("--k8s",)),
    ("--pod", "pod.yaml", ("--k8s",)),
    ("--deadline", "2h", ("--k8s",)),
    ("--infra", "aws/us-east-1", ("--sky",)),
    ("--autostop", "10m", ("--sky",)),
    ("--partition", "gpu", ("--slurm",)),
    ("--sbatch", "--qos=long", ("--slurm",)),
]


@pytest.mark.parametrize("target", [["--local", "1"], ["--hosts", "h1"]], ids=" ".join)
@pytest.mark.parametrize(("option", "value", "engines"), OF_ENGINES, ids=lambda value: str(value))
def test_an_option_without_its_engine(
    shell: Shell, target: list[str], option: str, value: str, engines: tuple[str, ...]
) -> None:
    Path("pod.yaml").write_text("metadata: {}\n")
    refused(shell("run", *target, "--dry-run", option, value, "--", "train.py"), option, *engines)


SIZE = ["--nodes", "2", "--nproc", "1"]
IMAGE = ["--image", "registry/name:tag"]


@pytest.mark.parametrize(
    ("target", "option", "needs"),
    [
        (["run", "--dry-run", "--sky", *SIZE], ["--namespace", "team"], "--k8s"),
        (["run", "--dry-run", "--k8s", *SIZE, *IMAGE], ["--infra", "aws"], "--sky"),
        (["run", "--dry-run", "--k8s", *SIZE, *IMAGE], ["--partition", "gpu"], "--slurm"),
        (["run", "--dry-run", "--slurm", *SIZE], IMAGE, "--k8s"),
        (["render", "torchrun", "--hosts", "h1"], ["--gpus", "8"], "kubernetes"),
        (["render", "torchrun", "--hosts", "h1"], ["--namespace", "team"], "kubernetes"),
        (["render", "accelerate", "--hosts", "h1"], ["--sbatch", "--qos=long"], "slurm"),
        (["render", "slurm", *SIZE], IMAGE, "kubernetes"),
        (["render", "kubernetes", *SIZE, *IMAGE], ["--partition", "gpu"], "slurm"),
        (["render", "kubernetes", *SIZE, *IMAGE], ["--infra", "aws"], "skypilot"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_an_option_of_another_engine(shell: Shell, target: list[str], option: list[str], needs: str) -> None:
    refused(shell(*target, *option, "--", "train.py"), option[0], needs)


@pytest.mark.parametrize("value", ["rsh", "dial:", "dial:0", "dial:70000", "dial:200-100", "ssh:22"])
def test_ways_to_the_nodes(shell: Shell, value: str) -> None:
    refused(shell("run", "--hosts", "h1", "--dry-run", "--reach", value, "--", "train.py"), "--reach", value)


def test_only_hosts_of_a_list_dial_back(shell: Shell) -> None:
    refused(shell("run", "--local", "2", "--dry-run", "--reach", "dial", "--", "train.py"), "--reach dial", "--hosts")
    answer = shell("run", "--hosts", "h1,h2", "--nproc", "1", "--dry-run", "--reach", "dial:29700", "--", "train.py")
    assert "--reach dial:29700: ssh ends once a node has dialled this machine." in answer.out


def test_settings_of_an_engine_may_stand_in_the_file_for_all_targets(shell: Shell) -> None:
    """allranks.toml serves several targets."""
    Path("allranks.toml").write_text('partition = "gpu"\nimage = "registry/name:tag"\n')
    assert shell("run", "--local", "1", "--dry-run", "--", "train.py").code == 0


# -- values that nothing knows -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["full", "sync", "fast"])
def test_a_test_before_the_program_is_quick(shell: Shell, value: str) -> None:
    """`run --test full` ran the tests and left the program out."""
    refused(shell("run", "--local", "1", "--dry-run", "--test", value, "--", "train.py"), "--test", value, "quick")


@pytest.mark.parametrize(
    ("verb", "words", "says"),
    [
        ("run", ["--allow", "nosuch", "--", "train.py"], ["--allow", "nosuch"]),
        ("run", ["--allow", "clock,nosuch", "--", "train.py"], ["--allow", "nosuch"]),
        ("run", ["--allow", "clokc", "--", "train.py"], ["clock"]),
        ("check", ["--allow", "interpeter"], ["interpreter"]),
        ("check", ["--only", "nosuch"], ["--only", "nosuch"]),
        ("test", ["--allow", "nosuch"], ["--allow", "nosuch"]),
        ("test", ["--only", "nosuch"], ["--only", "nosuch"]),
        ("test", ["--only", "all_redcue"], ["all_reduce"]),
        ("test", ["--suite", "pairs", "--only", "barrier"], ["--only", "barrier"]),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_names_of_checks_and_tests(shell: Shell, verb: str, words: list[str], says: list[str]) -> None:
    """Also the name that was meant."""
    refused(shell(verb, "--local", "1", "--dry-run", *words), *says)


def test_an_unknown_test_is_refused_without_a_dry_run_too(shell: Shell) -> None:
    refused(shell("test", "--local", "1", "--only", "nosuch"), "--only", "nosuch")


@pytest.mark.parametrize("label", ["clock", "clock-skew", "world-size-mismatch", "too-many-open-files"])
def test_checks_and_causes_may_be_allowed(shell: Shell, label: str) -> None:
    assert shell("run", "--local", "1", "--dry-run", "--allow", label, "--", "train.py").code == 0


@pytest.mark.parametrize(
    "words",
    [["--hosts", "h1"], ["--local", "1"], ["--nodes", "2"], ["--node-dir", "/scratch"], ["--agent-python", "python3"],
     ["--ssh-option", "Port=22"], ["--master-port", "29500"], ["--keep", "3", "--orphans", "--local", "1"],
     ["--runs-dir", "3", "--orphans", "--local", "1"]],
    ids=" ".join,
)  # fmt: skip
def test_clean_is_of_nodes_or_of_runs(shell: Shell, words: list[str]) -> None:
    """Of nodes, it offered to delete the run directories here."""
    refused(shell("clean", "--dry-run", *words), words[0], "--orphans")


# -- a pasted command with a hole --------------------------------------------------------------------------

# In `torchrun --node-rank $NODE_RANK train.py other.py` with the variable unset, train.py became the rank and
# other.py was trained.
HOLES = [
    ["torchrun", "--node-rank", "train.py", "other.py"],
    ["torchrun", "--rdzv-endpoint", "--nnodes", "2", "train.py"],
    ["torchrun", "--node_rank", "--nproc_per_node", "2", "train.py"],
    ["python", "-m", "torch.distributed.run", "--node-rank", "train.py", "other.py"],
    ["accelerate", "launch", "--machine_rank", "train.py", "other.py"],
    ["accelerate", "launch", "--main_process_ip", "--num_machines", "2", "train.py"],
    ["deepspeed", "--node_rank", "train.py", "other.py"],
    ["colossalai", "run", "--master_addr", "train.py", "other.py"],
]


@pytest.mark.parametrize("command", HOLES, ids=" ".join)
def test_an_option_of_a_launcher_whose_value_was_empty(shell: Shell, command: list[str]) -> None:
    at = next(i for i, word in enumerate(command) if word.startswith("--"))
    refused(shell("run", "--local", "1", "--nproc", "2", "--dry-run", "--", *command), *command[at : at + 2], "empty")


@pytest.mark.parametrize(
    "command",
    [
        ["torchrun", "--node-rank", "0", "train.py"],
        ["torchrun", "--node-rank=0", "--tee", "3", "train.py", "--resume", "other.py"],
        ["torchrun", "--standalone", "train.py", "other.py"],
        ["accelerate", "launch", "--machine_rank", "0", "train.py", "other.py"],
    ],
    ids=" ".join,
)
def test_a_command_without_a_hole(shell: Shell, command: list[str]) -> None:
    answer = shell("run", "--local", "1", "--nproc", "1", "--dry-run", "--json", "--", *command)
    assert answer.code == 0, answer
    assert "train.py" in answer.document["nodes"][0]["ranks"][0]["argv"]


# -- a script that holds a launcher ------------------------------------------------------------------------

LAUNCHING = {
    "torchrun": "torchrun --nproc-per-node 8 train.py",
    "with continued lines": "exec torchrun \\\n  --nproc-per-node 8 \\\n  train.py",
    "python -m": "python3 -m torch.distributed.run --nproc-per-node=8 train.py",
    "accelerate": 'cd "$HERE" && accelerate launch --num_processes 8 train.py',
    "deepspeed": "deepspeed --num_gpus 8 train.py",
    "colossalai": "/opt/env/bin/colossalai run --nproc_per_node 8 train.py",
    "srun": "srun --ntasks-per-node=8 python train.py",
    "mpirun": "mpirun -np 8 python train.py",
}


def script(text: str) -> None:
    Path("run.sh").write_text(f"#!/bin/bash\nset -e\nexport A=1\n{text}\n")
    Path("run.sh").chmod(0o755)


@pytest.mark.parametrize("how", [["./run.sh"], ["bash", "run.sh"], ["sh", "-e", "./run.sh", "--lr", "3"]], ids=" ".join)
@pytest.mark.parametrize("name", LAUNCHING)
def test_a_script_that_starts_ranks_itself(shell: Shell, name: str, how: list[str]) -> None:
    """It was started once a rank: 8 times 8 processes."""
    script(LAUNCHING[name])
    words = ["run", "--local", "1", "--nproc", "8", "--dry-run", "--", *how]
    refused(shell(*words), "run.sh", name if name in LAUNCHING[name] else "torchrun", "--launcher command")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (LAUNCHING["torchrun"], ["--launcher", "command"]),
        ("python train.py", []),
        ("# torchrun --nproc-per-node 8 train.py\npython train.py  # as torchrun would", []),
        ('echo "this is no torchrun script"; exec python train.py', []),
        ("TORCHRUN_LOG=1 python train_with_torchrun_style.py", []),
    ],
)
def test_a_script_that_starts_one_rank(shell: Shell, text: str, options: list[str]) -> None:
    script(text)
    answer = shell("run", "--local", "1", "--nproc", "8", "--dry-run", "--json", *options, "--", "./run.sh")
    assert answer.code == 0, answer


@pytest.mark.parametrize("verb", [["run", "--local", "2"], ["render", "slurm", "--nodes", "2"]])
@pytest.mark.parametrize(
    "command",
    [
        "srun torchrun --nnodes 2 train.py",
        "/usr/bin/srun -N2 python train.py",
        "mpirun -n 4 python train.py",
        "horovodrun -np 4 python train.py",
        "/opt/bin/jsrun train.py",
        "pdsh -w h[1-2] torchrun train.py",
    ],
)
def test_a_schedulers_own_starter_is_refused(verb: list[str], command: str, shell: Shell) -> None:
    """Pasted from a batch script: every rank would start all of it."""
    words = [*verb, "--dry-run"] if verb[0] == "run" else verb
    answer = shell(*words, *command.split())
    name = command.split()[0].rpartition("/")[2]
    assert answer.code == 2
    assert f"{name} starts processes on all nodes itself" in answer.err
    assert f"hint: leave {name} and its options out" in answer.err
    assert shell("run", "--local", "2", "--dry-run", "--launcher", "command", *command.split()).code == 0


@pytest.mark.parametrize("line", ["torchrun --nnodes {}", "accelerate launch --num_processes 4 --num_machines {}"])
def test_one_node_in_a_pasted_command_is_none(line: str, shell: Shell) -> None:
    """The line of one machine becomes the run's. Another number of nodes is a contradiction."""
    codes = [
        shell("run", "--local", "2", "--dry-run", "--nproc", "2", *line.format(nodes).split(), "train.py").code
        for nodes in (1, 2, 3)
    ]
    assert codes == [0, 0, 2]


@pytest.mark.parametrize("command", ["sbatch job.sh", "kubectl apply -f job.yaml", "ray job submit -- torchrun t.py"])
def test_what_submits_a_job_is_refused(command: str, shell: Shell) -> None:
    """Every rank would submit one."""
    answer = shell("run", "--local", "2", "--dry-run", *command.split())
    assert answer.code == 2 and "submits a job, and every rank would submit one" in answer.err
    assert "hint: allranks run --" in answer.err


@pytest.mark.parametrize("how", [["./tool"], ["python3", "tool"], ["tool.py"]], ids=" ".join)
def test_a_program_that_is_no_shell_script_may_speak_of_launchers(shell: Shell, how: list[str]) -> None:
    text = '#!/usr/bin/env python3\n"""Start it so:\n\ntorchrun --nproc-per-node 8 tool.py\n"""\n'
    for name in ("tool", "tool.py"):
        Path(name).write_text(text)
        Path(name).chmod(0o755)
    assert shell("run", "--local", "1", "--nproc", "8", "--dry-run", "--", *how).code == 0


# -- figures that contradict -------------------------------------------------------------------------------

CONTRADICTIONS = [
    (["torchrun", "--nnodes", "8", "train.py"], "--nnodes 8", "2"),
    (["torchrun", "--nproc-per-node", "3", "train.py"], "--nproc_per_node 3", "4"),
    (["torchrun", "--nproc_per_node=3", "train.py"], "--nproc_per_node 3", "4"),
    (["torchrun", "--master-port", "29400", "train.py"], "--master_port 29400", "29500"),
    (["accelerate", "launch", "--num_machines", "8", "train.py"], "--num_machines 8", "2"),
    (["accelerate", "launch", "--num_processes", "4", "train.py"], "--num_processes 4", "8"),
    (["deepspeed", "--num_gpus", "3", "train.py"], "--num_gpus 3", "4"),
    (["deepspeed", "--num_nodes", "8", "train.py"], "--num_nodes 8", "2"),
]


@pytest.mark.parametrize(("command", "figure", "must"), CONTRADICTIONS, ids=lambda value: str(value))
def test_a_dry_run_and_render_refuse_what_run_refuses(shell: Shell, command: list[str], figure: str, must: str) -> None:
    target = ["--hosts", "g1,g2", "--nproc", "4", "--master-port", "29500"]
    refused(shell("render", command[0], *target, "--", *command), figure, must)
    answer = shell("run", *target, "--dry-run", "--", *command)
    assert answer.code in (exitcodes.USAGE, exitcodes.CHECK_FAILED), answer
    assert figure in answer.out + answer.err and must in answer.out + answer.err


@pytest.mark.parametrize(
    "command",
    [["torchrun", "--nnodes", "2", "--nproc-per-node", "4", "train.py"], ["torchrun", "train.py"],
     ["accelerate", "launch", "--num_machines", "2", "--num_processes", "8", "train.py"]],
)  # fmt: skip
def test_figures_that_agree(shell: Shell, command: list[str]) -> None:
    words = ["--hosts", "g1,g2", "--nproc", "4", "--dry-run", "--", *command]
    assert shell("run", *words).code == 0


# -- stop without a name -----------------------------------------------------------------------------------


@pytest.fixture
def controller() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for the controller of an active run."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_stop_ends_a_controller_that_is_stopped(shell: Shell, controller: subprocess.Popen[bytes]) -> None:
    """SIGTERM waited behind SIGSTOP, and `stop` waited for ever."""
    run = RunDirectory.create(Path("runs"), "one", time.time())
    process = read_process(controller.pid)
    assert process is not None
    identity = {"host": os.uname().nodename, "pid": controller.pid, "start_time": process.start}
    run.write_document("run.json", {"run": run.name, "uid": f"{run.name}-1", "spec": {}, "nodes": [], "workdir": "/",
                                    "started": time.time(), "controller": identity})  # fmt: skip
    run.append_line({"t": 1.0, "event": "run-start"})
    controller.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, controller.pid, os.WSTOPPED)
    answer = shell("stop", run.name)
    assert controller.wait(0) == -signal.SIGTERM
    assert "run.json is damaged" in answer.err, "there are no nodes to look at"


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_run_that_cannot_be_stopped_keeps_no_other_from_it(shell: Shell, words: list[str]) -> None:
    """The first that failed ended `stop --all`."""
    runs = [RunDirectory.create(Path("runs"), name, time.time()) for name in ("one", "two")]
    for run in runs:
        record = {"engine": "kubernetes", "name": ["no text"]}
        run.write_document("run.json", {"run": run.name, "started": time.time(), "engine": record})
    answer = shell("stop", "--all", *words)
    assert answer.code == exitcodes.NODE_FAILED
    for run in runs:
        assert f"{run.name} was not stopped: " in answer.err
    if words:
        stopped = json.loads(answer.out)["stopped"]
        assert [(one["run"], one["how"], one["code"]) for one in stopped] == [(run.name, "failed", 4) for run in runs]
        assert all("expected a text" in one["error"] for one in stopped)


@pytest.mark.parametrize("engine", ["--k8s", "--sky"])
def test_an_engine_that_is_asked_for_is_not_the_allocation_that_we_are_in(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """The allocation is what holds without a target: one of its nodes is not the two that were asked for."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    Path("train.py").write_text("")
    words = ["--image", "registry/name:tag", "--nodes", "2", "--nproc", "1", "--dry-run", "train.py"]
    answer = shell("run", engine, *words)
    assert answer.code == exitcodes.DONE, answer.err
    assert "registry/name:tag" in answer.out and "job 7" not in answer.out
