"""What a program has imported, kept for its next run: found again while nothing has changed, and only then."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from allranks.agent.import_records import find_record, keep_record, path_of
from allranks.agent.template import stamp_of
from allranks.protocol.codec import DecodeError
from allranks.protocol.orders import RankOrder
from allranks.protocol.processes import ImportRecord

SITE = "lib/python3/site-packages"


class Program:
    """A script with a module of its own, an interpreter and a directory of packages; each run has its own places."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for name in ("train.py", "model.py", "python", f"{SITE}/library.py"):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(f"# {name}\n")
        (place / SITE / "library-1.0.dist-info").mkdir()
        self.variables = {"HOME": str(place / "home"), "OMP_NUM_THREADS": "1"}
        self.arguments = ["--epochs", "3"]
        self.runs = 0

    def environment(self) -> dict[str, str]:
        run = f"demo-{self.runs}"
        return {
            **self.variables, "RANK": str(self.runs), "MASTER_PORT": str(29500 + self.runs), "ALLRANKS_RUN": run,
            "ALLRANKS_REPORT_SOCKET": f"/tmp/allranks-0/{run}/node_00/report.sock", "SSH_CONNECTION": run,
            "ALLRANKS_OUTPUT_DIR": f"/runs/{run}/outputs", "LOGS": f"/runs/{run}/outputs/logs",
        }  # fmt: skip

    def order(self) -> RankOrder:
        runner = f"/tmp/allranks-0/demo-{self.runs}/node_00/runner.py"
        words = [str(self.place / "python"), "-u", runner, "train.py", *self.arguments]
        return RankOrder(0, 0, tuple(words), {}, str(self.place))

    def imports(self) -> ImportRecord:
        modules = {"library": str(self.place / SITE / "library.py"), "json": "/usr/lib/python3/json/__init__.py"}
        own = {str(self.place / name): stamp_of(str(self.place / name)) for name in ("train.py", "model.py")}
        return ImportRecord(modules, {"HF_HOME": None}, own, 3.5)

    def keep(self, against: str = "") -> Path:
        self.runs += 1
        return Path(keep_record(self.order(), self.environment(), self.imports(), against))

    def find(self) -> tuple[ImportRecord | None, str]:
        self.runs += 1
        try:
            found = find_record(self.order(), self.environment())
        except DecodeError as error:
            return None, str(error)
        return found._replace(against="") if found.modules else None, found.against


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def test_the_next_run_of_an_unchanged_program_finds_what_this_one_kept(program: Program) -> None:
    assert program.find() == (None, "")
    path = program.keep()
    assert path.is_relative_to(program.place / "home/.cache/allranks/imports")
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert program.find() == (program.imports(), "")
    program.arguments = ["--epochs", "4"]
    assert program.find() == (None, ""), "another command has a record of its own"


def test_values_of_variables_are_not_written_down(program: Program) -> None:
    program.variables["WANDB_API_KEY"] = "secret-of-wandb"
    assert b"secret-of-wandb" not in program.keep().read_bytes()


CHANGES: dict[str, tuple[Callable[[Program], object], str]] = {
    "script": (lambda p: (p.place / "train.py").write_text("# another, of another size\n"), "train.py has changed"),
    "module": (lambda p: (p.place / "model.py").write_text("# another, of another size\n"), "model.py has changed"),
    "removed": (lambda p: (p.place / "model.py").unlink(), "model.py has changed"),
    "interpreter": (lambda p: (p.place / "python").write_text("# another, of another size\n"), "the interpreter is"),
    "packages": (lambda p: (p.place / SITE / "other-1.0.dist-info").mkdir(), f"/{SITE} are others than in the run"),
    "variable": (lambda p: p.variables.update(OMP_NUM_THREADS="2"), "the variable OMP_NUM_THREADS is another"),
    "new variable": (lambda p: p.variables.update(LD_PRELOAD="/hook.so"), "the variable LD_PRELOAD is another"),
}


@pytest.mark.parametrize(("change", "why"), CHANGES.values(), ids=CHANGES)
def test_what_has_changed_is_named(program: Program, change: Callable[[Program], object], why: str) -> None:
    program.keep()
    change(program)
    found, words = program.find()
    assert found is None and why in words and words.endswith("the run that is on record")


def test_what_spoke_against_it_is_known_until_the_program_changes(program: Program) -> None:
    program.keep("what it imports prints: hello")
    assert program.find() == (program.imports(), "what it imports prints: hello")
    (program.place / "model.py").write_text("# prints no more\n")
    assert "model.py has changed" in program.find()[1]


def test_a_file_that_is_edited_while_it_is_read_keeps_no_record(program: Program) -> None:
    imports = program.imports()
    os.utime(program.place / "train.py", (1, 1))
    assert keep_record(program.order(), program.environment(), imports, "") == ""
    assert program.find() == (None, "")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.chmod(0o666), "is not a file that you alone may write"),
        (lambda path: (path.rename(f"{path}.real"), path.symlink_to(f"{path}.real")), "is not a file that you alone"),
        (lambda path: path.write_text('{"schema": 2}'), "$.salt"),
        (lambda path: path.write_text("[" * 100_000), "cannot be read"),
        (lambda path: path.write_text(path.read_text().replace('"schema":2', '"schema":1')), "$.schema: expected 2"),
        (lambda path: path.write_text(path.read_text().replace('"schema":2', '"schema":3')), "$.schema: expected 2"),
    ],
    ids=["writable", "link", "cut", "deep", "older", "newer"],
)  # fmt: skip
def test_a_record_that_is_none_of_ours_is_refused(program: Program, spoil: Callable[[Path], object], why: str) -> None:
    spoil(program.keep())
    found, words = program.find()
    assert found is None and words.startswith("the record of a former run cannot be read: ") and why in words


def test_without_a_home_directory_nothing_is_kept(program: Program) -> None:
    program.variables["HOME"] = ""
    assert path_of(program.order(), program.environment()) is None
    assert program.find() == (None, "")
