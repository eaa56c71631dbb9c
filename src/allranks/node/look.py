"""What a guard looks at in a task: the prelude's environment, the node's facts, stacks of ranks."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, Dict, Optional

from . import facts
from .asking import Asking, counted
from .observing import catches
from .processes import Process, read_process
from .ras import ask_ras

PRELUDE_SECONDS = 25.0
STACK_SECONDS = 2.0
STACK_LIMIT = 64 << 10
DUMP = "import os,sys,json; os.write(int(sys.argv[1]), json.dumps(dict(os.environ)).encode())"


def look(request: Dict[str, Any], base: Dict[str, str]) -> Dict[str, Any]:
    """Facts of this node, with the environment that ranks get after the prelude under "environment"."""
    environment = dict(base)
    for name in ("SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY"):
        environment.pop(name, None)
    if request.get("prelude"):
        found = _after_prelude(request["prelude"], environment, request.get("workdir"))
        if "error" in found:
            return {"facts": {}, "environment": environment, "prelude_error": found["error"]}
        environment = found["environment"]
    return {
        "facts": facts.collect({**request, "environ": {**environment, **request.get("environ", {})}}),
        "environment": environment,
    }


def _after_prelude(prelude: str, environment: Dict[str, str], workdir: Optional[str]) -> Dict[str, Any]:
    """Runs the user's lines in a shell (bash where there is one) and reads the environment they leave."""
    shell = shutil.which("bash", path=environment.get("PATH")) or "/bin/sh"
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    script = '%s\n"$ALLRANKS_DUMP_PYTHON" -I -S -c "$ALLRANKS_DUMP" %d' % (prelude, write_end)
    dump = {"ALLRANKS_DUMP_PYTHON": sys.executable, "ALLRANKS_DUMP": DUMP}
    try:
        done = subprocess.run(
            [shell, "-c", script],
            env={**environment, **dump},
            cwd=workdir if workdir and os.path.isdir(workdir) else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[write_end],
            timeout=PRELUDE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"error": "the prelude did not finish within %g s" % PRELUDE_SECONDS}
    finally:
        os.close(write_end)
    os.set_blocking(read_end, False)
    try:
        data = os.read(read_end, 4 << 20)
    except BlockingIOError:
        data = b""
    os.close(read_end)
    said = done.stdout.decode("utf-8", "replace").strip()[-400:]
    if not data:
        return {"error": "the prelude ended with code %d before its environment could be read: %s"
                % (done.returncode, said)}  # fmt: skip
    found = json.loads(data.decode())
    for name in dump:
        found.pop(name, None)
    return {"environment": found, "said": said}


def looks(ranks: Dict[int, Process], node_dir: str, word: str) -> Dict[str, Any]:
    """Stacks of ranks, /proc's word on them, and (`word`: look or dump) which collective they are at.

    With a dump, NCCL's word on the whole job too, where it has one. Who answers is not signalled."""
    answers = Asking(ranks, node_dir, word).answers() if word else {}
    found = {}  # type: Dict[str, Dict[str, Any]]
    for rank, answer in answers.items():
        text = str(answer.pop("stacks", ""))[-STACK_LIMIT:]
        if text:
            found[str(rank)] = {"text": text, "how": "asked", **process_facts(ranks[rank].pid)}
            _append(stacks_file(node_dir, rank), text)
    found.update(stacks({r: p for r, p in ranks.items() if str(r) not in found}, node_dir))
    for rank, answer in answers.items():
        found[str(rank)].update({"recorder": answer, "counted": counted(answer)})
    return {"ranks": found, "ras": ask_ras(ranks, node_dir) if word == "dump" else None}


def _append(path: str, text: str) -> None:
    """To the evidence; a full disk has none."""
    try:
        with open(path, "a") as file:
            file.write(text + "\n")
    except OSError:
        pass


def stacks(ranks: Dict[int, Process], node_dir: str) -> Dict[str, Dict[str, Any]]:
    """Python stacks of ranks: the runner's dump signal, else py-spy, else why it could not look; and /proc's word."""
    number = signal.SIGRTMIN + 7
    found: Dict[str, Dict[str, Any]] = {}
    waiting: Dict[int, int] = {}
    for rank, process in ranks.items():
        path = stacks_file(node_dir, rank)
        state = read_process(process.pid)
        if state is not None and state.state in "TtZX":
            found[str(rank)] = {"error": "no stack: the process is in state %s" % state.state}
        elif catches(process.pid, number):
            waiting[rank] = _size(path)
            os.kill(process.pid, number)
        else:
            found[str(rank)] = _py_spy(process.pid)
    deadline = time.monotonic() + STACK_SECONDS
    while waiting and time.monotonic() < deadline:
        time.sleep(0.05)
        for rank, before in list(waiting.items()):
            size = _size(stacks_file(node_dir, rank))
            if size > before and _settled(stacks_file(node_dir, rank), size):
                found[str(rank)] = {"text": _tail(stacks_file(node_dir, rank), before), "how": "signal"}
                del waiting[rank]
    for rank in waiting:
        state = read_process(ranks[rank].pid)
        why = "the process is in state %s" % (state.state if state is not None else "gone")
        found[str(rank)] = {"error": "no stack within %g s: %s" % (STACK_SECONDS, why)}
    return {key: {**said, **process_facts(ranks[int(key)].pid)} for key, said in found.items()}


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


def stacks_file(node_dir: str, rank: int) -> str:
    """Where the runner of a rank writes its stacks."""
    return os.path.join(node_dir, "stacks_rank_%03d.txt" % rank)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _settled(path: str, size: int) -> bool:
    time.sleep(0.03)
    return _size(path) == size


def _tail(path: str, start: int) -> str:
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(STACK_LIMIT).decode("utf-8", "replace")


def _py_spy(pid: int) -> Dict[str, str]:
    tool = shutil.which("py-spy")
    if tool is None:
        return {"error": "could not look: the program has no dump handler and py-spy is not installed here"}
    try:
        done = subprocess.run(
            [tool, "dump", "--nonblocking", "--pid", str(pid)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=8,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": "could not look: py-spy: %s" % error}
    text = done.stdout.decode("utf-8", "replace")[:STACK_LIMIT]
    return {"text": text, "how": "py-spy"} if done.returncode == 0 else {"error": "could not look: " + text[-300:]}
