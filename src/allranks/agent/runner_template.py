"""The part of the runner that makes a process a template: it imports once, and forks ranks that run the program.

Lies beside runner.py and is run by it (`beside`), where the agent has set ALLRANKS_TEMPLATE to the descriptor of a
channel (agent/template.py, at the other end). Each message there is 4 bytes of length and fields with a zero byte
after each:

    import  names that a rank has of its own, a field of none, path and stamp of the user's files, a field of none,
            then name and file of each module, in order; without a file it may come from anywhere
    ready   from the template: how many modules the imports gave, and the variables that they have set
    off     from the template, then or at a fork: why no rank can be forked from it; it ends
    fork    NAME=VALUE of a rank's environment, with two descriptors: its output, and where it says its pid

A rank is forked twice, so that the agent becomes its parent. It differs from one that was started: it has no RANK in
/proc/PID/environ, and the ranks of one template have one hash seed, where PYTHONHASHSEED does not choose it.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # as in runner.py
if TYPE_CHECKING:
    from _socket import socket
    from typing import Any, Callable, Dict, List, Sequence, Set, Tuple, Type

    from .runner import Known

THREADS_SECONDS = 2.0  # for threads that their library ends at a fork
PARENT_SECONDS = 5.0
PR_SET_PDEATHSIG = 1
PR_SET_PTRACER = 0x59616D61
SIGKILL = 9


class Unfit(Exception):
    """No rank can be forked from this process; the text says why."""


def become_rank(runner: Type[Known]) -> None:
    """Import what the agent names, then fork ranks as it asks; return in each of these ranks alone."""
    import _socket  # late, for runner.py's reason

    channel = _socket.socket(fileno=runner.template)
    os.set_inheritable(runner.template, False)
    agent = os.getppid()
    try:
        names, stamps, modules = read_modules(take(channel)[0])
        preload(names, modules, runner)
    except Unfit as error:
        say(channel, ["off", str(error)])
        os._exit(0)
    changed = ["%s=%s" % (name, value or "") for name, value in runner.changed().items()]
    say(channel, ["ready", str(len(sys.modules)), *changed])
    while True:
        fields, descriptors = take(channel)
        changed_file = first_changed(stamps)
        if changed_file:
            say(channel, ["off", "%s has changed since it was imported" % changed_file])
            os._exit(0)
        if fork_rank(agent):
            break
        for fd in descriptors:
            os.close(fd)
    channel.close()
    live_as(fields, *descriptors)
    runner.take()


def take(channel: socket) -> Tuple[List[str], List[int]]:
    """Read one message; the template ends where the agent has closed the channel."""
    data = b""
    descriptors: List[int] = []
    length = 4
    while len(data) < length:
        part, rights, _, _ = channel.recvmsg(min(1 << 16, length - len(data)), 64)
        if not part:
            os._exit(0)
        for _, _, content in rights:
            for at in range(0, len(content) - 3, 4):
                descriptors.append(int.from_bytes(content[at : at + 4], sys.byteorder))
        data += part
        if length == 4 and len(data) == 4:
            length += int.from_bytes(data, "big")
    fields = [os.fsdecode(field) for field in data[4:].split(b"\0")[:-1]]
    return fields, descriptors


def say(channel: socket, fields: Sequence[str]) -> None:
    """Send one message."""
    data = b"".join(os.fsencode(field.replace("\0", " ")) + b"\0" for field in fields)
    channel.sendall(len(data).to_bytes(4, "big") + data)


def read_modules(fields: List[str]) -> Tuple[List[str], Dict[str, str], Dict[str, str]]:
    """Read the names of a rank's own variables, the user's files with their stamps, and the files of the modules in
    the order of their import."""
    end = fields.index("")
    names, fields = fields[:end], fields[end + 1 :]
    end = fields.index("")
    stamps = dict(zip(fields[:end:2], fields[1:end:2]))  # noqa: B905 - Python 3.8 has no strict
    modules = dict(zip(fields[end + 1 :: 2], fields[end + 2 :: 2]))  # noqa: B905
    return names, stamps, modules


def first_changed(own: Dict[str, str]) -> str:
    """Name a file of the user's that is not what it was; empty where all are. agent/import_records.py stamps them."""
    for file, stamp in own.items():
        try:
            status = os.stat(file)
        except OSError:
            return file
        if stamp != "%d %d %d" % (status.st_mtime_ns, status.st_size, status.st_ino):
            return file
    return ""


# ---- imports


def preload(names: List[str], modules: Dict[str, str], runner: Type[Known]) -> None:
    """Import the modules, then look at what that has left; raise Unfit."""
    if sys.version_info < (3, 9) and sys.flags.dev_mode:
        raise Unfit("in development mode Python 3.8 crashes after a fork")  # plain os.fork() does: its debug allocator
    descriptors = open_files()
    place = os.getcwd()
    with_reads = watch_reads(names)
    try:
        for name in modules:
            if name not in sys.modules:
                import_one(name)
    finally:
        reads = with_reads()
    if reads:
        raise Unfit("%s reads %s when it is imported" % reads[0])
    check_modules(modules, runner)
    if len(sys._current_frames()) > 1:
        raise Unfit("what it imports starts a Python thread")
    mapped = mapped_files()
    for fd, file in sorted(open_files().items()):
        if fd not in descriptors and file not in mapped:
            raise Unfit("what it imports leaves %s open" % file)
    if os.getcwd() != place:
        raise Unfit("what it imports changes the working directory")
    check_children()
    check_random()
    check_torch()
    check_threads()
    for stream in (sys.stdout, sys.stderr):  # the agent looks whether the imports have printed
        stream.flush()


def import_one(name: str) -> None:
    """Import a module as the program did; one that can't be imported by its name is left to the program."""
    try:
        __import__(name)
    except ImportError:
        pass
    except BaseException as error:
        raise Unfit("import %s raises %s" % (name, type(error).__name__)) from None


def watch_reads(names: List[str]) -> Callable[[], List[Tuple[str, str]]]:
    """Note who reads a variable that each rank has of its own; the function that this gives ends that."""
    reads: List[Tuple[str, str]] = []
    kind = type(os.environ)
    rank_variables = frozenset(names)

    class WatchedEnvironment(kind):  # type: ignore[misc,valid-type]
        def __getitem__(self, key: Any) -> Any:
            if key in rank_variables:
                reads.append((reader(), key))
            return kind.__getitem__(self, key)

    def end() -> List[Tuple[str, str]]:
        os.environ.__class__ = kind
        return reads

    os.environ.__class__ = WatchedEnvironment
    return end


def reader() -> str:
    """Name the module that has asked for a variable."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in ("os", "_collections_abc", "collections.abc"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


def check_modules(modules: Dict[str, str], runner: Type[Known]) -> None:
    """Every module must come from where the rank had it, and none may be the user's own."""
    for name, module in list(sys.modules.items()):
        origin = str(getattr(getattr(module, "__spec__", None), "origin", None) or "")
        if modules.get(name) and origin != modules[name]:
            raise Unfit("module %s is imported from %s, and the ranks have it from %s" % (name, origin, modules[name]))
        if os.path.isabs(origin) and runner.is_own(origin) and name != "__main__":
            raise Unfit("an installed package imports your %s" % origin)


def open_files() -> Dict[int, str]:
    """Return the descriptors that are open, and what each stands for."""
    opened = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            opened[int(name)] = os.readlink("/proc/self/fd/" + name)
        except FileNotFoundError:  # that of the directory itself
            pass
    return opened


def mapped_files() -> Set[str]:
    """Return the libraries that are mapped. libffi maps parts of its own file for callbacks (src/tramp.c): with some
    builds of it `import ctypes` leaves that open, and a rank shares nothing by it but the file."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        return {line.split(None, 5)[-1].rstrip("\n") for line in maps if " r-xp " in line}


def check_children() -> None:
    """Raise Unfit where the imports have started a process."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return
    raise Unfit("what it imports starts a process")


def check_random() -> None:
    """Raise Unfit where an import has drawn random numbers: a program that sets the seed before would draw others after
    it. A Mersenne Twister from which nothing was drawn stands at the end of its block."""
    random: Any = sys.modules.get("random")
    if random is not None and random.getstate()[1][-1] != 624:
        raise Unfit("what it imports uses random numbers")
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None and numpy.get_state()[2] != numpy.RandomState().get_state()[2]:
        raise Unfit("what it imports uses numpy's random numbers")


def check_torch() -> None:
    """Raise Unfit where torch holds what a fork would break: a device's context, a process group, used random bits."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda"):
        return
    if torch.cuda.is_initialized():
        raise Unfit("what it imports initialises CUDA")
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        raise Unfit("what it imports makes a process group")
    unused = torch.Generator().manual_seed(torch.default_generator.initial_seed())
    if not torch.equal(torch.default_generator.get_state(), unused.get_state()):
        raise Unfit("what it imports uses torch's random numbers")


def check_threads() -> None:
    """Raise Unfit where a thread would be missing in a forked rank.

    A library that survives forks ends its threads when the process forks (OpenBLAS and others, by pthread_atfork). So a
    child is forked and ends at once: what is here afterwards is a thread that its library does not care for."""
    held = sys.stderr
    try:
        with open(os.devnull, "w", encoding="utf-8") as sys.stderr:  # Python warns of forks where there are threads
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
    finally:
        sys.stderr = held
    deadline = time.monotonic() + THREADS_SECONDS
    while len(os.listdir("/proc/self/task")) > 1:
        if time.monotonic() > deadline:
            raise Unfit("what it imports starts a thread that survives no fork")
        time.sleep(0.01)


# ---- a rank


def fork_rank(agent: int) -> bool:
    """Fork a child of the agent; tell whether this is it."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return False
    between = os.getpid()
    if os.fork():
        os._exit(0)
    deadline = time.monotonic() + PARENT_SECONDS
    while os.getppid() == between and time.monotonic() < deadline:
        time.sleep(0.0005)
    if os.getppid() != agent:
        os._exit(1)
    return True


def live_as(environment: List[str], output: int, announce: int) -> None:
    """Become what agent/rank_start.py makes of a process before exec, and what the interpreter makes of it after."""
    os.setsid()
    ctypes: Any = sys.modules.get("ctypes")
    if ctypes is not None:  # torch and numpy import it; without it nothing: both are helps only
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(SIGKILL), 0, 0, 0)
        libc.prctl(PR_SET_PTRACER, ctypes.c_ulong(os.getppid()), 0, 0, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    for variable in environment:
        name, _, value = variable.partition("=")
        os.environ[name] = value
    runs = [part.partition("-") for part in os.environ.get("ALLRANKS_CPUS", "").split(",") if part]
    if runs:  # agent/binding.py has chosen them
        try:
            os.sched_setaffinity(0, {cpu for low, _, high in runs for cpu in range(int(low), int(high or low) + 1)})
        except OSError:  # a cpuset has become another since they were chosen
            pass
    seed()
    for finder in list(sys.path_importer_cache.values()):
        if finder is not None and hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()
    try:
        os.write(announce, b"%d\n" % os.getpid())
    except OSError:  # the agent has given up waiting, and starts the rank otherwise
        os._exit(1)
    os.close(announce)
    os.close(output)


def seed() -> None:
    """Give this process what modules draw or note when they are imported. `random` seeds itself after a fork."""
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "default_generator"):
        torch.default_generator.seed()  # the random number that torch begins with is drawn when it is imported
    logging: Any = sys.modules.get("logging")
    if logging is not None:
        logging._startTime = time.time_ns() if isinstance(logging._startTime, int) else time.time()
    processes: Any = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)
    threading: Any = sys.modules.get("threading")
    if threading is not None and hasattr(threading.main_thread(), "_set_native_id"):
        threading.main_thread()._set_native_id()
