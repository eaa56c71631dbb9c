"""Where the commands of a page run: a directory of its own, on this machine, on ssh hosts, or on a Slurm cluster."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.docs.blocks import Block, Command, Page, read
from tests.docs.shown import drift, with_figures
from tests.hosts.waiting import wait_until

BOUND = 400.0  # seconds for a command: a page's longest run takes one on a quiet machine
TOOLS = Path(sys.executable).parent  # allranks, python3 and torchrun of the tests' environment
BOUND_TO_TEST = ("setpriv", "--pdeathsig", "KILL")  # a test that is killed leaves no run that goes on
FOREIGN = ("ALLRANKS_", "SLURM", "SBATCH", "SALLOC", "PYTEST")


@dataclass(frozen=True)
class Ended:
    """What a command came to."""

    code: int
    lines: list[str]


class Place:
    """A directory with the files of a page.

    `environment` reaches a cluster, and `ssh_tools` has an `ssh` that reaches hosts.
    """

    def __init__(
        self, directory: Path, environment: dict[str, str] | None = None, ssh_tools: Path | None = None
    ) -> None:
        self.directory = directory
        self.work = directory / "first"
        self.work.mkdir()
        outside = dict(os.environ) if environment is None else environment
        kept = {name: value for name, value in outside.items() if name == "SLURM_CONF" or not name.startswith(FOREIGN)}
        for name in ("VIRTUAL_ENV", "COLUMNS", "KUBECONFIG", "PYTHONPATH", "WORLD_SIZE", "RANK"):
            kept.pop(name, None)
        home = directory / "home"
        home.mkdir()
        first = [str(ssh_tools)] if ssh_tools else []
        path = os.pathsep.join([*first, str(TOOLS), outside.get("PATH", os.defpath)])
        self.environment = {**kept, "HOME": str(home), "PATH": path, "LC_ALL": "C.UTF-8"}

    def write(self, block: Block) -> None:
        """Write a block as the file that it is; a script is made executable."""
        assert block.file is not None
        path = self.work / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
        if block.text.startswith("#!"):
            path.chmod(0o755)

    def write_all(self, path: Path) -> None:
        """Write the files of a page, or a copy of a directory under its own name."""
        if path.is_dir():
            copy_directory(path, self.work)
            return
        for block in read(path).blocks:
            if block.file is not None:
                self.write(block)

    def run(self, command: str) -> Ended:
        """Run a command as a shell without a terminal does, to its end."""
        output = self.directory / "output"
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [*BOUND_TO_TEST, "bash", "--noprofile", "--norc", "-c", command],
                cwd=self.work, env=self.environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
                start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(BOUND)
            except BaseException:
                self.end_all()
                process.wait()
                raise
        return Ended(code, output.read_text(encoding="utf-8", errors="replace").splitlines())

    def processes(self) -> list[int]:
        """Give the processes that work in this directory: those of its runs, and no others."""
        found = []
        for entry in os.listdir("/proc"):
            with suppress(OSError):
                if entry.isdigit() and Path(os.readlink(f"/proc/{entry}/cwd")).is_relative_to(self.work):
                    found.append(int(entry))
        return found

    def end_all(self) -> None:
        """End what still works in this directory."""

        def none_left() -> bool:
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not self.processes()

        wait_until(none_left, what=f"no process left in {self.work}")


def copy_directory(path: Path, place: Path) -> None:
    """Copy a directory under its own name, as a checkout has it."""
    shutil.copytree(path, place / path.name, ignore=shutil.ignore_patterns("__pycache__"))


def run_page(page: Page, place: Place) -> Iterator[str]:
    """Run a page from its top, and give each drift: the page, the line, the command and a diff.

    With ALLRANKS_WRITE_FIGURES set, the page gets the figures that this run has printed (`make page-figures`).
    """
    for other in page.files_of:
        place.write_all(other)
    for block in page.blocks:
        run_hidden(block, "before", place)
        if block.file is not None:
            place.write(block)
        if block.language == "console" and block.reason_not_run is None:
            for command in block.commands():
                ended = place.run(command.text)
                problem = drift_of(command, ended)
                if problem is not None:
                    yield f"{page.name}:{command.line}: $ {command.text}\n{problem}"
                elif "ALLRANKS_WRITE_FIGURES" in os.environ:
                    write_figures(page, command, ended)
        run_hidden(block, "after", place)


def run_hidden(block: Block, mark: str, place: Place) -> None:
    """Run the command of a comment; AssertionError where it fails."""
    if mark in block.marks:
        ended = place.run(block.marks[mark])
        assert ended.code == 0, (block.place, block.marks[mark], ended)


def write_figures(page: Page, command: Command, ended: Ended) -> None:
    """Write what a command has printed into its page, where the page shows `…`."""
    lines = page.path.read_text(encoding="utf-8").splitlines()
    first = command.line + command.text.count("\n")  # the line below the command, counted from 0
    figures = with_figures(command.shown, ended.lines)
    for at, (shown, figure) in enumerate(zip(command.shown, figures, strict=True), first):
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        lines[at] = lines[at] if figure == shown else indent + figure.lstrip()
    page.path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def drift_of(command: Command, ended: Ended) -> str | None:
    """Say where a command printed something else than the page shows, or failed and the page shows nothing."""
    difference = drift(command.shown, ended.lines)
    if difference is not None:
        return f"{difference}\n(exit {ended.code})"
    is_redirected = ">" in command.text  # what it printed is in a file, and so is the reason of its exit code
    if not command.shown and not is_redirected and ended.code != 0:
        return f"exit {ended.code}, and the page shows no output"
    return None
