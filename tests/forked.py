"""`allranks …` as a process forked from one that has imported it already: the start of Python and its imports, half
a second of processor time a call, are paid once.

The child has its own words, environment, directory, descriptors and session, and ends as a module's program does. What
it cannot have is an interpreter of its own: for PYTHON… variables, another locale, or a command line that others read,
start `sys.executable -m allranks`. ALLRANKS_TEST_EXEC=1 starts all of them so.
"""

import array
import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.hosts.waiting import BOUND

from allranks.cli.main import VERBS, run_verb

ROOT = Path(__file__).resolve().parents[1]
LATER = ("allranks.gang.session", "allranks.runs.judged")  # what verbs import once they are under way
MESSAGE = 1 << 20  # bytes of a request: mostly the environment
DESCRIPTORS = 4  # standard input, output and error, and the pipe for the status

START = "import sys; sys.argv[0] = 'allranks'\nfrom allranks.cli.main import main\nmain()"

Stream = int | IO[Any] | None


class Process:
    """As subprocess.Popen, as far as the tests need it. The server reaps it and sends the status through a pipe."""

    def __init__(self, words: Sequence[str], pid: int, status: int) -> None:
        self.args = [sys.executable, "-m", "allranks", *words]
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """Its exit code, or the negative number of the signal; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            text = os.read(self._status, 100)
            os.close(self._status)
            if not text:
                raise RuntimeError("the server of forked processes has died")
            self.returncode = os.waitstatus_to_exitcode(int(text))
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing, if it has ended: its number may be another's by now."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def popen(
    words: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = subprocess.DEVNULL,
    stderr: Stream = subprocess.DEVNULL,
    before: str = "",
) -> Process | subprocess.Popen[str]:
    """Start `allranks WORDS` in a session of its own, after the Python statements `before`.

    `env` is this process's where it is None; streams are open files, or subprocess.DEVNULL.
    """
    if env is None:
        env = os.environ
    if os.environ.get("ALLRANKS_TEST_EXEC"):
        start = ["-c", f"{before}\n{START}"] if before else ["-m", "allranks"]
        argv = [sys.executable, *start, *words]
        return subprocess.Popen(
            argv, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr, text=True, start_new_session=True
        )
    return _server().start(words, cwd, env, (stdin, stdout, stderr), before)


def call(
    words: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    timeout: float = BOUND,
    input_text: str | None = None,
    before: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run `allranks WORDS` to its end, and to the end of all that has its output. Raises subprocess.TimeoutExpired.

    `input_text` comes through a pipe, as from another command.
    """
    pipes = [os.pipe(), os.pipe()]
    stdin: Stream = subprocess.DEVNULL if input_text is None else _pipe_of(input_text)
    try:
        process = popen(words, cwd=cwd, env=env, stdin=stdin, stdout=pipes[0][1], stderr=pipes[1][1], before=before)
    finally:
        if isinstance(stdin, int) and stdin != subprocess.DEVNULL:
            os.close(stdin)
        for _, end in pipes:
            os.close(end)
    try:
        output = _read_all([end for end, _ in pipes], time.monotonic() + timeout)
        if output is None:
            raise subprocess.TimeoutExpired(process.args, timeout)
        code = process.wait(timeout)
    finally:
        process.kill()
        for end, _ in pipes:
            os.close(end)
    return subprocess.CompletedProcess(process.args, code, *output)


def _pipe_of(text: str) -> int:
    """The reading end of a pipe through which a thread writes a text."""
    read_end, write_end = os.pipe()

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), open(write_end, "w") as file:
            file.write(text)

    threading.Thread(target=write, daemon=True).start()
    return read_end


def _read_all(ends: list[int], until: float) -> list[str] | None:
    """What comes through the pipes until all are closed; None if that takes too long."""
    texts: dict[int, list[bytes]] = {end: [] for end in ends}
    with selectors.DefaultSelector() as selector:
        for end in ends:
            selector.register(end, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, until - time.monotonic()))
            if not ready:
                return None
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                texts[key.fd].append(data)
                if not data:
                    selector.unregister(key.fd)
    return [b"".join(texts[end]).decode() for end in ends]


# -- the server, seen from the tests -------------------------------------------------------------------


class Server:
    """One a test process; it ends with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            theirs.set_inheritable(True)
            words = [sys.executable, "-m", "tests.forked", str(theirs.fileno())]
            self._process = subprocess.Popen(words, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def start(
        self, words: Sequence[str], cwd: Path, env: Mapping[str, str], streams: Sequence[Stream], before: str
    ) -> Process:
        request = json.dumps({"words": list(words), "cwd": str(cwd), "env": dict(env), "before": before}).encode()
        assert len(request) < MESSAGE, "the environment is too large"
        status, status_end = os.pipe()
        with open(os.devnull, "r+b") as nothing:
            chosen = [nothing if s in (None, subprocess.DEVNULL) else s for s in streams]
            numbers = array.array("i", [*(s if isinstance(s, int) else s.fileno() for s in chosen), status_end])
            with self._lock:
                self._socket.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
                answer = self._socket.recv(100)
        os.close(status_end)
        if not answer:
            raise RuntimeError(f"the server of forked processes ended with code {self._process.wait()}")
        return Process(words, int(answer), status)


_server = functools.cache(Server)


# -- in the server -------------------------------------------------------------------------------------


def serve(channel: socket.socket) -> dict[str, Any] | None:
    """Fork for each request. Returns in the child what it is asked for, and None in the server at its end."""
    own_end, reaper_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(reaper_end, warn_on_full_buffer=False)
    statuses: dict[int, int] = {}
    while True:
        ready = select.select([channel, own_end], [], [])[0]
        if own_end in ready:
            os.read(own_end, 4096)
            _reap(statuses)
        if channel not in ready:
            continue
        data, ancillary, _, _ = channel.recvmsg(MESSAGE, socket.CMSG_SPACE(DESCRIPTORS * 4))
        if not data:
            return None
        numbers = array.array("i", ancillary[0][2])
        request: dict[str, Any] = json.loads(data)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            channel.detach()
            _take(numbers[:3])
            return request
        statuses[pid] = numbers[3]
        for number in numbers[:3]:
            os.close(number)
        channel.send(b"%d" % pid)


def _reap(statuses: dict[int, int]) -> None:
    """Tell the status of each child that has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        end = statuses.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(end, b"%d" % status)
        os.close(end)


def _take(numbers: Sequence[int]) -> None:
    """The request's standard streams become this process's; no other descriptor stays."""
    os.setsid()
    for number, stream in enumerate(numbers):
        os.dup2(stream, number)
    os.closerange(3, 1 << 16)


def become(words: list[str], cwd: str, env: dict[str, str], before: str) -> None:
    """What `python -m allranks WORDS` would be."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    sys.argv = [str(ROOT / "src/allranks/__main__.py"), *words]
    sys.path[0] = cwd
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    unbuffered = bool(env.get("PYTHONUNBUFFERED"))
    sys.stdout = sys.__stdout__ = _writer(1, "strict", os.isatty(1), unbuffered)
    sys.stderr = sys.__stderr__ = _writer(2, "backslashreplace", True, unbuffered)
    exec(before, {})
    try:
        runpy.run_module("allranks", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        with contextlib.suppress(OSError):  # a full disk: the interpreter has its own words for that
            _leave(ended.code)
        raise


def _leave(code: object) -> None:
    """End as the interpreter does, but for the clearing of its modules, which would copy all their pages."""
    if isinstance(code, int):
        sys.stdout.flush()
        sys.stderr.flush()
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - what the interpreter calls
        atexit._run_exitfuncs()  # noqa: SLF001
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _writer(number: int, errors: str, by_line: bool, unbuffered: bool) -> io.TextIOWrapper:
    """A standard stream as Python makes it."""
    raw = open(number, "wb", closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(raw, errors=errors, line_buffering=by_line, write_through=unbuffered)


def warm_up() -> None:
    """Import what verbs import, and use the option parser once: it imports more by then."""
    for name in (*(f"allranks.cli.{verb}" for verb in VERBS), *LATER):
        importlib.import_module(name)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run_verb("status", ["no-such-run"])
        run_verb("run", ["--hosts", "/no/such/file", "--", "x.py"])
        run_verb("status", ["--help"])


def main() -> None:
    warm_up()
    gc.collect()
    gc.freeze()  # the collector would else touch, and so copy, every page in each child
    asked = serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        become(**asked)


if __name__ == "__main__":
    main()
