"""The part of the runner that wakes up when torch.distributed is imported: reports to the agent, and timeouts.

Lies beside runner.py and is run by it (`beside`), never imported: its frames bear the runner's name. `known` is
what the runner knew at the start. What is imported comes by `import_ours` of the runner.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from _thread import get_ident
from datetime import timedelta
from functools import wraps
from inspect import signature, unwrap
from weakref import ref

TYPE_CHECKING = False  # as in runner.py
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from allranks.protocol.jsontext import JsonObject

    from .runner import Known

MOST_NOTED = 64  # groups of former lives


def attend(loader: Any, runner: Known) -> None:
    """Patch at the end of exec_module: before `from .distributed_c10d import *` copies the names."""
    try:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the class's own is back
            limit = None if runner.is_below else set_timeout(runner)
            execute(module)
            try:
                if runner.is_below:
                    watch_below(module, runner, lambda: True)
                else:
                    watch(module, limit if runner.forced else None, runner)
            except Exception:  # a torch that is built otherwise: the program runs, without reports
                pass

        if os.getpid() == runner.pid:
            loader.exec_module = exec_module
    except Exception:
        pass


def set_timeout(runner: Known) -> Optional[timedelta]:
    """Before distributed_c10d runs: what it copies, also into default arguments (torch 2.1), is then ours."""
    try:
        import torch.distributed.constants as constants

        limit = timedelta(seconds=float(runner.limit))
        for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
            if getattr(constants, name, None) is not None:  # None: this torch has no NCCL
                setattr(constants, name, limit)
        return limit
    except Exception:
        return None


def force_timeout(module: Any, forced: timedelta) -> None:
    """Override the timeout of process groups where the program names one, by position or by name."""

    def limited(function: Any) -> Any:
        at = list(signature(function).parameters).index("timeout")

        @wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            if len(args) > at:
                return function(*args[:at], forced, *args[at + 1 :], **named)
            return function(*args, **{**named, "timeout": forced})

        return call

    for name in ("init_process_group", "new_group", "split_group"):
        if hasattr(module, name):
            setattr(module, name, limited(getattr(module, name)))


def watch(module: Any, forced: Optional[timedelta], runner: Known) -> None:
    """Wrap what starts and ends process groups."""
    if forced is not None:
        force_timeout(module, forced)
    start = module.init_process_group
    stop = module.destroy_process_group
    recorder = Recorder(module, runner)
    entered: List[int] = []

    def parting() -> None:
        """Said, not concluded from silence: a report can be lost. Processes that it started may be its ranks."""
        recorder.note_calls()
        if not entered and not started:
            report(runner, "never-joined", None)

    started: List[int] = []
    training: List[int] = []
    if runner.reports:
        atexit.register(parting)
        watch_processes(started, training, runner)
        watch_below(module, runner, lambda: bool(training) and os.getpid() != runner.pid)  # forked from the rank

    @wraps(start)
    def init_process_group(*args: Any, **named: Any) -> Any:
        entered.append(1)
        report(runner, "init-entered", named.get("world_size"))
        recorder.expect()
        result = start(*args, **named)
        report(runner, "initialised", module.get_world_size(), limit=limit_of(module))
        recorder.start()
        return result

    @wraps(stop)
    def destroy_process_group(*args: Any, **named: Any) -> Any:
        size = module.get_world_size() if module.is_initialized() else None
        recorder.note_calls(is_end=True)
        result = stop(*args, **named)
        if not module.is_initialized():
            recorder.stop()
            report(runner, "destroyed", size, place_of_call(runner))
        return result

    module.init_process_group = init_process_group
    module.destroy_process_group = destroy_process_group


def limit_of(module: Any) -> Optional[float]:
    """Return after how many seconds the default group gives up a collective; None where this torch does not say it.

    NCCL's watchdog then aborts the process; Gloo raises in the rank that waits."""
    limits = []
    group = module.group.WORLD
    for device in getattr(group, "_device_types", ()):
        try:
            limits.append(group._get_backend(device).options._timeout.total_seconds())
        except Exception:  # no backend of this device, or one that is built otherwise
            pass
    return min(limits, default=None)


def watch_below(module: Any, runner: Known, is_below: Callable[[], bool]) -> None:
    """Tell the agent the world of a process that the program has started, where this is one.

    torch's own function is wrapped (1.13 to 2.13), and not the program's call: no traceback has a frame of ours."""
    update = module._update_default_pg

    @wraps(update)
    def _update_default_pg(group: Any) -> Any:
        update(group)
        if group is not None and is_below():
            tell_world(module, runner, group)

    module._update_default_pg = _update_default_pg


def tell_world(module: Any, runner: Known, group: Any) -> None:
    """Tell how many ranks the default group has, which of them this is, and where they met."""
    try:
        store = module._world.pg_map[group][1]
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        meets = "%s:%s" % (store.host, store.port)
    except Exception:  # a store of another kind, an older torch
        meets = "%s:%s" % (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
    try:
        runner.send("below", world_size=group.size(), place=group.rank(), meets=meets)
    except Exception:  # no member of it
        pass


class Below:
    """Among what multiprocessing hands to a new interpreter: loading it there is `attend_below` of runner.py.

    One that lies there no more, as after the run, is left out."""

    code = """try:
    with open(path, "rb") as file:
        source = file.read()
    names = {"__name__": "allranks.runner", "__file__": path}
    exec(compile(source, name, "exec", dont_inherit=True), names)
    names["attend_below"]()
except Exception:
    pass
"""

    def __init__(self, path: str, name: str) -> None:
        self.names = {"path": path, "name": name}

    def __reduce__(self) -> Tuple[Any, ...]:
        return exec, (self.code, self.names)


# Targets of processes that work for their program and train nothing.
HELPERS = ("torch.utils.data", "torch.multiprocessing.pool", "multiprocessing.", "concurrent.")
# Libraries whose processes train: those of others may serve a model on each node, as vLLM's do.
TRAINERS = ("torch", "lightning", "pytorch_lightning", "accelerate", "ignite")


def watch_processes(started: List[int], training: List[int], runner: Known) -> None:
    """Count the processes that the program starts to run functions of its own, as torch.multiprocessing.spawn does.

    Those that may train watch for process groups too: such worlds of two nodes may know nothing of each other.
    `training` has the threads that start one now. In a process that is forked so, it stays as it is."""
    base = getattr(sys.modules.get("multiprocessing.process"), "BaseProcess", None)
    if base is None:
        return
    begin = base.start

    @wraps(begin)
    def start(self: Any) -> Any:
        target = getattr(self, "_target", None)
        if str(getattr(target, "__module__", "")).startswith(HELPERS):
            return begin(self)
        if not started:
            hand_on(runner, lambda: get_ident() in training)
        started.append(1)
        if not may_train(self, runner):
            return begin(self)
        thread = get_ident()
        training.append(thread)
        try:
            return begin(self)
        finally:
            training.remove(thread)

    base.start = start


def may_train(process: Any, runner: Known) -> bool:
    """Tell whether the function that a process is to run is the program's own, or that of a library that trains."""
    function = getattr(process, "_target", None)
    arguments = getattr(process, "_args", ())
    if str(getattr(function, "__module__", "")).startswith("torch.multiprocessing") and arguments:
        function = arguments[0]  # of torch.multiprocessing.spawn
    module = str(getattr(function, "__module__", ""))
    file = str(getattr(sys.modules.get(module), "__file__", None) or "<")
    return module.partition(".")[0] in TRAINERS or runner.is_own(file)


def hand_on(runner: Known, is_wanted: Callable[[], bool]) -> None:
    """Add a `Below` to what multiprocessing hands to a new interpreter."""
    spawn: Any = sys.modules.get("multiprocessing.spawn")  # torch imports it
    if spawn is None:
        return
    prepare = spawn.get_preparation_data
    below = Below(os.path.abspath(runner.beside.__globals__["__file__"]), attend.__code__.co_filename)

    @wraps(prepare)
    def get_preparation_data(name: str) -> Dict[str, Any]:
        data: Dict[str, Any] = prepare(name)
        return dict(data, allranks=below) if is_wanted() else data

    spawn.get_preparation_data = get_preparation_data


class Recorder:
    """Answers the agent's questions (runner_recorder.py) while there are process groups."""

    def __init__(self, module: ModuleType, runner: Known) -> None:
        self.module = module
        self.runner = runner
        self.end: Optional[Callable[[], None]] = None
        self.posted = Posted(module)
        if runner.ask:
            self.posted.watch()
        self.functions: Dict[str, Callable[..., Any]] = {}
        self.lives = 0  # default groups that there have been
        self.since = 0.0
        self.noted: List[JsonObject] = []  # of lives that are over

    def expect(self) -> None:
        """Before a group is made: what was called before belongs to another one."""
        if self.end is None:
            self.since = time.time()

    def start(self) -> None:
        """After the first group; never fails, and never in a forked child."""
        if self.runner.ask and self.end is None and os.getpid() == self.runner.pid:
            self.lives += 1
            try:
                begin = self.runner.beside("runner_recorder.py", "start")
                self.functions = begin.__globals__  # at the interpreter's end the runner finds no more files
                self.end = begin(self.module, self.runner, self.note_calls, self.posted.described)
            except Exception:
                pass

    def note_calls(self, is_end: bool = False) -> None:
        """Write what this rank has called into the file beside its error file, at its end or when it is asked.

        Ranks that called unlike each other may never notice: Gloo lets another type of the same size pass."""
        if self.end is None or not self.runner.error_file or os.getpid() != self.runner.pid:
            return
        try:
            calls = self.noted + self.functions["called"](self.module, self.since, self.lives)
            self.functions["note"](self.runner.error_file + ".calls", calls)
            if is_end:
                self.noted = calls[-MOST_NOTED:]
        except Exception:  # a torch without recorders, a full disk
            pass

    def stop(self) -> None:
        """End it, once."""
        end = self.end
        self.end = None
        if end is not None:
            end()
            self.posted.clear()


MOST_POSTED = 256  # sends and receives that nothing has waited for yet
ANY_SOURCE = -1


class Posted:
    """Counts sends and receives on the CPU, and knows those that are not done: Gloo's recorder has none of them.

    The k-th send of a rank to another meets the other's k-th receive from it. torch's send and recv call isend and
    irecv (distributed_c10d.py, 2.13); an older torch that does not is left as it is.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.counts: Dict[Tuple[str, int, bool, int], int] = {}  # by group, peer, whether it is sent, and tag
        self.open: List[Tuple[Tuple[str, int, bool, int], int, Callable[[], Any]]] = []  # with number and work
        self.inside: List[int] = []  # threads: a subclass of Tensor calls the function again

    def watch(self) -> None:
        """Wrap isend and irecv, where all sends and receives go through them."""
        for name in ("send", "recv"):
            if "i" + name not in unwrap(getattr(self.module, name)).__code__.co_names:
                return
        self.module.isend = self.counted(self.module.isend, True, "dst", "group_dst")
        self.module.irecv = self.counted(self.module.irecv, False, "src", "group_src")

    def counted(self, function: Any, is_send: bool, by_rank: str, by_number: str) -> Any:
        """Return the function, which notes what it has begun. The names are those of the peer's two parameters."""
        parameters = signature(function)

        @wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            thread = get_ident()
            if thread in self.inside:
                return function(*args, **named)
            self.inside.append(thread)
            try:
                work = function(*args, **named)
            finally:
                self.inside.remove(thread)
            try:
                arguments = parameters.bind(*args, **named).arguments
                if work is not None and arguments["tensor"].device.type == "cpu":
                    group = arguments.get("group") or self.module.group.WORLD
                    peer = arguments.get(by_rank)
                    if peer is None and arguments.get(by_number) is not None:
                        peer = self.module.get_global_rank(group, arguments[by_number])
                    key = (self.module._world.pg_names[group], ANY_SOURCE if peer is None else int(peer))
                    self.note((*key, is_send, int(arguments.get("tag") or 0)), work)
            except Exception:  # a torch that is built otherwise
                pass
            return work

        return call

    def note(self, key: Tuple[str, int, bool, int], work: Any) -> None:
        """Count it. Work that the program holds no longer cannot be waited for."""
        self.counts[key] = number = self.counts.get(key, 0) + 1
        self.open.append((key, number, ref(work)))
        if len(self.open) > MOST_POSTED:
            self.open = self.not_done()[-MOST_POSTED // 2 :]

    def not_done(self) -> List[Tuple[Tuple[str, int, bool, int], int, Callable[[], Any]]]:
        """List what the program may wait for still."""
        kept = []
        for key, number, reference in list(self.open):
            work = reference()  # one at a time: what the program lets go is not held here
            if work is not None and not work.is_completed():
                kept.append((key, number, reference))
        return kept

    def described(self) -> Tuple[List[JsonObject], List[JsonObject]]:
        """Return how many there have been, and those that are not done: `DumpedTransfer` of
        diagnose/hangs/recorder.py."""
        names = ("group", "peer", "is_send", "tag")
        counts = [dict(zip(names, key), total=total) for key, total in list(self.counts.items())]  # noqa: B905
        waiting = [dict(zip(names, key), number=number) for key, number, _ in self.not_done()]  # noqa: B905
        return counts[:MOST_POSTED], waiting

    def clear(self) -> None:
        """Forget all: the groups were destroyed, and new ones may bear their names."""
        self.counts.clear()
        self.open = []


def place_of_call(runner: Known) -> str:
    """Return where the program has called: `train.py:88 in save`; empty where no frame is its own."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if runner.is_own(file):
            place = "%s:%s" % (os.path.basename(file), frame.f_lineno)
            name = frame.f_code.co_name
            return place if name == "<module>" else "%s in %s" % (place, name)
        frame = frame.f_back
    return ""


def report(runner: Known, event: str, size: Any, at: str = "", limit: Optional[float] = None) -> None:
    """Tell the agent a process group's size, as planned where it is not known, and its limit."""
    try:
        size = size if isinstance(size, int) and size > 0 else int(os.environ.get("WORLD_SIZE") or 0)
        runner.report(event, world_size=size or None, at=at, limit=limit)
    except Exception:
        pass
