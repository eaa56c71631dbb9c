"""The part of the runner that answers the agent while the rank waits in a collective.

Lies beside runner.py and is run by runner_torch.py once the first process group is up. Python's signal handlers do
not run inside a collective, so a thread of its own waits at a socket of the node directory. Before there is a group
it would make fork() warn; from then on torch has threads of its own. What is imported comes by `import_ours`.

    counters    which collective each group is at: 0.2 ms, nothing but numbers is copied
    look        … and the stacks of all other threads
    see         … and of torch's flight recorder the newest entries: no document of all of them is made
    dump        … and torch's flight recorder, which has the last collectives of every group, as JSON
    calls       the rank notes what it has called, in the file beside its error file
    times N     when the newest N collectives were called: `RankCalls` of protocol/samples.py
    profile N   torch's profiler begins, for N seconds at the most (runner_profile.py)
    profiled    … and its trace is written; the answer comes then, and other questions have theirs before
    imports     which installed modules the program has imported, and which variables it has changed

Stacks are taken here, with the interpreter's lock held, so that no other thread moves meanwhile. The dump signal
(runner.py) is for ranks that do not answer: its handler reads the stacks of threads that run, which can end a process
(seen: SIGSEGV after some 90 dumps while this thread was at work). The thread is none of `threading`'s, takes no
signals, and its descriptor lies above those that the program will see. It ends with the last group.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # as in runner.py
if TYPE_CHECKING:
    import socket
    from _thread import LockType
    from types import FrameType, ModuleType
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from allranks.protocol.jsontext import JsonObject

    from .runner import Known
    from .runner_profile import Profile

    Posted = Callable[[], Tuple[List[JsonObject], List[JsonObject]]]

FIRST_DESCRIPTOR = 961
PATIENCE = 2.0  # seconds for one question and its answer
DEPTH = 100
THREADS = 30
# Operations at which every rank of the group waits for all others, as the recorders name them.
SYNCHRONISING = (
    "all_reduce",
    "allreduce_coalesced",
    "all_gather",
    "_all_gather_base",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
    "all_to_all",
    "barrier",
)
NEWEST = 8  # collectives of each group that an error file has
SEEN = 64  # entries of each recorder that a person is shown at most: the newest
MOST_GROUPS = 64  # of those whose calls are noted, and of their calls and kinds of calls
MOST_CALLS = 4096
MOST_KINDS = 512
NOT_RECORDED = 65535  # as protocol/foreign.py says
BINDINGS = (("nccl", "_dump_nccl_trace_json"), ("gloo", "_dump_fr_trace_json"))  # one recorder each, torch >= 2.5, 2.8


def start(module: ModuleType, runner: Known, note_calls: Callable[[], None], posted: Posted) -> Callable[[], None]:
    """Begin to answer, and return the function that ends it. `module` is distributed_c10d.

    `posted` tells how many sends and receives there have been, and which are not done."""
    import _thread
    import signal

    def reply(word: str) -> JsonObject:
        return reply_to(word, module, runner, note_calls, posted)

    listener = listen(runner.ask)
    over = _thread.allocate_lock()
    over.acquire()
    faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}  # of the thread itself
    dump = {signal.SIGRTMIN + 7}  # of runner.py: sent to this thread, it interrupts nothing (agent/sample.py)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults - dump)
    try:  # the thread inherits the mask: a signal that the program waits for must not end up here
        _thread.start_new_thread(answer, (listener, runner, reply, over))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def stop() -> None:
        """Not in a forked child: it shares the socket and has no such thread."""
        import socket

        if os.getpid() == runner.pid:
            try:
                listener.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            over.acquire(timeout=PATIENCE)

    return stop


def listen(path: str) -> socket.socket:
    """Open the rank's socket; one that an earlier attempt left is replaced."""
    import fcntl
    import socket

    try:
        os.unlink(path)
    except OSError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(8)
    try:
        high = fcntl.fcntl(listener.fileno(), fcntl.F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR)
    except OSError:  # a low limit of open files
        return listener
    listener.close()
    return socket.socket(fileno=high)


def answer(listener: socket.socket, runner: Known, reply: Callable[[str], JsonObject], over: LockType) -> None:
    """Answer one question after the other, as a thread, until stop()."""
    profiles: List[Profile] = []  # none, or the one of this rank
    try:
        while True:
            channel = listener.accept()[0]
            try:
                import json  # late: what is imported for us alone is so while the program imports too
                import socket

                channel.settimeout(PATIENCE)
                word = channel.recv(64).decode("ascii")
                if word.startswith("profile") and not profiles:
                    profiles.append(runner.beside("runner_profile.py", "Profile")(runner))
                if word == "profiled":
                    profiles[0].end(channel.dup())  # another thread answers
                    continue
                if word.startswith("profile "):
                    answered = profiles[0].begin(float(word[8:]))
                else:
                    answered = reply(word)
                channel.sendall(json.dumps(answered).encode(), socket.MSG_NOSIGNAL)
            except Exception:  # whoever asked has ended, or the program ends
                pass
            finally:
                channel.close()
    except OSError:  # stop()
        pass
    finally:
        for profile in profiles:
            profile.abandon()
        listener.close()
        over.release()


def reply_to(
    word: str, module: ModuleType, runner: Known, note_calls: Callable[[], None], posted: Posted
) -> JsonObject:
    """Return what is asked for of torch's records, and of the program."""
    reply: JsonObject = {"schema": 1, "rank": runner.rank, "pid": runner.pid, "t": time.time()}
    if word == "calls":
        note_calls()
    elif word == "imports":
        reply["modules"], reply["own"] = imported(runner)
        reply["changed"] = runner.changed()
    elif word.startswith("times "):
        reply.update(call_times(module, int(word[6:])))
    else:
        reply["groups"] = groups(module)
        if word == "see":
            reply.update(newest_recorded())
        else:
            reply.update(recorded(word == "dump"))
        if word != "counters":
            reply["stacks"] = stacks()
            reply["posted"], waiting = posted()
            reply["transfers"] = transfers(module) or waiting
    return reply


def imported(runner: Known) -> Tuple[Dict[str, str], Dict[str, str]]:
    """Give what was imported of the library and of installed packages, in that order: names, and files where they have
    one. Then the files of the user's own, without their stamps: the script, and each module that is not an installed
    one."""
    modules = {}
    files = {}
    mains = ("__main__", "__mp_main__")
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        origin = str(getattr(spec, "origin", None) or "")
        if name in mains:
            origin = origin or os.path.abspath(str(getattr(module, "__file__", None) or ""))
        if os.path.isabs(origin) and runner.is_own(origin):
            files[origin] = ""
        elif name not in mains and getattr(spec, "name", "") == name and getattr(spec, "loader", None) is not None:
            modules[name] = origin
    return modules, {file: "" for file in files if os.path.isfile(file)}


def groups(module: ModuleType) -> List[JsonObject]:
    """List the process groups that this rank is in. torch's own table of them (pg_config) is broken in 2.13."""
    world = module._world
    described = []
    for group, name in list(world.pg_names.items()):
        ranks = dict(world.pg_group_ranks.get(group) or {})
        one = {"name": str(name), "desc": str(getattr(group, "group_desc", "") or ""), "ranks": sorted(ranks)}
        try:
            one["sequence"] = group._get_sequence_number_for_group()
        except Exception:  # a backend that does not count
            pass
        described.append(one)
    return described


def stacks() -> str:
    """As faulthandler prints them: the main thread is the last, and is called the current one."""
    import _thread
    import threading

    main = threading.main_thread().ident
    texts = []
    for ident, frame in sys._current_frames().items():
        lines: List[str] = []
        at: Optional[FrameType] = frame
        while at is not None and len(lines) < DEPTH:
            place = at.f_code.co_filename, str(at.f_lineno or "???"), at.f_code.co_name
            lines.append('  File "%s", line %s in %s' % place)
            at = at.f_back
        head = "%s 0x%016x (most recent call first):" % ("Current thread" if ident == main else "Thread", ident)
        if ident != _thread.get_ident():
            texts.append((ident == main, "\n".join([head, *lines, ""])))
    texts.sort(key=lambda one: one[0])
    return "\n".join(text for _, text in texts[-THREADS:])


def transfers(module: ModuleType) -> List[JsonObject]:
    """List the send or the receive that the main thread waits in: `DumpedTransfer` of diagnose/hangs/recorder.py.

    Gloo's recorder has none of them. Their own frames in distributed_c10d.py name the peer (torch 2.1 to 2.13). A
    call that was made before, and that `work.wait()` waits for, has left no frame: see Posted of runner_torch.py."""
    import threading

    ends = {"send": ("dst", "group_dst"), "recv": ("src", "group_src")}
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        name = frame.f_code.co_name
        if name in ends and frame.f_code.co_filename == module.__file__:
            values = frame.f_locals
            try:
                group = values.get("group") or module.group.WORLD
                peer = values.get(ends[name][0])
                if peer is None:
                    peer = module.get_global_rank(group, values[ends[name][1]])
                of_group = {"group": module._world.pg_names[group], "tag": int(values.get("tag") or 0)}
                return [dict(of_group, peer=int(peer), is_send=name == "send", is_blocking=True)]
            except Exception:  # from any source, or a torch that names them otherwise
                return []
        frame = frame.f_back
    return []


def newest_calls() -> List[JsonObject]:
    """List the newest collectives of each group, the oldest first: `ErrorCall` of protocol/foreign.py."""
    newest: List[JsonObject] = []
    of_group: Dict[str, int] = {}
    for recorder in recorded(True)["recorders"].values():
        for entry in reversed(recorder.get("entries", ())):
            group = str(entry["process_group"][0])
            of_group[group] = of_group.get(group, 0) + 1
            if of_group[group] <= NEWEST and not entry["is_p2p"]:
                newest.append(dict(described(*kind_of(entry)), group=group, seq=entry["collective_seq_id"]))
    return newest[::-1]


def kind_of(entry: JsonObject) -> Tuple[str, int, str]:
    """Return the name, the number of elements that go in, and their type."""
    elements = 0
    for shape in entry["input_sizes"]:
        count = 1
        for length in shape:
            count *= length
        elements += count
    return entry["profiling_name"], elements, (entry["input_dtypes"] or [""])[0]


def called(module: ModuleType, since: float, lives: int) -> List[JsonObject]:
    """Return what this rank has called in each group, in short: `CalledGroup` of protocol/foreign.py.

    `since`: the unix time at which its default group began, its `lives`-th. Groups that are made again bear the old
    names and count from one again."""
    members = {group["name"]: group["ranks"] for group in groups(module)}
    entries: Dict[Tuple[str, str], Dict[int, Tuple[str, int, str]]] = {}
    for backend, recorder in recorded(True)["recorders"].items():
        for entry in recorder.get("entries", ()):
            name = str(entry["process_group"][0])
            is_of_life = (entry.get("time_created_ns") or 0) >= since * 1e9
            if not entry["is_p2p"] and is_of_life and name in members:
                entries.setdefault((backend, name), {})[entry["collective_seq_id"]] = kind_of(entry)
    return [
        dict(shortened(by_number), group="%d/%s/%s/%s" % (lives, backend, name, span(members[name])))
        for (backend, name), by_number in list(entries.items())[:MOST_GROUPS]
    ]


def span(ranks: List[int]) -> str:
    """Return what two groups of one name differ in, if they are not the same."""
    import zlib

    return "%d-%d-%x" % (min(ranks), max(ranks), zlib.crc32(repr(ranks).encode()))


def shortened(by_number: Dict[int, Tuple[str, int, str]]) -> JsonObject:
    """Return the newest calls of a group: their kinds, and the kind of each number."""
    import array
    import binascii
    import zlib

    last = max(by_number)
    first = max(min(by_number), last - MOST_CALLS + 1)
    kinds: Dict[Tuple[str, int, str], int] = {}
    backwards = array.array("H")
    for number in range(last, first - 1, -1):
        kind = by_number.get(number)
        if kind is not None and kind not in kinds:
            if len(kinds) == MOST_KINDS:
                break
            kinds[kind] = len(kinds)
        backwards.append(NOT_RECORDED if kind is None else kinds[kind])
    sequence = array.array("H", reversed(backwards))
    if sys.byteorder == "big":
        sequence.byteswap()
    packed = binascii.b2a_base64(zlib.compress(sequence.tobytes()), newline=False).decode("ascii")
    return {"first": last - len(sequence) + 1, "kinds": [described(*kind) for kind in kinds], "sequence": packed}


def described(what: str, elements: int, dtype: str) -> JsonObject:
    """Return `CallKind` of protocol/foreign.py."""
    return {"what": what, "elements": elements, "dtype": dtype}


def note(path: str, calls: List[JsonObject]) -> None:
    """Write what was called, whole or not at all."""
    import json

    temporary = "%s.%d.tmp" % (path, os.getpid())
    with open(temporary, "wb") as file:
        file.write(json.dumps(calls).encode("ascii"))
    os.rename(temporary, path)


def call_times(module: ModuleType, most: int) -> JsonObject:
    """Return when this rank called its newest collectives, by group: `RankCalls` of protocol/samples.py.

    Their number is bounded over all groups, so what a rank of many groups gives is as long."""
    import gc

    members = {one["name"]: one["ranks"] for one in groups(module)}
    of_groups: Dict[str, JsonObject] = {}
    base = 0
    for backend, entry in newest_entries(most):
        name = str(entry["process_group"][0])
        what = entry["profiling_name"].partition(":")[2]
        created = entry["time_created_ns"] or 0
        if entry["is_p2p"] or name not in members or what not in SYNCHRONISING or not created:
            continue
        base = base or created // 1000000000
        if name not in of_groups:
            ranks = members[name]
            of_groups[name] = {"name": name, "size": len(ranks), "first": min(ranks, default=0), "kinds": []}
            of_groups[name]["on_device"] = backend != "gloo"
        one = of_groups[name]
        kind = "%s %d" % (what, kind_of(entry)[1])
        if kind not in one["kinds"]:
            one["kinds"].append(kind)
        row = {
            "sequence": entry["collective_seq_id"],
            "kind": one["kinds"].index(kind),
            "created": created // 1000 - base * 1000000,
        }
        if one["on_device"]:
            row["duration"] = round(1000 * (entry.get("duration_ms") or 0))
        for key, value in row.items():
            one.setdefault(key, []).append(value)
    return {"base": base, "groups": list(of_groups.values()), "collections": gc.get_stats()[-1]["collections"]}


def newest_entries(most: int) -> List[Any]:
    """Return the newest entries of torch's recorders with their backend, the oldest first.

    A dump of 2,000 entries has 1 MB, and to read all of it takes as long as to write it. Its entries are flat objects
    (FlightRecorderDetail.hpp, dump_json), so the last of them are cut out; where that fails all is read."""
    import json

    newest: List[Any] = []
    for backend, dump in dump_functions():
        data = dump(includeCollectives=True, onlyActive=False)
        if isinstance(data, str):
            data = data.encode()
        begin = data.find(b'"entries":[{')
        end = data.rfind(b'}],"nccl_comm_state"')
        try:
            if begin < 0 or end < begin:
                raise ValueError
            pieces = data[begin + 12 : end].rsplit(b"},{", most)[-most:]
            entries = [json.loads(b"{" + piece + b"}") for piece in pieces]
        except ValueError:
            entries = json.loads(data).get("entries", [])[-most:]
        newest += [(backend, entry) for entry in entries]
    return newest


def newest_recorded() -> JsonObject:
    """Return the newest entries by backend, in the form of `recorded`."""
    dumps: JsonObject = {}
    for backend, entry in newest_entries(SEEN):
        dumps.setdefault(backend, {"entries": []})["entries"].append(entry)
    return {"recorders": dumps}


def dump_functions() -> List[Tuple[str, Callable[..., Any]]]:
    """List torch's recorders: the backend, and the function that dumps what it has."""
    library = sys.modules.get("torch._C._distributed_c10d")
    return [(backend, getattr(library, name)) for backend, name in BINDINGS if hasattr(library, name)]


def recorded(with_records: bool) -> JsonObject:
    """Return what torch's recorders have, by backend; the counters alone unless `with_records`.

    As JSON, which has no stacks: for these torch imports seconds' worth of modules, and others have them anyway."""
    import json

    dumps = {}
    for backend, dump in dump_functions():
        try:
            dumps[backend] = json.loads(dump(includeCollectives=with_records, onlyActive=False))
        except Exception as error:
            dumps[backend] = {"error": "%s: %s" % (type(error).__name__, error)}
    return {"torch": str(getattr(sys.modules.get("torch"), "__version__", "")), "recorders": dumps}
