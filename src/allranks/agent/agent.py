"""The agent: owns the ranks of one node. Single-threaded; all that may block runs in a forked task.

`Agent` is the loop over its parts: it waits for input, hands each order to who carries it out (`_table`), looks once a
second at the lease, and decides how all of it ends. What the parts share is `ThisNode`. It listens on a Unix socket in
the node directory. One controller at a time: a newer one replaces the older. Without word from a controller for the
lease, it ends its ranks and itself.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from functools import partial
from typing import Dict, Mapping, Optional

from allranks.protocol import orders
from allranks.protocol.codec import DecodeError
from allranks.protocol.foreign import ReportMessage, read_report
from allranks.protocol.frames import NODE_LOG, OutputFrame, Stream
from allranks.protocol.header import AgentHeader
from allranks.protocol.jsontext import Json
from allranks.protocol.messages import DrainedMessage, FaultMessage, HelloMessage, Message, RefusedMessage
from allranks.protocol.node_names import NodeFiles
from allranks.protocol.processes import AgentBegun

from .attempt import RankAttempt
from .controller_session import ControllerSession, Taken, on
from .door import Door
from .forked_tasks import Tasks
from .journal import AgentDeath, DroppedBytes, Journal
from .link import describe_error, hello, log, log_traceback, still_followed
from .node_directory import kept_outputs, remove
from .node_samples import NodeSamples
from .outlet import Outlet
from .processes import END_SECONDS, lives, machine, read_process, wake_by_signals
from .ranks import Ranks
from .readiness import Readiness
from .receiver import TreeReceiver
from .supervised import FAILURES, LEASE_OVER, RELEASED, AgentNote, SupervisorLink
from .this_node import ThisNode

# -- What the training program reports ---------------------------------------------------------------------------------
# Any process of the user may send some, and a program may send them faster than they are read.

REPORTS = "a report to the agent"  # what the program's datagrams are called where they cannot be read
AT_ONCE = 256  # read before anything else is done
# of one rank and of all in an attempt; a rank has some for each process group
MOST_OF_RANK = 1 << 10
MOST = 16 << 10


class ProgramReports:
    """Reads the datagrams, and passes on what they say."""

    def __init__(self, node: ThisNode, ranks: Ranks, readiness: Readiness) -> None:
        self._node = node
        self._ranks = ranks
        self._readiness = readiness
        self._attempt: Optional[RankAttempt] = None
        self._taken: Dict[int, int] = {}  # in this attempt, by rank
        self._taken_in_all = 0
        self.refused = 0  # could not be read
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def open(self) -> None:
        """Listen; the ranks know the name by their environment."""
        self._socket.bind(NodeFiles(self._node.directory).reports)
        self._socket.setblocking(False)
        self._node.selector.register(self._socket, selectors.EVENT_READ, self.read)

    def read(self) -> None:
        """Take what has come."""
        for _ in range(AT_ONCE):
            try:
                data = self._socket.recv(65536)
            except OSError:
                return
            try:
                report = read_report(data)
                self._count(report)
            except DecodeError as error:
                if not self.refused:
                    self._node.tell(RefusedMessage(REPORTS, str(error), time.time()))
                self.refused += 1
                continue
            if report.event == "initialised":
                self._readiness.release_port()
                self._ranks.initialised(report)
            if not (self._ranks.launched(report) or self._ranks.is_below(report)):
                self._node.tell(report)

    def _count(self, report: ReportMessage) -> None:
        """Count a report; raise DecodeError where the program has sent more than a run has use for."""
        if self._attempt is not self._ranks.attempt:
            self._attempt = self._ranks.attempt
            self._taken = {}
            self._taken_in_all = 0
        of_rank = self._taken.get(report.rank, 0) + 1
        if of_rank > MOST_OF_RANK or self._taken_in_all >= MOST:
            raise DecodeError("expected at most %d of a rank, and %d in all" % (MOST_OF_RANK, MOST))
        self._taken[report.rank] = of_rank
        self._taken_in_all += 1


TICK = 1.0  # seconds between samples of the supervisor and lease checks
UNGREETED = 10.0  # seconds an agent without ranks waits for a controller: the one it had died at the start
LEAST_PATIENCE = 5.0  # seconds that a beat may be late, however short the lease is: a loaded machine has its hiccups
ENDING_SECONDS = 2 * END_SECONDS + 5.0  # what an end takes beyond its grace, at most


class Agent:
    """The loop, the table of orders, and the end."""

    def __init__(self, header: AgentHeader, node_dir: str, listener: socket.socket, supervisor: socket.socket) -> None:
        self._header = header
        self._dir = node_dir
        self._journal = Journal(node_dir)
        self._outlet = Outlet(NodeFiles(node_dir).spool)
        self._outlet.add_file(Stream(NODE_LOG, 0, 0), NodeFiles(node_dir).log)
        self._selector = selectors.DefaultSelector()
        self._session = ControllerSession(self._selector, self._outlet, self, header.lease)
        self._door = Door(listener, self._selector, self._session.take_over)
        self._supervisor = SupervisorLink(supervisor, self._selector, self._note, self._end_by_fault)
        self._tasks = Tasks(self._selector, self._tell)
        node = ThisNode(header, node_dir, self._selector, self._outlet, self._tasks, tell=self._tell)
        self._readiness = Readiness(node)
        self._ranks = Ranks(node, self._readiness, self._supervisor)
        self._samples = NodeSamples(node, self._ranks)
        self._reports = ProgramReports(node, self._ranks, self._readiness)
        self._receiver = TreeReceiver(node_dir, self._tell, self._tasks.run)
        self._launch: Optional[Mapping[str, Json]] = None  # for a controller that takes the run over
        self._drops: Dict[str, int] = {}
        self._next_tick = 0.0
        self._failures = 0
        self._result: Optional[int] = None
        self._table = dict(
            (
                *self._session.rows(),
                on(orders.KeepOrder, self._on_keep),
                on(orders.ShipOrder, self._receiver.ship),
                on(OutputFrame, self._receiver.chunk),
                on(orders.SetupOrder, self._readiness.on_setup),
                on(orders.ListenOrder, self._readiness.on_listen),
                on(orders.ProbeOrder, self._readiness.on_probe),
                on(orders.ReadyOrder, self._readiness.on_ready),
                on(orders.ServeOrder, self._readiness.on_serve),
                on(orders.ReachOrder, self._readiness.on_reach),
                on(orders.PreloadOrder, self._ranks.on_preload),
                on(orders.ImportsOrder, self._ranks.on_imports),
                on(orders.StartOrder, self._ranks.on_start),
                on(orders.SignalOrder, self._ranks.on_signal),
                on(orders.SaveOrder, self._ranks.on_save),
                on(orders.StacksOrder, self._samples.on_stacks),
                on(orders.ProfileOrder, self._samples.on_profile),
                on(orders.CountersOrder, self._samples.on_counters),
                on(orders.CallTimesOrder, self._samples.on_call_times),
                on(orders.UsageOrder, self._samples.on_usage),
                on(orders.EndOrder, self._on_end),
                on(orders.ReleaseOrder, self._on_release),
            )
        )

    # -- the loop ------------------------------------------------------------------------------------

    def run(self) -> int:
        """Until released (gives RELEASED), or the lease is over and everything has ended (LEASE_OVER)."""
        self._reports.open()
        wake = wake_by_signals()
        self._selector.register(wake, selectors.EVENT_READ, partial(self._ranks.on_children, wake))
        processes = map(read_process, (os.getpid(), self._supervisor.pid))
        keepers = tuple((p.pid, p.start) for p in processes if p is not None)
        self._journal.note(AgentBegun(os.getpid(), keepers, machine(), time.time()))
        self._supervisor.beat()
        while self._result is None:
            try:
                for key, _ in self._selector.select(self._timeout()):
                    if still_followed(self._selector, key):
                        key.data()
                self._work()
                self._ranks.let_them_print()
            except Exception as error:
                self._failed_itself(error)
        return self._result

    def _timeout(self) -> float:
        of_ranks = self._ranks.next_deadline(self._session.link is not None)
        return max(0.0, min(self._next_tick, of_ranks, self._tasks.next_deadline()) - time.monotonic())

    def _work(self) -> None:
        """Do what is due by time, after all input that was pending has been read."""
        now = time.monotonic()
        self._tasks.look(now)
        if self._ranks.advance(now):
            self._session.report_drained()
        if now >= self._next_tick:
            self._next_tick = now + TICK
            self._tick(now)
        self._session.send_output()

    def _tick(self, now: float) -> None:
        self._supervisor.look()
        self._door.look(now)
        self._note_drops()
        self._ranks.look(now)
        attempt = self._ranks.attempt
        if attempt is not None and not attempt.ending:
            self._samples.look(attempt, now)
        self._check_lease(now)
        self._supervisor.beat()

    def _note_drops(self) -> None:
        """In the journal, for whoever comes after this process; the first of them in the node's log too."""
        drops = self._outlet.drops()
        if drops == self._drops:
            return
        if not self._drops:
            log("output is dropped: the disk is full, or the spool has its share of it")
        self._drops = drops
        self._journal.note(DroppedBytes(drops, time.time()))

    def _tell(self, message: Message) -> None:
        """To the controller where there is one, and to the journal what is read again."""
        self._journal.keep(message)
        self._session.tell(message)

    # -- the lease -----------------------------------------------------------------------------------

    def _note(self) -> AgentNote:
        session = self._session
        ends_by = session.heard + session.lease + self._header.grace
        attempt = self._ranks.attempt
        if attempt is not None:
            ends_by = max(ends_by, attempt.next_deadline() or 0.0)
        patience = max(session.lease, LEAST_PATIENCE)
        return AgentNote(patience=patience, ends_by=ends_by + ENDING_SECONDS)

    def _check_lease(self, now: float) -> None:
        session = self._session
        patience = session.lease
        is_idle = self._ranks.attempt is None and self._launch is None  # a hot spare of a run that goes on is not
        if not session.greeted or (session.link is None and is_idle):
            patience = min(patience, UNGREETED)
        holder = self._header.holder  # the engine's task on this node, or its join: without it no controller can come
        if holder is not None and not lives(*holder):
            self._lease_over("what connected this node to the controller has ended")
        elif now - session.heard > patience:
            self._lease_over("no word from the controller for %g s: the lease is over" % session.lease)

    def _lease_over(self, why: str) -> None:
        attempt = self._ranks.attempt
        if attempt is None:
            self._result = RELEASED  # nothing ever ran here: nothing is worth keeping
        elif attempt.ended:
            self._journal.note(AgentDeath("ended: its lease was over", time.time()))
            self._result = LEASE_OVER
        elif not attempt.ending:
            log(why + ", ending the ranks")
            self._ranks.end("lease")

    # -- defects -------------------------------------------------------------------------------------

    def _failed_itself(self, error: Exception) -> None:
        """End the ranks in order after a defect of the agent.

        Raise the error where it comes again and again: the agent then ends, and the supervisor ends the ranks."""
        self._failures += 1
        if self._failures > FAILURES:
            raise error
        log_traceback()
        self._end_by_fault("internal-error", describe_error(error))

    def _end_by_fault(self, kind: str, description: str) -> None:
        self._tell(FaultMessage(kind, description, t=time.time()))
        self._ranks.end(kind)

    # -- orders (controller_session.Owner) -----------------------------------------------------------

    def obey(self, order: Taken) -> None:
        """Have an order carried out."""
        self._table[type(order)](order)

    def greet(self, order: orders.HelloOrder) -> HelloMessage:
        """Say who this is, and what a controller that takes the run over needs."""
        attempt = self._ranks.attempt
        greeting = hello(self._dir, self._header.cwd, attempt.summary() if attempt is not None else None)
        if order.asks_launch and self._launch is not None:
            return greeting._replace(launch=dict(self._launch))
        return greeting

    def drained(self) -> Optional[DrainedMessage]:
        """Say how much output the ended attempt has left; None while it runs."""
        attempt = self._ranks.attempt
        if attempt is None or not attempt.ended:
            return None
        refused = {REPORTS: self._reports.refused} if self._reports.refused else {}
        return DrainedMessage(attempt.number, self._outlet.sizes(), kept_outputs(self._dir), refused)

    def _on_keep(self, order: orders.KeepOrder) -> None:
        self._launch = order.launch

    def _on_end(self, order: orders.EndOrder) -> None:
        self._receiver.interrupt()
        self._ranks.on_end(order)
        self._session.report_drained()

    def _on_release(self, order: orders.ReleaseOrder) -> None:
        """All is done and fetched. The supervisor removes the node directory."""
        attempt = self._ranks.attempt
        if attempt is not None and not attempt.ended:
            self._tell(FaultMessage("protocol", "release before the ranks have ended"))
            return
        self._result = RELEASED
        self._session.send_output()
        if self._supervisor.is_gone:
            remove(self._dir)  # the supervisor would have done it
