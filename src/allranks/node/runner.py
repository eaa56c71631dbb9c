"""Runs a training program as `python program.py …` or `python -m module …` would, and notes how it ends.

    PYTHON [flags] runner.py train.py args…        PYTHON [flags] runner.py -m package.module args…

The program must not notice. What this file adds is switched on by variables that the guard sets:

    TORCHELASTIC_ERROR_FILE   an uncaught exception is written there as JSON
    ALLRANKS_STACKS_FILE      SIGRTMIN+7 appends the Python stacks of all threads
    ALLRANKS_REPORT_SOCKET    datagrams: init-entered, initialised, destroyed
    ALLRANKS_PG_TIMEOUT       default timeout of process groups, in seconds
    ALLRANKS_PG_TIMEOUT_FORCED=1    … also where the program names a timeout

It ships as this one file, needs the standard library alone and runs under Python 3.8 and later. Before the
program starts only built-in modules are imported: a `socket.py` beside the program must shadow the
library's own exactly as it would without the runner. To see that this holds, tests/node/test_runner.py
runs many programs both ways and compares.
"""

from __future__ import annotations

import _imp
import faulthandler
import io
import os
import sys
import time
from _signal import SIGRTMIN

TYPE_CHECKING = False  # `typing` is not built in
if TYPE_CHECKING:
    from types import CodeType, ModuleType, TracebackType
    from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional, Tuple, Type

NAME = "<allranks importlib._bootstrap>"  # what the runner's frames are called, see the last lines
C10D = "torch.distributed.distributed_c10d"
PID = os.getpid()  # forked children have all of this too and must not act for the rank
ERROR_FILE, STACKS_FILE, REPORT_SOCKET, PG_TIMEOUT, RANK = [
    os.environ.get(name, "")
    for name in (
        "TORCHELASTIC_ERROR_FILE", "ALLRANKS_STACKS_FILE", "ALLRANKS_REPORT_SOCKET", "ALLRANKS_PG_TIMEOUT", "RANK",
    )
]  # fmt: skip
FORCED = os.environ.get("ALLRANKS_PG_TIMEOUT_FORCED") == "1"
TRACEBACK_LIMIT, TEXT_LIMIT, CHAIN_LIMIT = 64 << 10, 16 << 10, 16
show = sys.__excepthook__  # prints as the interpreter does, in C


# ---- the program's own world: what differs between `python runner.py train.py` and `python train.py`


def prepare() -> Tuple[Optional[CodeType], str, bool]:
    """Puts the process into the state the program expects.

    Returns the code of a script, or None, the module for runpy and whether that comes from -m."""
    plain = plain_command()
    del sys.argv[0]
    if not sys.argv or sys.argv[0] in ("-", "-c") or sys.argv[:1] == sys.argv[:2] == ["-m"]:
        become_plain(plain)
    register_stacks()
    if REPORT_SOCKET or PG_TIMEOUT:
        sys.meta_path.insert(0, TorchFinder())
    if sys.argv[0] == "-m":
        del sys.argv[0]
        name, sys.argv[0] = sys.argv[0], "-m"
        fresh_main(None)
        set_first_path(lambda: os.getcwd())
        return None, name, True
    path = script_path(sys.argv[0])
    if has_importer(path):
        fresh_main(None)
        set_first_path(None)
        sys.path.insert(0, path)
        return None, "__main__", False
    fresh_main(path)
    set_first_path(lambda: os.path.dirname(os.path.realpath(path)))
    return compile_script(path, plain), "", False


def plain_command() -> List[str]:
    """The interpreter's command line without the runner; sys.orig_argv is corrected on the way."""
    original = getattr(sys, "orig_argv", None)
    if original is None:  # before Python 3.10
        with io.open("/proc/self/cmdline", "rb") as file:
            original = [os.fsdecode(part) for part in file.read().split(b"\0")[:-1]]
    del original[len(original) - len(sys.argv)]
    return list(original)


def become_plain(command: List[str]) -> NoReturn:
    """Starts over as plain Python, in the same process.

    For what the runner does not run itself, and for a script that cannot be opened or compiled: nothing of
    the program has run yet, and nobody prints the interpreter's own errors as well as the interpreter."""
    os.execv(sys.executable, command)


def script_path(path: str) -> str:
    """Since Python 3.9 the interpreter makes the script's path absolute, and changes nothing else in it."""
    if sys.version_info < (3, 9) or path.startswith("/"):
        return path
    try:
        return os.getcwd() + "/" + path
    except OSError:
        return path


def has_importer(path: str) -> bool:
    """Is it a directory or an archive? The interpreter asks the same hooks."""
    for hook in sys.path_hooks:
        try:
            hook(path)
            return True
        except ImportError:
            continue
    return False


def set_first_path(find: Optional[Callable[[], str]]) -> None:
    """The interpreter put the runner's directory first, unless told by -I or -P not to."""
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return
    try:
        sys.path[:1] = [find()] if find else []
    except OSError:  # the working directory is gone
        del sys.path[0]


def fresh_main(script: Optional[str]) -> None:
    """A new `__main__` with the names, in the order, that this interpreter gives it; the runner's goes away."""
    module = type(sys)("__main__")
    module.__dict__.update((name, value) for name, value in globals().items() if name.startswith("__"))
    module.__doc__ = None
    if "__annotations__" in module.__dict__:
        module.__annotations__ = {}
    if script is None:  # runpy adds the rest
        module.__dict__["__loader__"] = sys.modules["_frozen_importlib"].BuiltinImporter
        for name in ("__file__", "__cached__"):
            module.__dict__.pop(name, None)
    else:
        module.__file__ = script
        module.__dict__["__loader__"] = type(__loader__)("__main__", script)
    sys.modules["__main__"] = module


def compile_script(path: str, plain: List[str]) -> CodeType:
    """Compiles the script; warnings are held back, as plain Python would print them a second time."""
    stderr, held = sys.stderr, Held()
    try:
        with io.open_code(path) as file:
            source = file.read()
        if path.endswith(".pyc"):
            become_plain(plain)
        sys.stderr = held  # type: ignore[assignment]
        code: CodeType = compile(source, path, "exec", dont_inherit=True)
    except (OSError, SyntaxError) as error:
        if isinstance(error, SyntaxError) or not has_importer(path):
            record(strip(error))
        become_plain(plain)
    except Exception:
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
        pass


# ---- the end of the program


def run() -> None:
    """The only function between the interpreter and the program, so the only added frame but one.

    No variable here holds the program's module or its dict, which would delay its objects' end."""
    code, name, alter = prepare()
    failure: Optional[BaseException] = None
    try:
        if code is not None:
            exec(code, sys.modules["__main__"].__dict__)
        else:
            import runpy

            runpy._run_module_as_main(name, alter)  # type: ignore[attr-defined]
    except SystemExit as leaving:
        if code is None:
            leave_module(leaving)
        raise
    except BaseException as error:
        failure = strip(error)
    if failure is not None:
        record(failure)
        display(failure, code is not None)
        fall_silent(failure)
    if code is not None:  # the interpreter takes these two away at this moment
        sys.modules["__main__"].__dict__.pop("__file__", None)
        sys.modules["__main__"].__dict__.pop("__cached__", None)
    if failure is not None:
        raise failure  # and the interpreter ends as after any uncaught exception: exit code, SIGINT, atexit


def leave_module(leaving: SystemExit) -> None:
    """sys.exit('text') under -m prints the text before the interpreter flushes stdout: do the same.

    That is also how runpy says that there is no such module, which the error file should tell."""
    cause = leaving.__context__
    if type(cause).__module__ == "runpy" and cause is not None:
        record(strip(cause))
    if leaving.code is not None and not isinstance(leaving.code, int):
        print(leaving.code, file=sys.stderr)
        leaving.code = 1


def strip(error: BaseException) -> BaseException:
    """Takes the runner's frames out of the tracebacks of an exception and of all that it came from."""
    seen, waiting = set(), [error]  # type: ignore[var-annotated]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = without_runner(one.__traceback__)
        group = one.exceptions if sys.version_info >= (3, 11) and isinstance(one, BaseExceptionGroup) else ()
        waiting += [other for other in (one.__cause__, one.__context__, *group) if other is not None]
    return error


def without_runner(first: Optional[TracebackType]) -> Optional[TracebackType]:
    while first is not None and first.tb_frame.f_code.co_filename == NAME:
        first = first.tb_next
    last = first
    while last is not None and last.tb_next is not None:
        if last.tb_next.tb_frame.f_code.co_filename == NAME:
            last.tb_next = last.tb_next.tb_next
        else:
            last = last.tb_next
    return first


def display(error: BaseException, script: bool) -> None:
    """What the interpreter does with an uncaught exception (PyErr_Print), but with the runner out of sight."""
    if script:
        for stream in (sys.stderr, sys.stdout):
            try:
                stream.flush()
            except Exception:
                continue
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        sys.stderr.write("sys.excepthook is missing\n")
        hook = show
    try:
        hook(type(error), error, error.__traceback__)
        return
    except SystemExit:
        raise
    except BaseException as mistake:
        second = strip(mistake)
    sys.stderr.write("Error in sys.excepthook:\n")
    show(type(second), second, second.__traceback__)
    sys.stderr.write("\nOriginal exception was:\n")
    show(type(error), error, error.__traceback__)


def fall_silent(error: BaseException) -> None:
    """The next uncaught exception is the one just displayed; after it all is as the program left it."""
    hook, trace = getattr(sys, "excepthook", None), error.__traceback__

    def silent(*_: object) -> None:
        sys.last_traceback = error.__traceback__ = trace
        if hook is None:
            del sys.excepthook
        else:
            sys.excepthook = hook

    sys.excepthook = silent


# ---- the error file


def record(error: BaseException) -> None:
    """Writes the error file: torchelastic's document with one more key. Never raises, whatever happens."""
    if not ERROR_FILE or os.getpid() != PID:
        return
    temporary = "%s.%d.tmp" % (ERROR_FILE, PID)
    try:
        json = library("json")
        data = json.dumps(describe(error)).encode("ascii")
        try:
            with io.open(temporary, "wb") as file:
                file.write(data)
            os.rename(temporary, ERROR_FILE)
        except BaseException:
            os.unlink(temporary)
    except BaseException:  # a broken __str__, a full disk, a signal handler that raises: the program's end is its own
        pass


def library(name: str) -> Any:
    """The standard library's module, even where a file of that name lies beside the program."""
    before, home = list(sys.path), os.path.dirname(os.__file__)
    try:
        sys.path[:] = [path for path in before if path.startswith(home) or path.endswith(".zip")]
        return __import__(name)
    finally:
        sys.path[:] = before


def describe(error: BaseException) -> Dict[str, Any]:
    now, text = time.time(), text_of(error)
    lines = library("traceback").format_exception(type(error), error, error.__traceback__)
    trace = "".join(lines)[-TRACEBACK_LIMIT:]
    where = place_of(error)
    return {
        "message": {
            "message": "%s: %s" % (type(error).__name__, text),
            "extraInfo": {"py_callstack": trace, "timestamp": str(int(now))},
        },
        "allranks": {
            "schema": 1,
            "type": type(error).__qualname__,
            "module": type(error).__module__,
            "text": text,
            "t": now,
            "rank": int(RANK) if RANK.isdigit() else None,
            "pid": PID,
            "file": where[0],
            "line": where[1],
            "function": where[2],
            "chain": [{"type": type(one).__qualname__, "text": text_of(one)} for one in causes_of(error)],
            "traceback": trace,
        },
    }


def text_of(error: BaseException) -> str:
    try:
        return str(error)[:TEXT_LIMIT]
    except BaseException:
        return "<exception str() failed>"


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """What the traceback calls the cause of the exception, and the cause of that, and so on."""
    seen = {id(error)}
    while len(seen) <= CHAIN_LIMIT:
        cause = error.__cause__
        if cause is None and not error.__suppress_context__:
            cause = error.__context__
        if cause is None or id(cause) in seen:
            return
        seen.add(id(cause))
        yield cause
        error = cause


def place_of(error: BaseException) -> Tuple[Optional[str], Optional[int], Optional[str]]:
    """The innermost frame of the user's own code, else the innermost frame; file, line, function."""
    places: List[Tuple[Optional[str], Optional[int], Optional[str]]] = []
    trace = error.__traceback__
    while trace is not None:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno, trace.tb_frame.f_code.co_name))
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno, None))
    elif isinstance(error, OSError) and not places:  # the script itself
        places.append((error.filename, None, None))
    own = [place for place in places if is_own(place[0] or "<")]
    return (own or places or [(None, None, None)])[-1]


def is_own(file: str) -> bool:
    installed = file.startswith(os.path.dirname(os.__file__) + "/") or "/site-packages/" in file
    return not installed and "/dist-packages/" not in file and not file.startswith("<")


# ---- stacks on a signal


def register_stacks() -> None:
    """SIGRTMIN+7 makes faulthandler's C handler write all stacks, even while the program sits in C++.

    The file is not inherited by other programs and has a high number: the program's first open() gives 3."""
    if not STACKS_FILE:
        return
    try:
        low = os.open(STACKS_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        faulthandler.register(SIGRTMIN + 7, file=raised(low), all_threads=True, chain=False)
    except (OSError, RuntimeError, ValueError):
        pass


def raised(low: int) -> int:
    for high in range(960, 1000):
        try:
            os.fstat(high)
        except OSError:
            try:
                os.dup2(low, high, inheritable=False)
            except OSError:  # above the limit of open files
                return low
            os.close(low)
            return high
    return low


# ---- torch: reports and timeouts


class TorchFinder:
    """Waits on sys.meta_path for torch's distributed module, sees it loaded by its own loader, and is gone.

    Patching must happen before `torch.distributed` copies the names: between exec_module and the import's end."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != C10D:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                loader = spec.loader
                if os.getpid() == PID and hasattr(loader, "exec_module"):
                    attend(loader)
                return spec
        return None


def attend(loader: Any) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module  # the class's own is back
        limit = timeout()
        if limit is not None:
            set_defaults(limit)
        execute(module)
        try:
            watch(module, limit if FORCED else None)
        except Exception:  # an unknown torch: the program runs, without reports
            pass

    try:
        loader.exec_module = exec_module
    except Exception:
        pass


def timeout() -> Any:
    try:
        from datetime import timedelta

        return timedelta(seconds=float(PG_TIMEOUT)) if PG_TIMEOUT else None
    except Exception:
        return None


def set_defaults(limit: Any) -> None:
    """Before distributed_c10d runs, so that what it copies, also as default arguments (torch ≤ 2.1), is ours."""
    try:
        import torch.distributed.constants as constants

        for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
            if getattr(constants, name, None) is not None:  # None: this torch has no NCCL
                setattr(constants, name, limit)
    except Exception:
        pass


def watch(module: Any, forced: Any) -> None:
    """Wraps what starts and ends process groups."""
    from functools import wraps
    from inspect import signature

    def arguments(function: Any, given: Tuple[Any, ...], named: Dict[str, Any]) -> Dict[str, Any]:
        try:
            return dict(signature(function).bind_partial(*given, **named).arguments)
        except TypeError:  # a wrong call: the function itself says so
            return {}

    def with_timeout(function: Any) -> Any:
        """Overrides a timeout that the program names."""
        names = list(signature(function).parameters)
        if forced is None or "timeout" not in names:
            return function

        @wraps(function)
        def limited(*given: Any, **named: Any) -> Any:
            at = names.index("timeout")
            if len(given) > at:
                given = given[:at] + (forced,) + given[at + 1 :]
            else:
                named["timeout"] = forced
            return function(*given, **named)

        return limited

    for name in ("init_process_group", "new_group", "split_group"):
        if hasattr(module, name):
            setattr(module, name, with_timeout(getattr(module, name)))
    start, stop = module.init_process_group, module.destroy_process_group

    @wraps(start)
    def init_process_group(*given: Any, **named: Any) -> Any:
        asked = arguments(start, given, named)
        size = asked.get("world_size", -1)
        size = size if isinstance(size, int) and size > 0 else os.environ.get("WORLD_SIZE", "")
        report("init-entered", lambda: (size, asked.get("backend") or ""))
        result = start(*given, **named)
        report("initialised", lambda: (module.get_world_size(), module.get_backend()))
        return result

    @wraps(stop)
    def destroy_process_group(*given: Any, **named: Any) -> Any:
        facts: Tuple[Any, Any] = ("", "")
        if module.is_initialized():
            facts = (module.get_world_size(), module.get_backend())
        result = stop(*given, **named)
        if not module.is_initialized():
            report("destroyed", lambda: facts)
        return result

    module.init_process_group, module.destroy_process_group = init_process_group, destroy_process_group


def report(event: str, facts: Callable[[], Tuple[Any, Any]]) -> None:
    """One datagram to the guard; it never blocks, and one that cannot be sent is lost."""
    if not REPORT_SOCKET or os.getpid() != PID:
        return
    try:
        import json
        import socket

        size, backend = facts()
        message = {
            "event": event,
            "rank": int(RANK) if RANK.isdigit() else None,
            "pid": PID,
            "t": time.time(),
            "world_size": int(size) if str(size).isdigit() else None,
            "backend": str(backend),
        }
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)
            channel.sendto(json.dumps(message).encode(), REPORT_SOCKET)
    except Exception:
        pass


if __name__ == "__main__":
    # The runner's frames get a name that the warnings module passes over like the import system's own, and by
    # which they are found and taken out of tracebacks.
    _imp._fix_co_filename(sys._getframe().f_code, NAME)
    run()
