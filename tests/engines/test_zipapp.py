"""allranks.pyz: one file that a bare Python runs, the same for the same sources, small enough for a ConfigMap."""

import json
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.hosts.waiting import BOUND, wait_until
from tests.ports import free_port

import allranks
from allranks.engines import zipapp
from allranks.plan.render.kubernetes import OBJECT_LIMIT

pytestmark = pytest.mark.processes

@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("pyz") / "allranks.pyz"
    path.write_bytes(zipapp.build())
    return path


def call(archive, *words, place=None):
    """Isolated and without site-packages, as in an image that has nothing."""
    place = place or tempfile.mkdtemp(dir=archive.parent)
    return subprocess.run([sys.executable, "-I", "-S", str(archive), *words], env={"TMPDIR": str(place)}, cwd=place,
                          capture_output=True, text=True, timeout=BOUND), Path(place)  # fmt: skip


def test_it_fits_and_is_the_same_every_time(archive):
    first = zipapp.build()
    zipapp.build.cache_clear()
    assert zipapp.build() == first == archive.read_bytes()
    assert len(first) < OBJECT_LIMIT - (48 << 10)


def test_an_archive_makes_another_that_is_the_same(archive, tmp_path):
    """`run --k8s` of an allranks.pyz ships one, and whoever finds it there may take it. Click's licence goes along."""
    for name, content in zipapp.packed_files().items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    code = "import sys; sys.path.insert(0, ''); from allranks.engines.zipapp import main; main()"
    subprocess.run([sys.executable, "-I", "-S", "-c", code, "again.pyz"], cwd=tmp_path, check=True, timeout=BOUND)
    assert (tmp_path / "again.pyz").read_bytes() == archive.read_bytes()


@pytest.mark.parametrize("verb", ["join", "run", "status"])
def test_a_bare_python_has_the_verbs_options(archive, verb):
    done, place = call(archive, verb, "--help")
    assert done.returncode == 0, done.stderr
    assert "--json" in done.stdout and f"Example: allranks {verb}" in " ".join(done.stdout.split())
    assert list(place.iterdir()) == []  # what it unpacked is gone


def test_it_says_how_it_was_made(archive):
    done, _ = call(archive, "--version")
    assert done.stdout.startswith(f"allranks {allranks.__version__} (one file with Click {version('click')}, made by")
    assert zipapp.COMMAND in done.stdout
    names = json.loads(zipfile.ZipFile(archive).read("sizes.json"))
    assert [name for name in names if "click" in name and "LICENSE" in name]


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("PyYAML", ["run", "--k8s", "--image", "x", "--nodes", "2", "--nproc", "1", "--dry-run", "x.py"]),
        ("Jinja2", ["diagnose", "log", "--html", "page.html"]),
    ],
)
def test_what_needs_another_package_names_it(archive, package, words):
    place = Path(tempfile.mkdtemp(dir=archive.parent))
    (place / "log").write_text("ValueError: wrong\n")
    done, _ = call(archive, *words, place=place)
    assert done.returncode == 2, done.stderr
    assert f"needs the package {package}" in done.stderr
    assert done.stderr.endswith(f"hint: {sys.executable} -m pip install {package}\n")


def test_a_check_does_without_its_page(archive):
    done, place = call(archive, "check", "--local", "1", "--only", "shm")
    assert done.returncode == 0, done.stderr
    assert " ok" in done.stdout and list(place.glob("runs/*/report.html")) == []


def test_wrong_use_is_exit_2_and_one_sentence(archive):
    done, _ = call(archive, "join", "--nnodes", "2", "--", "x.py")
    assert done.returncode == 2 and done.stderr.startswith("allranks: ")
    assert "set --node-rank, --master-addr" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("program", "code", "said"), [("print('here')", 0, "[2 ranks] here"), ("raise SystemExit(3)", 1, "VERDICT")]
)
def test_a_run_of_one_node_from_the_archive_alone(archive, program, code, said):
    words = ["--nnodes", "1", "--node-rank", "0", "--master-addr", "127.0.0.1", "--nproc", "2", "--no-check"]
    done, place = call(archive, "join", *words, "--port", str(free_port()), "--", sys.executable, "-c", program)
    assert done.returncode == code, done.stdout + done.stderr
    assert said in done.stdout and "Traceback" not in done.stderr
    assert [p.name for p in place.iterdir()] == ["runs"]


def test_a_daemon_of_the_archive_keeps_what_it_unpacked_until_its_end(archive):
    """`run --detach` removed it under the daemon, which ended with ModuleNotFoundError."""
    words = ["run", "--local", "1", "--nproc", "1", "--no-check", "--launcher", "direct", "--detach"]
    wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\nraise SystemExit(3)"
    done, place = call(archive, *words, "--", sys.executable, "-c", wait)
    assert done.returncode == 0, done.stderr
    (place / "go").touch()
    (run,) = (place / "runs").iterdir()
    wait_until((run / "result.json").exists, 120.0, "the end")
    wait_until(lambda: sorted(p.name for p in place.iterdir()) == ["go", "runs"], 120.0, "no directory")
    result = json.loads((run / "result.json").read_text())
    assert (result["exit"], result["program_exit"]["code"]) == (1, 3), (run / "controller.log").read_text()


def test_another_process_is_started_from_the_archive(archive):
    """`python -m allranks` is no command where only the archive is: Ctrl-Z and d, --slurm, render."""
    done, _ = call(archive, "render", "slurm", "--nodes", "2", "--", "train.py")
    assert done.returncode == 0, done.stderr
    words = done.stdout.replace("\\\n", " ").split()
    assert words[words.index(str(archive)) - 1] == sys.executable and "-m" not in words
