"""A stack sample of ranks: what each is doing at one moment of a suspected hang.

A sample must not change the program. The ranks are asked first; what does not answer is read from outside (/proc,
py-spy); a signal is the last means: not at a first sample, once in a rank's life, and never because a person asks.
"""

from __future__ import annotations

import os
import time
from typing import AbstractSet, Dict

from allranks.protocol.codec import decode_parts, encode
from allranks.protocol.frames import MAX_JSON
from allranks.protocol.jsontext import JsonObject, write_json
from allranks.protocol.node_names import NodeFiles
from allranks.protocol.samples import StackSample

from .ask_ras import ask_ras
from .asking import KEPT, Asking, HelperAnswer, counted, keep_newest
from .dumping import dump
from .files import append, read_link, read_text
from .forked_tasks import Samples
from .native import ENDED_BY_STOP, position, py_spy
from .processes import Process, read_process, stat_fields
from .sockets import connections

STACK_LIMIT = 64 << 10
PY_SPY_SECONDS = 4.0  # one rank; with native frames of torch it takes 1 s on a busy machine
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
) -> Samples:
    """Sample ranks; `word` (look, see, dump) is what flight recorders are asked for, `signalled` have had their signal.

    With a dump, NCCL's word on the whole job too, where it has one. What a run does is seen `for_person` without a
    signal, and kept in files only with a dump. `native`: of each rank the frames below Python.
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
    for rank, one in samples.items():
        is_kept = word == "dump" or not for_person
        if is_kept and one.how in ("asked", "py-spy"):  # the handler of the signal writes there itself
            append(NodeFiles(node_dir).stacks(rank), (one.text + "\n").encode("utf-8", "replace"))
        samples[rank] = with_process_facts(one, ranks[rank].pid)
        if rank in answers:
            recorder = {key: value for key, value in answers[rank].items() if key != "stacks"}
            samples[rank] = samples[rank]._replace(recorder=recorder, counted=counted(recorder))
    return Samples(
        _fit(samples),
        ask_ras(ranks, node_dir) if word == "dump" else None,
        [rank for rank, one in samples.items() if one.signalled],
    )


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
    blind = {rank: ranks[rank] for rank, one in samples.items() if not one.text and not one.state}
    for rank, stack in dump(blind, node_dir, signalled).items():
        one = samples[rank]._replace(signalled=stack.signalled, moved=stack.moved)
        if stack.error:
            samples[rank] = one._replace(error=stack.error)
        else:
            samples[rank] = one._replace(text=stack.text, how="signal")


def from_outside(process: Process, silent: bool, last: bool, deadline: float) -> StackSample:
    """Read what can be read of a rank that gave no stack itself.

    `silent`: its thread that answers was asked and did not, so something holds the interpreter's lock: then, at the
    last sample, py-spy stops the process for its native frames, unless it is in a call that a stop would end."""
    now = read_process(process.pid)
    if now is None or now.is_stopped or now.has_ended:
        state = "gone" if now is None else now.state
        return StackSample(error="no stack: the process is in state %s" % state, state=state)
    one = StackSample()
    if silent:
        one = one._replace(silent=True, syscall=position(process.pid).call)
    native = silent and last and one.syscall not in ENDED_BY_STOP
    stacks = py_spy(process.pid, native, max(0.1, min(PY_SPY_SECONDS, deadline - time.monotonic())))
    if native and stacks.error:
        stacks = py_spy(process.pid, False, max(0.1, min(PY_SPY_SECONDS, deadline - time.monotonic())))
    if stacks.error:
        return one._replace(error="could not look: %s" % stacks.error)
    return one._replace(text=stacks.text, how="py-spy")


def with_process_facts(one: StackSample, pid: int) -> StackSample:
    """Add what /proc says of a process; what cannot be read is left out."""
    fields = stat_fields(pid)
    if len(fields) > 12:
        ticks = os.sysconf("SC_CLK_TCK")
        one = one._replace(state=fields[0], cpu=(int(fields[11]) + int(fields[12])) / ticks)
    ready = read_text("/proc/%d/schedstat" % pid).split()
    if len(ready) > 1:
        one = one._replace(ready=int(ready[1]) / 1e9)
    moved = [line.split()[1] for line in read_text("/proc/%d/io" % pid).splitlines() if line[1:6] == "char:"]
    if moved:  # rchar and wchar: what went through read and write, whatever it was
        one = one._replace(io=sum(map(int, moved)))
    wchan = read_text("/proc/%d/wchan" % pid)
    if wchan not in ("", "0"):
        one = one._replace(wchan=wchan)
    return one._replace(file=_file_in_read(pid), sockets=connections(pid))


def _file_in_read(pid: int) -> str:
    call = read_text("/proc/%d/syscall" % pid).split()
    if len(call) < 2 or call[0] != READ.get(os.uname().machine):
        return ""
    path = read_link("/proc/%d/fd/%d" % (pid, int(call[1], 16)))
    if not path.startswith("/") or path.startswith("/dev/"):
        return ""
    return path
