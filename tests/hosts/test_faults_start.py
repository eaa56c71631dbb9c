"""What is missing or wrong on one node is named before any rank starts, and nothing stays behind."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.bed import Bed, Unavailable
from tests.hosts.launching import BOUND, PYTHON, Launch, program
from tests.hosts.waiting import wait_until


def nothing_left(bed: Bed, launch: Launch) -> None:
    """No process of the run, no process at all on the hosts, no node directory."""
    assert launch.alive() == []
    on = [h for h in bed.hosts if h.is_on]
    wait_until(lambda: not any(h.pids() for h in on), BOUND, "hosts without a process of the run")
    uid = json.loads((launch.run_dir / "run.json").read_text())["uid"]
    places = [Path(base, "allranks-0", uid) for base in ("/tmp", "/var/tmp", "/dev/shm")]
    wait_until(lambda: not any(p.exists() for p in places), BOUND, f"no node directory of {uid}")


def refused(bed: Bed, launch: Launch, cause: str, node: str | None, code: int = 3) -> dict[str, Any]:
    """The run ended before any rank: the verdict's cause and node, the exit code. Gives the verdict."""
    result = launch.result()
    verdict: dict[str, Any] = result["verdict"]
    assert (verdict["cause"], verdict["where"].get("node"), result["exit"]) == (cause, node, code), verdict
    assert verdict["remedy"]
    assert launch.events("rank-started") == []
    nothing_left(bed, launch)
    return verdict


def done(bed: Bed, launch: Launch) -> dict[str, Any]:
    """The run succeeded, and nothing is left of it."""
    result = launch.done()
    nothing_left(bed, launch)
    return result


def told(launch: Launch, rank: int) -> dict[str, Any]:
    """What tell.py says that it was given."""
    (line,) = [line for line in launch.log(rank).splitlines() if line.startswith("TOLD ")]
    found: dict[str, Any] = json.loads(line.removeprefix("TOLD "))
    return found


# -- absent on one node ----------------------------------------------------------------------------


def test_script_missing_on_one_node(bed4: Bed, tmp_path: Path) -> None:
    launch = Launch(bed4, tmp_path)
    script = launch.work / "code" / "train.py"
    script.parent.mkdir()
    script.touch()
    bed4.host("h3").mount_empty(script.parent)
    verdict = refused(bed4, launch.start(["code/train.py"]), "remote-path-missing", "h3")
    assert f"h3 has no {script}" in verdict["message"] and "the other 3 have it" in verdict["message"]
    assert f"rsync -a {script} h3:{script}" in verdict["remedy"]


@pytest.mark.parametrize(
    ("option", "cause", "says", "code"),
    [("--python", "remote-path-missing", "h2 has no", 3), ("--agent-python", "environment-mismatch", "tried", 4)],
)
def test_interpreter_missing_on_one_node(
    bed4: Bed, tmp_path: Path, option: str, cause: str, says: str, code: int
) -> None:
    launch = Launch(bed4, tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(PYTHON)
    bed4.host("h2").mount_empty(tmp_path / "env")
    launch.start(program("tell.py"), option, str(python), python=None if option == "--python" else PYTHON)
    verdict = refused(bed4, launch, cause, "h2", code=code)
    assert f"{says} {python}" in verdict["message"]
    assert option in verdict["remedy"]


def test_working_directory_missing_on_one_node(bed4: Bed, tmp_path: Path) -> None:
    launch = Launch(bed4, tmp_path)
    place = tmp_path / "disk" / "project"
    place.mkdir(parents=True)
    bed4.host("h4").mount_empty(tmp_path / "disk")
    launch.start(program("tell.py"), "--workdir", str(place))
    verdict = refused(bed4, launch, "remote-path-missing", "h4")
    assert f"h4 has no directory {place}" in verdict["message"]


def test_output_directory_that_cannot_be_made(bed4: Bed, tmp_path: Path) -> None:
    """A fault at the start of ranks, on one node of four: the others are ended, the node is named."""
    launch = Launch(bed4, tmp_path)
    shared = tmp_path / "shared"
    shared.mkdir()
    bed4.host("h2").mount_empty(shared)
    bed4.host("h2").run(["mount", "-o", "remount,ro", str(shared)])
    launch.start(program("nasty.py"), "--output-dir", str(shared / "out"))
    result = launch.result()
    assert (result["verdict"]["where"]["node"], result["exit"]) == ("h2", 4), result["verdict"]
    assert str(shared / "out") in result["verdict"]["message"]
    assert "Read-only file system" in result["verdict"]["message"]
    nothing_left(bed4, launch)


# -- interpreters ----------------------------------------------------------------------------------


def old_python_first(bed: Bed, name: str) -> None:
    try:
        bed.host(name).python_first("3.6")
    except Unavailable as error:
        pytest.skip(str(error))


def test_python36_first_on_path(bed2: Bed, tmp_path: Path) -> None:
    """The agent takes a newer one from further down the list."""
    old_python_first(bed2, "h1")
    assert bed2.ssh("h1", "python3 --version", check=True).stdout.startswith("Python 3.6")
    launch = Launch(bed2, tmp_path).start(program("tell.py"))
    done(bed2, launch)
    assert told(launch, 0)["env"]["RANK"] == "0"


def test_python36_as_the_training_interpreter(bed2: Bed, tmp_path: Path) -> None:
    old_python_first(bed2, "h2")
    launch = Launch(bed2, tmp_path).start(["python3", *program("tell.py")], python=None)
    verdict = refused(bed2, launch, "environment-mismatch", "h2")
    assert "Python 3.6" in verdict["message"] and "3.8 or newer" in verdict["message"]


# -- prelude, environment, words -------------------------------------------------------------------


def test_prelude_that_fails_on_one_node(bed4: Bed, tmp_path: Path) -> None:
    prelude = '[ "$(hostname)" != h2 ] || { echo "module: cuda/12 not found"; exit 3; }'
    launch = Launch(bed4, tmp_path).start(program("tell.py"), "--prelude", prelude)
    verdict = refused(bed4, launch, "remote-path-missing", "h2")
    assert "prelude ended with code 3" in verdict["message"]
    assert "module: cuda/12 not found" in verdict["message"]


def test_a_prelude_that_fails_everywhere(bed2: Bed, tmp_path: Path) -> None:
    """One sentence names all, with the shell's own words."""
    launch = Launch(bed2, tmp_path).start(program("tell.py"), "--prelude", "export A=1\nsource nofile.sh\nexport B=2")
    verdict = refused(bed2, launch, "remote-path-missing", None)
    assert verdict["message"].startswith("h1 and h2: line 2 of the prelude ended with code 1: source nofile.sh")
    assert "nofile.sh: No such file or directory" in verdict["message"]


def test_functions_that_the_login_shell_exports(bed2: Bed, tmp_path: Path) -> None:
    """`module` is one, and ssh's command is run by a /bin/sh that drops it."""
    for host in bed2.hosts:
        host.set_shell("root", "bash")
        function = 'module() { case $2 in cuda) export CUDA_HOME=/opt/cuda;; *) echo "no $2" >&2; return 1;; esac; }'
        host.write_home("root", ".bashrc", f"{function}\nexport -f module\n")
    launch = Launch(bed2, tmp_path / "one").start(program("tell.py"), "--prelude", "module load cuda")
    done(bed2, launch)
    for rank in (0, 1):
        environment = told(launch, rank)["env"]
        assert environment["CUDA_HOME"] == "/opt/cuda"
        assert environment["BASH_FUNC_module%%"].startswith("() {")
    launch = Launch(bed2, tmp_path / "other").start(program("tell.py"), "--prelude", "module load cudnn")
    verdict = refused(bed2, launch, "remote-path-missing", None)
    assert "line 1 of the prelude ended with code 1: module load cudnn: no cudnn" in verdict["message"]


def test_a_node_without_bash(bed2: Bed, tmp_path: Path) -> None:
    host = bed2.host("h2")
    host.set_shell("root", "dash")
    host.run(["mount", "--bind", "/dev/null", "/usr/bin/bash"])
    try:
        launch = Launch(bed2, tmp_path).start(program("tell.py"), "--prelude", "export A=1")
        verdict = refused(bed2, launch, "remote-path-missing", "h2")
    finally:
        host.run(["umount", "/usr/bin/bash"])
    assert verdict["message"] == "h2: --prelude needs bash, which is not on PATH of this node"


def test_prelude_and_env_reach_the_ranks(bed2: Bed, tmp_path: Path) -> None:
    odd = "two words, 'quotes' \"both\", $HOME ! \\ and\na new line"
    tuned = {"NCCL_IB_HCA": "mlx5", "UCX_TLS": "tcp", "FI_PROVIDER": "efa", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    kept = {"HF_HOME": "/of/this/machine", "LD_LIBRARY_PATH": "/of/this/machine", "WANDB_API_KEY": "abc123"}
    launch = Launch(bed2, tmp_path)
    launch.start(
        program("tell.py"), "--prelude", "export FROM_PRELUDE='a b'; export LATER=prelude",
        "--env", f"GIVEN={odd}", "--env", "FORWARDED", "--env", "LATER=option",
        env={"FORWARDED": odd, "NOT_FORWARDED": "x", **tuned, **kept},
    )  # fmt: skip
    done(bed2, launch)
    for rank in (0, 1):
        environment = told(launch, rank)["env"]
        assert environment["FROM_PRELUDE"] == "a b"
        assert environment["GIVEN"] == environment["FORWARDED"] == odd
        assert environment["LATER"] == "option"
        assert {name: environment[name] for name in tuned} == tuned
        assert not {"NOT_FORWARDED", *kept} & set(environment)


def test_words_and_working_directory_arrive_untouched(bed2: Bed, tmp_path: Path) -> None:
    words = ["two words", "it's", '"both"', "$HOME", "`id`", "!", "a\nb", "", "*", "--json", "--", "-x", "tail\\"]
    launch = Launch(bed2, tmp_path)
    place = tmp_path / "a b 'c' $d"
    place.mkdir()
    launch.start(program("tell.py", *words), "--workdir", str(place))
    done(bed2, launch)
    for rank in (0, 1):
        assert told(launch, rank)["argv"] == words
        assert told(launch, rank)["cwd"] == told(launch, rank)["env"]["PWD"] == str(place)


@pytest.mark.slow
@pytest.mark.torch
def test_torchruns_environment_contract(bed2: Bed, tmp_path: Path) -> None:
    """Every variable that torchrun gives a worker is there, and means the same."""
    torchrun = subprocess.Popen(
        [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *program("tell.py")],
        env={"PATH": os.environ["PATH"], "HOME": "/root"}, cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    launch = Launch(bed2, tmp_path).start(program("tell.py"), "--retries", "3", nproc=2)
    done(bed2, launch)
    output, _ = torchrun.communicate(timeout=BOUND)
    words = output[output.index("TOLD ") + len("TOLD ") :]  # both ranks write to one pipe, lines may run together
    theirs = json.JSONDecoder().raw_decode(words)[0]["env"]
    base = {"PATH", "HOME", "LC_CTYPE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}  # the last: the agent's own setting
    (proved,) = launch.events("gate-proved")
    for rank in range(4):
        ours = told(launch, rank)["env"]
        assert set(theirs) - base <= set(ours)
        expected = {
            "RANK": rank, "LOCAL_RANK": rank % 2, "GROUP_RANK": rank // 2, "ROLE_RANK": rank, "ROLE_NAME": "default",
            "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "GROUP_WORLD_SIZE": 2, "ROLE_WORLD_SIZE": 4, "NODE_RANK": rank // 2,
            "MASTER_ADDR": proved["address"], "MASTER_PORT": proved["port"], "OMP_NUM_THREADS": 1,
            "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 3, "TORCHELASTIC_USE_AGENT_STORE": False,
            "TORCHELASTIC_RUN_ID": launch.run_dir.name, "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1,
        }  # fmt: skip
        assert {k: ours[k] for k in expected} == {k: str(v) for k, v in expected.items()}
        assert set(theirs) - base - set(expected) == {"TORCHELASTIC_ERROR_FILE"}
        assert ours["TORCHELASTIC_ERROR_FILE"].startswith("/tmp/allranks-0/")


def test_what_the_node_sets_is_not_overridden_by_defaults(bed2: Bed, tmp_path: Path) -> None:
    names = {"OMP_NUM_THREADS": "7", "NCCL_DEBUG": "INFO", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    prelude = "; ".join(f"export {k}={v}" for k, v in names.items())
    launch = Launch(bed2, tmp_path).start(
        program("tell.py"), "--prelude", prelude, nproc=2, env={"OMP_NUM_THREADS": "5"}
    )
    done(bed2, launch)
    environment = told(launch, 3)["env"]
    # what the caller set is forwarded, and that is an order
    assert {k: environment[k] for k in names} == {**names, "OMP_NUM_THREADS": "5"}


def test_unequal_slots_and_a_contradicting_world_size(bed2: Bed, tmp_path: Path) -> None:
    """The plan holds, and what contradicts it is said with both numbers."""
    hostfile = tmp_path / "hosts.txt"
    hostfile.write_text("h1 slots=1\nh2 slots=3\n")
    launch = Launch(bed2, tmp_path).start(program("tell.py"), hosts=str(hostfile), nproc=None, env={"WORLD_SIZE": "16"})
    result = done(bed2, launch)
    assert [told(launch, r)["env"]["LOCAL_WORLD_SIZE"] for r in range(4)] == ["1", "3", "3", "3"]
    assert [told(launch, r)["env"]["WORLD_SIZE"] for r in range(4)] == ["4"] * 4
    (finding, apart) = [f for f in result["findings"] if f["id"] == "world-size-mismatch"]
    assert finding["status"] == "warn"
    assert "WORLD_SIZE=16" in finding["message"] and "4 ranks (h1 1, h2 3)" in finding["message"]
    assert "no process group of torch was seen" in apart["message"]
