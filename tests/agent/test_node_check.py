"""The facts of this very machine against what its own tools say, here and under Python 3.8."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.interpreters import OLDEST

from allranks.agent import gpufacts, netfacts, portowner
from allranks.agent import node_check as facts
from allranks.agent.bounded_commands import run_command
from allranks.agent.portowner import who_holds
from allranks.agent.processes import user_name
from allranks.gang.places import RunContext, setup_order
from allranks.protocol.codec import decode, encode
from allranks.protocol.command_words import read_command
from allranks.protocol.facts import LoginFacts
from allranks.protocol.orders import SetupOrder
from allranks.settings import RunSpec

PARTS = {
    "hostname", "own_name", "interfaces", "interpreter", "workdir", "script", "shm", "disk", "gpus", "nccl",
    "logind", "identity", "scheduler", "cpu", "mem", "data",
}  # fmt: skip


def collected(order: dict[str, Any]) -> dict[str, Any]:
    """The facts that an order asks for, in this process's environment where it names none."""
    return facts.collect(decode(SetupOrder, {"environ": dict(os.environ), **order}))


def asked(*arguments: Any, **more: Any) -> dict[str, Any]:
    """What an interpreter says of itself, without what it does not say."""
    return dict(encode(facts.ask(*arguments, **more)))


def put(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def said_by_ip() -> list[dict[str, Any]]:
    return list(json.loads(subprocess.check_output(["ip", "-j", "addr"])))


@pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2")
def test_interfaces_are_those_of_ip() -> None:
    for _ in range(5):  # other tests make and remove interfaces meanwhile
        before, found, after = said_by_ip(), encode(netfacts.interfaces()), said_by_ip()
        if before == after:
            break
    for mine, theirs in zip(found, before, strict=True):
        flags = theirs["flags"]
        expected = (theirs["ifname"], "UP" in flags, "LOOPBACK" in flags)
        assert (mine["name"], mine["up"], mine["loopback"]) == expected
        assert {(a["address"], a["prefix"], a["scope"]) for a in mine["addresses"]} == {
            (a["local"], a["prefixlen"], a["scope"].replace("site", "global")) for a in theirs["addr_info"]
        }


def test_own_name() -> None:
    assert encode(netfacts.resolve("localhost"))["addresses"][0] in ("127.0.0.1", "::1")
    for unknown in ("no-such-host.invalid", "x" * 300, "ä" * 300, "münchen.invalid"):
        assert "error" in encode(netfacts.resolve(unknown))


# -- collect ---------------------------------------------------------------------------------------


def test_collect_has_every_part_and_is_json(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    request = {
        "workdir": str(tmp_path), "command": ["train.py", "--lr", "1"], "python": sys.executable,
        "environ": {"PATH": os.environ["PATH"], "NCCL_DEBUG": "INFO", "HOME": "/"}, "data_paths": ["/nowhere"],
    }  # fmt: skip
    found = json.loads(json.dumps(collected(request)))
    assert set(found) == PARTS
    assert [k for k, v in found.items() if isinstance(v, dict) and "error" in v] == []
    assert found["workdir"] == {"path": str(tmp_path), "exists": True, "cwd_ok": True}
    assert found["script"]["exists"] and found["script"]["kind"] == "python-script"
    assert found["interpreter"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert found["interpreter"]["how"] == f"--python: {sys.executable}"
    assert found["nccl"]["environ"] == {"NCCL_DEBUG": "INFO"}
    assert found["data"] == [{"path": "/nowhere", "exists": False, "readable": False}]
    assert found["identity"]["uid"] == os.getuid()
    assert found["mem"]["total"] > 0


def test_a_part_that_raises_or_hangs_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail() -> None:
        raise ZeroDivisionError("x")

    monkeypatch.setattr(facts, "_memory", fail)
    monkeypatch.setattr(facts, "FILE_SECONDS", 0.1)
    monkeypatch.setattr(facts, "_workdir", lambda _: time.sleep(30))
    begun = time.monotonic()
    found = collected({"workdir": str(tmp_path), "command": ["true"]})
    assert time.monotonic() - begun < 10
    assert found["mem"] == {"error": "ZeroDivisionError: x"}
    assert found["workdir"] == {"error": "no answer within 0.1 s"}
    assert found["script"]["exists"]


def test_parts_are_collected_where_no_thread_may_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    assert collected({"workdir": str(tmp_path), "command": ["true"]})["workdir"]["exists"]


def test_a_namespace_that_cannot_be_seen_takes_nothing_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.stat

    def stat(path: Any, **options: Any) -> os.stat_result:
        return real("/no/such" if path == "/proc/self/ns/pid" else path, **options)

    monkeypatch.setattr(os, "stat", stat)
    identity = facts._identity()  # noqa: SLF001 - no machine of the tests is without it
    assert (identity.pidns, identity.uid) == (None, os.getuid()) and identity.netns


def test_nonsense_requests_do_not_raise() -> None:
    for request in ({}, {"command": []}, {"workdir": "/no/such"}, {"python": "/no/such"}, {"environ": {"PATH": ""}}):
        assert set(collected(request)) == PARTS


# -- the program and its interpreter ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["train.py", "-m"], ("python-script", None, "train.py")),
        (["-m", "pkg.train", "x"], ("python-module", None, "pkg.train")),
        (["python", "-u", "-W", "ignore", "train.py"], ("python-script", "python", "train.py")),
        (["/opt/bin/python3.11", "-X", "dev", "-m", "pkg"], ("python-module", "/opt/bin/python3.11", "pkg")),
        (["python3", "-c", "print(1)"], ("python-other", "python3", None)),
        (["./train.sh"], ("program", None, "./train.sh")),
        (["pythonic", "x.py"], ("program", None, "pythonic")),
        ([], ("program", None, None)),
    ],
)
def test_words_of_the_command(command: list[str], expected: tuple[str, str | None, str | None]) -> None:
    words = read_command(command)
    assert (words.kind, words.python, words.target) == expected


def test_rule_of_the_interpreter(tmp_path: Path) -> None:
    for name in ("opt/py", "venv/bin/python", "conda/bin/python", "own/bin/python", "bin/python3", "bin/python3.12"):
        put(tmp_path, name, "#!/bin/sh\n")
    environ = {"PATH": str(tmp_path / "bin")}
    request: dict[str, Any] = {"virtual_env": str(tmp_path / "venv"), "conda_prefix": str(tmp_path / "conda")}

    def chosen(command: list[str], **more: Any) -> tuple[str, str]:
        order = decode(SetupOrder, {**request, **more})
        path, how = facts.choose_interpreter(order, read_command(command), str(tmp_path), environ)
        return str(path).replace(str(tmp_path) + "/", ""), how.partition(":")[0]

    assert chosen(["python3.12", "x.py"], python="opt/py") == ("opt/py", "--python")
    assert chosen(["python3.12", "x.py"]) == ("bin/python3.12", "the command")
    assert chosen(["x.py"]) == ("venv/bin/python", "VIRTUAL_ENV")
    assert chosen(["x.py"], virtual_env="/not/here") == ("conda/bin/python", "CONDA_PREFIX")
    own = {"own_environment": str(tmp_path / "own")}
    assert chosen(["x.py"], **own) == ("venv/bin/python", "VIRTUAL_ENV")
    assert chosen(["x.py"], **own, virtual_env=None) == ("conda/bin/python", "CONDA_PREFIX")
    lost = {"virtual_env": None, "conda_prefix": "/not/here"}
    assert chosen(["x.py"], **own, **lost) == ("own/bin/python", "the environment of allranks")
    assert chosen(["x.py"], virtual_env=None, conda_prefix=None) == ("bin/python3", "python3 on PATH")
    assert chosen(["python3.9", "x.py"]) == ("None", "the command")
    assert chosen(["python3", "x.py"]) == ("bin/python3", "the command")
    assert chosen(["python", "x.py"]) == ("venv/bin/python", "VIRTUAL_ENV")
    assert chosen(["python", "x.py"], virtual_env=None, conda_prefix=None) == ("None", "the command")


@pytest.mark.parametrize("python", [sys.executable, OLDEST])
def test_modules_that_an_interpreter_lacks(tmp_path: Path, python: str | None) -> None:
    """`python -m` looks into the working directory first; nothing is imported."""
    if python is None:
        pytest.skip("no Python 3.8 here")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "__init__.py").write_text("raise SystemExit(9)\n")
    names = ["json", "ours", "nosuch_launcher", "nosuch_module"]
    found = asked(python, str(tmp_path), dict(os.environ), names)
    assert found["lacks"] == ["nosuch_launcher", "nosuch_module"]
    assert "lacks" not in asked(python, str(tmp_path), dict(os.environ), ["json", "ours"])


def test_an_interpreter_that_is_missing_or_not_needed(tmp_path: Path) -> None:
    found = collected({"workdir": str(tmp_path), "command": ["x.py"], "python": "/opt/none"})["interpreter"]
    assert found["missing"] and found["error"] and found["how"] == "--python: /opt/none"
    found = collected({"workdir": str(tmp_path), "command": ["sleep", "1"]})
    assert found["interpreter"]["skipped"] and found["script"]["path"] == shutil.which("sleep")


def test_interpreters_that_fail_hang_or_talk(tmp_path: Path) -> None:
    broken = put(tmp_path, "broken", "#!/bin/sh\necho no libpython >&2\nexit 127\n")
    assert asked(str(broken), "/", {}) == {"error": "ended with code 127: no libpython"}
    hangs = put(tmp_path, "hangs", "#!/bin/sh\nsleep 60 & wait\n")
    begun = time.monotonic()
    assert asked(str(hangs), "/", dict(os.environ), seconds=0.3) == {"error": "did not answer within 0.3 s"}
    assert time.monotonic() - begun < 10
    talks = put(tmp_path, "talks", f'#!/bin/sh\necho banner\nexec {sys.executable} "$@"\n')
    assert asked(str(talks), "/", {})["version"].startswith("3.")
    assert "error" in asked(str(tmp_path), "/", {})


def test_torch_is_read_and_not_imported(tmp_path: Path) -> None:
    """A module of the working directory is neither imported nor taken for torch."""
    text = "__version__ = '2.13.0+cu128'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
    put(tmp_path, "site/torch/version.py", text)
    put(tmp_path, "site/torch/__init__.py", "raise SystemExit('imported')")
    for name in ("torch", "re", "os"):
        put(tmp_path, f"work/{name}.py", "raise SystemExit('imported')")
    found = asked(sys.executable, str(tmp_path / "work"), {"PYTHONPATH": str(tmp_path / "site")})
    assert (found["torch"], found["cuda"]) == ("2.13.0+cu128", "12.8") and "hip" not in found


def test_of_a_command_without_end_a_part_is_kept() -> None:
    ended = run_command(["sh", "-c", "echo why >&2; exec yes"], 0.5, 1000)
    assert (ended.code, ended.out, ended.err) == (None, "y\n" * 500, "why\n")
    ended = run_command(["sh", "-c", "cat; echo words; exec >&- 2>&-; sleep 0.2; exit 7"], 60, 1000)
    assert (ended.code, ended.out, ended.err) == (7, "words\n", "")


@pytest.mark.parametrize("version", ["2.7.18", "3.6.15", "3.7.16"])
def test_old_interpreters_answer(version: str) -> None:
    path = f"/root/.pyenv/versions/{version}/bin/python"
    if not Path(path).exists():
        pytest.skip(f"no Python {version} here")
    assert asked(path, "/", {}) == {"version": version}


def test_files_of_the_user(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"]}
    script = read_command(["sub/train.py"])
    assert not encode(facts.find_target(script, str(tmp_path), environ))["exists"]
    put(tmp_path, "sub/train.py", "")
    assert encode(facts.find_target(script, str(tmp_path), environ))["exists"]
    misspelt = facts.find_target(read_command(["sub/trian.py"]), str(tmp_path), environ)
    assert (misspelt.exists, misspelt.beside) == (False, ("train.py",))
    program = encode(facts.find_target(read_command(["no-such-program"]), str(tmp_path), environ))
    assert program == {"kind": "program", "name": "no-such-program", "path": "no-such-program", "exists": False}
    put(tmp_path, "run.sh", "").chmod(0o644)
    for word in ("run.sh", "./run.sh"):
        program = encode(facts.find_target(read_command([word]), str(tmp_path), environ))
        assert program == {"kind": "program", "name": word, "path": word, "exists": False, "beside": ["run.sh"]}
    module = encode(facts.find_target(read_command(["-m", "pkg"]), str(tmp_path), environ))
    assert module == {"kind": "python-module"}


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("torchrun --no-python python3 train.py", "python3"),
        ("torchrun --no-python python3 -c pass", "python3"),
        ("accelerate launch --no_python python3 -m http.server", "python3"),
        ("/opt/env/bin/torchrun --no-python sh train.sh", "sh"),
    ],
)
def test_the_program_of_another_launcher_is_its_first_word(command: str, program: str, tmp_path: Path) -> None:
    """Python too, where the launcher is told that it starts a program."""
    words = tuple(command.split())
    launcher = os.path.basename(words[0])
    spec = RunSpec.of(command=words, launcher=launcher)
    order = setup_order(spec, RunContext("run-1", "uid-1", "token", str(tmp_path), str(tmp_path)))
    environ = {"PATH": os.environ["PATH"]}
    described = facts.find_target(read_command(order.command, order.kind), str(tmp_path), environ)
    assert (described.kind, described.name, described.exists) == ("program", program, True)
    assert order.launcher_python == ("/opt/env/bin/python" if "/" in words[0] else None)


def test_disk_names_the_first_base_that_can_be_written(tmp_path: Path) -> None:
    disk = encode(facts.disk_facts(["/proc/none", str(tmp_path), "/tmp"]))
    assert disk["node_dir"]["path"] == str(tmp_path) and disk["node_dir"]["bytes"] > 0
    assert disk["node_dirs"][0]["writable"] is False


def test_nccl_files_and_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = put(tmp_path, "my.conf", "NCCL_DEBUG=INFO\n" + "x" * 10000)
    put(tmp_path, "lib/libnccl-net-ofi.so.1", "")
    put(tmp_path, "lib/libnccl.so.2", "")
    environ = {"NCCL_CONF_FILE": str(conf), "LD_LIBRARY_PATH": f"{tmp_path}/none::{tmp_path}/lib"}
    found = encode(facts.nccl_facts(environ))
    assert found["conf"][str(conf)].startswith("NCCL_DEBUG=INFO\n") and len(found["conf"][str(conf)]) == 4096
    assert "libnccl-net-ofi.so.1" in found["plugins"] and "libnccl.so.2" not in found["plugins"]
    monkeypatch.setattr(facts, "_home", lambda: str(tmp_path))
    put(tmp_path, ".nccl.conf", "NCCL_SOCKET_IFNAME=eth1\n")
    assert encode(facts.nccl_facts({}))["conf"] == {str(tmp_path / ".nccl.conf"): "NCCL_SOCKET_IFNAME=eth1\n"}


def test_logind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "user_name", lambda _: "ann")
    root = str(tmp_path)
    assert encode(facts.logind(root)) is None
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    usual = encode(facts.logind(root))
    assert usual is not None and not usual["KillUserProcesses"]
    put(tmp_path, "etc/systemd/logind.conf", "[Login]\n#KillUserProcesses=yes\n")
    assert encode(facts.logind(root))["KillUserProcesses"]
    put(tmp_path, "usr/lib/systemd/logind.conf.d/50.conf", "[Login]\nKillUserProcesses=no\n")
    put(tmp_path, "proc/self/cgroup", "0::/user.slice/user-1000.slice/session-4.scope\n")
    assert facts.logind(root) == LoginFacts(False, in_session=True)
    put(tmp_path, "etc/systemd/logind.conf.d/50.conf", "KillUserProcesses=yes\nKillExcludeUsers=root ann\n")
    assert not encode(facts.logind(root))["KillUserProcesses"]


# -- GPUs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0,1", ["0", "1"]), ("3", ["3"]), ("", []), ("-1", []), ("0,-1,1", ["0"]), ("0,9,1", ["0"]),
        ("NoDevFiles", []),
        ("GPU-8a, GPU-9b", ["GPU-8a", "GPU-9b"]), ("MIG-1", ["MIG-1"]), ("1,0", ["1", "0"]),
    ],
)  # fmt: skip
def test_visible_devices(value: str, expected: list[str]) -> None:
    assert gpufacts.visible(value, 4) == expected


def test_nvidia(tmp_path: Path) -> None:
    root = str(tmp_path)
    (tmp_path / "dev").mkdir()
    assert encode(gpufacts.gpus({}, root))["count"] == 0
    for name in ("nvidia0", "nvidia3", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    found = encode(gpufacts.gpus({}, root))
    assert (found["count"], found["source"], found["vendor"], found["mig"]) == (3, "/dev/nvidia*", "nvidia", False)
    assert encode(gpufacts.gpus({"CUDA_VISIBLE_DEVICES": "1"}, root))["source"] == "CUDA_VISIBLE_DEVICES=1"
    assert encode(gpufacts.gpus({"CUDA_VISIBLE_DEVICES": ""}, root))["count"] == 0
    assert encode(gpufacts.gpus({"CUDA_VISIBLE_DEVICES": "MIG-4"}, root))["mig"]
    (tmp_path / "proc/driver/nvidia/capabilities/gpu0/mig/gi1").mkdir(parents=True)
    assert encode(gpufacts.gpus({}, root))["mig"]


def test_amd(tmp_path: Path) -> None:
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for number, simds, minor in ((0, 0, 0), (1, 304, 128), (2, 304, 129), (3, 304, 130)):
        put(nodes, f"{number}/properties", f"simd_count {simds}\ndrm_render_minor {minor}\n")
    root = str(tmp_path)
    put(tmp_path, "dev/dri/renderD128", "")
    put(tmp_path, "dev/dri/renderD129", "")
    assert encode(gpufacts.gpus({}, root))["count"] == 0  # no /dev/kfd
    put(tmp_path, "dev/kfd", "")
    assert (encode(gpufacts.gpus({}, root))["count"], encode(gpufacts.gpus({}, root))["vendor"]) == (2, "amd")
    both = {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}
    assert encode(gpufacts.gpus(both, root))["count"] == 1
    assert encode(gpufacts.gpus({"HIP_VISIBLE_DEVICES": "1"}, root))["source"] == "HIP_VISIBLE_DEVICES=1"


# -- who holds a port ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_who_holds_a_port(family: socket.AddressFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound, listened at, of a process that may not be seen, free, and where the kernel refuses sock_diag."""

    def refuse(*_: object, **more: object) -> Any:
        raise PermissionError("seccomp")

    with socket.socket(family) as sock:
        sock.bind(("", 0))
        port = sock.getsockname()[1]
        bound = who_holds(port)
        assert bound is None or bound.pid == os.getpid()  # Linux 6.8 and newer show it
        sock.listen()
        found = who_holds(port)
        assert found is not None
        assert (found.pid, found.user) == (os.getpid(), user_name(os.getuid())) and found.command
        monkeypatch.setattr(portowner, "_process_of", lambda _: None)
        unseen = who_holds(port)
        assert unseen is not None and (unseen.pid, unseen.user) == (None, found.user)
        monkeypatch.setattr(netfacts, "dump", refuse)
        assert who_holds(port) is None
    monkeypatch.undo()
    assert who_holds(port) is None


def test_the_places_of_the_facts_are_not_written(tmp_path: Path) -> None:
    """collect only looks: the node directory is the agent's to make."""
    collected({"workdir": str(tmp_path), "node_dir": str(tmp_path), "command": ["true"]})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("environ", "cgroup", "name", "job"),
    [
        ({"SLURM_JOB_ID": "88123"}, "0::/user.slice", "slurm", "88123"),
        ({}, "0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0", "slurm", "77"),
        ({}, "9:memory:/slurm/uid_1000/job_1234567/step_batch", "slurm", "1234567"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "0::/", "kubernetes", socket.gethostname()),
        ({}, "0::/kubepods/burstable/pod1b2c/4d5e", "kubernetes", socket.gethostname()),
        ({"SLURM_JOB_ID": "9", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "0::/kubepods/x", "slurm", "9"),
        ({}, "0::/user.slice/user-0.slice/session-1.scope", "none", ""),
    ],
)
def test_who_started_a_node(environ: dict[str, str], cgroup: str, name: str, job: str) -> None:
    assert facts.scheduler(environ, cgroup) == (name, job)
