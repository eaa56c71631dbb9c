"""Runs a training program as `python program.py …` or `python -m module …` would, and notes how it ends.

    PYTHON [flags] runner.py train.py args…        PYTHON [flags] runner.py -m package.module args…

The program must not notice. What this file adds is switched on by variables that the agent sets:

    TORCHELASTIC_ERROR_FILE   an uncaught exception is written there as JSON
    ALLRANKS_STACKS_FILE      SIGRTMIN+7 appends the Python stacks of all threads
    ALLRANKS_REPORT_SOCKET    datagrams: raised, leaving, threads-ended; init-entered, initialised, destroyed, below
    ALLRANKS_ASK_SOCKET       where the agent asks which collective the rank is at
    ALLRANKS_PG_TIMEOUT       default timeout of process groups, in seconds
    ALLRANKS_PG_TIMEOUT_FORCED=1    … also where the program names a timeout
    ALLRANKS_AUDIT_BATCHES    probe.py notes what torch's DataLoaders give (data/probe.py)

It ships with the runner_*.py beside it, which it runs when they are needed (see `beside`), needs the standard
library alone and runs under Python 3.8 and later. Before the program starts only built-in modules are imported:
a `queue.py` beside the program must shadow the library's own exactly as without the runner. All others are imported
where they are needed, by `import_ours`: what the program has beside it, or has imported, is not run for us.
tests/agent/test_runner.py runs many programs both ways and compares.
"""

from __future__ import annotations

import _imp
import _thread
import faulthandler
import os
import sys
import time

TYPE_CHECKING = False  # `typing` is not built in
if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType, TracebackType
    from typing import Any, Callable, ClassVar, Dict, Iterator, List, Mapping, NoReturn, Optional, Sequence, Tuple

    from allranks.protocol.jsontext import JsonObject

NAME = "<allranks importlib._bootstrap>"  # what the runner's frames are called, see the last lines
C10D = "torch.distributed.distributed_c10d"
LOADER = "torch.utils.data.dataloader"
TRACEBACK_LIMIT = 64 << 10
TEXT_LIMIT = 16 << 10
CHAIN_LIMIT = 16
THREADS_NAMED = 5
# diagnose/signatures/training_program.py knows the text.
LOST_ENVIRONMENT = b"allranks: RANK is not set: the command of --wrap starts the program without its environment\n"
# seconds; only for what is said once, when the program has ended
REPORT_TRIES = 20
REPORT_PAUSE = 0.05
show = sys.__excepthook__  # displays as the interpreter does, in C
GROUPS = vars(sys.modules["builtins"]).get("BaseExceptionGroup", ())  # since Python 3.11
# where the standard library lies; the program has not changed sys.path yet
LIBRARY = [path for path in sys.path if path == os.path.dirname(os.__file__) or path.endswith("/lib-dynload")]


class Known:
    """What the agent has set for this process; the files beside the runner read it too.

    It is read at the start, and once more in a rank that a template has forked. Processes that the program forks have
    all of this too and must not act for the rank: their pid is another."""

    pid = 0
    rank: Optional[int] = None
    template = -1  # the descriptor of a template's channel; -1 in a rank
    environment: Mapping[str, str] = os.environ  # what the process was started with
    error_file = stacks_file = reports = ask = limit = audit = ""
    forced = False
    is_below = False  # a process that the program of a rank has started with multiprocessing

    @classmethod
    def take(cls) -> None:
        """Read the environment of this process."""
        read = os.environ.get
        cls.template = int(os.environ.pop("ALLRANKS_TEMPLATE", "-1"))
        cls.pid = os.getpid()
        cls.rank = None
        if read("RANK", "").isdecimal():
            cls.rank = int(os.environ["RANK"])
        cls.environment = dict(os.environ)
        cls.error_file = read("TORCHELASTIC_ERROR_FILE", "")
        cls.stacks_file = read("ALLRANKS_STACKS_FILE", "")
        cls.reports = read("ALLRANKS_REPORT_SOCKET", "")
        cls.ask = read("ALLRANKS_ASK_SOCKET", "")
        cls.limit = read("ALLRANKS_PG_TIMEOUT", "")
        cls.forced = read("ALLRANKS_PG_TIMEOUT_FORCED") == "1"
        cls.audit = read("ALLRANKS_AUDIT_BATCHES", "")

    @classmethod
    def changed(cls) -> Dict[str, Optional[str]]:
        """Return the variables that have been set since the start; None where one has been removed."""
        now = dict(os.environ)
        names = {*cls.environment, *now}
        return {name: now.get(name) for name in names if cls.environment.get(name) != now.get(name)}

    @staticmethod
    def report(event: str, **facts: object) -> None:
        """Send one datagram about this rank, by the rank alone."""
        if os.getpid() == Known.pid:
            Known.send(event, **facts)

    @staticmethod
    def send(event: str, **facts: object) -> None:
        """One datagram to the agent; one that cannot be sent is lost.

        It never blocks; at the end of the program it waits for room, as what it says then is said once."""
        if not Known.reports:
            return
        try:
            _socket = import_ours("_socket")
            message = {"event": event, "rank": Known.rank, "pid": os.getpid(), "t": time.time()}
            data = import_ours("json").dumps(dict(message, **facts)).encode("ascii")
            channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
            try:
                channel.setblocking(False)
                for _ in range(REPORT_TRIES if event in ("raised", "leaving") else 1):
                    try:
                        channel.sendto(data, Known.reports)
                        return
                    except BlockingIOError:  # the agent's queue is full
                        time.sleep(REPORT_PAUSE)
            finally:
                channel.close()
        except Exception:
            pass

    @staticmethod
    def is_own(file: str) -> bool:
        """Return whether a file is the user's: neither the library's nor an installed package's."""
        library = os.path.dirname(os.__file__) + "/"
        return not (file.startswith((library, "<")) or "/site-packages/" in file or "/dist-packages/" in file)

    @staticmethod
    def beside(file: str, function: str) -> Callable[..., Any]:
        """Run a file that lies beside the runner, and return a function of it.

        It has the runner's name: strip() finds its frames too. What it imports comes by `import_ours`.

        Nothing is imported: no name of the program's can be shadowed, and sys.modules and sys.path stay as they are."""
        builtins = {**vars(sys.modules["builtins"]), "__import__": import_ours}
        names: Dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins}
        with open(os.path.join(os.path.dirname(__file__), file), "rb") as source:
            exec(compile(source.read(), NAME, "exec", dont_inherit=True), names)
        made: Callable[..., Any] = names[function]
        return made


# ---- the program's own world: what differs between `python runner.py train.py` and `python train.py`


def prepare() -> Tuple[Optional[CodeType], str]:
    """Put the process into the state that the program expects; return a script's code, else None and the module."""
    plain = plain_command()
    refuse_lost_environment()
    del sys.argv[0]
    if not sys.argv or sys.argv[0] in ("-", "-c") or sys.argv == ["-m"]:
        become_plain(plain)
    if sys.argv[0].endswith(".pyc") or has_importer(sys.argv[0]):
        become_plain(plain)
    if Known.reports or Known.ask or Known.limit:
        sys.meta_path.insert(0, TorchFinder(C10D, "runner_torch.py"))
    if Known.audit:
        sys.meta_path.insert(0, TorchFinder(LOADER, "probe.py"))
    path = None
    name = ""
    if sys.argv[0] == "-m":
        name = sys.argv.pop(1)
        set_first_path(os.getcwd)
    else:
        path = script_path(sys.argv[0])
        set_first_path(lambda: os.path.dirname(os.path.realpath(sys.argv[0])))
    fresh_main(path)
    if Known.template >= 0:  # all of the above is the same for every rank of this command
        Known.beside("runner_template.py", "become_rank")(Known)
    register_stacks()
    if path is None:
        return None, name
    return compile_script(path, plain), ""


def refuse_lost_environment() -> None:
    """End a rank whose environment a container, sudo or `env -i` of --wrap has not passed on.

    The program would train alone, or wait in vain: it must not begin. Beside the runner of a rank lies the agent's
    socket, which the variables of every rank name."""
    if "RANK" in os.environ or Known.reports:
        return
    try:
        os.stat(os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "report.sock"))
    except OSError:
        return  # no rank of a run
    os.write(2, LOST_ENVIRONMENT)
    os._exit(1)


def plain_command() -> List[str]:
    """Return the interpreter's command line without the runner, and take it out of sys.orig_argv."""
    original = getattr(sys, "orig_argv", None)
    if original is None:  # before Python 3.10
        with open("/proc/self/cmdline", "rb") as file:
            original = [os.fsdecode(part) for part in file.read().split(b"\0")[:-1]]
    del original[len(original) - len(sys.argv)]
    return list(original)


def become_plain(command: List[str]) -> NoReturn:
    """Start over as plain Python, in the same process.

    For what the runner does not run, and for a script that cannot be read or compiled: nothing of the program
    has run yet, and the interpreter prints its own errors best. A template never runs the program."""
    if Known.template >= 0:
        os._exit(1)
    os.execv(sys.executable, command)


def script_path(path: str) -> str:
    """Make the script's path absolute, as the interpreter does since Python 3.9, and change nothing else in it."""
    try:
        if sys.version_info < (3, 9) or path.startswith("/"):
            return path
        return os.getcwd() + "/" + path
    except OSError:  # the working directory has been removed
        return path


def has_importer(path: str) -> bool:
    """Tell whether it is a directory or an archive, whatever its name. The interpreter asks the same hooks."""
    for hook in sys.path_hooks:
        try:
            hook(path)
            return True
        except ImportError:
            continue
    return False


def set_first_path(find: Callable[[], str]) -> None:
    """Replace the runner's directory, which the interpreter put first, unless -I or -P kept it from that."""
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return
    del sys.path[0]
    try:
        sys.path[:0] = [find()]
    except OSError:  # the working directory has been removed
        pass


def fresh_main(script: Optional[str]) -> None:
    """Make a new `__main__`, with the names, in the order, that this interpreter gives it."""
    module = type(sys)("__main__")
    names = module.__dict__
    names.update((name, value) for name, value in globals().items() if name.startswith("__"))
    names["__doc__"] = None
    if "__annotations__" in names:
        names["__annotations__"] = {}
    if script is None:  # runpy adds the rest
        names["__loader__"] = sys.modules["_frozen_importlib"].BuiltinImporter
        del names["__file__"]
        names.pop("__cached__", None)  # Python 3.15 has none
    else:
        names["__file__"] = script
        names["__loader__"] = type(names["__loader__"])("__main__", script)
    sys.modules["__main__"] = module


def compile_script(path: str, plain: List[str]) -> CodeType:
    """Compile the script; where that fails, plain Python says so, and prints the warnings held back here."""
    stderr = sys.stderr
    held = Held()
    sys.stderr = held
    try:
        with open(path, "rb") as file:
            source = file.read()
        code: CodeType = compile(source, path, "exec", dont_inherit=True)
    except Exception as error:
        if isinstance(error, (OSError, SyntaxError)):
            record(strip(error))
        become_plain(plain)
    finally:
        sys.stderr = stderr
    if held:
        stderr.write("".join(held))
    return code


class Held(list):  # type: ignore[type-arg]
    """Enough of a text file for the interpreter to print warnings to."""

    write = list.append

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""
        return


# ---- the end of the program


def run() -> None:
    """Run the program. This is the only function between the interpreter and it: one frame beside the module's own.

    No variable here holds the program's module or its dict: that would delay the end of the objects in it."""
    code, name = prepare()
    failure: Optional[BaseException] = None
    try:
        if code is not None:
            try:
                exec(code, sys.modules["__main__"].__dict__)
            finally:
                if sys.version_info >= (3, 14):
                    forget_file()
        else:
            import runpy  # as the interpreter does for -m, and where it does

            runpy._run_module_as_main(name)  # type: ignore[attr-defined]
    except SystemExit as leaving:
        if code is None:
            leave_module(leaving)
        report_threads(exit_code(leaving))
        raise
    except BaseException as error:
        failure = strip(error)
    if failure is not None:
        record(failure)
        Known.report("raised")
        display(failure, code is not None)
        fall_silent(failure)
    report_threads(int(failure is not None))
    if code is not None:
        forget_file()
    if failure is not None:
        raise failure  # and the interpreter ends as after any uncaught exception: exit code, SIGINT, atexit


def forget_file() -> None:
    """Take away what the interpreter does: before 3.14 only once the exception is shown, and not at SystemExit."""
    for name in ("__file__", "__cached__"):
        sys.modules["__main__"].__dict__.pop(name, None)


def leave_module(leaving: SystemExit) -> None:
    """sys.exit('text') under -m prints the text before the interpreter flushes stdout: here as well.

    It is also how runpy says that a module does not exist, which the error file should tell."""
    cause = leaving.__context__
    if cause is not None and type(cause).__module__ == "runpy":
        record(strip(cause))
    if not (leaving.code is None or isinstance(leaving.code, int)):
        complain("%s\n" % (leaving.code,))
        leaving.code = 1


def exit_code(leaving: SystemExit) -> int:
    """Return the code that the interpreter ends with: of a text it is 1."""
    code = leaving.code
    if isinstance(code, int):
        return code & 0xFF
    return int(code is not None)


def report_threads(code: int) -> None:
    """Report that the program has ended while threads of it go on, which the interpreter now waits for.

    Py_FinalizeEx calls threading._shutdown, which joins every thread that is not a daemon, however long it takes
    (CPython Python/pylifecycle.c); functions of atexit run after that, the last one registered first."""
    threading = sys.modules.get("threading")
    if not Known.reports or threading is None:
        return
    try:
        main = threading.main_thread()
        names = [str(t.name)[:80] for t in threading.enumerate() if t is not main and not t.daemon]
        if names:
            import atexit

            atexit.register(Known.report, "threads-ended")
            Known.report("leaving", code=code, threads=names[:THREADS_NAMED], count=len(names))
    except Exception:  # a program that has a `threading` of its own
        pass


def strip(error: BaseException) -> BaseException:
    """Take the runner's frames out of the tracebacks of an exception and of all that it came from."""
    visited = set()
    waiting: List[Optional[BaseException]] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in visited:
            visited.add(id(one))
            one.__traceback__ = without_runner(one.__traceback__)
            waiting += [one.__cause__, one.__context__, *(one.exceptions if isinstance(one, GROUPS) else ())]
    return error


def without_runner(first: Optional[TracebackType]) -> Optional[TracebackType]:
    """Return a traceback without the runner's own frames, at both ends."""
    while first is not None and first.tb_frame.f_code.co_filename == NAME:
        first = first.tb_next
    last = first
    while last is not None:
        following = last.tb_next
        while following is not None and following.tb_frame.f_code.co_filename == NAME:
            last.tb_next = following = following.tb_next
        last = following
    return first


def display(error: BaseException, script: bool) -> None:
    """Do what the interpreter does with an uncaught exception (PyErr_Print), with the runner out of sight."""
    for stream in (sys.stderr, sys.stdout) if script else ():
        try:
            stream.flush()
        except Exception:
            continue
    sys.last_type = type(error)
    sys.last_value = error
    sys.last_traceback = error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        complain("sys.excepthook is missing\n")
        hook = show
    try:
        hook(type(error), error, error.__traceback__)
        return
    except SystemExit:
        raise
    except BaseException as mistake:
        second = strip(mistake)
    complain("Error in sys.excepthook:\n")
    show(type(second), second, second.__traceback__)
    complain("\nOriginal exception was:\n")
    show(type(error), error, error.__traceback__)


def complain(text: str) -> None:
    """Write to standard error, if that is possible."""
    try:
        sys.stderr.write(text)
    except Exception:
        pass


def fall_silent(error: BaseException) -> None:
    """Show nothing of the next uncaught exception, which was just displayed; then all is as the program left it."""
    hook = getattr(sys, "excepthook", None)
    trace = error.__traceback__

    def silent(*_: object) -> None:
        sys.last_traceback = error.__traceback__ = trace
        if hook is None:
            del sys.excepthook
        else:
            sys.excepthook = hook

    sys.excepthook = silent


# ---- the error file


def record(error: BaseException) -> None:
    """Write the error file: torchelastic's document with one more key.

    Never raises, whatever happens (a broken __str__, a full disk, a signal handler that raises meanwhile)."""
    if not Known.error_file or os.getpid() != Known.pid:
        return
    temporary = "%s.%d.tmp" % (Known.error_file, Known.pid)
    try:
        data = import_ours("json").dumps(describe(error)).encode("ascii")
        try:
            with open(temporary, "wb") as file:
                file.write(data)
            os.rename(temporary, Known.error_file)
        except BaseException:
            os.unlink(temporary)
    except BaseException:
        pass


def describe(error: BaseException) -> JsonObject:
    """Return what an error file says of an exception."""
    now = time.time()
    kind = type(error)
    with Library():  # it imports more when it is called
        import traceback

        trace = "".join(traceback.format_exception(kind, error, error.__traceback__))[-TRACEBACK_LIMIT:]
    more = {"py_callstack": trace, "timestamp": str(int(now))}
    facts = dict(described(error), schema=1, module=kind.__module__, calls=newest_calls())
    facts.update(t=now, rank=Known.rank, pid=Known.pid, traceback=trace)
    facts["chain"] = [dict(described(one), link=how) for one, how in causes_of(error)]
    return {"message": {"message": "%s: %s" % (kind.__name__, facts["text"]), "extraInfo": more}, "allranks": facts}


def newest_calls() -> List[JsonObject]:
    """Return the newest collectives of this rank: ranks that did not fail show who called another one."""
    module: Any = sys.modules.get(C10D)
    try:
        if module is None or not module.is_initialized():
            return []
        calls: List[JsonObject] = Known.beside("runner_recorder.py", "newest_calls")()
        return calls
    except BaseException:
        return []


def described(error: BaseException) -> JsonObject:
    """Return what one exception is, and where it was raised."""
    file, line, function = place_of(error)
    facts = {"type": type(error).__qualname__, "text": text_of(error)}
    return dict(facts, file=file, line=line, function=function)


def text_of(error: BaseException) -> str:
    """Return the text of an exception, whatever its __str__ does."""
    try:
        return str(error)[:TEXT_LIMIT]
    except BaseException:
        return "<exception str() failed>"


def causes_of(error: BaseException) -> Iterator[Tuple[BaseException, str]]:
    """Yield what the traceback calls the cause of the exception, the cause of that, and so on.

    Of a group without one it is the first member. With each goes what it is of the one before: cause, context or
    member.
    """
    visited = {id(error)}
    while len(visited) <= CHAIN_LIMIT:
        following = error.__cause__
        how = "cause"
        if following is None and not error.__suppress_context__:
            following = error.__context__
            how = "context"
        if following is None and isinstance(error, GROUPS):
            following = error.exceptions[0]
            how = "member"
        if following is None or id(following) in visited:
            return
        visited.add(id(following))
        yield following, how
        error = following


def place_of(error: BaseException) -> Tuple[Optional[str], Optional[int], Optional[str]]:
    """File, line and function of the innermost frame in the user's own code, else of the innermost one."""
    places: List[Tuple[Optional[str], Optional[int], Optional[str]]] = []
    trace = error.__traceback__
    while trace is not None:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno, trace.tb_frame.f_code.co_name))
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno, None))
    elif isinstance(error, OSError) and not places:  # the script itself
        places.append((error.filename, None, None))
    own_places = [place for place in places if Known.is_own(place[0] or "<")]
    return (own_places or places or [(None, None, None)])[-1]


# ---- stacks on a signal


def register_stacks() -> None:
    """SIGRTMIN+7 makes faulthandler's C handler write all stacks, even while the program sits in C++.

    Other programs do not inherit the file; its number is high, so that the program's own first file is 3."""
    if not Known.stacks_file:
        return
    try:
        from _signal import SIGRTMIN  # type: ignore[import-not-found]

        file = os.open(Known.stacks_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if 960 not in map(int, os.listdir("/proc/self/fd")) and os.sysconf("SC_OPEN_MAX") > 960:
            low = file
            file = os.dup2(file, 960, inheritable=False)
            os.close(low)
        faulthandler.register(SIGRTMIN + 7, file=file, all_threads=True, chain=False)
    except (OSError, RuntimeError, ValueError):
        pass


# ---- torch: what runner_torch.py and probe.py add


def attend_below() -> None:
    """Watch torch's process groups, and nothing else, in a process that the program of a rank has started.

    multiprocessing loads what it got for the new process before it imports the program there: see `Below` of
    runner_torch.py."""
    Known.take()
    Known.is_below = True
    sys.meta_path.insert(0, TorchFinder(C10D, "runner_torch.py"))


class TorchFinder:
    """Waits on sys.meta_path for one of torch's modules, has it loaded as ever, and leaves."""

    def __init__(self, wanted: str, file: str) -> None:
        self.wanted = wanted
        self.file = file

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Find the wanted module with the other finders, then watch its loader."""
        if name != self.wanted:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self.attend(spec.loader)
                return spec
        return None

    def attend(self, loader: Optional[Loader]) -> None:
        """In the rank itself, with the values that the agent gave: the program may have changed its environment."""
        try:
            if os.getpid() == Known.pid:
                Known.beside(self.file, "attend")(loader, Known())
        except Exception:  # the program runs, without reports
            pass


class Library:
    """Within it, this thread imports the standard library's own modules, whatever lies beside the program, is on
    sys.path or was imported under their names. At its end sys.modules has nothing more of ours."""

    lock = _thread.RLock()
    kept: ClassVar[Dict[str, ModuleType]] = {}  # what was imported for us alone

    def __enter__(self) -> None:
        self.lock.acquire()
        self.thread = _thread.get_ident()
        self.found: List[str] = []
        tops = {name.partition(".")[0] for name in list(sys.modules)}
        foreign = {top for top in tops if not is_standard(spec_of(top)) and find_standard(top) is not None}
        self.hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in foreign}
        self.placed = {name: module for name, module in self.kept.items() if name not in sys.modules}
        sys.modules.update(self.placed)
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)
        ours = {*self.placed, *self.found}
        for name in list(sys.modules):  # collections of Python 3.14 has no file abc: it puts that there itself
            if name in ours or name.rpartition(".")[0] in ours:
                self.kept[name] = sys.modules.pop(name)
        sys.modules.update(self.hidden)
        self.lock.release()

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Find a module of the library before the other finders can find one of its name."""
        if _thread.get_ident() != self.thread:
            return None
        spec = find_standard(name, path)
        if spec is not None:
            self.found.append(name)
        elif name in getattr(sys, "stdlib_module_names", ()):  # what other systems alone have, as `nt`
            raise ModuleNotFoundError("No module named %r" % name, name=name)
        return spec


def find_standard(name: str, path: Optional[Sequence[str]] = None) -> Optional[ModuleSpec]:
    """Find a module in the standard library, wherever else there is one of its name; `path` is its package's."""
    bootstrap: Any = sys.modules["_frozen_importlib"]
    files: Any = sys.modules["_frozen_importlib_external"]
    spec: Optional[ModuleSpec] = bootstrap.BuiltinImporter.find_spec(name) or bootstrap.FrozenImporter.find_spec(name)
    spec = spec or files.PathFinder.find_spec(name, LIBRARY if path is None else path)
    return spec if is_standard(spec) else None


def spec_of(name: str) -> Optional[ModuleSpec]:
    """Return the spec of what has been imported under a name."""
    return getattr(sys.modules.get(name), "__spec__", None)


def is_standard(spec: Optional[ModuleSpec]) -> bool:
    """Return whether this is the spec of a module of the standard library."""
    bootstrap: Any = sys.modules["_frozen_importlib"]
    if getattr(spec, "loader", None) in (bootstrap.BuiltinImporter, bootstrap.FrozenImporter):
        return True
    origin = str(getattr(spec, "origin", None))
    return origin.startswith(tuple(path + "/" for path in LIBRARY)) and "/site-packages/" not in origin


def import_ours(name: str, *how: Any) -> Any:
    """Import for the runner, as `__import__` does; of the standard library always the library's own module."""
    if is_standard(spec_of(name)) or find_standard(name.partition(".")[0]) is None:
        return __import__(name, *how)
    with Library():
        return __import__(name, *how)


if __name__ == "__main__":
    # Under this name the warnings module passes over the runner's frames as over the import system's own, and
    # strip() finds them. _fix_co_filename renames the code of this file in place, with all functions in it.
    _imp._fix_co_filename(sys._getframe().f_code, NAME)  # type: ignore[attr-defined]
    Known.take()
    run()
