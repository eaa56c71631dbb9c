"""The agent: owns the ranks of one node. Single-threaded; all that may block runs in a forked task.

It listens on a Unix socket in the node directory. One controller at a time: a newer one replaces the
older. Without word from a controller for the lease, it ends its ranks and itself.
"""

from __future__ import annotations

import array
import os
import selectors
import signal
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Callable, Dict, FrozenSet, List, Mapping, Optional, Set, Tuple, Type, TypeVar

from allranks.protocol.codec import DecodeError
from allranks.protocol.foreign import ReportMessage, read_report
from allranks.protocol.frames import (
    FOLLOWED,
    NODE_LOG,
    OF_ATTEMPT,
    PROTOCOL,
    TREE,
    Frame,
    FrameError,
    OutputFrame,
    Stream,
)
from allranks.protocol.header import AgentHeader
from allranks.protocol.jsontext import Json, JsonObject
from allranks.protocol.messages import (
    CallTimesMessage,
    CountersMessage,
    DrainedMessage,
    FactsMessage,
    FaultMessage,
    ListeningMessage,
    Message,
    PongMessage,
    ProbedMessage,
    ReachedMessage,
    ReadyMessage,
    RefusedMessage,
    ReplacedMessage,
    ServingMessage,
    StacksMessage,
)
from allranks.protocol.orders import (
    ORDERS,
    AckOrder,
    CallTimesOrder,
    CountersOrder,
    EndOrder,
    HelloOrder,
    ImportsOrder,
    KeepOrder,
    ListenOrder,
    Order,
    PingOrder,
    PreloadOrder,
    ProbeOrder,
    RankOrder,
    ReachOrder,
    ReadyOrder,
    ReleaseOrder,
    SaveOrder,
    ServeOrder,
    SetupOrder,
    ShipOrder,
    SignalOrder,
    StacksOrder,
    StartOrder,
    TakenOrder,
    UsageOrder,
)
from allranks.protocol.processes import ImportRecord

from .attempt import END_SECONDS, RankAttempt
from .cgroups import join_own
from .door import Door
from .exitwatcher import ExitWatcher
from .forked_tasks import Nothing, Samples, Task
from .forking import TASK_SECONDS, Forking, FoundRecord, KeptRecord
from .journal import AgentBegun, DroppedBytes, Journal, LeaseOver, Released
from .link import AgentNote, Link, describe_error, hello, log_traceback, still_followed, write_note
from .node_check import NodeCheck, check_node
from .node_directory import Upkeep, kept_outputs, remove
from .outlet import Outlet
from .processes import (
    USER_SIGNALS,
    Process,
    clear_wake,
    lives,
    machine,
    read_process,
    reap_children,
    send_signal,
    wake_by_signals,
)
from .rank_start import Rank, environment_of
from .receiver import TreeReceiver
from .rendezvous_check import MasterPort, Nonce, ask_server, free_ports, port_failure, probe
from .saving import SaveForwarding

if TYPE_CHECKING:
    from .asking import Asking
    from .usage import Sampler

TICK = 1.0  # seconds between samples of the supervisor and lease checks
UNGREETED = 10.0  # seconds an agent without ranks waits for a controller: the one it had died at the start
LEAST_PATIENCE = 5.0  # seconds that a beat may be late, however short the lease is: a loaded machine has its hiccups
ENDING_SECONDS = 2 * END_SECONDS + 5.0  # what an end takes beyond its grace, at most
FILE_TICK = 0.25  # seconds between reads of followed files while ranks run
FAILURES = 5  # errors of its own after which an agent gives up
LEAST_USAGE = 1.0  # seconds between samples of the machine, whatever is asked for
CALL_TIMES_SECONDS = 40.0  # with a look at suspects; gang/stragglers.py waits a little longer
SAMPLE_SECONDS = 20.0  # gang/hangwatch.py waits a little longer
MOST_TASKS = 64  # at a time: a run has a few, a coordinator that is not ours could ask for any number
REPORTS = "a report to the agent"  # what the program's datagrams are called where they cannot be read
REPORTS_AT_ONCE = 256  # read before anything else is done: a program may write faster than they are read
# of one rank and of all in an attempt; a rank has some for each process group
MOST_REPORTS_OF_RANK = 1 << 10
MOST_REPORTS = 16 << 10

# how an agent ends; anything else is a death
RELEASED = 0
LEASE_OVER = 3

Result = TypeVar("Result")
Answer = TypeVar("Answer", ProbedMessage, ReadyMessage, CountersMessage, ReachedMessage)


class Agent:
    """The main loop and what the controller may ask for."""

    def __init__(self, header: AgentHeader, node_dir: str, listener: socket.socket, supervisor: socket.socket) -> None:
        self._header = header
        self._dir = node_dir
        self._lease = header.lease
        self._supervisor_pid = os.getppid()
        self._supervisor = supervisor
        self._link: Optional[Link] = None
        self._group: Optional[str] = None
        if not header.engine:  # which finds its processes by a group of its own: nothing is taken out of it
            self._group = join_own("allranks-" + header.run_tag.replace("/", "-"))
        self._journal = Journal(node_dir)
        self._upkeep = Upkeep(node_dir)
        self._outlet = Outlet(os.path.join(node_dir, "spool"))
        self._outlet.add_file(Stream(NODE_LOG, 0, 0), os.path.join(node_dir, "node.log"))
        self._drops: Dict[str, int] = {}
        self._attempt: Optional[RankAttempt] = None
        self._master_port: Optional[MasterPort] = None
        self._session = dict(os.environ)
        self._base = self._session
        self._tasks: Dict[int, Task] = {}
        self._ends = 0  # orders to end so far
        self._selector = selectors.DefaultSelector()
        self._door = Door(listener, self._selector, self._on_controller)
        self._heard = time.monotonic()
        self._greeted = False
        self._offsets_known = False  # of this connection: output may flow once it said how much it has
        self._next_tick = 0.0
        self._supervisor_stops = 0
        self._supervisor_gone = False
        self._result: Optional[int] = None
        self._drain_reported = True
        self._failures = 0
        self._refusals: Dict[str, int] = {}  # how many reports could not be read
        self._reported: Dict[int, int] = {}  # how many were taken in this attempt, by rank
        self._reported_in_all = 0
        self._ranks_began = 0.0  # unix seconds
        self._signalled: Set[int] = set()  # ranks of this attempt that have had the signal for their stacks
        self._usage_every = 0.0  # seconds between samples of this machine; 0: none are wanted
        self._next_usage = 0.0
        self._sampler: Optional[Sampler] = None
        self._launch: Optional[Mapping[str, Json]] = None  # for a controller that takes the run over
        self._nonce = Nonce()
        self._forking = Forking(self)
        self._saving = SaveForwarding(node_dir, self._reply)
        self._receiver = TreeReceiver(node_dir, self._reply, self._run_task)
        self._reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._exit_watcher = ExitWatcher(self._selector, os.path.join(node_dir, "report.sock"))
        self._handlers = self._all_handlers()

    def _all_handlers(self) -> Dict[type, Callable[[Order], None]]:
        """Give what takes each kind of order."""
        return dict(
            (
                _handler(HelloOrder, self._on_hello),
                _handler(KeepOrder, self._on_keep),
                _handler(ShipOrder, self._receiver.ship),
                _handler(SetupOrder, self._on_setup),
                _handler(ListenOrder, self._on_listen),
                _handler(ProbeOrder, self._on_probe),
                _handler(ReadyOrder, self._on_ready),
                _handler(PreloadOrder, self._on_preload),
                _handler(ImportsOrder, self._on_imports),
                _handler(StartOrder, self._on_start),
                _handler(PingOrder, self._on_ping),
                _handler(AckOrder, self._on_ack),
                _handler(TakenOrder, self._on_taken),
                _handler(EndOrder, self._on_end),
                _handler(StacksOrder, self._on_stacks),
                _handler(CountersOrder, self._on_counters),
                _handler(UsageOrder, self._on_usage),
                _handler(CallTimesOrder, self._on_call_times),
                _handler(ServeOrder, self._on_serve),
                _handler(ReachOrder, self._on_reach),
                _handler(ReleaseOrder, self._on_release),
                _handler(SignalOrder, self._on_signal),
                _handler(SaveOrder, self._on_save),
            )
        )

    # -- the loop ------------------------------------------------------------------------------------

    def run(self) -> int:
        """Until released (gives RELEASED), or the lease is over and everything has ended (LEASE_OVER)."""
        self._reports.bind(os.path.join(self._dir, "report.sock"))
        self._reports.setblocking(False)
        wake = wake_by_signals()
        self._selector.register(wake, selectors.EVENT_READ, lambda: self._on_children(wake))
        self._selector.register(self._reports, selectors.EVENT_READ, self._on_report)
        self._selector.register(self._supervisor, selectors.EVENT_READ, self._on_supervisor)
        processes = map(read_process, (os.getpid(), self._supervisor_pid))
        keepers = tuple((p.pid, p.start) for p in processes if p is not None)
        self._journal.note(AgentBegun(os.getpid(), keepers, machine(), time.time()))
        self._beat()
        while self._result is None:
            try:
                for key, _ in self._selector.select(self._timeout()):
                    if still_followed(self._selector, key):
                        key.data()
                self._work()
            except Exception as error:
                self._failed_itself(error)
        return self._result

    def _failed_itself(self, error: Exception) -> None:
        """End the ranks in order after a defect of the agent.

        Raise the error where it comes again and again: the agent then ends, and the supervisor ends the ranks."""
        self._failures += 1
        if self._failures > FAILURES:
            raise error
        log_traceback()
        self._end_by_defect(describe_error(error))

    def _end_by_defect(self, description: str) -> None:
        """Report a defect of allranks, and end the ranks in order."""
        self._tell(FaultMessage("internal-error", description, t=time.time()))
        if self._attempt is not None and not self._attempt.ended:
            self._attempt.begin_end(self._header.grace, "internal-error")

    def _timeout(self) -> float:
        deadlines = [self._next_tick]
        if self._attempt is not None:
            due = self._attempt.next_deadline()
            if due is not None:
                deadlines.append(due)
            if self._link is not None and not self._attempt.ended:
                deadlines.append(time.monotonic() + FILE_TICK)
        if self._saving.is_open:
            deadlines.append(self._saving.next_look)
        deadlines += [task.deadline for task in self._tasks.values()]
        return max(0.0, min(deadlines) - time.monotonic())

    def _work(self) -> None:
        """Do what is due by time, after all input that was pending has been read."""
        now = time.monotonic()
        for task in list(self._tasks.values()):
            if now >= task.deadline:
                self._forget_task(task)
                task.expire()
        self._saving.look(now)
        if self._attempt is not None and self._attempt.ending and not self._attempt.ended:
            self._attempt.advance_end()
            if self._attempt.ended:
                self._saving.forget()
                self._pump_rest()
        if now >= self._next_tick:
            self._next_tick = now + TICK
            self._tick(now)
        self._send_output()

    def _tick(self, now: float) -> None:
        self._check_supervisor()
        self._upkeep.look(now)
        self._door.look(now)
        self._note_drops()
        if self._attempt is not None:
            self._attempt.observe()
            if not self._attempt.ending:
                self._forking.tick(now)
                self._sample_usage(self._attempt, now)
        patience = self._lease
        is_idle = self._attempt is None and self._launch is None  # a hot spare of a run that goes on is not
        if not self._greeted or (self._link is None and is_idle):
            patience = min(patience, UNGREETED)
        if self._holder_gone() or now - self._heard > patience:
            self._lease_over()
        self._beat()

    def _note_drops(self) -> None:
        """In the journal, for whoever comes after this process; the first of them in the node's log too."""
        drops = self._outlet.drops()
        if drops == self._drops:
            return
        if not self._drops:
            self._log("output is dropped: the disk is full, or the spool has its share of it")
        self._drops = drops
        self._journal.note(DroppedBytes(drops, time.time()))

    def _holder_gone(self) -> bool:
        """Tell whether the engine has ended its task on this node: its step is over, whatever is left of it."""
        return self._header.holder is not None and not lives(*self._header.holder)

    def _lease_over(self) -> None:
        attempt = self._attempt
        if attempt is None:
            self._result = RELEASED  # nothing ever ran here: nothing is worth keeping
        elif attempt.ended:
            self._journal.note(LeaseOver(time.time()))
            self._result = LEASE_OVER
        elif not attempt.ending:
            why = "no word from the controller for %g s: the lease is over" % self._lease
            if self._holder_gone():
                why = "the engine has ended its step"
            self._log(why + ", ending the ranks")
            attempt.begin_end(self._header.grace, "lease")

    # -- the supervisor ---------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Tell the supervisor that this loop runs, and by when the ranks will have ended without a controller.

        It ends them where no beat comes, or that time has passed. Nothing here waits for it.
        """
        try:
            self._supervisor.send(write_note(self._note()), socket.MSG_DONTWAIT)
        except OSError:
            pass  # it has ended, or has not run for long: `_check_supervisor` sees both

    def _note(self) -> AgentNote:
        ends_by = self._heard + self._lease + self._header.grace
        if self._attempt is not None:
            ends_by = max(ends_by, self._attempt.next_deadline() or 0.0)
        patience = max(self._lease, LEAST_PATIENCE)
        return AgentNote(self._group, patience=patience, ends_by=ends_by + ENDING_SECONDS)

    def _on_supervisor(self) -> None:
        """Read the supervisor's one kind of message, an error of its own. At the end of the stream it has ended."""
        try:
            description = self._supervisor.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            description = b""
        if description:
            self._end_by_defect(description.decode("utf-8", "replace"))
        else:
            self._selector.unregister(self._supervisor)  # `_check_supervisor` sees the death

    def _check_supervisor(self) -> None:
        """End the run where the supervisor is dead, or was stopped twice: it is the guarantee against orphans."""
        if os.getppid() != self._supervisor_pid:
            self._supervisor_lost("died")
            return
        process = read_process(self._supervisor_pid)
        if process is None or process.state != "T":  # t: a tracer looks at it
            self._supervisor_stops = 0
            return
        self._supervisor_stops += 1
        if self._supervisor_stops >= 2:
            send_signal(process, signal.SIGKILL)
            self._supervisor_lost("was stopped")

    def _supervisor_lost(self, what: str) -> None:
        if self._supervisor_gone:
            return
        self._supervisor_gone = True
        self._log("the supervisor %s" % what)
        self._tell(FaultMessage("supervisor-lost", "the supervisor process %s" % what, t=time.time()))
        if self._attempt is not None:
            self._attempt.begin_end(self._header.grace, "supervisor-lost")

    def _pass_pipe(self, rank: Rank) -> None:
        """Hands the supervisor the pipe's read end, and follows it here."""
        assert self._attempt is not None
        note = write_note(self._note()._replace(rank=rank.rank, attempt=self._attempt.number))
        try:
            rights = array.array("i", [rank.pipe])
            self._supervisor.sendmsg([note], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], socket.MSG_DONTWAIT)
        except OSError as error:
            self._log("the supervisor did not take a pipe: %s" % error)
        self._selector.register(rank.pipe, selectors.EVENT_READ, lambda: self._on_output(rank))

    # -- events --------------------------------------------------------------------------------------

    def _on_children(self, wake: int) -> None:
        clear_wake(wake)
        statuses = reap_children()
        self._saving.look(float("inf"))  # what a rank has saved comes before its end
        self._forking.reaped(statuses)
        if self._attempt is not None:
            self._attempt.reaped(statuses)

    def _on_output(self, rank: Rank) -> None:
        assert self._attempt is not None
        if rank.pipe >= 0 and self._attempt.pump(rank) is None:
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
                if not self._attempt.pump(rank):  # at its end, or empty
                    self._close_pipe(rank)
        self._drain_reported = False

    def _on_report(self) -> None:
        for _ in range(REPORTS_AT_ONCE):
            try:
                data = self._reports.recv(65536)
            except OSError:
                return
            try:
                report = self._counted(read_report(data))
            except DecodeError as error:
                self._refused(str(error))
                continue
            if report.event == "initialised" and self._master_port is not None:
                self._master_port.release()
            if report.event == "initialised":
                self._forking.initialised(report.rank)
                self._settle_world(report)
            if not self._exit_watcher.heard(report, self._attempt):
                self._tell(report)

    def _settle_world(self, report: ReportMessage) -> None:
        if self._attempt is not None:
            ranks = sum(max(1, len(rank.error_files)) for rank in self._attempt.ranks.values())
            self._attempt.worlds.settle(report.world_size, ranks)

    def _counted(self, report: ReportMessage) -> ReportMessage:
        """Count a report; raise DecodeError where the program has sent more than a run has use for."""
        of_rank = self._reported.get(report.rank, 0) + 1
        if of_rank > MOST_REPORTS_OF_RANK or self._reported_in_all >= MOST_REPORTS:
            raise DecodeError("expected at most %d of a rank, and %d in all" % (MOST_REPORTS_OF_RANK, MOST_REPORTS))
        self._reported[report.rank] = of_rank
        self._reported_in_all += 1
        return report

    def _refused(self, why: str) -> None:
        """Count a report of the program that cannot be read, and report the first; the run goes on."""
        if not self._refusals:
            self._tell(RefusedMessage(REPORTS, why, time.time()))
        self._refusals[REPORTS] = self._refusals.get(REPORTS, 0) + 1

    def _on_controller(self, link: Link, frames: List[Frame]) -> None:
        """Take a controller that has greeted, in the place of the one before it."""
        self._drop_link(ReplacedMessage())
        self._link = link
        self._offsets_known = False
        self._selector.register(link.sock, selectors.EVENT_READ, self._on_link)
        self._take_frames(link, frames)

    def _drop_link(self, last_word: Optional[Message] = None) -> None:
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
            self._drop_link(FaultMessage("protocol", str(error)))
            return
        except (EOFError, OSError):
            self._drop_link()
            return
        self._take_frames(link, frames)

    def _take_frames(self, link: Link, frames: List[Frame]) -> None:
        self._heard = time.monotonic()
        for frame in frames:
            if self._link is not link:
                return  # a message before has ended this connection
            if not isinstance(frame, OutputFrame):
                self._obey(frame)
            elif frame.stream.kind == TREE:
                self._receiver.chunk(frame)
            else:
                self._refuse_order("bytes of stream %d" % frame.stream.kind)

    def _obey(self, frame: JsonObject) -> None:
        """Decode an order and carry it out; one that does not fit is refused, and nothing of it is done."""
        try:
            order = ORDERS.read(frame)
            self._handlers[type(order)](order)
        except DecodeError as error:
            self._refuse_order("%s: %s" % (frame["type"][:20], error))

    def _refuse_order(self, what: str) -> None:
        text = "an order that this agent (protocol %d) cannot read: %s" % (PROTOCOL, what)
        self._tell(FaultMessage("protocol", text))

    def _send_output(self) -> None:
        if self._link is None:
            return
        try:
            self._link.flush()
            if self._offsets_known:
                self._outlet.send_to(self._link, time.monotonic())
                self._report_drained()
                self._link.flush()
            self._selector.modify(self._link.sock, self._link.events, self._on_link)
        except OSError:
            self._drop_link()

    def _report_drained(self) -> None:
        attempt = self._attempt
        if self._drain_reported or not self._outlet.drained or attempt is None:
            return
        self._drain_reported = True
        self._reply(DrainedMessage(attempt.number, self._outlet.sizes(), kept_outputs(self._dir), self._refusals))

    def _tell(self, message: Message) -> None:
        """To the controller where there is one, and to the journal in any case."""
        self._journal.keep(message)
        self._reply(message)

    def _reply(self, message: Message) -> None:
        """To the controller where there is one."""
        if self._link is not None:
            self._link.send(message)

    def _log(self, text: str) -> None:
        """Write a line to the node's log, which is the agent's standard error; a full disk loses it."""
        try:
            os.write(2, ("%s %s\n" % (time.strftime("%H:%M:%S"), text)).encode("utf-8", "replace"))
        except OSError:
            pass

    # -- what the controller asks --------------------------------------------------------------------

    def _on_hello(self, order: HelloOrder) -> None:
        self._greeted = True
        self._offsets_known = True
        if order.lease is not None:
            self._lease = order.lease
        self._outlet.controller_has(order.have)
        self._drain_reported = not (self._attempt is not None and self._attempt.ended)
        greeting = hello(self._dir, self._header.cwd, self._attempt.summary() if self._attempt is not None else None)
        if order.asks_launch and self._launch is not None:
            greeting = greeting._replace(launch=dict(self._launch))
        self._reply(greeting)

    def _on_keep(self, order: KeepOrder) -> None:
        """Keep in memory alone what a controller that takes the run over starts ranks with."""
        self._launch = order.launch

    def _on_setup(self, order: SetupOrder) -> None:
        """Check this node in a task, and keep the environment after the prelude, which may run once more."""

        ends = self._ends

        def done(check: Optional[NodeCheck], error: str) -> None:
            if check is None:
                self._tell_answer(FactsMessage(error=error), ends)
                return
            self._base = check.environment
            self._tell_answer(FactsMessage(check.facts, check.prelude_error), ends)

        base = self._session
        cwd = self._header.cwd
        self._run_task("the check of this node", lambda: _check_node(order, base, cwd), NodeCheck, order.seconds, done)

    # -- the rendezvous check --------------------------------------------------------------------------

    def _on_listen(self, order: ListenOrder) -> None:
        self._forget_master_port()
        trouble = self._nonce.leave(order.nonce_dir, order.token)
        if trouble is not None:
            self._log(trouble)
        try:
            opened = MasterPort(order.port, order.token)
        except OSError as error:
            self._tell(ListeningMessage(error=port_failure(order.port, error)))
            return
        self._master_port = opened
        assert opened.listener is not None
        self._selector.register(opened.listener, selectors.EVENT_READ, opened.accept)
        self._tell(ListeningMessage(opened.port, more=free_ports(order.more, opened.port)))

    def _stop_listening(self) -> None:
        if self._master_port is not None and self._master_port.listener is not None:
            self._selector.unregister(self._master_port.listener)

    def _forget_master_port(self) -> None:
        if self._master_port is not None:
            self._stop_listening()
            self._master_port.release()
            self._master_port = None

    def _on_probe(self, order: ProbeOrder) -> None:
        self._answer("the rendezvous check", partial(probe, order), ProbedMessage, order.seconds + 5)

    def _on_ready(self, order: ReadyOrder) -> None:
        self._answer("the ready test", partial(ask_server, order), ReadyMessage, order.seconds + 5)

    # -- ranks -------------------------------------------------------------------------------------------

    def _on_start(self, order: StartOrder) -> None:
        if self._attempt is not None and not self._attempt.ended:
            self._tell(FaultMessage("protocol", "an attempt is still running"))
            return
        order = order._replace(ranks=tuple(map(self._placed, order.ranks)))
        files = _followed(order)  # before anything is changed: a stream without a name would end all output
        self._stop_listening()
        if self._master_port is not None:
            self._master_port.hold()
        self._nonce.remove()
        self._reported.clear()
        self._reported_in_all = 0
        self._signalled = set()  # a sample of the attempt before may still come
        self._attempt = self._begin_attempt(order.attempt)
        for stream, path in files.items():
            self._outlet.add_file(stream, os.path.join(self._header.cwd, path))
        if self._make_directories(order):
            self._attempt.awaited = tuple(rank.rank for rank in order.ranks)
            self._forking.begin(order, self._base, partial(self._start_ranks, self._attempt, order))

    def _begin_attempt(self, number: int) -> RankAttempt:
        tag = self._header.run_tag
        return RankAttempt(number, tag, self._group, self._outlet, self._tell, self._forking, self._beat)

    def _start_ranks(self, attempt: RankAttempt, order: StartOrder) -> None:
        """Start the ranks, once what they are forked from is ready."""
        if attempt is self._attempt and not attempt.ending:
            self._ranks_began = time.time()
            attempt.start(order.ranks, self._base, self._pass_pipe)

    def _placed(self, rank: RankOrder) -> RankOrder:
        """Have a rank begin where the session stood, and not where this process stands."""
        return rank._replace(workdir=os.path.join(self._header.cwd, rank.workdir))

    def _make_directories(self, order: StartOrder) -> bool:
        """Make the output directory, and again what something has removed of the node's."""
        try:
            for name in self._upkeep.restore():
                self._log("something has removed %s from the node directory: made again" % name)
            for path in order.make:
                os.makedirs(os.path.join(self._header.cwd, path), mode=0o700, exist_ok=True)
        except OSError as error:
            text = "rank %d could not make %s: %s" % (order.ranks[0].rank, error.filename, error.strerror)
            self._tell(FaultMessage("start-failed", text, order.ranks[0].rank, time.time()))
            return False
        return True

    def _on_ping(self, order: PingOrder) -> None:
        self._reply(PongMessage(order.sent, time.time()))

    def _on_ack(self, order: AckOrder) -> None:
        self._outlet.acknowledge(order.sizes)

    def _on_taken(self, order: TakenOrder) -> None:
        if self._link is not None:
            self._link.output_taken(order.output, time.monotonic())

    def _on_end(self, order: EndOrder) -> None:
        self._ends += 1
        self._receiver.interrupt()
        self._nonce.remove()
        self._forget_master_port()
        self._forking.cancel()
        if self._attempt is None:
            self._attempt = self._begin_attempt(0)
        if self._attempt.ended:
            self._attempt.tell_ended("already")
            self._drain_reported = False
            return
        noting = None
        if order.note_calls and not self._attempt.ending:
            noting = _ask_calls(self._sampled(tuple(self._attempt.ranks)), self._dir)
        self._attempt.begin_end(order.grace, order.reason, noting)

    def _on_signal(self, order: SignalOrder) -> None:
        """SIGUSR1 or SIGUSR2 for the ranks: it came to the controller, or to an engine's task on some node."""
        number = USER_SIGNALS.get(order.name)
        attempt = self._attempt
        if number is None or attempt is None or attempt.number != order.attempt:
            return
        attempt.pass_signal(order.order, number, self._exit_watcher.processes)

    def _on_save(self, order: SaveOrder) -> None:
        """Show the ranks a request to save, and answer with how far they are."""
        attempt = self._attempt
        if attempt is not None and attempt.number == order.attempt:
            self._saving.obey(order)

    def _running(self, ranks: Tuple[int, ...]) -> List[Rank]:
        if self._attempt is None:
            return []
        return [rank for rank in self._attempt.running() if rank.rank in ranks]

    def _sampled(self, ranks: Tuple[int, ...]) -> Dict[int, Process]:
        """Return the processes of ranks: in place of another launcher's own those of all ranks that it has started."""
        running = self._running(ranks)
        if running and self._exit_watcher.processes:
            return dict(self._exit_watcher.processes)
        return {rank.rank: rank.process for rank in running}

    def _on_stacks(self, order: StacksOrder) -> None:
        """Sample ranks in a task. A rank is signalled once: this process keeps which have been."""
        signalled = self._signalled
        ends = self._ends

        def done(samples: Optional[Samples], error: str) -> None:
            if samples is None:
                self._tell_answer(StacksMessage(error=error), ends)
                return
            signalled.update(samples.signalled)
            self._tell_answer(StacksMessage(samples.ranks, samples.ras), ends)

        work = partial(_sample, self._sampled(order.ranks), self._dir, order.ask, frozenset(signalled))
        self._run_task("the stack sample", work, Samples, SAMPLE_SECONDS, done)

    def _on_counters(self, order: CountersOrder) -> None:
        work = partial(_counters, self._sampled(order.ranks), self._dir)
        self._answer("the counters", work, CountersMessage, SAMPLE_SECONDS)

    def _on_usage(self, order: UsageOrder) -> None:
        self._usage_every = max(LEAST_USAGE, order.every)
        self._next_usage = 0.0
        self._sampler = None

    def _sample_usage(self, attempt: RankAttempt, now: float) -> None:
        """Say what this machine has done since the last sample. A sample that fails is the last: ranks go on."""
        if not self._usage_every or now < self._next_usage:
            return
        self._next_usage = now + self._usage_every
        try:
            if self._sampler is None:
                from .usage import Sampler  # late: the start of ranks is not to wait for it

                self._sampler = Sampler()
            pids = [process.pid for process in self._sampled(tuple(attempt.ranks)).values()]
            usage = self._sampler.sample(pids, now, time.time())
        except Exception as error:
            self._usage_every = 0.0
            self._log("this machine is not sampled any more: %s" % describe_error(error))
            return
        if usage is not None:
            self._reply(usage)

    def _on_call_times(self, order: CallTimesOrder) -> None:
        """Answer in a task; the journal has no use for what is compared at once."""
        most = max(1, order.most)
        work = partial(_call_times, self._sampled(order.ranks), order.suspects, self._dir, most)

        def done(message: Optional[CallTimesMessage], error: str) -> None:
            self._reply(CallTimesMessage(error=error) if message is None else message)

        self._run_task("the times of collectives", work, CallTimesMessage, CALL_TIMES_SECONDS, done)

    # -- the template (forking.ForkingAgent) ---------------------------------------------------------------

    def _on_preload(self, order: PreloadOrder) -> None:
        if self._attempt is None or self._attempt.ended:
            self._forking.prepare(order._replace(rank=self._placed(order.rank)), self._base)

    def _on_imports(self, order: ImportsOrder) -> None:
        self._reply(self._forking.imports)

    def tell(self, message: Message) -> None:
        """Tell the controller where there is one, and the journal in any case."""
        self._tell(message)

    def ask_imports(self, done: Callable[[Optional[ImportRecord], str], None]) -> None:
        """Ask all ranks of this node what they have imported."""
        ranks = {rank.rank: rank.process for rank in self._running(tuple(self._attempt.ranks if self._attempt else ()))}
        work = partial(_ask_imports, ranks, self._dir, self._ranks_began)
        self._run_task("the question for imports", work, ImportRecord, SAMPLE_SECONDS, done)

    def find_record(self, rank: RankOrder, done: Callable[[Optional[FoundRecord], str], None]) -> None:
        """Look for what a former run of this command has imported."""
        work = partial(_find_record, rank, environment_of(rank, self._base))
        self._run_task("the look for imports", work, FoundRecord, TASK_SECONDS, done)

    def keep_record(self, rank: RankOrder, imports: ImportRecord, against: str) -> None:
        """Keep what this command imports for a later run; one that cannot be kept is one line of the log."""

        def done(kept: Optional[KeptRecord], error: str) -> None:
            if error:
                self._log("what the ranks import was not kept for the next run: %s" % error)

        work = partial(_keep_record, rank, environment_of(rank, self._base), imports, against)
        self._run_task("the record of imports", work, KeptRecord, TASK_SECONDS, done)

    def watch(self, channel: socket.socket) -> None:
        """Read what comes from the template."""
        self._selector.register(channel, selectors.EVENT_READ, self._forking.on_channel)

    def forget(self, channel: socket.socket) -> None:
        """Read nothing more of it."""
        self._selector.unregister(channel)

    # -- peers -------------------------------------------------------------------------------------------

    def _on_serve(self, order: ServeOrder) -> None:
        """Open two ports for the peers' tries; a task answers there for as long as the controller said."""

        def serve() -> Nothing:
            peers.serve(tcp, udp, order.token, order.seconds)
            return Nothing()

        def done(result: Optional[Nothing], error: str) -> None:
            if error:
                self._log(error)

        try:
            from . import peers  # late: `allranks check` alone tries them

            tcp, udp = peers.open_doors()
        except (OSError, ImportError) as error:  # no descriptor is left
            self._log("no ports could be opened for the peers: %s" % error)
            return
        if self._run_task("serving", serve, Nothing, order.seconds + 5, done):
            self._tell(ServingMessage(tcp.getsockname()[1], udp.getsockname()[1]))
        tcp.close()
        udp.close()

    def _on_reach(self, order: ReachOrder) -> None:
        self._answer("reaching peers", partial(_reach, order), ReachedMessage, order.seconds + 5)

    def _on_release(self, order: ReleaseOrder) -> None:
        """All is done and fetched. The supervisor removes the node directory."""
        if self._attempt is not None and not self._attempt.ended:
            self._tell(FaultMessage("protocol", "release before the ranks have ended"))
            return
        self._journal.note(Released(time.time()))
        self._result = RELEASED
        self._send_output()
        if self._supervisor_gone:
            remove(self._dir)  # the supervisor would have done it

    # -- tasks -------------------------------------------------------------------------------------------

    def _run_task(
        self,
        name: str,
        function: Callable[[], Result],
        kind: Type[Result],
        seconds: float,
        done: Callable[[Optional[Result], str], None],
    ) -> bool:
        """Start a task; False where that is not possible, which `done` is called with."""
        if len(self._tasks) >= MOST_TASKS:
            done(None, "this node is at %d requests already" % MOST_TASKS)
            return False
        try:
            task = Task(name, function, kind, seconds, done)
        except OSError as error:
            done(None, "%s could not be started: %s" % (name, error.strerror))
            return False
        self._tasks[task.pipe] = task
        self._selector.register(task.pipe, selectors.EVENT_READ, lambda: self._on_task(task))
        return True

    def _answer(self, name: str, function: Callable[[], Answer], kind: Type[Answer], seconds: float) -> None:
        """Run a task and tell its answer, or why there is none."""
        ends = self._ends

        def done(message: Optional[Answer], error: str) -> None:
            self._tell_answer(kind(error=error) if message is None else message, ends)

        self._run_task(name, function, kind, seconds, done)

    def _tell_answer(self, message: Message, ends: int) -> None:
        """Tell the answer to what was asked after so many orders to end. After another one it is left out.

        The end has killed the task, and the controller would take that for an answer to what the next attempt asks.
        """
        if self._ends == ends:
            self._tell(message)

    def _on_task(self, task: Task) -> None:
        if task.is_complete():
            self._forget_task(task)
            task.finish()

    def _forget_task(self, task: Task) -> None:
        del self._tasks[task.pipe]
        self._selector.unregister(task.pipe)


def _handler(kind: Type[Result], handle: Callable[[Result], None]) -> Tuple[type, Callable[[Order], None]]:
    """Give a kind of order and what takes it."""

    def take(order: Order) -> None:
        assert isinstance(order, kind)
        handle(order)

    return kind, take


def _check_node(order: SetupOrder, base: Dict[str, str], cwd: str) -> NodeCheck:
    """Check the node where the session stood: a prelude may name files from there."""
    try:
        os.chdir(cwd)
    except OSError:
        pass  # it has been removed, and what needs it says so
    return check_node(order, base)


# What only some runs ask for is loaded in its task: an agent without a descriptor left can still say so.


def _sample(processes: Dict[int, Process], node_dir: str, ask: str, signalled: FrozenSet[int]) -> Samples:
    from .sample import sample

    return sample(processes, node_dir, ask, signalled)


def _counters(processes: Dict[int, Process], node_dir: str) -> CountersMessage:
    from .asking import counters

    return counters(processes, node_dir)


def _ask_calls(processes: Dict[int, Process], node_dir: str) -> "Asking":
    from .asking import Asking

    return Asking(processes, node_dir, "calls")


def _call_times(processes: Dict[int, Process], suspects: Tuple[int, ...], node_dir: str, most: int) -> CallTimesMessage:
    from .calltimes import answer

    return answer(processes, suspects, node_dir, most)


def _ask_imports(processes: Dict[int, Process], node_dir: str, began: float) -> ImportRecord:
    from .asking import ask_imports

    return ask_imports(processes, node_dir, began)


def _find_record(rank: RankOrder, environment: Dict[str, str]) -> FoundRecord:
    from .import_records import find_record

    return find_record(rank, environment)


def _keep_record(rank: RankOrder, environment: Dict[str, str], imports: ImportRecord, against: str) -> KeptRecord:
    from .import_records import keep_record

    return keep_record(rank, environment, imports, against)


def _reach(order: ReachOrder) -> ReachedMessage:
    from .peers import reach

    return reach(order)


def _followed(order: StartOrder) -> Dict[Stream, str]:
    """Give the files to follow in an attempt; raise DecodeError where there is nothing to start."""
    if not order.ranks or not all(rank.argv for rank in order.ranks):
        raise DecodeError("$.ranks: expected ranks, each with a command")
    files: Dict[Stream, str] = {}
    for entry in order.follow:
        kind = FOLLOWED[entry.kind]
        files[Stream(kind, entry.rank, order.attempt if kind in OF_ATTEMPT else 0)] = entry.path
    return files
