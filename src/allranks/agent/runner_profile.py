"""The part of the runner that records a rank's trace with torch's own profiler, when the agent asks for it.

Lies beside runner.py and is run by it (`beside`) at the first such question. The profiler is begun from a thread of
the runner, so it has to record all threads (`profile_all_threads`, torch >= 2.7). torch does the same in its
torch/distributed/debug/_handlers.py. It is called below torch.profiler, whose flags the program could see.

A process has one profiler. One that the program has is left alone, and where the program begins one while we record,
ours ends first. Nothing that fails here reaches the program. What is imported comes by `import_ours` of the runner.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # as in runner.py
if TYPE_CHECKING:
    import socket
    from typing import Any, Callable, Dict, List, Optional

    from allranks.protocol.jsontext import JsonObject

    from .runner import Known

TICK = 0.2  # seconds between two looks at what the recording has come to
MOST_GROWTH = 1 << 30  # bytes of memory; an event takes some hundred
LEAST_FREE = 1 << 30  # bytes of the disk that stay to the program's own output
BEGIN_PATIENCE = 20.0  # seconds; with CUDA its library is loaded at the first time
END_PATIENCE = 60.0  # seconds for which the program waits for our end, where it needs one
ANSWER_PATIENCE = 5.0
BEGINS = ("_prepare_profiler", "_enable_profiler")  # of torch.autograd.profiler: all of torch's profilers call them


class Profile:
    """The recordings of a rank, one at a time."""

    def __init__(self, runner: Known) -> None:
        self.runner = runner
        self.recording: Optional[ActiveProfile] = None
        self.is_attended = False

    def begin(self, seconds: float) -> JsonObject:
        """Begin, for so many seconds at the most; `error` in the answer says why not."""
        if self.recording is not None and not self.recording.is_over:
            return {"error": "it is being profiled already"}
        profiler: Any = sys.modules.get("torch.autograd.profiler")
        if profiler is None:
            return {"error": "its program has no torch"}
        # A torch.profiler.profile counts steps from its making to its end, also where its schedule does not record now.
        steps = getattr(getattr(profiler, "KinetoStepTracker", None), "_step_dict", {})
        if getattr(profiler, "_is_profiler_enabled", False) or "ProfilerStep" in steps:
            return {"error": "its program has a profiler of torch itself, and a process has one at a time"}
        self.attend_end()
        self.recording = ActiveProfile(profiler, "%s.trace" % self.runner.ask, seconds)
        why = self.recording.begin()
        return {"error": why} if why else {}

    def end(self, channel: socket.socket) -> None:
        """End the recording, and answer there once its trace is written: `RankProfile` of protocol/samples.py."""
        recording = self.recording
        if recording is None or recording.channel is not None:
            answer(channel, {"error": "it is not being profiled"})
        else:
            recording.settle(channel, None)
            recording.ending.set()

    def abandon(self) -> None:
        """End it without a trace: the process groups, or the program, come to their end."""
        if self.recording is not None and os.getpid() == self.runner.pid:
            self.recording.abandon()

    def attend_end(self) -> None:
        """See to the end of the interpreter, with which the profiler is to have stopped, and to processes that the
        program forks: they inherit a profiler that nothing would stop."""
        if not self.is_attended:
            import atexit

            atexit.register(self.abandon)
            os.register_at_fork(after_in_child=self.forget)
            self.is_attended = True

    def forget(self) -> None:
        """In a forked child: nothing is recorded there, and no thread of ours is."""
        recording = self.recording
        self.recording = None
        if recording is not None and not recording.stopped.is_set():
            recording.stand_aside()
            sys.modules["torch._C._autograd"]._clear_callbacks()


def answer(channel: socket.socket, reply: JsonObject) -> None:
    """Send the agent its answer; it may have given up."""
    import json
    import socket

    try:
        channel.settimeout(ANSWER_PATIENCE)
        channel.sendall(json.dumps(reply).encode(), socket.MSG_NOSIGNAL)
    except Exception:
        pass
    finally:
        channel.close()


class ActiveProfile:
    """One trace, from its beginning to its file."""

    def __init__(self, profiler: Any, path: str, seconds: float) -> None:
        import threading

        self.profiler = profiler
        self.path = path
        self.deadline = time.monotonic() + seconds
        self.began = 0.0
        self.growth = 0
        self.note = ""
        self.is_over = False
        self.is_wanted = True  # the trace is
        self.channel: Optional[socket.socket] = None
        self.reply: Optional[JsonObject] = None
        self.error = ""  # why it did not begin
        self.lock = threading.Lock()  # of channel and reply
        self.has_begun = threading.Event()  # it has begun, or has not
        self.ending = threading.Event()  # it is to end
        self.stopped = threading.Event()  # the profiler has stopped
        self.begins: Dict[str, Callable[..., Any]] = {}  # torch's own, which `yielding` stands before

    def begin(self) -> str:
        """Have a thread record, and return why it does not, if so. The profiler begins and ends in one thread."""
        import _thread

        _thread.start_new_thread(self.run, ())
        if not self.has_begun.wait(BEGIN_PATIENCE):
            self.abandon()
            return "torch's profiler did not begin within %g s" % BEGIN_PATIENCE
        return self.error

    def run(self) -> None:
        """As a thread: record until the end, stop the profiler, write the trace, answer."""
        import signal

        # of runner_recorder.py's thread, from which this one has its mask: it alone is to get the dump signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN + 7})
        reply: JsonObject = {}
        try:
            self.start()
            self.has_begun.set()
            try:
                self.wait()
            finally:
                reply = self.stop()
        except Exception as error:
            text = ("%s: %s" % (type(error).__name__, error)).partition("\n")[0][:300]
            self.error = "torch's profiler failed: " + text
            reply = {"error": self.error}
        finally:
            self.stand_aside()
            self.has_begun.set()
            self.stopped.set()
            self.is_over = True
            self.settle(None, reply)

    def start(self) -> None:
        """Start the profiler."""
        autograd: Any = sys.modules["torch.autograd"]
        config, activities = configured(autograd)
        self.growth = -resident()
        autograd._prepare_profiler(config, activities)
        self.stand_before()
        autograd._enable_profiler(config, activities)
        self.began = time.monotonic()

    def wait(self) -> None:
        """Until the end is asked for, the time is over, or the trace takes too much memory."""
        while not self.ending.wait(TICK):
            if time.monotonic() >= self.deadline:
                self.note = self.note or "its time was over"
                return
            if self.growth + resident() > MOST_GROWTH:
                self.note = "the process had grown by %d MB" % (MOST_GROWTH >> 20)
                return

    def stop(self) -> JsonObject:
        """Stop the profiler and write the trace, whole or not at all. The program's Python stands still meanwhile:
        torch holds the interpreter's lock."""
        autograd: Any = sys.modules["torch.autograd"]
        ended = time.monotonic()
        self.stand_aside()
        result = autograd._disable_profiler()
        self.stopped.set()
        reply: JsonObject = {"seconds": round(ended - self.began, 3), "note": self.note}
        disk = os.statvfs(os.path.dirname(self.path))
        if not self.is_wanted:
            return dict(reply, error="its process groups have come to their end")
        if disk.f_bavail * disk.f_frsize < LEAST_FREE:
            return dict(reply, error="the disk of its node has less than %d MB free" % (LEAST_FREE >> 20))
        result.save(self.path + ".tmp")
        os.rename(self.path + ".tmp", self.path)
        return dict(reply, stalled=round(time.monotonic() - ended, 3))

    def abandon(self) -> None:
        """End it without a trace, and return when torch's profiler has stopped."""
        self.is_wanted = False
        self.await_stop()

    def await_stop(self) -> None:
        """Have the thread end it, and wait for that without the interpreter's lock."""
        self.ending.set()
        self.stopped.wait(END_PATIENCE)

    def settle(self, channel: Optional[socket.socket], reply: Optional[JsonObject]) -> None:
        """Answer once there are both: the trace may be made before it is asked for, or after."""
        with self.lock:
            to = self.channel = channel or self.channel
            what = self.reply = reply or self.reply
        if to is not None and what is not None:
            answer(to, what)

    def stand_before(self) -> None:
        """Let a profiler that the program begins come after the end of ours."""
        for name in BEGINS:
            own = getattr(self.profiler, name, None)
            if own is not None:
                self.begins[name] = own
                setattr(self.profiler, name, self.yielding(own))

    def stand_aside(self) -> None:
        """Put torch's own functions back."""
        for name, own in self.begins.items():
            setattr(self.profiler, name, own)

    def yielding(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """Return torch's function, before which ours ends."""

        def begin(*args: Any, **named: Any) -> Any:
            try:
                self.note = self.note or "its program began a profiler of its own"
                self.await_stop()
            except Exception:
                pass
            return own(*args, **named)

        return begin


def configured(autograd: Any) -> List[Any]:
    """Return the profiler's configuration, and what it records: the CPU, and the devices that the program uses.

    Shapes are recorded: without them Gloo's collectives have no size."""
    profiler = sys.modules["torch._C._profiler"]
    try:
        every = profiler._ExperimentalConfig(profile_all_threads=True)
    except TypeError:
        version = sys.modules["torch"].__version__
        raise RuntimeError("torch %s records the calling thread alone, 2.7 and newer all" % version) from None
    config = autograd.ProfilerConfig(autograd.ProfilerState.KINETO, True, False, False, False, False, every)
    supported = autograd._supported_activities()
    kinds = [autograd.ProfilerActivity.CPU]
    for device in ("cuda", "xpu"):
        module: Any = sys.modules.get("torch." + device)
        kind = getattr(autograd.ProfilerActivity, device.upper(), None)
        if kind in supported and module is not None and module.is_initialized():
            kinds.append(kind)
    return [config, set(kinds)]


def resident() -> int:
    """Return the bytes that this process has in memory (proc_pid_statm(5))."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
