"""status, logs, clean and init on run directories made by hand; no process is started but where it says so."""

import json
import os
import subprocess
import sys
import time

import pytest
from tests import forked
from tests.hosts.waiting import BOUND

from allranks.cli.clean import may_live
from allranks.cli.data import plan_command
from allranks.cli.status import describe, lines
from allranks.engines import program_lines
from allranks.errors import UsageError
from allranks.protocol.codec import encode, make_document
from allranks.protocol.frames import METRICS, RANK_LOG, Stream
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import saved_limit
from allranks.runs.logs import LogWriter
from allranks.runs.opening import controller_identity
from allranks.runs.reading import LogReader

NODES = [{"name": "h1", "index": 0}, {"name": "h2", "index": 1}]
DEAD = {"host": "elsewhere", "pid": 1, "start_time": 1}


def rank(number, **more):
    return {"rank": number, "local_rank": 0, "state": "initialised", "pid": 100 + number, "step": None, "rate": None,
            "last_output": None, **more}  # fmt: skip


def make(runs, name="job", age=10_000.0, over=True, controller=DEAD):
    started = time.time() - age
    run = RunDirectory.create(runs, name, started)
    run.write_document("run.json", {"run": run.name, "uid": f"{run.name}-1", "spec": {"lease": 60.0}, "nodes": NODES,
                                    "started": started, "controller": controller})  # fmt: skip
    ranks = [rank(0, step=7, rate=2.0, last_output=time.time() - 5), rank(1)]
    nodes = [{"name": f"h{i + 1}", "index": i, "state": "running", "ranks": [ranks[i]]} for i in range(2)]
    run.write_document("status.json", {"state": "running", "world_size": 2, "nodes": nodes,
                                       "master": {"address": "10.0.0.1", "port": 29500}})  # fmt: skip
    if over:
        run.write_document("result.json", {"exit": 0, "verdict": None})
    else:
        run.append_line({"t": 1.0, "event": "run-start"})
    return run


def live(runs, name="job", age=10_000.0):
    """A run whose controller is this process."""
    return make(runs, name, age, over=False, controller=encode(controller_identity()))


def age_of(run, seconds):
    for path in [*run.path.iterdir(), run.path]:
        os.utime(path, (time.time() - seconds,) * 2)


def write_logs(run, *said):
    writer = LogWriter(run)
    ends: dict[int, int] = {}
    for number, text in said:
        writer.write(number, f"h{number + 1}", Stream(RANK_LOG, number, 0), ends.get(number, 0), text)
        ends[number] = ends.get(number, 0) + len(text)
    writer.close()


@pytest.fixture
def runs(shell, tmp_path):
    return tmp_path / "runs"


# -- status --------------------------------------------------------------------------------------------


def test_status_has_the_designs_form(runs):
    document = make_document(describe(live(runs), time.time()))
    fields = "schema run state t attempt master world_size nodes goodput directory verdict"
    assert list(document) == fields.split()
    assert (document["state"], [n["name"] for n in document["nodes"]]) == ("running", ["h1", "h2"])
    first = document["nodes"][0]["ranks"][0]
    assert (first["rank"], first["pid"], first["step"]) == (0, 100, 7)
    assert first["last_output_s"] >= 5
    assert document["nodes"][1]["ranks"][0]["last_output_s"] is None


def test_status_of_a_run_in_progress_says_steps_and_pids(runs):
    text = lines(describe(live(runs), time.time()))
    (line,) = [line for line in text if line.startswith("h1")]
    assert line.split() == ["h1", "running", "1", "initialised", "7", "2.00", "5", "s", "ago"]
    assert [line.strip() for line in text if "pid" in line] == ["rank:pid 0:100", "rank:pid 1:101"]


def test_status_of_a_run_that_is_over_has_no_clock(runs):
    run = make(runs)
    run.write_document("result.json", {"exit": 1, "verdict": {"cause": "unknown", "message": "boom\nmore"}})
    text = lines(describe(run, time.time()))
    assert text[0].startswith(f"{run.name}: failed, 2 ranks, master 10.0.0.1:29500")
    assert not [line for line in text if "ago" in line or "pid" in line]
    assert text[-2:] == ["verdict: boom", "more"]


def test_status_says_the_goodput_where_it_is_known(runs):
    run = live(runs)
    assert "goodput" not in lines(describe(run, time.time()))[0]
    status = run.read_document("status.json")
    run.write_document("status.json", {**status, "goodput": 0.8712})
    assert lines(describe(run, time.time()))[0].endswith(", goodput 87 %")
    run.write_document("result.json", {"exit": 0, "goodput": 0.5})
    assert lines(describe(run, time.time()))[0].endswith(", goodput 50 %")


def test_status_says_what_ails_a_node(runs):
    run = make(runs)
    assert not [line for line in lines(describe(run, time.time())) if "warning" in line]
    status = run.read_document("status.json")
    status["nodes"][1]["warnings"] = ["h2: 812 MB are left in /tmp\x1b[2J"]
    run.write_document("status.json", status)
    text = lines(describe(run, time.time()))
    (line,) = [line for line in text if "warning" in line]
    assert line == "  warning: h2: 812 MB are left in /tmp"
    assert text[text.index(line) - 1].startswith("h2")


# -- logs ----------------------------------------------------------------------------------------------


def test_json_lines_are_whole_however_they_were_read(runs, shell, monkeypatch):
    monkeypatch.setattr("allranks.runs.reading.CHUNK", 7)
    write_logs(make(runs), (0, "first line\r\nodd \x0c \x85 line\nunfinished é".encode()))
    _, out, _ = shell("logs", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert {line["schema"] for line in lines} == {1}
    found = [line["line"] for line in lines]
    assert found == ["first line", "odd \x0c \x85 line", "unfinished é"]


def test_a_run_whose_ranks_have_printed_nothing_says_so(runs, shell):
    run = make(runs)
    assert shell("logs") == (0, "", f"note: the ranks of {run.name} have printed nothing\n")
    write_logs(run, (0, b"hello\n"))
    assert shell("logs", "--rank", "1") == (0, "", f"note: these ranks of {run.name} have printed nothing\n")
    assert shell("logs") == (0, "[h1 0] hello\n", "")


def test_the_same_lines_of_all_ranks_are_one_unless_not_wanted(runs, shell):
    write_logs(make(runs), (0, b"hello\nme\n"), (1, b"hello\nme too\n"))
    assert shell("logs")[1] == "[2 ranks] hello\n[h1 0] me\n[h2 1] me too\n"
    assert sorted(shell("logs", "--no-fold")[1].splitlines()) == [
        "[h1 0] hello", "[h1 0] me", "[h2 1] hello", "[h2 1] me too"]  # fmt: skip
    assert shell("logs", "--node", "h2")[1] == "[h2 1] hello\n[h2 1] me too\n"


def test_ranks_and_nodes_are_chosen_by_lists_and_indexes(runs, shell):
    write_logs(make(runs), (0, b"zero\n"), (1, b"one\n"))
    assert shell("logs", "--rank", "0,1")[1] == "[h1 0] zero\n[h2 1] one\n"
    assert shell("logs", "--node", "1")[1] == "[h2 1] one\n"
    assert shell("logs", "--node", "0,h2", "--rank", "1")[1] == "[h2 1] one\n"


def test_a_node_whose_name_is_a_number_is_found_by_its_name(runs, shell):
    run = make(runs)
    nodes = [{"name": "1", "index": 0}, {"name": "0", "index": 1}]
    run.write_document("run.json", {**run.read_document("run.json"), "nodes": nodes})
    writer = LogWriter(run)
    writer.write(0, "1", Stream(RANK_LOG, 0, 0), 0, b"first\n")
    writer.write(1, "0", Stream(RANK_LOG, 1, 0), 0, b"second\n")
    assert shell("logs", "--node", "0")[1] == "[0 1] second\n"


def test_grep_finds_lines_as_they_are_shown(runs, shell, monkeypatch):
    monkeypatch.setattr("allranks.runs.reading.CHUNK", 5)
    write_logs(make(runs), (0, b"loss 0.5\n\x1b[31mlo\x1b[0mss nan\nbar 1\rbar 2\nend nan"), (1, b"loss nan\nok\n"))
    assert shell("logs", "--grep", "loss nan|bar 1")[1] == "[2 ranks] loss nan\n"
    assert shell("logs", "--grep", "^end|bar 2$")[1] == "[h1 0] bar 2\n[h1 0] end nan\n"
    lines = shell("logs", "--grep", "nan", "--json")[1].splitlines()
    assert [json.loads(line)["rank"] for line in lines] == [0, 1, 0]
    assert shell("logs", "--grep", "loss", "--tail", "1")[1] == "[2 ranks] loss nan\n"


@pytest.mark.parametrize("gap", [100, 300 << 10, 8 << 20])
def test_grep_finds_a_line_behind_a_hole(runs, shell, gap):
    run = make(runs)
    write_logs(run, (0, b"step 1\nst"))
    LogWriter(run).write(0, "h1", Stream(RANK_LOG, 0, 0), 9 + gap, b"boom\n")
    assert shell("logs", "--grep", "^step 1$|boom")[1] == "[h1 0] step 1\n[h1 0] boom\n"
    shown = [line for line in shell("logs")[1].splitlines() if line.rstrip() != "[h1 0]"]
    assert shown == ["[h1 0] step 1", "[h1 0] st", "[h1 0] boom"]


def test_tail_is_the_last_lines_that_are_shown(runs, shell, monkeypatch):
    monkeypatch.setattr("allranks.runs.reading.CHUNK", 7)
    write_logs(make(runs), (0, b"a\nb\nc\nmine\nunfinished"), (1, b"a\nb\nc\n"))
    assert shell("logs", "--tail", "3")[1] == "[2 ranks] c\n[h1 0] mine\n[h1 0] unfinished\n"
    assert shell("logs", "-n", "2", "--rank", "1")[1] == "[h2 1] b\n[h2 1] c\n"
    lines = shell("logs", "--tail", "1", "--json")[1].splitlines()
    assert [json.loads(line)["line"] for line in lines] == ["unfinished"]
    assert len(shell("logs", "--tail", "99", "--no-fold")[1].splitlines()) == 8


def test_ranks_of_a_launcher_print_to_the_log_of_their_node(runs, shell):
    run = make(runs)
    document = run.read_document("run.json")
    run.write_document("run.json", {**document, "spec": {"launcher": "torchrun"}})
    nodes = [{"name": f"h{i + 1}", "index": i, "ranks": [rank(2 * i), rank(2 * i + 1)]} for i in range(2)]
    run.write_document("status.json", {"state": "running", "world_size": 4, "nodes": nodes})
    writer = LogWriter(run)
    writer.write(0, "h1", Stream(RANK_LOG, 0, 0), 0, b"first\n")
    assert shell("logs", "--rank", "3")[1] == "", "node h2 has printed nothing"
    writer.write(1, "h2", Stream(RANK_LOG, 2, 0), 0, b"second\n")
    said = {str(number): shell("logs", "--rank", str(number))[1] for number in range(4)}
    first, second = "[h1 0] first\n", "[h2 2] second\n"
    assert said == {"0": first, "1": first, "2": second, "3": second}


@pytest.mark.parametrize("count", [1, 2, 3, 9])
@pytest.mark.parametrize("text", [b"", b"one", b"one\n", b"\n\n\n", b"one\ntwo\nthree", b"x" * 20 + b"\ntwo\n"])
def test_the_last_lines_of_a_log_are_found_from_its_end(runs, monkeypatch, text, count):
    monkeypatch.setattr("allranks.runs.reading.CHUNK", 4)
    run = make(runs)
    write_logs(run, (0, text))
    reader = LogReader(run)
    reader.skip_to_last_lines(count)
    assert b"".join(data for _, _, data in reader.fresh()) == b"".join(text.splitlines(keepends=True)[-count:])


@pytest.mark.processes
def test_tail_goes_on_with_f(runs, tmp_path):
    run = live(runs)
    write_logs(run, (0, b"".join(b"line %d\n" % number for number in range(9))))
    read_end, write_end = os.pipe()
    follower = forked.popen(["logs", "-f", "--no-fold", "--tail", "2"], cwd=tmp_path, stdout=write_end)
    os.close(write_end)
    with open(read_end) as shown:
        assert [shown.readline() for _ in range(2)] == ["[h1 0] line 7\n", "[h1 0] line 8\n"]
        with open(run.path / "logs" / "node_00_h1" / "rank_000.log", "ab") as log:
            log.write(b"line 9\n")
        assert shown.readline() == "[h1 0] line 9\n"
        run.write_document("result.json", {"exit": 0, "verdict": None})
        assert shown.read() == ""
    assert follower.wait(BOUND) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--node", "h9"], "the nodes of"), (["--rank", "7"], "ranks 0 to 1"), (["--metrics", "-f"], "Leave out -f"),
     (["--since", "soon"], "--since"), (["--metrics", "-n", "0"], "--tail"), (["--rank", "0,x"], "--rank"),
     (["--grep", "("], "--grep"), (["-f", "--until", "1m"], "Leave out one"),
     (["--metrics", "--grep", "x", "--until", "1m"], "Leave out --grep and --until"),
     (["--since", "5m", "--until", "1h"], "--since 1h --until 5m")],
)  # fmt: skip
def test_what_cannot_be_shown_is_refused(runs, shell, words, said):
    make(runs)
    code, _, err = shell("logs", *words)
    assert code == 2 and said in err


def test_metrics_are_the_last_lines_of_each_rank(runs, shell):
    run = make(runs)
    writer = LogWriter(run)
    for number in range(2):
        data = b"".join(b'{"step": %d}\n' % step for step in range(9))
        writer.write(number, f"h{number + 1}", Stream(METRICS, number, 0), 0, data)
    (run.path / "outputs" / "rank_x_metrics.jsonl").write_text("{}\n")
    assert shell("logs", "--metrics", "-n", "1")[1] == '[0] {"step": 8}\n[1] {"step": 8}\n'
    _, out, _ = shell("logs", "--metrics", "-n", "2", "--node", "h2", "--json")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"schema": 1, "rank": 1, "metrics": {"step": 7}}, {"schema": 1, "rank": 1, "metrics": {"step": 8}}]  # fmt: skip


# -- clean ---------------------------------------------------------------------------------------------


def test_clean_spares_what_may_live_and_what_is_not_ours(runs, shell):
    going_on = live(runs, "live", age=5000)
    shared = make(runs, "shared", age=4000, over=False)  # its controller is on another host: status.json is fresh
    age_of(shared, 10_000)
    shared.write_document("status.json", {"state": "running"})
    foreign = runs / "tensorboard"
    foreign.mkdir()
    (foreign / "run.json").write_text('{"started": 1}')
    dead = make(runs, "dead", age=3000, over=False)
    age_of(dead, 3000)
    over = make(runs, "over")
    answer = shell("clean", "--keep", "0", "--yes", "--json")
    assert answer.code == 0
    assert sorted(answer.document["removed"]) == sorted([dead.name, over.name])
    assert sorted(p.name for p in runs.iterdir()) == sorted([going_on.name, shared.name, "tensorboard"])


def test_clean_without_yes_removes_nothing_under_json(runs, shell):
    made = [make(runs, f"r{i}", age=100 - i) for i in range(3)]
    document = shell("clean", "--keep", "1", "--json").document
    assert (document["old"], document["removed"]) == ([r.name for r in made[:2]], [])
    assert all(r.path.exists() for r in made)


def test_clean_says_what_could_not_be_removed(runs, shell, monkeypatch):
    def fails(path, *_):
        raise OSError(16, "Device or resource busy", str(path))

    made = make(runs)
    monkeypatch.setattr("allranks.cli.clean.shutil.rmtree", fails)
    code, out, err = shell("clean", "--keep", "0", "--yes")
    assert (code, "removed 0 of 1" in out) == (4, True)
    assert made.name in err and "busy" in err


def test_a_run_is_dead_only_after_twice_its_lease(runs):
    run = make(runs, over=False)
    age_of(run, 100)
    assert may_live(run, time.time())
    assert not may_live(run, time.time() + 60)


@pytest.mark.parametrize(
    ("pods", "lives"), [('{"items": [{}]}', True), ("the server is away", True), ('{"items": []}', False)]
)
def test_a_run_in_pods_goes_on_without_a_process_here(tmp_path, monkeypatch, pods, lives):
    """`clean` removed the directory of a run in pods once its follower had been gone for a while."""
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(f"#!/bin/sh\necho '{pods}'\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{kubectl.parent}:{os.environ['PATH']}")
    run, _ = of_engine(tmp_path / "runs", "", engine="kubernetes", name="demo", kind="job", nodes=1)
    assert may_live(run, time.time() + 10_000) == lives


# -- a disk without room -------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("verb", ["check", "test"])
def test_a_page_that_cannot_be_written_takes_no_answer_with_it(tmp_path, verb):
    """The findings of a check, and a test that had passed, were an internal error on a full disk."""
    (tmp_path / "runs").mkdir()
    words = [verb, "--local", "1", "--json", "--runs-dir", "runs"]
    words += ["--level", "quick"] if verb == "check" else ["--only", "barrier", "--nproc", "1"]
    start = f"""import sys
from allranks.runs.directory import RunDirectory
from allranks.cli import main
create = RunDirectory.create
def blocked(*words):
    run = create(*words)
    (run.path / "report.html").mkdir()
    return run
RunDirectory.create = blocked
sys.exit(main.run_verb({verb!r}, {words[1:]!r}))
"""
    done = subprocess.run([sys.executable, "-c", start], cwd=tmp_path, capture_output=True, text=True, timeout=BOUND)
    assert done.returncode in (0, 3), done.stderr
    assert "report.html was not written (" in done.stderr
    assert "ok" in json.loads(done.stdout)


@pytest.mark.processes
def test_a_check_that_reaches_no_node_finds_that_alone(tmp_path):
    """"FAIL  has no address that other nodes could use": of a node without a name."""
    words = ["check", "--hosts", "nosuch.invalid", "--level", "quick", "--json"]
    done = forked.call(words, cwd=tmp_path, timeout=BOUND)
    assert done.returncode == 4, done.stderr
    assert [finding["check"] for finding in json.loads(done.stdout)["findings"]] == ["reached"]


# -- init and the command itself -----------------------------------------------------------------------


def test_init_replaces_only_by_force(runs, shell):
    assert shell("init")[0] == 0
    written = (runs.parent / "allranks.toml").read_text()
    (runs.parent / "allranks.toml").write_text("mine = 1")
    code, _, err = shell("init")
    assert (code, "--force" in err) == (2, True)
    assert (runs.parent / "allranks.toml").read_text() == "mine = 1"
    assert shell("init", "--force")[0] == 0
    assert (runs.parent / "allranks.toml").read_text() == written


TALKER = """import time
start = time.time()
while time.time() - start < 6:
    print(("x" * 99 + "\\n") * 10)
    time.sleep(0.002)
"""


@pytest.mark.processes
def test_a_terminal_that_nobody_reads_does_not_end_the_run(tmp_path):
    """Ctrl-S, a pager, an ssh connection that is stuck: longer than the lease."""
    (tmp_path / "t.py").write_text(TALKER)
    words = ["run", "--local", "1", "--lease", "2s", "--python", sys.executable, "--", "t.py"]
    read_end, write_end = os.pipe()
    process = forked.popen(words, cwd=tmp_path, stdout=write_end, stderr=write_end)
    os.close(write_end)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("runs/*/result.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    (path,) = tmp_path.glob("runs/*/result.json")
    assert json.loads(path.read_text())["exit"] == 0
    with open(read_end, "rb") as pipe:
        out = pipe.read()
    assert process.wait(BOUND) == 0
    assert b"lines not shown here" in out
    assert out.splitlines()[-1].startswith(b"done after")


# -- where runs are ------------------------------------------------------------------------------------


def test_verbs_look_for_runs_where_the_users_own_settings_put_them(runs, tmp_path, monkeypatch, shell):
    elsewhere = tmp_path / "elsewhere"
    run = make(elsewhere)
    write_logs(run, (0, b"hello\n"))
    config = tmp_path / "config" / "allranks" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'runs-dir = "{elsewhere}"\nlease = "not read here"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for verb in ("status", "logs", "diagnose", "stop"):
        code, out, err = shell(verb, "--json", run.name)
        assert (code, err) == (0, ""), (verb, out)
    with pytest.raises(UsageError, match="no all_reduce was measured"):
        plan_command(samples=8, batch=1, gpus_per_node=1, nodes="1", epochs=1, step_time=None, grad_accum=1,
                     drop_last=False, pad=False, model_bytes=1, bandwidth=run.name, observed_steps=None,
                     runs_dir=None, json_=True)  # fmt: skip


def test_runs_are_diagnosed_one_by_one_and_never_as_logs(runs, shell):
    """`runs/job*` of two runs was read as logs: status.json had the line that looks worst."""
    first, last = make(runs), make(runs)
    code, out, err = shell("diagnose", str(first.path), str(last.path))
    assert (code, out) == (2, "") and f"hint: allranks diagnose {last.path}" in err
    code, out, err = shell("diagnose", str(last.path / "status.json"), str(first.path))
    assert (code, out) == (2, "") and f"hint: allranks diagnose {first.path}" in err


def test_the_status_of_a_run_is_made_of_documents_that_are_read_once(runs, shell, monkeypatch):
    run = make(runs)
    reads: list[str] = []
    read = RunDirectory.read_document
    monkeypatch.setattr(RunDirectory, "read_document", lambda self, name: reads.append(name) or read(self, name))
    assert (run.condition().state, sorted(reads)) == ("done", ["result.json", "status.json"])
    (run.path / "result.json").unlink()
    reads.clear()
    assert run.condition().state == "orphaned"
    assert (reads.count("run.json"), reads.count("status.json")) == (1, 1)


def test_a_limit_of_zero_is_a_limit(runs):
    run = make(runs)
    assert saved_limit(run.read_run(), "stop_grace") == 30.0
    for seconds, expected in ((0.0, 0.0), (5, 5.0), ("5", 30.0), (True, 30.0)):
        run.write_document("run.json", {"run": run.name, "spec": {"stop_grace": seconds}})
        assert saved_limit(run.read_run(), "stop_grace") == expected


def of_engine(runs, said, **place):
    """A run of an engine, and its only log."""
    run = RunDirectory.create(runs, "train", 1_795_000_000.0)
    run.write_document("run.json", {"run": run.name, "started": 1.0, "engine": place})
    log = run.path / "logs" / "node_00_h1" / "rank_000.log"
    log.parent.mkdir(parents=True)
    log.write_text(said)
    return run, log


@pytest.mark.parametrize("engine", ["kubernetes", "skypilot"])
@pytest.mark.parametrize("verb", ["status", "logs", "diagnose", "report"])
def test_a_damaged_record_of_the_engine_hides_nothing_else(runs, shell, engine, verb):
    run, _ = of_engine(runs, "RuntimeError: CUDA error: out of memory\n", engine=engine, name=["no text"])
    code, out, err = shell(verb, str(run.path) if verb == "diagnose" else run.name)
    assert code in (0, 1)
    assert "damaged" not in err and "expected a text" not in err
    if verb == "status":
        assert "its state there is unknown: " in out and "engine: $.name: expected a text" in out
    assert verb != "logs" or "out of memory" in out


@pytest.mark.parametrize("engine", ["kubernetes", "skypilot"])
@pytest.mark.parametrize(
    ("place", "on_path", "code", "says"),
    [
        ({"name": ["no text"]}, True, 4, "$.name: expected a text"),
        ({"name": "demo", "kind": "job", "nodes": 1}, False, 2, "on PATH"),
    ],
    ids=["damaged", "no program"],
)
def test_attach_that_cannot_follow_leaves_the_run_as_it_is(
    runs, tmp_path, shell, monkeypatch, engine, place, on_path, code, says
):
    """The logs of a run on cloud machines were removed first, without `sky` it was an internal error, and without
    kubectl the run was followed for ever."""
    run, log = of_engine(runs, "step 1\n", engine=engine, **place)
    (tmp_path / "bin").mkdir()
    for name in ("kubectl", "sky") if on_path else ():
        (tmp_path / "bin" / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    given, _, err = shell("attach", run.name)
    assert given == code and says in err
    assert log.read_text() == "step 1\n" and run.read_run().controller is None


def test_a_line_without_an_end_comes_in_pieces(monkeypatch):
    monkeypatch.setattr(program_lines, "LONGEST", 1000)
    lines = program_lines.ProcessLines([sys.executable, "-c", "print('x' * 2500, end='')"])
    taken: list[str] = []
    while not lines.over:
        taken += lines.take()
    assert [len(line) for line in taken] == [1000, 1000, 500]
