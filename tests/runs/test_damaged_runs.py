"""A run directory that is damaged, or written by somebody else: every verb that reads it says something, and ends."""

import copy
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.campaign import Campaign
from tests.fuzz.nasty import mutated

from allranks.cli import main
from allranks.cluster.nodes import virtual_cluster
from allranks.engines.ssh import ssh_reach
from allranks.gang import session as sessions
from allranks.report.live import OutputView
from allranks.settings import RunSpec

pytestmark = pytest.mark.processes

BOUND = 60
DOCUMENTS = ("run.json", "result.json", "status.json", "verdict.json")
VERBS = (
    ("status",), ("status", "--json"), ("logs",), ("logs", "--json"), ("logs", "--metrics"), ("diagnose",),
    ("diagnose", "--json"), ("report",), ("report", "--bundle"), ("clean", "--dry-run"),
    ("top",), ("ps",), ("ps", "--json"),
)  # fmt: skip
OF_ALL_RUNS = ("clean", "ps")
# They change the directory: each has a copy of its own.
CHANGING_VERBS = (("attach",), ("attach", "--json"), ("stop",), ("stop", "--json"), ("stop", "--now"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a real run that failed."""
    work = tmp_path_factory.mktemp("whole")
    script = 'echo \'{"step": 3, "t": 1.0}\' > "$ALLRANKS_OUTPUT_DIR/rank_0${RANK}_metrics.jsonl"; echo one; exit $RANK'
    spec = RunSpec.of(
        command=("sh", "-c", script), launcher="direct", local=2, nproc=1, check=False, grace=0.2,
        runs_dir=str(work / "runs"),
    )  # fmt: skip
    session = sessions.create(spec, virtual_cluster(2), ssh_reach(spec), dict(os.environ), str(work), OutputView)
    assert session.run().exit == 1
    # Its controller is this process: for `attach` and `stop` it is one that has gone.
    document = json.loads((session.run_dir.path / "run.json").read_text())
    document["controller"]["start_time"] += 1
    (session.run_dir.path / "run.json").write_text(json.dumps(document))
    return session.run_dir.path


@pytest.fixture
def run(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy. What waits for ever is ended: a pipe without a writer, a loop."""

    def ended(_number: int, _frame: object) -> None:
        raise RuntimeError("a command did not end")

    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGALRM, ended)
    signal.alarm(BOUND)
    yield Path(shutil.copytree(whole, tmp_path / "runs" / whole.name))
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def read_all(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every reading verb; none fails by a defect of its own."""
    for verb, *words in VERBS:
        check_verb(verb, words if verb in OF_ALL_RUNS else [run.name, *words], capsys)
    check_verb("check", ["--from", str(run)], capsys)


def check_verb(verb: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> int:
    """It ends without a defect of its own, and says why where it fails."""
    code = main.run_verb(verb, words)
    printed = capsys.readouterr()
    assert code != 70 and "Traceback" not in printed.err, (verb, words, printed.err[-2000:])
    assert code == 0 or printed.err or printed.out, (verb, words)
    return code


Damage = Callable[[Path], None]


def each(make: Callable[[Path], object], *names: str) -> Damage:
    """What stands at these places of a run (patterns, or names of what is not there yet) is made anew, or goes away."""

    def damage(run: Path) -> None:
        for name in names:
            for path in sorted(run.glob(name)) or [run / name]:
                path.parent.mkdir(exist_ok=True)
                if path.is_dir():
                    shutil.rmtree(path)
                path.unlink(missing_ok=True)
                make(path)

    return damage


def replace(data: bytes, *names: str) -> Damage:
    return each(lambda path: path.write_bytes(data), *names)


def halve(name: str) -> Damage:
    def damage(run: Path) -> None:
        data = (run / name).read_bytes()
        (run / name).write_bytes(data[: len(data) // 2])

    return damage


def nothing(_path: Path) -> None:
    """It stays away."""


EVIDENCE = (
    b'{"schema": 1, "nodes": {"h1": 5, "h2": []}, "checks": ["shm", "mtu", "gate"], "request": {"nodes": 5}}',
    b'{"schema": 1, "nodes": {"h1": {"shm": 5, "mem": "x"}}, "checks": ["shm", "memory", 7], "t": "x", "request": []}',
    b'{"schema": 1, "nodes": {"h1": {}}, "checks": {"shm": 1}, "unreachable": [5, {"message": "x"}], "covered": 5}',
)
WRITTEN = (*DOCUMENTS, "events.jsonl")
CHECKS, USAGE, LOGS = "evidence/preflight.json", "evidence/usage.jsonl", "logs/*/rank_*.log"
ROWS = (
    b'{"t": "x", "ranks": 5, "steps": {"0": []}, "node": 7, "usage": "x"}\n{"t": 1e400}\n',
    b'{"t": -1, "node": "h1", "usage": {"t": {}, "cores": -1, "cpu_used": []}, "lateness": {"x": 1}}\n' * 3,
)
BYTES = (b"", b"null", b"[]", b'"x"', b"{}", b"\xff\x00\xfe", b"[" * 100_000, b'{"nodes": %s}' % (b"9" * 5000))
DAMAGES: dict[str, Damage] = {
    **{f"every document is {data[:12]!r}": replace(data + b"\n", *WRITTEN) for data in BYTES},
    **{f"{name} is cut": halve(name) for name in WRITTEN},
    **{f"{name} is a directory": each(Path.mkdir, name) for name in WRITTEN},
    **{f"{name} is a pipe": each(os.mkfifo, name) for name in (*WRITTEN, CHECKS)},
    **{f"{name} is absent": each(nothing, name) for name in (*WRITTEN, "logs", "outputs")},
    "run.json is empty": replace(b"", "run.json"),
    "events.jsonl has no types": replace(
        b'{"t": "x", "event": 5}\n{"event": []}\n{"event": "rank-exit"}\n', "events.jsonl"
    ),
    **{f"the saved checks are {data[:60]!r}": replace(data, CHECKS) for data in (*BYTES, *EVIDENCE)},
    "metrics are nested": replace(b'{"kind":' + b"[" * 100_000 + b"\n", "outputs/rank_00_metrics.jsonl"),
    **{f"{name} is a file": each(Path.touch, name) for name in ("logs", "outputs")},
    "logs are pipes": each(os.mkfifo, LOGS),
    "logs are directories": each(Path.mkdir, LOGS),
    "logs are links to nowhere": each(lambda path: path.symlink_to("/nowhere"), LOGS),
}
OF_HISTORIES = {f"histories are {data[:20]!r}": replace(data, USAGE) for data in (*BYTES, *ROWS)}


@pytest.mark.parametrize("what", [*DAMAGES, *OF_HISTORIES])
def test_no_damage_of_a_run_directory_is_a_traceback(
    what: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (DAMAGES | OF_HISTORIES)[what](run)
    read_all(run, capsys)


@pytest.mark.parametrize("verb", CHANGING_VERBS, ids=" ".join)
@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_run_is_followed_and_stopped_without_a_traceback(
    what: str, verb: tuple[str, ...], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGES[what](run)
    check_verb(verb[0], [run.name, *verb[1:]], capsys)


@pytest.mark.parametrize("what", ["result.json is cut", "result.json is absent", "result.json is a pipe"])
def test_a_run_whose_events_say_that_it_ended_is_over_without_its_result(
    what: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGES[what](run)
    assert check_verb("attach", [run.name], capsys) == 1
    assert main.run_verb("stop", [run.name]) == 0
    assert capsys.readouterr().out == f"{run.name} is over\n"


def test_agents_of_a_run_without_a_plan_are_not_looked_for(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replace(b"{}\n", *WRITTEN)(run)
    assert main.run_verb("stop", [run.name]) == 2
    assert "run.json is damaged: it has no nodes, spec, uid and workdir" in capsys.readouterr().err


@pytest.mark.fuzz
def test_no_value_in_a_run_directory_is_a_traceback(
    run: Path, campaign: Campaign, capsys: pytest.CaptureFixture[str]
) -> None:
    """Documents and events with one to three of their values changed: more of them in `make fuzz`."""
    whole: dict[str, Any] = {name: json.loads((run / name).read_text()) for name in DOCUMENTS}
    whole["events.jsonl"] = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    for rng in campaign.cases(4):
        signal.alarm(BOUND)
        changed = rng.choice(list(whole))
        for name, document in whole.items():
            value = mutated(copy.deepcopy(document), rng) if name == changed else document
            lines = value if name == "events.jsonl" and isinstance(value, list) else [value]
            (run / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        read_all(run, capsys)
