"""Identity and lineage: nothing escapes by forking twice, by a new session or by a cleared environment."""

import os
import signal
import subprocess
import sys
import time

import pytest
from tests.hosts.waiting import BOUND

from allranks.agent import processes
from allranks.agent.processes import Process

pytestmark = pytest.mark.processes

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
def test_lineage_has_what_any_thread_has_started(monkeypatch, kernel_lists_children):
    """Children, and theirs. A kernel without CONFIG_PROC_CHILDREN is asked for all processes."""
    if not kernel_lists_children:
        exists = os.path.exists
        monkeypatch.setattr(os.path, "exists", lambda path: not str(path).endswith("/children") and exists(path))
    child = subprocess.Popen([sys.executable, "-c", THREAD_STARTS], stdout=subprocess.PIPE)
    below: dict[int, Process] = {}
    try:
        assert child.stdout is not None
        started = int(child.stdout.readline())
        deadline = time.monotonic() + 60
        while len(below) < 2 and time.monotonic() < deadline:
            below = {process.pid: process for process in processes.descendants([child.pid])}
        (grandchild,) = below.keys() - {started}
        assert below[started].parent == child.pid
        assert below[grandchild].parent == started
    finally:
        for pid in below:
            os.kill(pid, signal.SIGKILL)
        child.kill()
        child.wait()


def test_a_reused_pid_is_not_signalled():
    child = subprocess.Popen(["sleep", "1000"])
    try:
        real = processes.read_process(child.pid)
        assert real is not None
        impostor = Process(real.pid, real.parent, real.state, real.start + 1)
        assert processes.send_signal(impostor, signal.SIGKILL) is False
        assert child.poll() is None
        assert processes.send_signal(real, signal.SIGKILL) is True
        assert child.wait(BOUND) == -signal.SIGKILL
    finally:
        child.kill()
        child.wait()


def test_mark_is_read_from_the_environment():
    child = subprocess.Popen(["sleep", "1000"], env={"ALLRANKS_MARK": "run-1/node_00", "PATH": os.environ["PATH"]})
    try:
        deadline = time.monotonic() + 60
        while processes.variable_of(child.pid, "ALLRANKS_MARK") is None and time.monotonic() < deadline:
            time.sleep(0.01)
        found = processes.tagged("run-1/node_00")
        assert [p.pid for p in found] == [child.pid]
        assert processes.tagged("run-1/node_0") == []
    finally:
        child.kill()
        child.wait()


def test_a_dead_child_nobody_reaped_is_not_alive():
    child = subprocess.Popen(["true"])
    process = processes.read_process(child.pid)
    assert process is not None
    deadline = time.monotonic() + 60
    while processes.alive([process]) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert processes.alive([process]) == []
    child.wait()


def test_a_loop_of_short_waits_for_signals_is_not_left_out():
    """Each wait takes the signal out of the mask for as long as it lasts, 20 ms."""
    code = (
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\nprint(flush=True)\n"
        "while True: signal.sigtimedwait([signal.SIGUSR1], 0.02)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"\n"
        assert not any(processes.would_end(child.pid, signal.SIGUSR1) for _ in range(500))
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(1000)"])
def test_a_process_without_a_handler_would_end(code):
    """Whether it computes or sleeps."""
    child = subprocess.Popen([sys.executable, "-c", f"print(flush=True)\n{code}"], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"\n"
        assert processes.would_end(child.pid, signal.SIGUSR1)
    finally:
        child.kill()
        child.wait()
