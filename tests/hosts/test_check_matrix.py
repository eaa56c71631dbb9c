"""The fault matrix: each fault really made on one of four hosts; `check` names it, the node, and nothing else."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests import forked
from tests.hosts.bed import Bed, Host
from tests.hosts.launching import BOUND, Launch, program
from tests.hosts.test_faults_clock import FAKETIME, python_ahead
from tests.hosts.test_faults_network import squatter
from tests.hosts.test_sync import git
from tests.hosts.waiting import wait_until
from tests.processes import parent_of

from allranks.gang.plugins import all_checks

PORT = 23457
SYN = "tcp dport 1024-65535 tcp flags & (syn|ack) == syn"
# The kernel log is the machine's own and may hold anything: it is left out everywhere. All other checks look at a clean
# cluster, and nowhere else the one that takes long: four nodes import torch.
CHECKS = [check for check in all_checks().values() if check.name != "kernel_log"]
EVERYTHING = ",".join(check.name for check in CHECKS)
QUICKER = ",".join(check.name for check in CHECKS if check.name != "torch_import")
Found = set[tuple[str, str, str]]


class Checker:
    """Calls `allranks check` in a directory that all hosts see."""

    def __init__(self, bed: Bed, place: Path) -> None:
        self.bed, self.place = bed, place
        self.work = place / "work"
        self.work.mkdir()
        (self.work / "train.py").write_text("print('train')\n")

    def call(self, *options: str, level: str = "full") -> dict[str, Any]:
        """The JSON document; the exit code and a human's text are consistent with it."""
        words = ["check", "--hosts", str(self.bed.hostfile_names), "--level", level,
                 "--json", "--workdir", str(self.work), *options, "--", "train.py"]  # fmt: skip
        done = self.allranks(*words)
        assert done.stdout, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        failed = any(f["status"] == "fail" for f in document["findings"])
        assert done.returncode == (3 if failed else 0) and document["ok"] is not failed
        return document

    def allranks(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A verb, from the directory beside the working directory."""
        environment = {**self.bed.env("root"), "ALLRANKS_RUNS_DIR": str(self.place / "runs")}
        environment.pop("VIRTUAL_ENV", None)
        return forked.call(words, env=environment, cwd=self.place, timeout=2 * BOUND)

    def found(self, *options: str, level: str = "full") -> Found:
        """(check, where, status) of all that is not ok; `where` is node, node>peer, or nodes with +."""
        options = options if "--only" in options else (*options, "--only", QUICKER)
        self.document = self.call(*options, level=level)
        told = [f for f in self.document["findings"] if f["status"] != "unknown"]
        return {(f["check"], place(f["where"]), f["status"]) for f in told}

    def message(self, check: str) -> str:
        """What the check said, with the remedy."""
        (finding,) = [f for f in self.document["findings"] if f["check"] == check and f["status"] != "unknown"]
        assert finding["remedy"]
        return f"{finding['message']} -> {finding['remedy']}"


def place(where: dict[str, Any]) -> str:
    peer = where.get("peer")
    return "+".join(where.get("nodes") or [where.get("node") or ""]) + (f">{peer}" if peer else "")


@pytest.fixture
def check(bed4: Bed, tmp_path: Path) -> Checker:
    return Checker(bed4, tmp_path)


@contextmanager
def bound(host: Host, source: Path, target: Path) -> Iterator[None]:
    """On this host alone `target` is `source`."""
    host.run(["mount", "--bind", str(source), str(target)])
    try:
        yield
    finally:
        host.run(["umount", "-l", str(target)])


# -- a clean cluster -------------------------------------------------------------------------------


@pytest.mark.parametrize("checks", [QUICKER, pytest.param(EVERYTHING, marks=pytest.mark.slow)], ids=["quicker", "all"])
def test_a_clean_cluster_gives_no_alarm(check: Checker, checks: str) -> None:
    git(check.work, "init", "-q")
    git(check.work, "add", ".")
    git(check.work, "commit", "-qm", "first")
    data = check.place / "data"
    data.mkdir()
    (data / "shard-0").write_bytes(bytes(1000))
    assert check.found("--data-path", str(data), "--master-port", str(PORT), "--only", checks) == set()
    assert {s for row in check.document["table"].values() for s in row.values()} <= {"ok", "skipped", "unknown"}
    for name in ("ports", "mtu", "packet_loss", "peer_names", "gate", "data_listing", "code_git", "leftovers", "clock"):
        assert set(check.document["table"][name].values()) == {"ok"}, name
    directory = check.place / check.document["directory"]
    page = (directory / "report.html").read_text()
    assert "packet_loss" in page and "h4" in page
    again = check.allranks("check", "--from", str(directory), "--json")
    assert json.loads(again.stdout)["table"] == check.document["table"] and again.returncode == 0
    assert check.document["settings"]["h2"][0]["name"] == "GLOO_SOCKET_IFNAME"
    nothing_left(check.bed)


def nothing_left(bed: Bed) -> None:
    """A check leaves no process and no directory."""
    for host in bed.hosts:
        wait_until(lambda host=host: not [p for p in host.pids() if "allranks" in p.command], BOUND, "no agent is left")


# -- one fault, one finding ------------------------------------------------------------------------


def node_variable(host: Host, name: str, value: str) -> None:
    """Set for ssh sessions on this host alone."""
    host.write_home("root", ".ssh/environment", f"{name}={value}\n")


def name_elsewhere(bed: Bed) -> None:
    host = bed.host("h4")
    host.set_hosts(host.hosts_text.replace(f"{bed.host('h1').address} ", "10.9.9.9 "))


def black_hole_between_two(bed: Bed) -> None:
    for one, other in (("h2", "h3"), ("h3", "h2")):
        bed.host(one).filter_packets(f"ip saddr {bed.host(other).address} meta length > 1000 drop")


def interface_down(bed: Bed) -> None:
    bed.host("h2").add_interface("eth1", "172.16.7.2/24")
    bed.host("h2").run(["ip", "link", "set", "eth1", "down"])
    node_variable(bed.host("h2"), "GLOO_SOCKET_IFNAME", "eth1")


AT_PORT = ("--master-port", str(PORT))
FAULTS: dict[str, tuple[Callable[[Bed], object], tuple[str, str, str], tuple[str, ...]]] = {
    "own name does not resolve": (lambda bed: bed.host("h2").forget_own_name(), ("own_name", "h2", "warn"), ()),
    "own name is loopback": (
        lambda bed: bed.host("h3").own_name_to("127.0.1.1"), ("own_name", "h3", "warn"), ("127.0.1.1",)),
    "a peer's name leads elsewhere on one node": (
        name_elsewhere, ("peer_names", "h4", "warn"), ("h4 resolves h1 to 10.9.9.9 (the other 2 resolve it to",)),
    "ports dropped one way": (
        lambda bed: bed.host("h3").filter_packets(f"ip saddr {bed.host('h2').address} {SYN} drop"),
        ("ports", "h2>h3", "fail"), ("h3 reaches h2", "firewall-cmd")),
    "ports rejected by one node": (
        lambda bed: bed.host("h3").filter_packets(f"{SYN} reject with tcp reset"),
        ("ports", "h3", "fail"), ("from h", " to h3")),
    "high ports filtered but the master port open": (
        lambda bed: bed.host("h1").drop_high_ports([PORT]), ("ports", "h1", "fail"),
        ("the master port of h1 is open", "the master port alone is not enough")),
    "an MTU black hole between two nodes": (
        black_hole_between_two, ("mtu", "h2>h3", "fail"), ("packets over 1000 of 1500 bytes vanish",)),
    "an MTU black hole of one node": (
        lambda bed: bed.host("h3").path_mtu(1000), ("mtu", "h3", "fail"), ("ip link set dev eth0 mtu 1000",)),
    "a third of packets lost on one link": (
        lambda bed: bed.host("h3").loss(30, bed.host("h2")), ("packet_loss", "h2>h3", "fail"), ()),
    "the interface that is set is down": (
        interface_down, ("gate", "h2", "fail"), ("GLOO_SOCKET_IFNAME is eth1, but eth1 is down",)),
    "Gloo is given an exclusion": (
        lambda bed: node_variable(bed.host("h3"), "GLOO_SOCKET_IFNAME", "^docker0"),
        ("gate", "h3", "fail"), ("Gloo takes exact names",)),
    "NCCL is given a wrong interface on one node": (
        lambda bed: node_variable(bed.host("h4"), "NCCL_SOCKET_IFNAME", "ens5"),
        ("gate", "h4", "warn"), ("NCCL_SOCKET_IFNAME=ens5",)),
}  # fmt: skip
QUICK = "own name is loopback"


@pytest.mark.parametrize("fault", [pytest.param(n, marks=[pytest.mark.slow] * (n != QUICK)) for n in FAULTS])
def test_a_fault_is_named_with_its_node(check: Checker, fault: str) -> None:
    make, finding, words = FAULTS[fault]
    make(check.bed)
    follows = {("ports", "h2", "fail")} if make is interface_down else set()
    assert check.found(*AT_PORT) - follows == {finding}
    assert all(word in check.message(finding[0]) for word in words), check.message(finding[0])


@pytest.mark.slow
def test_the_master_port_rejected(check: Checker) -> None:
    check.bed.host("h1").reject_port(PORT)
    found = check.found(*AT_PORT)
    assert found == {("gate", f"{h}>h1", "fail") for h in ("h2", "h3", "h4")}
    assert all(f["id"] == "port-blocked" and str(PORT) in f["remedy"] for f in check.document["findings"])


@pytest.mark.slow
def test_proxy_variables(check: Checker) -> None:
    node_variable(check.bed.host("h2"), "https_proxy", "http://user:hunter2@proxy:3128")
    assert check.found() == {("proxy", "h2", "warn")}
    assert "hunter2" not in json.dumps(check.document)
    evidence = check.place / check.document["directory"] / "evidence" / "preflight.json"
    assert "hunter2" not in evidence.read_text()


@pytest.mark.skipif(not FAKETIME, reason="libfaketime is not installed (apt install faketime)")
def test_a_clock_five_minutes_ahead(check: Checker) -> None:
    assert check.found("--agent-python", str(python_ahead(check.place, "h3"))) == {("clock", "h3", "warn")}
    assert "5 minutes ahead" in check.message("clock")


# -- software and code -----------------------------------------------------------------------------


def environment_with(place: Path, name: str, torch: str | None) -> Path:
    """A Python environment whose torch is a version file: what the checks read without importing it."""
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", str(place / name)], check=True)
    (site,) = (place / name).glob("lib/python3*/site-packages")
    if torch is not None:
        (site / "torch").mkdir()
        (site / "torch" / "__init__.py").write_text("")
        (site / "torch" / "version.py").write_text(f"__version__ = '{torch}'\ncuda = None\nhip = None\n")
        info = site / f"torch-{torch}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {torch}\n")
    return place / name


@pytest.mark.parametrize("torch", [None, pytest.param("2.6.0", marks=pytest.mark.slow)], ids=["absent", "another"])
def test_torch_on_one_node(check: Checker, torch: str | None) -> None:
    usual = environment_with(check.place, "venv", "2.13.0")
    odd = environment_with(check.place, "odd", torch)
    only = "interpreter,packages,torch_build"
    with bound(check.bed.host("h3"), odd, usual):
        assert check.found("--python", str(usual / "bin/python"), "--only", only) == {("interpreter", "h3", "fail")}
    assert "h3" in check.message("interpreter") and (torch or "no torch") in check.message("interpreter")


OF_CODE = [("another commit", "h3", {"code_git"}, ("pull --ff-only", "--sync")),
           ("an uncommitted change", "h2", {"code_tree"}, ("model.py",)),
           ("another script", "h4", {"code_script", "code_tree"}, ("train.py",))]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("what", "node", "checks", "words"), OF_CODE, ids=[row[0] for row in OF_CODE])
def test_code_that_differs_on_one_node(
    check: Checker, what: str, node: str, checks: set[str], words: tuple[str, ...]
) -> None:
    git(check.work, "init", "-q")
    git(check.work, "add", ".")
    git(check.work, "commit", "-qm", "first")
    clone = check.place / "clone"
    shutil.copytree(check.work, clone, symlinks=True)
    (clone / ("train.py" if what == "another script" else "model.py")).write_text("print('another')\n")
    if what == "another commit":
        git(clone, "add", ".")
        git(clone, "commit", "-qm", "second")
    with bound(check.bed.host(node), clone, check.work):
        assert check.found() == {(name, node, "fail" if name == "code_script" else "warn") for name in checks}
    assert all(word in check.message(min(checks)) for word in words)


# -- data, disks, limits ---------------------------------------------------------------------------


def data_directory(place: Path, name: str, files: int) -> Path:
    directory = place / name
    directory.mkdir()
    for number in range(files):
        (directory / f"shard-{number:03}").write_bytes(bytes(100 + number))
    return directory


@pytest.mark.slow
def test_a_data_path_is_missing(check: Checker) -> None:
    mount = check.place / "disk"
    mount.mkdir()
    data = data_directory(mount, "data", 4)
    check.bed.host("h4").mount_empty(mount)
    assert {(c, w) for c, w, s in check.found("--data-path", str(data)) if s == "fail"} == {("data_paths", "h4")}


@pytest.mark.slow
def test_one_file_fewer(check: Checker) -> None:
    data, fewer = data_directory(check.place, "data", 9), data_directory(check.place, "fewer", 8)
    with bound(check.bed.host("h2"), fewer, data):
        assert {(c, w) for c, w, _ in check.found("--data-path", str(data))} == {("data_listing", "h2")}
    assert "shard-008" in check.message("data_listing")


def test_a_run_that_would_train_on_a_part_of_the_data_is_refused(check: Checker) -> None:
    data, fewer = data_directory(check.place, "data", 3), data_directory(check.place, "fewer", 1)
    option = ("--data-path", str(data))
    with bound(check.bed.host("h4"), fewer, data):
        refused, allowed = run(check, *option), run(check, *option, "--allow", "data-differs")
    assert refused.returncode == 3
    assert "cause   data-differs" in refused.stdout and "h4 lacks shard-001, shard-002" in refused.stdout
    assert allowed.returncode == 0, allowed.stdout


@pytest.mark.slow
def test_a_tiny_dev_shm(check: Checker) -> None:
    check.bed.host("h3").small_tmpfs("/dev/shm", "64k")
    assert {(c, w) for c, w, _ in check.found()} >= {("shm", "h3")}
    assert {w for _, w, _ in check.found()} == {"h3"}


@pytest.mark.slow
def test_a_full_disk(check: Checker) -> None:
    check.bed.host("h2").full_disk(check.place / "scratch")
    found = check.found("--data-path", str(check.place / "scratch"))
    assert ("disk_space", "h2", "warn") in found and {w for _, w, _ in found} == {"h2"}
    assert "scratch" in check.message("disk_space") and "du " in check.message("disk_space")


@pytest.mark.slow
def test_few_open_files(check: Checker) -> None:
    check.bed.host("h4").write_home("root", ".bashrc", "ulimit -n 64\n")
    assert check.found() == {("limits", "h4", "warn")}
    assert "(ulimit -Hn) on h4 is 64, and 4096 or more is safe" in check.message("limits")
    assert check.found("--nproc", "64") == {("limits", "h4", "fail")}
    assert "is 64, and this run needs 266 there (64 ranks of 256)" in check.message("limits")


# -- leftovers -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_leftover_of_an_earlier_run(check: Checker) -> None:
    """Launcher, agent and supervisor are killed in one instant: the documented limit. A rank's child stays."""
    launch = Launch(check.bed, check.place / "earlier").start(program("v_steps.py"), hosts="h3").until_running(1)
    agent = launch.agent_pid(0)
    supervisor = parent_of(agent)
    launch.kill_launcher()
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in (supervisor, agent):
            os.kill(pid, number)
    wait_until(lambda: len(launch.alive()) == 1, BOUND, "only a child is left")
    try:
        assert check.found() == {("leftovers", "h3", "warn")}
    finally:
        for pid in launch.alive():
            os.kill(pid, signal.SIGKILL)
    assert "clean --orphans --hosts" in check.message("leftovers")


@pytest.mark.slow
def test_a_foreign_listener_on_the_master_port(check: Checker) -> None:
    with squatter(check.bed.host("h1"), PORT, check.place):
        assert check.found("--master-port", str(PORT)) == {("gate", "h1", "fail")}
    assert "squatter.py" in check.message("gate")


# -- nodes, and the quick look of a run ------------------------------------------------------------


def test_a_host_that_is_off(check: Checker) -> None:
    hosts = str(check.bed.hostfile_names)
    check.bed.host("h2").link_down()
    try:
        done = check.allranks("check", "--hosts", hosts, "--json", "--connect-timeout", "4s", "--level", "quick")
    finally:
        check.bed.host("h2").link_up()
    document = json.loads(done.stdout)
    assert done.returncode == 4
    assert [(f["id"], f["where"]["node"]) for f in document["findings"]] == [("ssh-unreachable", "h2")]
    assert set(document["table"]["gate"]) == {"h1", "h3", "h4"}


def run(check: Checker, *options: str) -> subprocess.CompletedProcess[str]:
    place = ["--hosts", str(check.bed.hostfile_names), "--workdir", str(check.work)]
    return check.allranks("run", *place, "--python", "/usr/bin/python3", *options, "--", "train.py")


def test_a_run_is_refused_and_can_be_allowed(check: Checker) -> None:
    other = check.place / "other"
    other.mkdir()
    for place, word in ((check.work, "train"), (other, "another")):
        (place / "train.py").write_text("import helper\nprint(helper.WORD)\n")
        (place / "helper.py").write_text(f"WORD = {word!r}\n")
    with bound(check.bed.host("h4"), other, check.work):
        refused = run(check)
        assert refused.returncode == 3
        assert "cause   code-differs" in refused.stdout and "h4 has version" in refused.stdout
        assert refused.stdout.count("helper.py (the other 3 have") == 1, "once, in the verdict"
        allowed, unchecked = run(check, "--allow", "code_script"), run(check, "--no-check")
    assert allowed.returncode == 0 and "another" in allowed.stdout
    assert unchecked.returncode == 0 and "another" in unchecked.stdout
    saved = sorted((check.place / "runs").glob("run-*/evidence/preflight.json"))
    assert len(saved) == 2  # the run without a check has none
    assert set(json.loads(saved[0].read_text())["nodes"]) == {"h1", "h2", "h3", "h4"}
