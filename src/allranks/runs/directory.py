"""RunDirectory: where one launch keeps its documents, events and logs (formats: docs/architecture.md)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from allranks.agent.files import open_left
from allranks.errors import RunNotFound, SeveralRuns, UsageError
from allranks.exitcodes import CTRL_C, DONE, TERMINATED
from allranks.findings import Verdict
from allranks.protocol.codec import SCHEMA, decode_parts, fitting
from allranks.protocol.frames import (
    AUDIT,
    DUMP,
    FLIGHT,
    METRICS,
    NCCL_LOG,
    NODE_LOG,
    RANK_LOG,
    RAS,
    RAY_LOG,
    STACKS,
    TRACE,
)
from allranks.protocol.jsontext import DecodeError, Json, read_object
from allranks.protocol.node_names import OUTPUTS

from .documents import (
    ORPHANED,
    OVER,
    Document,
    ResultDocument,
    RunDocument,
    RunReport,
    StatusDocument,
    at_rest,
    lease_end_of,
    result_kind,
)
from .regular import open_regular, read_end, read_objects, replacing

if TYPE_CHECKING:
    from allranks.protocol.run_facts import Fact, Stamped

Lives = Callable[["RunDirectory"], bool]

DOCUMENT_LIMIT = 64 << 20
LAST_EVENT = 4 << 10  # bytes in which the event of the end stands
ROOM = ".room-for-the-end"  # a file that is removed when the end of the run is written
ROOM_BYTES = 64 << 10
ASK_EVERY = 2.0  # seconds between two questions to an engine
GOES_ON = 0
UNFINISHED = 1
ENDED = 2
STATES = {DONE: "done", CTRL_C: "stopped", TERMINATED: "stopped"}  # by exit code
STAMP = re.compile(r"-\d{8}-\d{6}(-\w+){0,2}\Z")  # what `create` puts behind the --name of a run
CHECK_NAME = re.compile(r"check-\d{8}-\d{6}(-\d+)?")  # a directory that `check` has saved
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
OF_LOGS = {RANK_LOG: "", NODE_LOG: "", NCCL_LOG: "nccl_", RAY_LOG: "ray_"}  # how names in a node's folder begin


class RunCondition(NamedTuple):
    """A run's state, and the documents that say it: status.json, and result.json of a run that has ended."""

    state: str
    status: StatusDocument
    result: ResultDocument | None

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of a run that has ended; None where it has none."""
        if self.result is None:
            return None
        return self.result.verdict

    @property
    def goodput(self) -> float | None:
        """The goodput of the run, up to now where it goes on."""
        if self.result is None:
            return self.status.goodput
        return self.result.goodput

    def report(self, run: RunDirectory, now: float) -> RunReport:
        """Describe the run. `now`: unix seconds."""
        status = replace(self.status, run=run.name, state=self.state, t=round(now, 3), goodput=self.goodput)
        return RunReport(**vars(status), directory=str(run.path), verdict=self.verdict)


class RunDirectory:
    """One run directory; `write_failure` says why the last event or document that could not be written was not.

    `lives` is asked whether a run whose controller is not on this host goes on. Without it no such run does. `role` is
    a part of the run whose facts and files are meant, beside the one whose success ends the run.
    """

    def __init__(self, path: Path, lives: Lives | None = None, role: str = "") -> None:
        self.path = path
        self.role = role
        self.name = path.name
        self.write_failure = ""
        self.events_written = 0  # bytes, of this process
        self._events = str(path / "events.jsonl")
        self._held: list[tuple[str, Document | None]] = []  # lines that are not written yet, with what is searched
        self._holds = False
        self._torn = False  # the last event was cut short by a full disk
        self._ask_engine = lives
        self._goes_on_elsewhere = False
        self._ask_again = 0.0

    def of_role(self, role: str) -> RunDirectory:
        """Give this run directory as the place of a role."""
        return RunDirectory(self.path, self._ask_engine, role)

    # -- finding -----------------------------------------------------------------------------------

    @classmethod
    def create(cls, runs_dir: Path, name: str, now: float, suffix: str = "") -> RunDirectory:
        """Make `<name>-<YYYYMMDD-HHMMSS><suffix>` (local time), private; another one of that second gets -2, -3, …"""
        base = f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}{suffix}"
        for number in range(1, 1000):
            path = runs_dir / (base if number == 1 else f"{base}-{number}")
            try:
                runs_dir.mkdir(parents=True, exist_ok=True)
                path.mkdir(mode=0o700)
                return cls(path)
            except OSError as error:
                if isinstance(error, FileExistsError) and runs_dir.is_dir():
                    continue
                raise _not_made(path, error) from None
        raise UsageError(f"{runs_dir}: a thousand runs of this second. Set another --name.")

    def make_outputs(self) -> None:
        """Make the folder of what the ranks write, unless it is there; raise UsageError where it cannot be made."""
        try:
            self.outputs.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise _not_made(self.outputs, error) from None

    @property
    def outputs(self) -> Path:
        """The folder of what ranks on this machine write."""
        return self.path / OUTPUTS

    def metrics_files(self) -> list[Path]:
        """List the files of metrics that ranks have written, in the order of their ranks."""
        return sorted(self.outputs.glob("rank_*_metrics.jsonl"))

    @classmethod
    def list_runs(cls, runs_dir: Path, lives: Lives | None = None) -> list[RunDirectory]:
        """List directories with a run.json, the oldest first; of each run.json only the start is looked at."""
        if not runs_dir.is_dir():
            return []
        dated: list[tuple[float, RunDirectory]] = []
        for path in runs_dir.iterdir():
            if (path / "run.json").is_file() and not path.is_symlink():
                run = cls(path, lives)
                document = run.read_document("run.json")
                if document is not None:
                    dated.append((fitting(float, document.get("started")) or 0.0, run))
        return [run for _, run in sorted(dated, key=lambda pair: pair[0])]

    @classmethod
    def find(cls, runs_dir: Path, wanted: str | None, lives: Lives | None = None) -> RunDirectory:
        """By path, by name, by Slurm job, or by what only one name begins with; the newest where none is wanted.

        A name is a directory's, or the --name of runs. Runs of just this --name come before others that begin so, and
        runs that go on before those that are over; of ended runs of one --name the newest is meant. Raises
        RunNotFound, SeveralRuns where several are meant.
        """
        if wanted is not None and (Path(wanted) / "run.json").is_file():
            path = Path(wanted)
            return cls(path if path.name not in ("", "..") else path.resolve(), lives)
        runs = cls.list_runs(runs_dir, lives)
        if wanted is None:
            if not runs:
                raise RunNotFound(f"no run in {runs_dir}/. Name a run directory, or set --runs-dir.")
            return runs[-1]
        exact = [r for r in runs if r.name == wanted or (wanted.isdecimal() and r.job == wanted)]
        named = [r for r in runs if STAMP.sub("", r.name) == wanted]
        matches = exact or named or [r for r in runs if r.name.startswith(wanted)]
        activities = [r.activity for r in matches]  # asked once: a run may end meanwhile
        nearest = min(activities, default=ENDED)
        meant = [r for r, activity in zip(matches, activities, strict=True) if activity == nearest]
        if len(meant) == 1 or (named and meant and nearest == ENDED):
            return meant[-1]
        if meant:
            which = "have this name" if named else "begin so"
            if nearest != ENDED:
                which += " and go on"
            raise SeveralRuns(
                f"{wanted!r} is not one run, {len(meant)} runs in {runs_dir}/ {which}", [str(r.path) for r in meant]
            )
        newest = ", ".join(r.name for r in runs[-3:]) or "it has none"
        raise RunNotFound(f"no run {wanted!r} in {runs_dir}/ (the newest there: {newest})\nhint: allranks ps --all")

    @property
    def activity(self) -> int:
        """GOES_ON, then UNFINISHED (its controller has died, and nothing says that it is over), then ENDED."""
        if self.has_ended:
            return ENDED
        if self.controller_alive():
            return GOES_ON
        return UNFINISHED

    @property
    def has_ended(self) -> bool:
        """Tell whether the run has a result."""
        return self.read_result() is not None

    @property
    def started(self) -> float:
        """Unix seconds of the start; 0 where run.json does not say."""
        return self.read_run().started or 0.0

    # -- documents ---------------------------------------------------------------------------------

    def write_document(self, name: str, document: Document, has_texts: bool = True) -> None:
        """Replace a JSON document as a whole; on a full disk the old one stays.

        One without texts, but for names and words of ours, is not searched for secrets.
        """
        whole = {"schema": SCHEMA, **document}
        self._replace(name, [_without_secrets(whole, document_text) if has_texts else document_text(whole)])

    def write_large(
        self, name: str, document: Document, member: str, objects: Mapping[str, Mapping[str, Json]]
    ) -> None:
        """Replace a JSON document that has a member more, with an object a node: it is written line by line.

        What several of the objects have as one value is searched for secrets once.
        """
        self._replace(name, _large_text({"schema": SCHEMA, **document}, member, objects))

    def keep_room(self) -> None:
        """Keep room for the end of the run on a disk that fills up, where it has some."""
        with contextlib.suppress(OSError), open(self.path / ROOM, "xb") as file:
            os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)

    def give_room(self) -> None:
        """Give what was kept: the end is written next."""
        with contextlib.suppress(OSError):
            (self.path / ROOM).unlink()

    def write_page(self, page: str) -> bool:
        """Replace report.html; False on a full disk, where `write_failure` says why."""
        return self._replace("report.html", [page])

    def _replace(self, name: str, texts: Iterable[str]) -> bool:
        """Replace a file as a whole; on a full disk the old one stays."""
        try:
            with replacing(self.path / name) as file:
                file.writelines(text.encode("utf-8", "backslashreplace") for text in texts)
        except OSError as error:
            self.write_failure = error.strerror or str(error)
            return False
        return True

    def read_document(self, name: str) -> Document | None:
        """Read a JSON object as it is written; None where there is none."""
        try:
            with open_regular(self.path / name) as file:
                return read_object(file.read(DOCUMENT_LIMIT), DOCUMENT_LIMIT)
        except (OSError, DecodeError):
            return None

    def read_run(self) -> RunDocument:
        """Read run.json; fields that it lacks are empty."""
        return decode_parts(RunDocument, self.read_document("run.json"))

    def read_status(self) -> StatusDocument:
        """Read status.json; fields that it lacks are empty."""
        return decode_parts(StatusDocument, self.read_document("status.json"))

    def read_result(self) -> ResultDocument | None:
        """Read result.json, of a run or of a test; None where the run has no result.

        A run whose last event says that it has ended has a result, though it may be only its exit code: the file was
        damaged, or a full disk has kept it from being written.
        """
        written = self.read_document("result.json")
        result = None if written is None else fitting(result_kind(written), written)
        return self._end_by_events() if result is None else result

    def _end_by_events(self) -> ResultDocument | None:
        """Make the least result of the event that the run has ended; it is the last one of all."""
        from allranks.protocol.run_facts import RunEnd, read_line  # late, as in read_facts

        try:
            end = read_end(self.path / "events.jsonl", LAST_EVENT)
            event = read_object(end.strip().rpartition("\n")[2], LAST_EVENT)
        except DecodeError:
            return None
        stamped = read_line(event)
        if stamped is None or not isinstance(stamped.fact, RunEnd):
            return None
        verdict = fitting(Verdict, self.read_document("verdict.json"))
        return ResultDocument(self.name, str(self.path), stamped.fact.exit, verdict=verdict)

    def append(self, stamped: Stamped[Fact]) -> None:
        """Write a fact down; a full disk is kept in `write_failure`, never raised."""
        from allranks.protocol.run_facts import WITHOUT_TEXTS, write_line  # late, as in read_facts

        self.append_line(write_line(stamped), has_texts=type(stamped.fact) not in WITHOUT_TEXTS)

    def append_line(self, event: Document, has_texts: bool = True) -> None:
        """Write one line of events.jsonl; a full disk is kept in `write_failure`, never raised.

        One without texts, but for names and words of ours, is not searched for secrets.
        """
        document = {"schema": SCHEMA, **event}
        text = json.dumps(document)
        self.events_written += len(text) + 1
        self._held.append((text, document if has_texts else None))
        if not self._holds:
            self.write_events()

    @contextlib.contextmanager
    def events_together(self) -> Iterator[None]:
        """Write the lines of a block at its end, or at `write_events`, in one write."""
        self._holds = True
        try:
            yield
        finally:
            self._holds = False
            self.write_events()

    def write_events(self) -> None:
        """Write the lines that are held back."""
        if not self._held:
            return
        held, self._held = self._held, []
        if _may_hold("\n".join([text for text, document in held if document is not None])):
            held = [(text if one is None else _without_secrets(one, json.dumps), None) for text, one in held]
        lines = "\n".join([text for text, _ in held])
        data = (b"\n" if self._torn else b"") + lines.encode() + b"\n"
        written = 0
        try:
            fd = open_left(self._events, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                written = os.write(fd, data)
            finally:
                os.close(fd)
        except OSError as error:
            self.write_failure = error.strerror or str(error)
        else:
            if written < len(data):
                self.write_failure = os.strerror(errno.ENOSPC)
        self._torn = 0 < written < len(data) or (self._torn and not written)

    def read_facts(self, offset: int = 0, all_roles: bool = False) -> tuple[list[Stamped[Fact]], int]:
        """Read the facts from a byte offset of events.jsonl on, and the offset to go on from.

        They tell of the run and of the role whose directory this is. With `all_roles` they tell of all.
        """
        from allranks.protocol.run_facts import (
            read_lines,  # late: `status` and `ps` read no facts, and do without 10 ms
        )

        lines, offset = self.read_lines(offset)
        return [stamped for stamped in read_lines(lines) if all_roles or stamped.role == self.role], offset

    def read_lines(self, offset: int = 0) -> tuple[list[Document], int]:
        """Read whole lines of events.jsonl from a byte offset on, and the offset to go on from."""
        try:
            with open_regular(self.path / "events.jsonl") as file:
                file.seek(offset)
                data = file.read(DOCUMENT_LIMIT)
        except OSError:
            return [], offset
        complete = data[: data.rfind(b"\n") + 1]
        return list(read_objects(complete, DOCUMENT_LIMIT)), offset + len(complete)

    # -- logs --------------------------------------------------------------------------------------

    def log_path(self, node_index: int, node_name: str, kind: int, rank: int, attempt: int) -> Path:
        """Return the file of one stream."""
        return Path(self.log_file(node_index, node_name, kind, rank, attempt))

    def log_file(self, node_index: int, node_name: str, kind: int, rank: int, attempt: int) -> str:
        """Return the same as a text, which is made in a tenth of the time: a run may have 32,768 ranks."""
        again = f"{attempt_folder(attempt)}/" if attempt else ""
        if kind in OF_LOGS:
            folder = f"{self.path}/logs/{again}{node_folder(node_index, node_name)}"
            return f"{folder}/node.log" if kind == NODE_LOG else f"{folder}/{OF_LOGS[kind]}rank_{rank:03d}.log"
        role = f"{self.role}/" if self.role else ""
        if kind == METRICS:
            return f"{self.path}/{OUTPUTS}/{role}rank_{rank:02d}_metrics.jsonl"
        evidence = f"{self.path}/evidence"
        if kind == RAS:
            return f"{evidence}/ras/{node_folder(node_index, node_name)}.txt"
        names = {
            STACKS: f"stacks/rank_{rank:03d}.txt",
            FLIGHT: f"flight/rank_{rank:03d}.jsonl",
            DUMP: f"flight/dump_a{attempt}_rank_{rank:03d}",
            TRACE: f"traces/profile_{attempt}_rank_{rank:03d}.json.gz",
            AUDIT: f"audit/{again}rank_{rank:03d}.jsonl",
        }
        return f"{evidence}/{role}{names[kind]}"

    # -- who controls it ---------------------------------------------------------------------------

    @property
    def job(self) -> str | None:
        """The Slurm job that its controller runs in, or will; None for any other run."""
        return self.job_in(self.read_run())

    def job_in(self, document: RunDocument) -> str | None:
        """Return the same, where run.json has been read."""
        owner = document.slurm or self.read_document("job.json") or {}
        job = str(owner.get("job") or "")
        if not job.isdecimal():
            return None
        return job

    @property
    def engine(self) -> Mapping[str, Json]:
        """Where it is, of a run in pods or on cloud machines; {} for any other."""
        return self.read_run().engine

    def is_on_hosts(self, document: RunDocument) -> bool:
        """Return whether the run has its own controller on its hosts: it is in no Slurm job, no pod, no cloud."""
        return not document.engine and self.job_in(document) is None

    def controller_alive(self) -> bool:
        """Return whether the controller that run.json names lives on this host, or elsewhere as its engine knows."""
        return self._has_controller(self.read_run())

    def _has_controller(self, document: RunDocument) -> bool:
        controller = document.controller
        if controller is None or controller.host != platform.node():
            return self._lives_elsewhere()
        if controller.pid is None:
            return False
        # Imported late: a run that is over is not asked, and it takes 5 ms.
        from allranks.agent.processes import read_process

        process = read_process(controller.pid)
        return process is not None and process.start == controller.start_time and process.state not in "ZX"

    def _lives_elsewhere(self) -> bool:
        """As its engine knows, which is asked every few seconds at most."""
        if time.monotonic() >= self._ask_again:
            self._goes_on_elsewhere = self._ask_engine is not None and self._ask_engine(self)
            self._ask_again = time.monotonic() + ASK_EVERY
        return self._goes_on_elsewhere

    def is_written_elsewhere(self, document: RunDocument, status: StatusDocument) -> bool:
        """Whether a controller on another machine may have written it on a disk of both: its lease has not ended."""
        controller = document.controller
        if controller is None or controller.host == platform.node() or not self.is_on_hosts(document):
            return False
        return status.t > 0 and time.time() <= lease_end_of(document, status).ranks_t

    def state(self) -> str:
        """Return the run's state; "orphaned" where its controller died and nothing says that it is over."""
        return self.condition().state

    def condition(self) -> RunCondition:
        """Return the run's state, with the documents that say it, each read once."""
        result = self.read_result()
        if result is None:
            document = self.read_run()
            has_controller = self._has_controller(document)
            result = self.read_result()  # asked again: a controller writes it, then it ends
            if result is None:
                status = self.read_status()
                if has_controller or self.is_written_elsewhere(document, status):
                    return RunCondition(status.state or "starting", status, None)
                return RunCondition(ORPHANED, status, None)
        status = self.read_status()
        state = status.state
        if state not in OVER:  # a full disk has kept the last status.json from being written
            state = STATES.get(result.exit, "failed")
        return RunCondition(state, at_rest(status), result)


def _not_made(path: Path, error: OSError) -> UsageError:
    reason = f"{path}: cannot make the run directory ({error.strerror})"
    return UsageError(f"{reason}. Set --runs-dir or ALLRANKS_RUNS_DIR.")


def _without_secrets(document: Document, write: Callable[[Document], str]) -> str:
    """Write a document, redacted where it may hold a secret; most have none, and the encoder in C is quick."""
    from allranks.settings.secrets import redact_document

    text = write(document)
    if not _may_hold(text):
        return text
    return write(redact_document(document))


def _may_hold(text: str) -> bool:
    from allranks.settings.secretforms import may_hold  # late, with its patterns: readers need none

    return may_hold(text)


def document_text(document: Document) -> str:
    """Write a document with a line a member, and below it a line an element: a node, of all nodes.

    `indent` of json.dumps would have Python write it in the place of C, and the state of 200 nodes is written each
    second.
    """
    lines = [f" {json.dumps(name)}: {_member_text(value)}" for name, value in document.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def _member_text(value: Json) -> str:
    if value and isinstance(value, (list, tuple)):
        return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
    if value and isinstance(value, dict):
        members = (f"{json.dumps(str(name))}: {json.dumps(item)}" for name, item in value.items())
        return "{\n  " + ",\n  ".join(members) + "\n }"
    return json.dumps(value)


def _large_text(document: Document, member: str, objects: Mapping[str, Mapping[str, Json]]) -> Iterator[str]:
    yield _without_secrets(document, document_text).removesuffix("\n}")
    written: dict[tuple[str, int], str] = {}  # by the name of a part and the part itself, which lives meanwhile
    before = f",\n {json.dumps(member)}: {{\n  "
    for name, parts in objects.items():
        yield f"{before}{json.dumps(name)}: {{{', '.join(_part_text(*part, written) for part in parts.items())}}}"
        before = ",\n  "
    yield "\n }\n}" if objects else f",\n {json.dumps(member)}: {{}}\n}}"


def _part_text(name: str, part: Json, written: dict[tuple[str, int], str]) -> str:
    text = written.get((name, id(part)))
    if text is None:
        text = written[name, id(part)] = _without_secrets({name: part}, json.dumps)[1:-1]
    return text


def attempt_of_folder(folder: Path) -> int:
    """Return the attempt whose files lie in a folder, as `attempt_folder` has named it; 0 is the first."""
    number = folder.name.removeprefix("attempt_")
    return int(number) if number.isdecimal() else 0


def attempt_of(log: Path) -> int:
    """Return the attempt that a log in a node's folder is of."""
    return attempt_of_folder(log.parent.parent)


def attempt_folder(attempt: int) -> str:
    """Return the folder in which an attempt's files lie; empty for the first, which has none of its own."""
    if not attempt:
        return ""
    return f"attempt_{attempt}"


def node_folder(index: int, name: str) -> str:
    """Return the name of the folder in which a node's files lie."""
    return f"node_{index:02d}_{_UNSAFE.sub('_', name)[:80]}"


def save_error(run: RunDirectory, attempt: int, rank: int, error: Document | None) -> None:
    """Keep a rank's error file; on a full disk it is left out."""
    if not error:
        return
    folder = _error_folder(run, attempt)
    with contextlib.suppress(OSError):
        folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.write_document(f"rank_{rank:03d}.json", error)


def read_error(run: RunDirectory, attempt: int, rank: int) -> Document | None:
    """Read a rank's error file; None where it has none."""
    return _error_folder(run, attempt).read_document(f"rank_{rank:03d}.json")


def _error_folder(run: RunDirectory, attempt: int) -> RunDirectory:
    return RunDirectory(run.path / "evidence" / run.role / "errors" / attempt_folder(attempt))
