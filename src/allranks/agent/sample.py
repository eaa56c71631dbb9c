"""A stack sample of ranks: what each is doing at one moment of a suspected hang.

A sample must not change the program. The ranks are asked first; what does not answer is read from outside (/proc,
py-spy); a signal is the last means: not at a first sample, once in a rank's life, and never because a person asks.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from typing import AbstractSet, Dict, Optional, Tuple

from allranks.protocol.codec import decode_parts, encode
from allranks.protocol.frames import MAX_JSON
from allranks.protocol.jsontext import JsonObject, write_json
from allranks.protocol.messages import StacksMessage
from allranks.protocol.node_names import NodeFiles
from allranks.protocol.samples import NO_PY_SPY, StackSample

from .asking import KEPT, Asking, HelperAnswer, counted, keep_newest
from .bounded_commands import run_command
from .files import append, find_program, names_in, open_left, read_link, read_text, size_of
from .observing import STACKS_SIGNAL, catches_stacks_signal
from .processes import (
    TICKS,
    Process,
    command_line,
    read_process,
    send_signal,
    signal_masks,
    stat_fields,
    variable_of,
)
from .sockets import connections

# -- What NCCL's own service for reliability knows of the whole job (RAS, NCCL >= 2.24) --------------------------------
# A thread of every NCCL process answers at localhost:28028 (NCCL_RAS_ADDR) in lines of text; the words are those of
# NCCL's own client, ncclras (src/ras/client.cc). It is asked only where a rank has libnccl in its memory.

ADDRESS = ("localhost", 28028)
LEG = 3  # seconds NCCL may wait for its other processes
RAS_SECONDS = 8.0  # for everything
ANSWER = 1.5  # seconds for a first word: a stopped process accepts too, another try reaches another one
RAS_LIMIT = 256 << 10
MAPS_LIMIT = 16 << 20  # torch maps a few hundred files


def ask_ras(ranks: Dict[int, Process], node_dir: str) -> Optional[str]:
    """Return the text of NCCL's RAS service; None where no process of this node answers as one."""
    pid = next((p.pid for p in ranks.values() if "libnccl" in read_text("/proc/%d/maps" % p.pid, MAPS_LIMIT)), None)
    if pid is None:
        return None
    host, _, port = (variable_of(pid, "NCCL_RAS_ADDR") or "").rpartition(":")
    address = ADDRESS
    if port.isdecimal():
        address = (host.strip("[]") or ADDRESS[0], int(port))
    deadline = time.monotonic() + RAS_SECONDS
    text = None
    for _ in range(3):
        if text is None and time.monotonic() < deadline - ANSWER:
            text = _try(address, deadline)
    if text is not None:
        append(NodeFiles(node_dir).ras, text.encode("utf-8", "replace"))
    return text


def _try(address: Tuple[str, int], deadline: float) -> Optional[str]:
    try:
        with socket.create_connection(address, timeout=ANSWER) as channel, channel.makefile("rb", 0) as lines:
            for word, wanted in (("CLIENT PROTOCOL 2", b"SERVER PROTOCOL"), ("TIMEOUT %d" % LEG, b"OK")):
                channel.sendall(word.encode() + b"\n")
                if not lines.readline(1024).upper().startswith(wanted):
                    return None
            channel.sendall(b"VERBOSE STATUS\n")
            data = b""
            try:
                while len(data) < RAS_LIMIT and time.monotonic() < deadline:
                    channel.settimeout(max(0.05, deadline - time.monotonic()))
                    part = channel.recv(1 << 16)
                    if not part:
                        break
                    data += part
            except OSError:  # what has come when the time is over counts too
                pass
            return data.decode("utf-8", "replace") or None
    except (OSError, ValueError):  # UnicodeError of a name that NCCL_RAS_ADDR cannot mean
        return None


# -- Stacks by py-spy, which reads the memory of a process ------------------------------------------------------------

STACK_LIMIT = 64 << 10
PY_SPY_SECONDS = 4.0  # one rank; with native frames of torch it takes 1 s on a busy machine
# Where the kernel waits in epoll_wait, semtimedop and rt_sigtimedwait. A stop, as py-spy's for native frames, ends them
# early (signal(7), "Interruption ... by stop signals").
ENDED_BY_STOP = ("ep_poll", "do_epoll_wait", "do_semtimedop", "__do_semtimedop", "do_sigtimedwait")


def py_spy(pid: int, native: bool, deadline: float) -> StackSample:
    """Take the stacks, or say why there are none; `deadline` by the monotonic clock.

    With `native` frames it has to stop the process for some milliseconds; without it does not."""
    tool = _py_spy_tool(pid)
    if tool is None:
        return StackSample(error=NO_PY_SPY)
    how = "--native" if native else "--nonblocking"
    seconds = max(0.1, min(PY_SPY_SECONDS, deadline - time.monotonic()))
    try:
        ended = run_command([tool, "dump", how, "--full-filenames", "--pid", str(pid)], seconds, STACK_LIMIT)
    except OSError as error:
        return StackSample(error="py-spy: %s" % error)
    if ended.code is None:
        return StackSample(error="py-spy gave no answer within %g s" % seconds)
    if ended.ok:
        return StackSample(text=ended.out, how="py-spy")
    return StackSample(error="py-spy: " + (ended.out + ended.err)[-300:].strip())


def _py_spy_tool(pid: int) -> Optional[str]:
    """On PATH, else beside the interpreter that the rank was started with."""
    tool = find_program("py-spy")
    words = command_line(pid)
    if tool is None and words and os.path.isabs(words[0]):
        tool = find_program("py-spy", path=os.path.dirname(words[0]))
    return tool


# -- A sample ----------------------------------------------------------------------------------------------------------

OUTSIDE_SECONDS = 8.0  # all ranks of the node
MOST = MAX_JSON // 2  # bytes of all samples as JSON; stacks of ranks take a part of it too
READ = {"x86_64": "0", "aarch64": "63"}  # the number of the system call


def sample(
    ranks: Dict[int, Process],
    node_dir: str,
    word: str,
    signalled: AbstractSet[int] = frozenset(),
    for_person: bool = False,
    native: bool = False,
) -> StacksMessage:
    """Sample ranks; `word` (look, see, dump) is what flight recorders are asked for, `signalled` have had their signal.

    With a dump, NCCL's word on the whole job too, where it has one. What a run does is seen `for_person` without a
    signal and without connections, and kept in files only with a dump. `native`: of each rank the frames below Python.
    """
    answers = Asking(ranks, node_dir, word).answers() if word else {}
    samples: Dict[int, StackSample] = {}
    deadline = time.monotonic() + OUTSIDE_SECONDS
    for rank, process in ranks.items():
        answer = decode_parts(HelperAnswer, answers.get(rank))
        one = StackSample()
        if native or not answer.stacks:
            is_last = native or (word == "dump" and not for_person)
            one = from_outside(process, native or answer.silent, is_last, deadline)
        if answer.stacks and not one.text:
            one = StackSample(text=answer.stacks[-STACK_LIMIT:], how="asked", error=one.error)
        samples[rank] = one._replace(rank=rank, silent=one.silent and answer.silent)
    if word != "look" and not for_person:
        _signal_blind(samples, ranks, node_dir, signalled)
    sockets = {} if for_person else connections({rank: process.pid for rank, process in ranks.items()})
    for rank, one in samples.items():
        is_kept = word == "dump" or not for_person
        if is_kept and one.how in ("asked", "py-spy"):  # the handler of the signal writes there itself
            append(NodeFiles(node_dir).stacks(rank), (one.text + "\n").encode("utf-8", "replace"))
        samples[rank] = with_process_facts(one, ranks[rank].pid)._replace(sockets=sockets.get(rank, ()))
        if rank in answers:
            recorder = {key: value for key, value in answers[rank].items() if key != "stacks"}
            samples[rank] = samples[rank]._replace(recorder=recorder, counted=counted(recorder))
    return StacksMessage(_fit(samples), ask_ras(ranks, node_dir) if word == "dump" else None)


def _fit(samples: Dict[int, StackSample]) -> Dict[int, JsonObject]:
    """Make the samples' JSON; where it is too much for a message, with fewer of each recorder's entries, then with
    none, then with shorter stacks."""
    documents: Dict[int, JsonObject] = {rank: encode(one) for rank, one in samples.items()}
    entries = KEPT
    stack = STACK_LIMIT
    while len(write_json(list(documents.values()))) > MOST and stack:
        for document in documents.values():
            if entries > 1:
                keep_newest(document.get("recorder", {}), entries // 2)
            elif "recorder" in document:
                del document["recorder"]
            else:
                document["text"] = document.get("text", "")[-stack // 2 :]
        if entries:
            entries //= 2
        else:
            stack //= 2
    return documents


def _signal_blind(
    samples: Dict[int, StackSample], ranks: Dict[int, Process], node_dir: str, signalled: AbstractSet[int]
) -> None:
    """Take stacks by a signal. Ranks in `signalled` have been signalled before and are not a second time."""
    blind = [rank for rank, one in samples.items() if not one.text and not one.state]
    files = NodeFiles(node_dir)
    dumps = {rank: _Dump(ranks[rank], files.stacks(rank), rank not in signalled) for rank in blind}
    deadline = time.monotonic() + SECONDS
    while any(one.waits for one in dumps.values()) and time.monotonic() < deadline:
        time.sleep(0.05)
        for one in dumps.values():
            one.check()
    for rank, one in dumps.items():
        samples[rank] = one.result(samples[rank])


def from_outside(process: Process, silent: bool, last: bool, deadline: float) -> StackSample:
    """Read what can be read of a rank that gave no stack itself.

    `silent`: its thread that answers was asked and did not, so something holds the interpreter's lock: then, at the
    last sample, py-spy stops the process for its native frames, unless it is in a call that a stop would end."""
    now = read_process(process.pid)
    if now is None or now.is_stopped or now.has_ended:
        state = "gone" if now is None else now.state
        return StackSample(error="no stack: the process is in state %s" % state, state=state)
    native = silent and last and not read_text("/proc/%d/wchan" % process.pid).startswith(ENDED_BY_STOP)
    one = py_spy(process.pid, native, deadline)
    if native and one.error:
        one = py_spy(process.pid, False, deadline)
    if one.error:
        one = one._replace(error="could not look: %s" % one.error)
    return one._replace(silent=silent)


def with_process_facts(one: StackSample, pid: int) -> StackSample:
    """Add what /proc says of a process; what cannot be read is left out."""
    fields = stat_fields(pid)
    if len(fields) > 12:
        one = one._replace(state=fields[0], cpu=(int(fields[11]) + int(fields[12])) / TICKS)
    ready = read_text("/proc/%d/schedstat" % pid).split()
    if len(ready) > 1:
        one = one._replace(ready=int(ready[1]) / 1e9)
    moved = [line.split()[1] for line in read_text("/proc/%d/io" % pid).splitlines() if line[1:6] == "char:"]
    if moved:  # rchar and wchar: what went through read and write, whatever it was
        one = one._replace(io=sum(map(int, moved)))
    wchan = read_text("/proc/%d/wchan" % pid)
    if wchan not in ("", "0"):
        one = one._replace(wchan=wchan)
    call = read_text("/proc/%d/syscall" % pid).split()
    if len(call) > 1 and call[0] == READ.get(os.uname().machine):
        path = read_link("/proc/%d/fd/%d" % (pid, int(call[1], 16)))
        if path.startswith("/") and not path.startswith("/dev/"):
            one = one._replace(file=path)
    return one


# -- Stacks by a signal: the last means --------------------------------------------------------------------------------
# The runner's handler (faulthandler, C) writes the stacks of all threads. Sent to the process, the signal runs it in
# the main thread, and a C function that sleeps or polls there returns early (EINTR): the program goes on otherwise than
# without us. So it goes to the thread of the runner that answers questions, which sleeps (agent/runner_recorder.py);
# only where there is none, to the process, once.

SECONDS = 2.0  # for the handler to write
TGKILL = {"x86_64": 234, "aarch64": 131}  # system calls by machine
FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}  # the helper does not block these


class _Dump:
    """One rank's."""

    def __init__(self, process: Process, path: str, may_signal: bool) -> None:
        self._path = path
        self._start = size_of(path)
        self._size = -1
        self._sent_to_process = False
        self._error = ""
        self.waits = False
        if not catches_stacks_signal(process.pid):
            self._error = "the program has no dump handler"
            return
        helper = helper_thread(process.pid)
        if helper is not None and _tgkill(process.pid, helper):
            self.waits = True
        elif may_signal:
            self.waits = self._sent_to_process = send_signal(process, STACKS_SIGNAL)
        else:
            self._error = "its stack was taken by a signal before, which is done once"

    def check(self) -> None:
        """See whether all is written."""
        if self.waits:
            size = size_of(self._path)
            self.waits = size == self._start or size != self._size
            self._size = size

    def result(self, sample: StackSample) -> StackSample:
        """Add what has come of it to a sample."""
        sample = sample._replace(signalled=self._sent_to_process)
        if self._error or self._size <= self._start:
            error = self._error or "no stack within %g s" % SECONDS
            return sample._replace(error=", and ".join(filter(None, (sample.error, error))))
        with open(open_left(self._path), "rb") as file:
            file.seek(self._start)
            text = file.read(STACK_LIMIT).decode("utf-8", "replace")
        if not self._sent_to_process:  # the thread that ran the handler is not the main one, which comes last
            text = text.replace("Current thread 0x", "Thread 0x")
        return sample._replace(text=text, how="signal")


def helper_thread(pid: int) -> Optional[int]:
    """Find the thread that answers for a rank by the signals that it blocks: all but faults and the dump's own."""
    signals = set(signal.valid_signals()) - FAULTS - {signal.SIGKILL, signal.SIGSTOP, STACKS_SIGNAL}
    wanted = sum(1 << (int(number) - 1) for number in signals)
    threads = [int(name) for name in names_in("/proc/%d/task" % pid)]
    return next((t for t in threads if t != pid and signal_masks(pid, t).get("SigBlk") == wanted), None)


def _tgkill(pid: int, thread: int) -> bool:
    number = TGKILL.get(os.uname().machine)
    return number is not None and ctypes.CDLL(None).syscall(number, pid, thread, int(STACKS_SIGNAL)) == 0
