"""`run --k8s` where the objects of a run cannot be made or removed: a verdict, and what is left.

The words are those of kubectl 1.32 against a closed port, a name that does not resolve, and a small HTTP server that
answers as the API server does. The stub on PATH says them where no cluster is.
"""

import json
import os
import re
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from tests import forked

from allranks.diagnose.pod_states import not_reached, refusal
from allranks.engines.kubernetes import engine as following
from allranks.engines.kubernetes.kubectl import Kubectl, KubectlError, reason_of
from allranks.engines.remote import read_place
from allranks.report.live import LiveView
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import ResultDocument
from allranks.runs.view import View
from allranks.settings import RunSpec

pytestmark = pytest.mark.processes

VALIDATION = 'error: error validating "STDIN": error validating data: failed to download openapi: '
SKIP = "; if you choose to ignore these errors, turn validation off with --validate=false"
CLOSED = f'{VALIDATION}Get "https://127.0.0.1:1/openapi/v2?timeout=1m0s": dial tcp 127.0.0.1:1: connect: connection refused{SKIP}'  # noqa: E501
LOG = (
    'E1122 09:36:59.202538    6871 memcache.go:265] "Unhandled Error" err="couldn\'t get current server API group list:'
    ' Get \\"http://127.0.0.1:1/api?timeout=32s\\": dial tcp 127.0.0.1:1: connect: connection refused"\n'
)
AT_DELETE = f"{LOG * 5}The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?"
AT_SERVER = 'Error from server ({}): error when creating "STDIN": {}'
RIGHTS = 'jobs is forbidden: User "jane" cannot create resource "jobs" in API group "" in the namespace "default"'
QUOTA = 'jobs.batch "x" is forbidden: exceeded quota: compute, requested: count/jobs.batch=1, used: count/jobs.batch=4'
NO_KIND = (
    'error: resource mapping not found for name: "demo" namespace: "" from "STDIN": no matches for kind "JobSet" in '
    'version "jobset.x-k8s.io/v1alpha2"\nensure CRDs are installed first'
)
WORDS = [
    (CLOSED, "was not reached: Get .*connection refused$", "--context", True),
    (AT_DELETE, "was not reached: The connection to the server", "--context", True),
    (f"{VALIDATION}dial tcp: lookup nosuch.invalid on 10.0.0.1:53: no such host{SKIP}", "not reached", "cluster", True),
    ("Unable to connect to the server: net/http: TLS handshake timeout", "was not reached", "--context", True),
    (f"{VALIDATION}tls: failed to verify certificate: x509: unknown authority{SKIP}", "not reached", "context", True),
    (f"{VALIDATION}the server has asked for the client to provide credentials{SKIP}", "credentials", "whoami", True),
    (f"{VALIDATION}Get \"https://x\": getting credentials: exec: executable aws not found\n\nIt looks like{SKIP}",
     "does not accept your credentials: .*executable aws not found", "whoami", True),
    (AT_SERVER.format("Forbidden", RIGHTS), "may not make.*jane", "rbac.yaml", False),
    (AT_SERVER.format("Forbidden", QUOTA), "quota of the namespace is used up", "--gpus", False),
    (AT_SERVER.format("NotFound", 'namespaces "nosuch" not found'), "namespace does not exist", "--namespace", False),
    (NO_KIND, "does not know the kind.*JobSet", "--kind job", False),
    (AT_SERVER.format("BadRequest", 'admission webhook "x" denied the request: no'), "refused.*webhook", "", False),
]  # fmt: skip


@pytest.mark.parametrize(("stderr", "message", "remedy", "unreached"), WORDS)
def test_what_kubectl_says_becomes_a_finding(stderr: str, message: str, remedy: str, unreached: bool) -> None:
    reason = reason_of(stderr)
    assert "memcache.go" not in reason and "--validate=false" not in reason and "validating" not in reason
    finding = refusal(reason)
    assert (finding.id, finding.status) == ("k8s-scheduling", "fail")
    assert re.search(message, finding.message) and remedy in finding.remedy
    assert not_reached(reason) is unreached


# -- the command ---------------------------------------------------------------------------------------

STUB = """#!/bin/sh
# Writes down each call. create and delete answer from files: stdout, stderr and the exit code of VERB.KIND or VERB.
echo "$*" >>"$STUB/calls"
[ "$1" = create ] && cat >/dev/null
for answer in "$1.${2%%.*}" "$1.${2%%/*}" "$1"; do
  [ -e "$STUB/$answer.code" ] || continue
  cat "$STUB/$answer.out" 2>/dev/null
  cat "$STUB/$answer.err" >&2 2>/dev/null
  exit "$(cat "$STUB/$answer.code")"
done
[ "$1" = get ] && echo '{"items": []}'
exit 0
"""


class Stub:
    """A kubectl whose answers are set."""

    def __init__(self, place: Path) -> None:
        self.place = place / "stub"
        (place / "bin").mkdir()
        self.place.mkdir()
        program = place / "bin" / "kubectl"
        program.write_text(STUB)
        program.chmod(0o755)
        self.environment = {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "STUB": str(self.place)}

    def answers(self, call: str, code: int, out: str = "", err: str = "") -> None:
        for ending, text in (("code", str(code)), ("out", out), ("err", err)):
            (self.place / f"{call}.{ending}").write_text(text)

    @property
    def calls(self) -> list[str]:
        path = self.place / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    return Stub(tmp_path)


def run(cwd: Path, environment: dict[str, str], *words: str) -> Any:
    command = ["run", "--k8s", "--nodes", "2", "--gpus", "1", "--image", "x", *words, "--", "train.py"]
    return forked.call(command, cwd=cwd, env={**os.environ, "NO_COLOR": "1", **environment})


def test_a_cluster_that_does_not_answer_is_a_verdict(tmp_path: Path, stub: Stub) -> None:
    stub.answers("create", 1, err=f"{LOG}{CLOSED}\n")
    stub.answers("delete", 1, err=f"{AT_DELETE}\n")
    done = run(tmp_path, stub.environment, "--name", "first")
    said = done.stdout + done.stderr
    assert done.returncode == 4, said
    assert "VERDICT   the Kubernetes API server was not reached: Get" in said
    assert "may be left" not in said and "memcache" not in said and "openapi:" not in said
    assert not [call for call in stub.calls if call.startswith("delete")], "nothing was made"
    (result,) = (tmp_path / "runs").glob("first-*/result.json")
    document = json.loads(result.read_text())
    assert (document["exit"], document["verdict"]["cause"], document["left"]) == (4, "k8s-scheduling", {})
    assert json.loads((result.parent / "status.json").read_text())["state"] == "failed"


def test_the_same_from_the_real_kubectl(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: no other program can take it
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{closed.getsockname()[1]}"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": "x"}}],
        }  # fmt: skip
        path = tmp_path / "config"
        path.write_text(json.dumps(config))
        done = run(tmp_path, {"KUBECONFIG": str(path)}, "--json")
        assert done.returncode == 4, done.stderr
        document = json.loads(done.stdout.splitlines()[-1])
        assert document["verdict"]["cause"] == "k8s-scheduling" and document["left"] == {}
        assert "was not reached" in document["verdict"]["message"]
        wrong = run(tmp_path, {"KUBECONFIG": str(path)}, "--context", "nosuch", "--name", "wrong")
        assert wrong.returncode == 2 and 'context "nosuch" does not exist' in wrong.stderr
        assert not list((tmp_path / "runs").glob("wrong-*"))


def test_what_was_made_is_removed_whatever_its_kind_says(tmp_path: Path, stub: Stub) -> None:
    """A cluster without JobSets refused to delete any, and the Secret and the ConfigMap stayed."""
    stub.answers("create", 1, "secret/demo-join created\nconfigmap/demo created\n", NO_KIND)
    stub.answers("delete.jobsets", 1, err='error: the server doesn\'t have a resource type "jobsets"')
    done = run(tmp_path, stub.environment, "--kind", "jobset", "--json")
    document = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, document["left"]) == (4, {}), done.stderr
    assert "does not know the kind" in document["verdict"]["message"]
    deleted = [call for call in stub.calls if call.startswith("delete")]
    assert any("configmap/" in call and "secret/" in call for call in deleted), deleted


def test_what_cannot_be_removed_is_said(tmp_path: Path, stub: Stub) -> None:
    stub.answers("create", 1, "secret/demo-join created\n", AT_SERVER.format("Forbidden", QUOTA))
    stub.answers("delete", 1, err="Error from server (Forbidden): secrets is forbidden")
    done = run(tmp_path, stub.environment)
    assert done.returncode == 4
    assert "LEFT run-" in done.stdout and "allranks/run=run-" in done.stdout and "pid 0" not in done.stdout


LOGS = """#!/bin/sh
# kubectl logs: the kubelet's complaint stands among the lines and has no time; then the connection breaks, once.
echo "$*" >>"$STUB/calls"
case "$*" in
*--since-time=2026*) echo '2026-11-22T10:00:02.000000002Z {"exit": 0}' ;;
*) echo '2026-11-22T10:00:01.000000001Z first'
   echo 'failed to create fsnotify watcher: too many open files' ;;
esac
"""


def test_a_line_of_a_log_without_a_time_keeps_no_other_from_coming(
    tmp_path: Path, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first word was taken for the time of the last line: kubectl refused it, and no line came any more."""
    program = tmp_path / "bin" / "kubectl"
    program.write_text(LOGS)
    for name, value in stub.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(following, "AGAIN_AFTER", 0.0)
    log = following.PodLog(Kubectl(None, None), "demo-0")
    lines: list[str] = []
    deadline = time.monotonic() + 30.0
    while '{"exit": 0}' not in lines and time.monotonic() < deadline:
        lines += log.lines()
        time.sleep(0.01)
    log.close()
    assert lines == ["first", "failed to create fsnotify watcher: too many open files", '{"exit": 0}']
    assert log.since == "2026-11-22T10:00:02.000000002Z"


def test_what_kubectl_prints_beside_its_answer_is_an_error_of_kubectl(
    tmp_path: Path, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrapper's or a login plug-in's line on standard output ended the command with `internal-error`."""
    for name, value in stub.environment.items():
        monkeypatch.setenv(name, value)
    for printed in ("Your session has expired\n", "[]", '{"items": 5}', '{"items": [5]}', "[" * 100_000):
        stub.answers("get", 0, printed)
        with pytest.raises(KubectlError, match="kubectl get pods: its answer is not a list of objects"):
            Kubectl(None, None).pods("demo")


# -- while a run goes on -------------------------------------------------------------------------------


class Cluster(Kubectl):
    """Does not answer until it is told to; counts what it is asked."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.away = True
        self.asked: list[str] = []
        self.objects: dict[str, list[dict[str, Any]]] = {}

    def call(self, *words: str, stdin: str | None = None, patience: float = 60.0) -> str:
        self.asked.append(words[0])
        if self.away:
            raise KubectlError("kubectl: refused", "The connection to the server x was refused - did you")
        return json.dumps({"items": self.objects.get(words[1], [])})


Followed = tuple[following.PodsFollower, Cluster, RunDirectory]


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    directory = RunDirectory.create(tmp_path, "demo", time.time())
    where = {"engine": "kubernetes", "name": "demo", "kind": "job", "nodes": 2}
    directory.write_document("run.json", {"run": directory.name, "engine": where, "started": time.time()})
    one = following.PodsFollower(directory, read_place(directory, following.PodsOfRun), View())
    cluster = Cluster()
    one.kubectl = cluster
    return one, cluster, directory


def test_a_run_ends_also_where_its_objects_cannot_be_removed(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower died of kubectl's error, and the run stayed `orphaned` without its result."""
    one, _, directory = followed
    monkeypatch.setattr(following.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(following, "STUCK", 0.0)
    one.finish(ResultDocument(directory.name, exit=1), "")
    result = directory.read_document("result.json") or {}
    assert result["exit"] == 1 and "allranks/run=demo" in result["left"]["demo"][0]["command"]


def test_a_stop_that_the_cluster_did_not_hear_is_said_again(followed: Followed) -> None:
    one, cluster, _ = followed
    one.stop()
    one.turn()
    assert cluster.asked.count("delete") == 1
    cluster.away = False
    one.ask_at = 0.0
    one.turn()
    assert cluster.asked.count("delete") == 2
    one.ask_at = 0.0
    one.turn()
    assert cluster.asked.count("delete") == 2


def test_a_stop_that_the_cluster_never_hears_ends(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _, _ = followed
    one.stop()
    assert one.turn() is None
    monkeypatch.setattr(following, "STUCK", -1.0)
    result = one.turn()
    assert result is not None and result.exit == 143


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_signal_that_ended_a_follower_is_its_exit_code(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, code: int
) -> None:
    one, cluster, directory = followed
    cluster.away = False
    whole_turn = one.turn
    left = [signal.SIGUSR1, signal.SIGUSR1, number]

    def turn() -> Any:
        if left:
            os.kill(os.getpid(), left.pop(0))
        one.ask_at = 0.0
        return whole_turn()

    monkeypatch.setattr(one, "turn", turn)
    one.view = LiveView()
    result = one.follow()
    assert result is not None and result.exit == code
    assert (directory.read_document("result.json") or {})["exit"] == code
    assert capsys.readouterr().out.count("SIGUSR1 is not passed on: kubernetes runs take no signals") == 1


def test_reasons_of_pods_that_take_turns_are_said_once(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler counts machines again at each try, and the follower printed two reasons in turns for hours."""
    one, cluster, directory = followed
    cluster.away = False
    turns = ["2 Insufficient nvidia.com/gpu", "1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint"] * 4
    monkeypatch.setattr(following, "waiting", lambda *_: turns.pop(0) if turns else "")
    for _ in range(9):
        one.ask(0.0)
    said = [event["message"] for event in directory.read_lines()[0] if event["event"] == "job"]
    assert [text[:2] for text in said] == ["2 ", "1 ", "al"], said


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ({"kueue.x-k8s.io/queue-name": "team"}, "the queue team has not admitted it yet"),
        ({}, "spec.suspend is true"),
    ],
)
def test_a_run_that_a_queue_holds_says_so(followed: Followed, labels: dict[str, str], why: str) -> None:
    """Kueue suspends the Job, no pod is made, and the follower said "not made yet" alone."""
    one, cluster, directory = followed
    cluster.away = False
    job = {"metadata": {"labels": labels}, "spec": {"suspend": True}}
    cluster.objects["jobs.batch"] = [job]
    one.ask(0.0)
    job["spec"] = {"suspend": False}
    one.ask(0.0)
    said = [event["message"] for event in directory.read_lines()[0] if event["event"] == "job"]
    assert said == [
        f"0 of 2 pods have started, as the run is suspended: {why}", "0 of 2 pods have started; 2 pods: not made yet",
    ]  # fmt: skip


def test_ctrl_c_while_the_objects_are_made_removes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run was orphaned, and what kubectl had made until then stayed."""
    asked: list[str] = []

    def call(kubectl: Kubectl, *words: str, stdin: str | None = None, patience: float = 60.0) -> str:
        asked.append(words[0])
        if words[0] == "create":
            raise KeyboardInterrupt
        return ""

    monkeypatch.setattr(Kubectl, "require", lambda: None)
    monkeypatch.setattr(Kubectl, "call", call)
    spec = RunSpec().changed(k8s=True, nodes=2, nproc=1, image="i", runs_dir=str(tmp_path), command=("t.py",))
    with pytest.raises(KeyboardInterrupt):
        following.PodsLaunch(spec).start(View())
    (path,) = tmp_path.iterdir()
    run = RunDirectory(path)
    assert (run.state(), (run.read_document("result.json") or {})["exit"]) == ("stopped", 130)
    assert "delete" in asked
