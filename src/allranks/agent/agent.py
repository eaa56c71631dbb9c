"""The agent: owns the ranks of one node. Single-threaded; all that may block runs in a forked task.

It listens on a Unix socket in the node directory. One controller at a time: a newer one replaces the
older. Without word from a controller for the lease, it ends its ranks and itself.
"""

import array
import json
import os
import selectors
import signal
import socket
import time
import traceback
from typing import Any, Callable, Dict, Optional

from allranks.protocol.frames import FOLLOWED, NODE_LOG, OF_ATTEMPT, PROTOCOL, TREE, FrameError, Output, Stream
from allranks.protocol.jsontext import DecodeError

from . import peers
from .asking import counters
from .attempt import Attempt
from .cgroups import join_own
from .foreign import MOST_RANKS, report, text, whole
from .gate import Gate, Nonce, nonce_name, port_failure, probe
from .link import HIGH_WATER, Journal, Link, hello
from .look import look, looks
from .nodedir import kept_outputs, remove
from .outlet import Outlet
from .processes import USER_SIGNALS, Process, machine, read_process, reap_children, send_signal
from .ranks import Rank
from .tasks import Task
from .tree import Landing
from .witness import Witness

TICK = 1.0  # seconds between looks at the supervisor, beats and lease checks
UNGREETED = 10.0  # seconds an agent without ranks waits for a controller: the one it had died at the start
FILE_TICK = 0.25  # seconds between looks at followed files while ranks run
LOOK_SECONDS = 30.0
FAILURES = 5  # errors of its own after which an agent gives up
LOOK_AT_RANKS_SECONDS = 20.0  # gang/hanging.py waits a little longer
MOST_ATTEMPTS = (1 << 16) - 1  # what a frame of output can name
MOST_TASKS = 64  # at a time: a run has a few, a coordinator that is not ours could ask for any number

# how an agent ends; anything else is a death
RELEASED = 0
LEASE_OVER = 3


class Agent:
    """The main loop and what the controller may ask for."""

    def __init__(
        self, header: Dict[str, Any], node_dir: str, listener: socket.socket, supervisor: socket.socket
    ) -> None:
        self._header = header
        self._dir = node_dir
        self._mark = header["mark"]
        self._lease = float(header["lease"])
        self._grace = float(header["grace"])
        self._supervisor_pid = os.getppid()
        self._supervisor = supervisor
        self._listener = listener
        self._link: Optional[Link] = None
        # an engine finds its processes by a group of its own: nothing is taken out of it
        self._group = None if header.get("engine") else join_own("allranks-" + self._mark.replace("/", "-"))
        self._journal = Journal(os.path.join(node_dir, "journal.jsonl"))
        self._outlet = Outlet(os.path.join(node_dir, "spool"))
        self._outlet.add_file(Stream(NODE_LOG, 0, 0), os.path.join(node_dir, "node.log"))
        self._drops: Dict[str, int] = {}
        self._attempt: Optional[Attempt] = None
        self._gate: Optional[Gate] = None
        self._session = dict(os.environ)
        self._base = self._session
        self._tasks: Dict[int, Task] = {}
        self._selector = selectors.DefaultSelector()
        self._heard = time.monotonic()
        self._greeted = False
        self._offsets_known = False  # of this connection: output may flow once it said how much it has
        self._next_tick = 0.0
        self._supervisor_stops = 0
        self._supervisor_gone = False
        self._result: Optional[int] = None
        self._drain_told = True
        self._failures = 0
        self._refusals = 0  # reports that could not be read
        self._nonce = Nonce()
        self._landing = Landing(node_dir, self._reply, self._run_task)
        self._reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._witness = Witness(self._selector, os.path.join(node_dir, "report.sock"))
        self._handlers: Dict[str, Callable[[Dict[str, Any]], None]] = {
            "hello": self._on_hello,
            "ship": self._landing.ship,
            "setup": self._on_setup,
            "listen": self._on_listen,
            "probe": self._on_probe,
            "start": self._on_start,
            "ping": self._on_ping,
            "ack": self._on_ack,
            "end": self._on_end,
            "stacks": self._on_stacks,
            "counters": self._on_counters,
            "serve": self._on_serve,
            "reach": self._on_reach,
            "release": self._on_release,
            "signal": self._on_signal,
        }

    # -- the loop ------------------------------------------------------------------------------------

    def run(self) -> int:
        """Until released (gives RELEASED), or the lease is over and everything has ended (LEASE_OVER)."""
        self._reports.bind(os.path.join(self._dir, "report.sock"))
        self._reports.setblocking(False)
        self._listener.setblocking(False)
        wake_read, wake_write = os.pipe()
        for end in (wake_read, wake_write):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._selector.register(wake_read, selectors.EVENT_READ, lambda: self._on_children(wake_read))
        self._selector.register(self._listener, selectors.EVENT_READ, self._on_connection)
        self._selector.register(self._reports, selectors.EVENT_READ, self._on_report)
        keepers = [[p.pid, p.start] for p in map(read_process, (os.getpid(), self._supervisor_pid)) if p is not None]
        begun = {"event": "agent", "pid": os.getpid(), "keepers": keepers, "machine": machine(), "t": time.time()}
        self._journal.write(begun)
        while self._result is None:
            try:
                for key, _ in self._selector.select(self._timeout()):
                    key.data()
                self._work()
            except Exception as error:
                self._failed_itself(error)
        return self._result

    def _failed_itself(self, error: Exception) -> None:
        """A defect of the agent: the ranks are ended in order. What fails again and again ends it, and the supervisor
        ends the ranks."""
        self._failures += 1
        if self._failures > FAILURES:
            raise error
        traceback.print_exc()  # into the node's log
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = "%s:%s" % (os.path.basename(place.filename), place.lineno)
        text = "%s: %s (%s)" % (type(error).__name__, str(error)[:300], where)
        self._tell({"type": "fault", "id": "internal-error", "message": text, "t": time.time()})
        if self._attempt is not None and not self._attempt.ended:
            self._attempt.begin_end(self._grace, "internal-error")

    def _timeout(self) -> float:
        deadlines = [self._next_tick]
        if self._attempt is not None:
            due = self._attempt.next_deadline()
            if due is not None:
                deadlines.append(due)
            if self._link is not None and not self._attempt.ended:
                deadlines.append(time.monotonic() + FILE_TICK)
        deadlines += [task.deadline for task in self._tasks.values()]
        return max(0.0, min(deadlines) - time.monotonic())

    def _work(self) -> None:
        """What is due by time, after all input that was pending has been read."""
        now = time.monotonic()
        for fd, task in list(self._tasks.items()):
            if now >= task.deadline:
                self._end_task(fd, task.expire())
        if self._attempt is not None and self._attempt.ending and not self._attempt.ended:
            self._attempt.advance_end()
            if self._attempt.ended:
                self._pump_rest()
        if now >= self._next_tick:
            self._next_tick = now + TICK
            self._tick(now)
        self._send_output()

    def _tick(self, now: float) -> None:
        self._supervisor_beat()
        self._look_at_supervisor()
        self._note_drops()
        if self._attempt is not None:
            self._attempt.observe()
        begun = self._greeted and (self._link is not None or self._attempt is not None)
        if self._holder_gone() or now - self._heard > (self._lease if begun else min(self._lease, UNGREETED)):
            self._lease_over(now)

    def _note_drops(self) -> None:
        """In the journal, for whoever comes after this process; the first of them in the node's log too."""
        drops = self._outlet.drops()
        if drops == self._drops:
            return
        if not self._drops:
            self._log("output is dropped: the disk is full, or the spool has its share of it")
        self._drops = drops
        self._journal.write({"event": "drops", "streams": drops, "t": time.time()})

    def _holder_gone(self) -> bool:
        """The engine has ended its task on this node: its step is over, whatever is left of it."""
        if not self._header.get("holder"):
            return False
        pid, start = self._header["holder"]
        process = read_process(pid)
        return process is None or process.start != start or process.state in "ZX"

    def _lease_over(self, now: float) -> None:
        attempt = self._attempt
        if attempt is None:
            self._result = RELEASED  # nothing ever ran here: nothing is worth keeping
        elif attempt.ended:
            self._journal.write({"event": "lease-over", "t": time.time()})
            self._result = LEASE_OVER
        elif not attempt.ending:
            why = "no word from the controller for %g s: the lease is over" % self._lease
            self._log("%s, ending the ranks" % ("the engine has ended its step" if self._holder_gone() else why))
            attempt.begin_end(self._grace, "lease")

    # -- the supervisor ---------------------------------------------------------------------------------

    def _supervisor_beat(self) -> None:
        try:
            self._supervisor.send(json.dumps({"group": self._group}).encode())
        except OSError:
            pass

    def _look_at_supervisor(self) -> None:
        """A dead supervisor, or one found stopped twice, ends the run: it is the guarantee against orphans."""
        if os.getppid() != self._supervisor_pid:
            self._supervisor_lost("died")
            return
        process = read_process(self._supervisor_pid)
        self._supervisor_stops = self._supervisor_stops + 1 if process is not None and process.state in "Tt" else 0
        if self._supervisor_stops >= 2 and process is not None:
            send_signal(process, signal.SIGKILL)
            self._supervisor_lost("was stopped")

    def _supervisor_lost(self, what: str) -> None:
        if self._supervisor_gone:
            return
        self._supervisor_gone = True
        self._log("the supervisor %s" % what)
        text = "the supervisor process %s" % what
        self._tell({"type": "fault", "id": "supervisor-lost", "message": text, "t": time.time()})
        if self._attempt is not None:
            self._attempt.begin_end(self._grace, "supervisor-lost")

    def _pass_pipe(self, rank: Rank) -> None:
        """Hands the supervisor the pipe's read end, and follows it here."""
        assert self._attempt is not None
        note = json.dumps({"rank": rank.rank, "attempt": self._attempt.number}).encode()
        try:
            rights = array.array("i", [rank.pipe])
            self._supervisor.sendmsg([note], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError as error:
            self._log("the supervisor did not take a pipe: %s" % error)
        self._selector.register(rank.pipe, selectors.EVENT_READ, lambda: self._on_output(rank))

    # -- events --------------------------------------------------------------------------------------

    def _on_children(self, wake: int) -> None:
        try:
            os.read(wake, 4096)
        except BlockingIOError:
            pass
        statuses = reap_children()
        if self._attempt is not None:
            self._attempt.reaped(statuses)

    def _on_output(self, rank: Rank) -> None:
        assert self._attempt is not None
        if rank.pipe >= 0 and not self._attempt.pump(rank):
            self._close_pipe(rank)

    def _close_pipe(self, rank: Rank) -> None:
        self._selector.unregister(rank.pipe)
        os.close(rank.pipe)
        rank.pipe = -1

    def _pump_rest(self) -> None:
        """After the end: what the pipes still hold. What could not be ended may keep one open."""
        assert self._attempt is not None
        for rank in self._attempt.ranks.values():
            while rank.pipe >= 0:
                spool = self._outlet.spool(self._attempt.stream(rank))
                assert spool is not None
                moved = spool.pump(rank.pipe)
                if not moved:
                    self._close_pipe(rank)
        self._drain_told = False

    def _on_report(self) -> None:
        while True:
            try:
                data = self._reports.recv(65536)
            except OSError:
                return
            try:
                message = report(data)
            except DecodeError as error:
                self._refused("a report to the agent", str(error))
                continue
            if message["event"] == "initialised" and self._gate is not None:
                self._gate.release()
            if not self._witness.heard(message, self._attempt):
                self._tell({**message, "type": "report"})

    def _refused(self, source: str, why: str) -> None:
        """What a program wrote can't be read: counted, and told once; the run goes on."""
        first = not self._refusals
        self._refusals += 1
        if first:
            self._tell({"type": "refused", "source": source, "why": why, "t": time.time()})

    def _on_connection(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        self._drop_link({"type": "replaced"})
        self._link = Link(sock)
        self._offsets_known = False
        self._selector.register(sock, selectors.EVENT_READ, self._on_link)

    def _drop_link(self, last_word: Optional[Dict[str, Any]] = None) -> None:
        if self._link is None:
            return
        link = self._link
        self._link = None
        self._selector.unregister(link.sock)
        if last_word is not None:
            try:
                link.send(last_word)
                link.flush()
            except OSError:
                pass
        link.close()

    def _on_link(self) -> None:
        link = self._link
        if link is None:
            return
        try:
            frames = link.receive()
        except FrameError as error:
            self._log(str(error))
            self._drop_link({"type": "fault", "id": "protocol", "message": str(error)})
            return
        except (EOFError, OSError):
            self._drop_link()
            return
        self._heard = time.monotonic()
        for frame in frames:
            if self._link is not link:
                return  # a message before has ended this connection
            if isinstance(frame, Output) and frame.stream.kind == TREE:
                self._landing.chunk(frame)
                continue
            handler = None if isinstance(frame, Output) else self._handlers.get(frame["type"])
            if handler is None or isinstance(frame, Output):
                text = "a message this agent does not know (protocol %d)" % PROTOCOL
                self._tell({"type": "fault", "id": "protocol", "message": text})
            else:
                handler(frame)

    def _send_output(self) -> None:
        if self._link is None:
            return
        try:
            self._link.flush()
            if self._offsets_known and self._link.backlog < HIGH_WATER:
                self._link.send_bytes(self._outlet.fill(HIGH_WATER - self._link.backlog))
                for drop in self._outlet.new_drops():
                    self._link.send(drop.to_message())
                self._tell_drained()
                self._link.flush()
            mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._link.backlog else 0)
            self._selector.modify(self._link.sock, mask, self._on_link)
        except OSError:
            self._drop_link()

    def _tell_drained(self) -> None:
        if not self._drain_told and self._outlet.drained and self._attempt is not None and self._link is not None:
            self._drain_told = True
            self._link.send(
                {
                    "type": "drained",
                    "attempt": self._attempt.number,
                    "sizes": self._outlet.sizes(),
                    "outputs": kept_outputs(self._dir),
                    "refused": {"a report to the agent": self._refusals} if self._refusals else {},
                }
            )

    def _tell(self, message: Dict[str, Any]) -> None:
        """To the controller where there is one, and to the journal in any case."""
        self._journal.write(message)
        self._reply(message)

    def _reply(self, message: Dict[str, Any]) -> None:
        """To the controller where there is one."""
        if self._link is not None:
            self._link.send(message)

    def _log(self, text: str) -> None:
        """A line in the node's log (standard error of the agent is that file); a full disk loses it."""
        try:
            os.write(2, ("%s %s\n" % (time.strftime("%H:%M:%S"), text)).encode("utf-8", "replace"))
        except OSError:
            pass

    # -- what the controller asks --------------------------------------------------------------------

    def _on_hello(self, message: Dict[str, Any]) -> None:
        if message.get("protocol") != PROTOCOL:
            text = "this agent speaks protocol %d, the controller %s" % (PROTOCOL, message.get("protocol"))
            self._drop_link({"type": "fault", "id": "protocol", "message": text})
            return
        self._greeted = self._offsets_known = True
        self._lease = float(message.get("lease", self._lease))
        self._outlet.controller_has(message.get("have", {}))
        self._drain_told = not (self._attempt is not None and self._attempt.ended)
        assert self._link is not None
        summary = self._attempt.summary() if self._attempt is not None else None
        self._link.send(hello(self._dir, cwd=os.getcwd(), dead=False, attempt=summary))

    def _run_task(
        self, name: str, function: Callable[[], Any], seconds: float, done: Callable[[Dict[str, Any]], None]
    ) -> None:
        if len(self._tasks) >= MOST_TASKS:
            done({"error": "this node is at %d requests already" % MOST_TASKS})
            return
        task = Task(name, function, seconds, done)
        self._tasks[task.pipe] = task
        self._selector.register(task.pipe, selectors.EVENT_READ, lambda: self._on_task(task))

    def _on_task(self, task: Task) -> None:
        result = task.read()
        if result is not None:
            self._end_task(task.pipe, result)

    def _end_task(self, fd: int, result: Dict[str, Any]) -> None:
        task = self._tasks.pop(fd)
        self._selector.unregister(fd)
        task.close()
        task.done(result)

    def _on_setup(self, message: Dict[str, Any]) -> None:
        """Looks at this node in a task, and keeps the environment after the prelude, which may run again."""

        def done(result: Dict[str, Any]) -> None:
            self._base = result.pop("environment", self._base)
            self._tell({"type": "facts", **result})

        base = self._session
        seconds = float(message.get("seconds", LOOK_SECONDS))
        self._run_task("the look at this node", lambda: look(message, base), seconds, done)

    def _on_listen(self, message: Dict[str, Any]) -> None:
        if self._gate is not None:
            self._selector_forget_gate()
        port = int(message.get("port", 0))
        trouble = self._nonce.leave(message.get("nonce_dir"), message["token"])
        if trouble is not None:
            self._log(trouble)
        try:
            self._gate = Gate(port, message["token"])
        except OSError as error:
            self._tell({"type": "listening", "error": port_failure(port, error)})
            return
        assert self._gate.listener is not None
        self._selector.register(self._gate.listener, selectors.EVENT_READ, self._gate.accept)
        self._tell({"type": "listening", "port": self._gate.port})

    def _selector_forget_gate(self) -> None:
        assert self._gate is not None
        if self._gate.listener is not None:
            self._selector.unregister(self._gate.listener)
        self._gate.release()
        self._gate = None

    def _on_probe(self, message: Dict[str, Any]) -> None:
        addresses = message["addresses"]
        port = int(message["port"])
        token = message["token"]
        seconds = float(message["seconds"])
        only = message.get("only")
        directory = message.get("nonce_dir")
        shared = directory is None or os.path.exists(os.path.join(directory, nonce_name(token)))
        self._run_task(
            "the proof",
            lambda: probe(addresses, port, token, seconds, only),
            seconds + 5,
            lambda result: self._tell({"type": "probed", **result, "shared": shared}),
        )

    def _on_start(self, message: Dict[str, Any]) -> None:
        if self._attempt is not None and not self._attempt.ended:
            self._tell({"type": "fault", "id": "protocol", "message": "an attempt is still running"})
            return
        number = whole(message["attempt"], 0, MOST_ATTEMPTS)
        if number is None:
            raise ValueError("an attempt without a number")
        files = _followed(message, number)  # before anything is changed: a stream that is none would end all output
        if self._gate is not None:
            if self._gate.listener is not None:
                self._selector.unregister(self._gate.listener)
            self._gate.hold()
        self._nonce.remove()
        self._attempt = Attempt(number, self._mark, self._group, self._outlet, self._tell)
        for stream, path in files.items():
            self._outlet.add_file(stream, path)
        if self._make_directories(message):
            self._attempt.start(message["ranks"], self._base, self._pass_pipe)

    def _make_directories(self, message: Dict[str, Any]) -> bool:
        for path in message.get("make", []):
            try:
                os.makedirs(path, mode=0o700, exist_ok=True)
            except OSError as error:
                rank = message["ranks"][0]["rank"]
                text = "rank %d could not make its output directory %s: %s" % (rank, path, error.strerror)
                self._tell({"type": "fault", "id": "start-failed", "rank": rank, "message": text, "t": time.time()})
                return False
        return True

    def _on_ping(self, message: Dict[str, Any]) -> None:
        assert self._link is not None
        self._link.send({"type": "pong", "sent": message.get("sent"), "t": time.time()})

    def _on_ack(self, message: Dict[str, Any]) -> None:
        self._outlet.acknowledge(message.get("sizes", {}))

    def _on_end(self, message: Dict[str, Any]) -> None:
        self._nonce.remove()
        if self._gate is not None:
            self._selector_forget_gate()
        if self._attempt is None:
            self._attempt = Attempt(0, self._mark, self._group, self._outlet, self._tell)
        if self._attempt.ended:
            self._tell(
                {
                    "type": "ended",
                    "attempt": self._attempt.number,
                    "left": self._attempt.left,
                    "reason": "already",
                    "seconds": 0.0,
                    "t": time.time(),
                }
            )
            self._drain_told = False
            return
        self._attempt.begin_end(float(message["grace"]), message.get("reason", ""))

    def _on_signal(self, message: Dict[str, Any]) -> None:
        """SIGUSR1 or SIGUSR2 for the ranks: it came to the controller, or to an engine's task on some node."""
        number = USER_SIGNALS.get(str(message.get("name")))
        attempt = self._attempt
        if number is None or attempt is None or attempt.number != message.get("attempt"):
            return
        attempt.pass_signal(int(message["order"]), number, self._witness.processes)

    def _on_stacks(self, message: Dict[str, Any]) -> None:
        """A look may have to signal a rank, which is done once: who has been is kept here."""
        attempt = self._attempt
        signalled = (
            frozenset(r.rank for r in attempt.ranks.values() if r.signalled) if attempt is not None else frozenset()
        )

        def remember(result: Dict[str, Any]) -> None:
            for rank in result.pop("signalled", None) or ():
                if attempt is not None and rank in attempt.ranks:
                    attempt.ranks[rank].signalled = True

        word = message.get("ask") or ""
        self._look_at_ranks(message, lambda ranks: looks(ranks, self._dir, word, signalled), remember)

    def _on_counters(self, message: Dict[str, Any]) -> None:
        self._look_at_ranks(message, lambda ranks: counters(ranks, self._dir))

    def _look_at_ranks(
        self,
        message: Dict[str, Any],
        look_at: Callable[[Dict[int, Process]], Dict[str, Any]],
        remember: Callable[[Dict[str, Any]], None] = lambda result: None,
    ) -> None:
        running = self._attempt.running() if self._attempt is not None else []
        wanted = {r.rank: r.process for r in running if r.rank in message.get("ranks", [])}

        def done(result: Dict[str, Any]) -> None:
            remember(result)
            self._tell({"type": message["type"], **result})

        self._run_task(message["type"], lambda: look_at(wanted), LOOK_AT_RANKS_SECONDS, done)

    def _on_serve(self, message: Dict[str, Any]) -> None:
        """Opens two ports for the peers' tries; a task answers there for as long as the controller said."""
        tcp, udp = peers.open_doors()
        token = message["token"]
        seconds = float(message["seconds"])
        self._run_task("serving", lambda: peers.serve(tcp, udp, token, seconds), seconds + 5, lambda result: None)
        self._tell({"type": "serving", "port": tcp.getsockname()[1], "udp": udp.getsockname()[1]})
        tcp.close()
        udp.close()

    def _on_reach(self, message: Dict[str, Any]) -> None:
        seconds = float(message["seconds"]) + 5
        self._run_task(
            "reaching peers",
            lambda: peers.reach(message),
            seconds,
            lambda result: self._tell({"type": "reached", **result}),
        )

    def _on_release(self, message: Dict[str, Any]) -> None:
        """All is done and fetched. The supervisor removes the node directory."""
        if self._attempt is not None and not self._attempt.ended:
            self._tell({"type": "fault", "id": "protocol", "message": "release before the ranks have ended"})
            return
        self._journal.write({"event": "released", "t": time.time()})
        self._result = RELEASED
        self._send_output()
        if self._supervisor_gone:
            remove(self._dir)  # the supervisor would have done it


def _followed(message: Dict[str, Any], number: int) -> Dict[Stream, str]:
    """The files to follow in an attempt; raises ValueError where one is none."""
    files = {}  # type: Dict[Stream, str]
    for entry in message.get("follow", []):
        kind, rank, path = FOLLOWED[entry["kind"]], whole(entry["rank"], 0, MOST_RANKS), text(entry["path"], 4096)
        if rank is None or not path:
            raise ValueError("a file to follow without a rank or a path")
        files[Stream(kind, rank, number if kind in OF_ATTEMPT else 0)] = path
    return files
