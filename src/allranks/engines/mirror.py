"""A copy of the little of a run on another machine that a look at it needs, over the user's own ssh (IO).

Nothing is installed there: a shell gets a few commands for each look and answers with the ends of some files. Every
word of ours is quoted, every file has a limit, and every answer an end: a line that could not have been written before.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from allranks.agent.files import open_left
from allranks.cluster import Node
from allranks.errors import RunNotFound, TransportError, UsageError
from allranks.findings import Finding
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import OVER
from allranks.runs.known_directories import NAME, SIZE_LIMIT, paths_of
from allranks.runs.regular import replacing
from allranks.settings import RunSpec
from allranks.settings.runspec import Launch, Target

from .command_transport import ProcessClient
from .reachable_nodes import listed_cluster
from .ssh import SshTransport
from .ssh_errors import silent

ANSWER_SECONDS = 20.0  # for one answer
ANSWER_LIMIT = 64 << 20  # bytes of one answer
DOCUMENT_LIMIT = 8 << 20  # bytes of a document
LISTED_LIMIT = 1 << 20  # bytes of a document of a run that is listed
EVENTS_AT_FIRST = 256 << 10  # bytes of the end of events.jsonl
EVENTS_LIMIT = 1 << 20
METRICS_LIMIT = 16 << 10
DIRECTORIES = 8  # of those that have had runs there
RUNS = 64  # of a directory, those that have changed last
DOCUMENTS = ("run.json", "status.json", "verdict.json", "result.json")
STDERR_LIMIT = 64 << 10

# Prints the output of a command as a file of the answer: its name, and the words of the command.
SHOW = """show() {
echo "$T file $1"
shift
"$@"
echo
echo "$T end"
}"""
# Reads the list of runs directories there, as `runs.known_directories` does here.
READ_KNOWN = f"""f=${{XDG_STATE_HOME:-$HOME/.local/state}}/allranks/{NAME}
[ -f "$f" ] && show known tail -c {SIZE_LIMIT} "$f\""""
# Lists the runs of a directory, in the order of their last change: `list DIRECTORY NUMBER`.
LIST_RUNS = f"""list() {{
cd -- "$1" || return 0
show "$2/place" pwd
ls -1t | head -n {RUNS} | while IFS= read -r d
do
for f in run.json result.json
do
[ -f "./$d/$f" ] && show "$2/$d/$f" head -c {LISTED_LIMIT} "./$d/$f"
done
done
}}"""
# Reads one of the metrics files, of the lowest rank that has one.
READ_METRICS = f"""for m in outputs/rank_*_metrics.jsonl
do
[ -f "$m" ] && show "$m" tail -c {METRICS_LIMIT} "$m" && break
done"""


class RemoteShell:
    """A shell on a host. `ask` runs commands there, and returns the files of their answer by name."""

    def __init__(self, node: Node, ssh_options: Sequence[str] = ()) -> None:
        self._node = node
        self._transport = SshTransport(ssh_options, None, None)
        self._client: ProcessClient | None = None

    def ask(self, commands: str) -> dict[str, bytes]:
        """Run commands that print files. Raise TransportError where the host does not answer, also on a new channel.

        `show NAME COMMAND` prints a file of the answer, and `$T` is the mark of this answer alone.
        """
        is_renewed = self._client is None
        try:
            return self._ask(commands)
        except TransportError:
            self.close()
            if is_renewed:
                raise
        return self._ask(commands)

    def close(self) -> None:
        """End the client of ssh."""
        if self._client is not None:
            self._client.end()
            self._client = None

    def _ask(self, commands: str) -> dict[str, bytes]:
        if self._client is None:
            self._client = self._connect()
        mark = secrets.token_hex(16)
        script = f'exec 2>/dev/null\nT={mark}\n{SHOW}\n{commands}\necho "$T done"\n'
        self._send(script.encode("utf-8", "surrogateescape"))
        return files_of(self._receive(f"{mark} done\n".encode()), mark.encode())

    def _connect(self) -> ProcessClient:
        if self._node.is_local:
            raise UsageError(f"--on {self._node.name} is this machine. Leave --on out")
        try:
            return ProcessClient.of_process(self._transport.argv(self._node))
        except OSError as error:
            raise _refused(self._transport.not_started(self._node, error)) from None

    def _send(self, data: bytes) -> None:
        assert self._client is not None
        rest = memoryview(data)
        while rest:
            _, ready, _ = select.select([], [self._client.stdin], [], ANSWER_SECONDS)
            if not ready:
                raise _refused(silent(self._node, ANSWER_SECONDS))
            try:
                rest = rest[os.write(self._client.stdin, rest) :]
            except OSError:
                raise _refused(self._why_ended(b"")) from None

    def _receive(self, end: bytes) -> bytes:
        assert self._client is not None
        deadline = time.monotonic() + ANSWER_SECONDS
        answer = bytearray()
        while not answer.endswith(end):
            ready, _, _ = select.select([self._client.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise _refused(silent(self._node, ANSWER_SECONDS))
            data = os.read(self._client.stdout, 1 << 20)
            if not data:
                raise _refused(self._why_ended(bytes(answer[-STDERR_LIMIT:])))
            answer += data
            if len(answer) > ANSWER_LIMIT:
                raise TransportError(f"{self._node.name}: its answer is longer than {ANSWER_LIMIT >> 20} MB")
        return bytes(answer)

    def _why_ended(self, answer: bytes) -> Finding:
        assert self._client is not None
        code = self._client.code(2.0)
        stderr = b""
        if self._client.stderr is not None:
            with contextlib.suppress(OSError):
                stderr = os.read(self._client.stderr, STDERR_LIMIT)
        return self._transport.failure(self._node, answer, stderr.decode("utf-8", "replace"), code)


def _refused(finding: Finding) -> TransportError:
    hint = f"\nhint: {finding.remedy}" if finding.remedy else ""
    return TransportError(f"{finding.message}{hint}")


def files_of(answer: bytes, mark: bytes) -> dict[str, bytes]:
    """Split an answer into its files; what stands between them is left out."""
    files = {}
    for part in answer.split(mark + b" file ")[1:]:
        name, _, rest = part.partition(b"\n")
        content, end, _ = rest.partition(mark + b" end")
        if end:
            files[name.decode("utf-8", "surrogateescape")] = content.removesuffix(b"\n")
    return files


class MirroredRun(RunDirectory):
    """The copy of a run: whether its controller lives is asked where it runs."""

    is_alive = True

    def controller_alive(self) -> bool:
        """Return what the last look at the other machine has shown; True where its controller is on a third one."""
        return self.is_alive


class Mirror:
    """A run on another machine, and its copy here. `refresh` brings the copy up to date."""

    def __init__(self, shell: RemoteShell, source: PurePosixPath, copy: Path) -> None:
        self._shell = shell
        self._source = source
        self._events = 0  # bytes of events.jsonl that were read there
        self._is_first = True
        copy.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.run = MirroredRun(copy)

    def refresh(self) -> None:
        """Read what is new. Raise TransportError where the host does not answer."""
        files = self._shell.ask(self._commands())
        for name in DOCUMENTS:
            if name in files:
                self._replace(name, files[name])
        self._take_events(files.get("events", b""), files.get("size", b""))
        for name, content in files.items():
            folder, _, file = name.partition("/")
            if folder == "outputs" and _is_plain(file):
                (self.run.path / folder).mkdir(mode=0o700, exist_ok=True)
                self._replace(name, content)
        self.run.is_alive = self._controller_lives(files.get("host", b""), files.get("process", b""))

    def _commands(self) -> str:
        lines = [f"if cd -- {shlex.quote(str(self._source))}", "then"]
        lines += [f"[ -f {name} ] && show {name} head -c {DOCUMENT_LIMIT} {name}" for name in DOCUMENTS]
        events = f"tail -c +{self._events + 1} events.jsonl"
        if self._is_first:
            events = f"tail -c {EVENTS_AT_FIRST} events.jsonl"
        lines += [
            "events() {",
            f"{events} | head -c {EVENTS_LIMIT}",
            "}",
            "[ -f events.jsonl ] && show size wc -c events.jsonl",
        ]
        lines += ["[ -f events.jsonl ] && show events events", READ_METRICS, "show host uname -n"]
        controller = self.run.read_run().controller
        if controller is not None and controller.pid is not None:
            lines.append(f"show process head -c 4096 /proc/{int(controller.pid)}/stat")
        return "\n".join([*lines, "fi"])

    def _take_events(self, content: bytes, size: bytes) -> None:
        lines = content[: content.rfind(b"\n") + 1]
        path = self.run.path / "events.jsonl"
        digits = size.split()[:1]  # wc prints the file's name behind it
        there = int(digits[0]) if digits and digits[0].isdigit() and len(digits[0]) < 20 else 0
        if self._is_first:
            self._is_first = False
            self._events = max(0, there - len(content)) + len(lines)
            if there > len(content):  # the first line is the end of one
                lines = lines.partition(b"\n")[2]
        elif there < self._events:  # another file stands there
            self._is_first = True
            lines = b""
            path.unlink(missing_ok=True)
        else:
            self._events += len(lines)
        with open(open_left(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
            file.write(lines)

    def _replace(self, name: str, content: bytes) -> None:
        with replacing(self.run.path / name) as file:
            file.write(content)

    def _controller_lives(self, host: bytes, process: bytes) -> bool:
        controller = self.run.read_run().controller
        if controller is None or controller.pid is None or controller.host != host.strip().decode("utf-8", "replace"):
            return self.run.read_status().state not in OVER
        fields = process.rpartition(b")")[2].split()  # proc(5): the state is the first of them, the start the 20th
        return (
            len(fields) > 19 and fields[0] not in (b"Z", b"X") and fields[19] == b"%d" % int(controller.start_time or 0)
        )


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name and len(os.fsencode(name)) < 256


# -- which run ---------------------------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """A runs directory there, and the folder here with the start of its runs."""

    source: PurePosixPath
    copy: Path


@contextlib.contextmanager
def mirror_run(
    host: str, wanted: str | None, runs_dir: str | None, ssh_options: Sequence[str] = ()
) -> Iterator[Mirror]:
    """Find a run on another machine by directory or name, the newest where none is named, and copy what a look needs.

    Without `runs_dir` the directories are this one's path there and those that have had runs of this user. Raise
    TransportError where the host does not answer, RunNotFound where it has no such run.
    """
    folder = Path(tempfile.mkdtemp(prefix="allranks-top-"))
    shell = RemoteShell(node_named(host), ssh_options)
    try:
        source = _find(shell, folder, host, wanted, runs_dir)
        mirror = Mirror(shell, source, folder / "run" / source.name)
        mirror.refresh()
        yield mirror
    finally:
        shell.close()
        shutil.rmtree(folder, ignore_errors=True)


def node_named(host: str) -> Node:
    """Return the node that a word names: `host`, `user@host`, with `:port`."""
    nodes = listed_cluster(RunSpec(target=Target(hosts=host), launch=Launch(command=("true",))), None).nodes
    if len(nodes) != 1:
        raise UsageError(f"--on takes one host, got {host}")
    return nodes[0]


def _find(shell: RemoteShell, folder: Path, host: str, wanted: str | None, runs_dir: str | None) -> PurePosixPath:
    if wanted is not None and "/" in wanted:
        path = PurePosixPath(wanted)
        directories = [str(path.parent)]
        wanted = path.name
    elif runs_dir is not None:
        directories = [runs_dir]
    else:
        known = paths_of(shell.ask(READ_KNOWN).get("known", b""))
        directories = list(dict.fromkeys([*reversed(known[-DIRECTORIES:]), os.path.abspath("runs"), "runs"]))
    places = _list_places(shell, folder, directories)
    if wanted is not None:
        for place in places:
            with contextlib.suppress(RunNotFound):
                return place.source / MirroredRun.find(place.copy, wanted).name
    else:
        runs = [(run, place) for place in places for run in MirroredRun.list_runs(place.copy)]
        if runs:
            newest, place = max(runs, key=lambda pair: (not pair[0].has_ended, pair[0].started))
            return place.source / newest.name
    what = f"no run {wanted!r}" if wanted is not None else "no run"
    searched = ", ".join(str(place.source) for place in places) or ", ".join(directories)
    raise RunNotFound(f"{what} on {host} (looked in {searched})\nhint: allranks top --on {host} /path/to/runs/NAME")


def _list_places(shell: RemoteShell, folder: Path, directories: Sequence[str]) -> list[_Place]:
    """Copy the start of the newest runs of directories there; those that are not there are left out."""
    calls = [f"( list {shlex.quote(directory)} {number} )" for number, directory in enumerate(directories)]
    files = shell.ask("\n".join([LIST_RUNS, *calls]))
    places: dict[str, _Place] = {}
    for name, content in files.items():
        number, _, rest = name.partition("/")
        run, _, document = rest.partition("/")
        copy = folder / "listed" / str(int(number)) if number.isdecimal() and len(number) < 4 else None
        if copy is None:
            continue
        if rest == "place":
            source = PurePosixPath(content.decode("utf-8", "surrogateescape").removesuffix("\n"))
            if source not in {place.source for place in places.values()}:
                places[number] = _Place(source, copy)
        elif _is_plain(run) and document in DOCUMENTS:
            (copy / run).mkdir(parents=True, exist_ok=True)
            (copy / run / document).write_bytes(content)
    return list(places.values())
