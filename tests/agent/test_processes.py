"""Identity and lineage: nothing escapes by forking twice, by a new session or by a cleared environment."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.hosts.waiting import BOUND, wait_until

from allranks.agent import processes
from allranks.agent.processes import Process

pytestmark = pytest.mark.processes
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a program, which ends with the test at the latest."""
    children = []

    def call(*words: str, **options: Any) -> subprocess.Popen[bytes]:
        children.append(subprocess.Popen(words, stdout=subprocess.PIPE, **options))
        return children[-1]

    yield call
    for child in children:
        child.kill()
        child.communicate()


ESCAPES = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        libc.prctl(15, b"kworker/0:1", 0, 0, 0)
        libc.prctl(4, 0, 0, 0, 0)
        print(os.getpid(), flush=True)
        os.execve("/bin/sleep", ["sleep", "1000"], {})
    os._exit(0)
os.wait()
time.sleep(1000)
"""

KEEPER = """
import os, subprocess, sys
sys.path.insert(0, %r)
from allranks.agent import processes as p
p.prctl(p.PR_SET_CHILD_SUBREAPER, 1)
child = subprocess.Popen([sys.executable, "-c", %r], stdout=subprocess.PIPE)
pid = int(child.stdout.readline())
while p.read_process(pid).parent != os.getpid():
    pass
find = lambda: p.descendants([os.getpid()])
before = sorted(q.pid for q in find())
left = p.end_all(find, p.reap_children, 10)
while (p.read_process(pid) or (0, 0, ""))[2] == "Z":
    p.reap_children()  # it has ended; on a busy machine its parent hears of it a moment later
print(pid in before, child.pid in before, left, p.read_process(pid))
"""


def test_lineage_finds_a_daemon_without_environment():
    source = KEEPER % (os.path.abspath("src"), ESCAPES)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=BOUND)
    assert done.stdout.split() == ["True", "True", "[]", "None"], done.stderr


THREAD_STARTS = """
import subprocess, sys, threading, time
def start():
    first = subprocess.Popen([sys.executable, "-c", "import subprocess, sys; subprocess.run(['sleep', '1000'])"])
    print(first.pid, flush=True)
    time.sleep(1000)
threading.Thread(target=start).start()
"""


@pytest.mark.parametrize("kernel_lists_children", [True, False])
def test_lineage_has_what_any_thread_has_started(monkeypatch, kernel_lists_children, start):
    """Children, and theirs. A kernel without CONFIG_PROC_CHILDREN is asked for all processes."""
    if not kernel_lists_children:
        exists = os.path.exists
        monkeypatch.setattr(os.path, "exists", lambda path: not str(path).endswith("/children") and exists(path))
    child = start(sys.executable, "-c", THREAD_STARTS)
    below: dict[int, Process] = {}

    def all_are_there() -> bool:
        below.update((process.pid, process) for process in processes.descendants([child.pid]))
        return len(below) == 2

    try:
        first = int(child.stdout.readline())
        wait_until(all_are_there)
        (grandchild,) = below.keys() - {first}
        assert below[first].parent == child.pid
        assert below[grandchild].parent == first
    finally:
        for pid in below:
            os.kill(pid, signal.SIGKILL)


def test_a_reused_pid_is_not_signalled(start):
    child = start("sleep", "1000")
    real = processes.read_process(child.pid)
    assert processes.send_signal(real._replace(start=real.start + 1), signal.SIGKILL) is False
    assert child.poll() is None
    assert processes.send_signal(real, signal.SIGKILL) is True
    assert child.wait(BOUND) == -signal.SIGKILL


def test_mark_is_read_from_the_environment(start):
    child = start("sleep", "1000", env={"ALLRANKS_MARK": "run-1/node_00", "PATH": os.environ["PATH"]})
    found = wait_until(lambda: processes.tagged("run-1/node_00"))
    assert [p.pid for p in found] == [child.pid]
    assert processes.tagged("run-1/node_0") == []


def test_a_dead_child_nobody_reaped_is_not_alive(start):
    process = processes.read_process(start("true").pid)
    wait_until(lambda: processes.alive([process]) == [])
    assert processes.read_process(process.pid).state == "Z"


def test_a_loop_of_short_waits_for_signals_is_not_left_out(start):
    """Each wait takes the signal out of the mask for as long as it lasts, 20 ms."""
    code = (
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\nprint(flush=True)\n"
        "while True: signal.sigtimedwait([signal.SIGUSR1], 0.02)"
    )
    child = start(sys.executable, "-c", code)
    assert child.stdout.readline() == b"\n"
    assert not any(processes.would_end(child.pid, signal.SIGUSR1) for _ in range(500))


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(1000)"], ids=["computes", "sleeps"])
def test_a_process_without_a_handler_would_end(code, start):
    child = start(sys.executable, "-c", f"print(flush=True)\n{code}")
    assert child.stdout.readline() == b"\n"
    assert processes.would_end(child.pid, signal.SIGUSR1)
