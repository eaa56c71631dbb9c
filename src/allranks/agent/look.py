"""What an agent looks at in a task: the prelude's environment, the node's facts, stacks of ranks."""

import os
import time
from typing import AbstractSet, Any, Dict, List

from . import facts
from .asking import Asking, counted
from .dumping import dump, stacks_file
from .native import ENDED_BY_STOP, native_facts, py_spy
from .prelude import run_prelude
from .processes import Process, read_process
from .ras import ask_ras

STACK_LIMIT = 64 << 10
PY_SPY_SECONDS = 4.0  # one rank; with native frames of torch it takes 1 s on a busy machine
OUTSIDE_SECONDS = 8.0  # all ranks of the node


def look(request: Dict[str, Any], base: Dict[str, str]) -> Dict[str, Any]:
    """Facts of this node, with the environment that ranks get after the prelude under "environment"."""
    environment = dict(base)
    for name in ("SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY"):
        environment.pop(name, None)
    remarks: List[str] = []
    if request.get("prelude"):
        outcome = run_prelude(request["prelude"], environment, request.get("workdir"))
        if outcome.environment is None:
            return {"facts": {}, "environment": environment, "prelude_error": outcome.error}
        environment = outcome.environment
        remarks = outcome.remarks
    found = facts.collect({**request, "environ": {**environment, **request.get("environ", {})}})
    return {"facts": {**found, "prelude": {"remarks": remarks}}, "environment": environment}


def looks(
    ranks: Dict[int, Process], node_dir: str, word: str, signalled: AbstractSet[int] = frozenset()
) -> Dict[str, Any]:
    """Stacks of ranks, /proc's word on them, and (`word`: look or dump) which collective they are at.

    A look must not change the program. The ranks are asked first; what does not answer is read from outside (/proc,
    py-spy); a signal is the last means: not at a first look, and once in a rank's life (`signalled` have had theirs).
    With a dump, NCCL's word on the whole job too, where it has one.
    """
    answers = Asking(ranks, node_dir, word).answers() if word else {}
    found = {}  # type: Dict[int, Dict[str, Any]]
    for rank, answer in answers.items():
        text = str(answer.pop("stacks", ""))[-STACK_LIMIT:]
        if text:
            found[rank] = {"text": text, "how": "asked"}
    silent = {rank for rank, answer in answers.items() if answer.get("silent")}
    deadline = time.monotonic() + OUTSIDE_SECONDS
    for rank, process in ranks.items():
        if rank not in found:
            found[rank] = from_outside(process, rank in silent, word == "dump", deadline)
    if word != "look":
        blind = {rank: ranks[rank] for rank, seen in found.items() if not seen.get("text") and not seen.get("state")}
        for rank, seen in dump(blind, node_dir, signalled).items():
            found[rank] = {**found[rank], **seen}
    for rank, seen in found.items():
        if seen.get("how") in ("asked", "py-spy"):  # the handler of the signal writes there itself
            _append(stacks_file(node_dir, rank), seen["text"])
        seen.update(process_facts(ranks[rank].pid))
        if rank in answers:
            seen.update({"recorder": answers[rank], "counted": counted(answers[rank])})
    return {
        "ranks": {str(rank): seen for rank, seen in found.items()},
        "ras": ask_ras(ranks, node_dir) if word == "dump" else None,
        "signalled": [rank for rank, seen in found.items() if seen.get("signalled")],
    }


def _append(path: str, text: str) -> None:
    """To the evidence; a full disk has none."""
    try:
        with open(path, "a") as file:
            file.write(text + "\n")
    except OSError:
        pass


def from_outside(process: Process, silent: bool, last: bool, deadline: float) -> Dict[str, Any]:
    """What can be read of a rank that gave no stack itself: `text` by py-spy, `native` facts, or an `error`.

    `silent`: its thread that answers was asked and did not, so something holds the interpreter's lock: then, at the
    last look, py-spy stops the process for its native frames, unless it is in a call that a stop would end."""
    state = read_process(process.pid)
    if state is None or state.state in "TtZX":
        shown = state.state if state is not None else "gone"
        return {"error": "no stack: the process is in state %s" % shown, "state": shown}
    found = native_facts(process.pid) if silent else {}  # type: Dict[str, Any]
    if silent:
        found["silent"] = True
    native = silent and last and found.get("syscall") not in ENDED_BY_STOP
    seen = py_spy(process.pid, native, max(0.1, min(PY_SPY_SECONDS, deadline - time.monotonic())))
    if native and "error" in seen:
        seen = py_spy(process.pid, False, max(0.1, min(PY_SPY_SECONDS, deadline - time.monotonic())))
    if "text" in seen:
        return {**found, "text": seen["text"], "how": "py-spy"}
    return {**found, "error": "could not look: %s" % seen["error"]}


def process_facts(pid: int) -> Dict[str, Any]:
    """state, cpu (seconds), ready (seconds that its main thread has waited for a CPU), io (bytes), wchan, and the file
    that its main thread is reading; what can't be read is left out."""
    found = {}  # type: Dict[str, Any]
    fields = _read("/proc/%d/stat" % pid).rpartition(") ")[2].split()
    if len(fields) > 12:
        ticks = os.sysconf("SC_CLK_TCK")
        found = {"state": fields[0], "cpu": (int(fields[11]) + int(fields[12])) / ticks}
    ready = _read("/proc/%d/schedstat" % pid).split()
    if len(ready) > 1:
        found["ready"] = int(ready[1]) / 1e9
    moved = [line.split()[1] for line in _read("/proc/%d/io" % pid).splitlines() if line[1:6] == "char:"]
    if moved:  # rchar and wchar: what went through read and write, whatever it was
        found["io"] = sum(map(int, moved))
    wchan = _read("/proc/%d/wchan" % pid)
    if wchan not in ("", "0"):
        found["wchan"] = wchan
    call = _read("/proc/%d/syscall" % pid).split()
    if len(call) > 1 and call[0] == READ.get(os.uname().machine):
        try:
            path = os.readlink("/proc/%d/fd/%d" % (pid, int(call[1], 16)))
        except (OSError, ValueError):
            path = ""
        if path.startswith("/") and not path.startswith("/dev/"):
            found["file"] = path
    return found


READ = {"x86_64": "0", "aarch64": "63"}  # the number of the system call


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read(4096).strip()
    except OSError:
        return ""
