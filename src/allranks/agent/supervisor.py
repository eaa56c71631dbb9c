"""The supervisor: the agent's parent, and the guarantee that nothing outlives a run.

It does little, so that little can go wrong: it waits. When the agent dies, is stopped or does not beat any
more, it ends its whole tree, and touches no disk before. Then it drains the output pipes into the spool and
serves the agent's socket so that the controller can fetch what is left and learn what happened.
"""

from __future__ import annotations

import array
import os
import selectors
import socket
import time
from contextlib import suppress
from functools import partial
from typing import Callable, Dict, List, Optional

from allranks.protocol.codec import decode
from allranks.protocol.frames import NODE_LOG, RANK_LOG, Stream
from allranks.protocol.header import AgentHeader
from allranks.protocol.jsontext import read_json
from allranks.protocol.messages import DrainedMessage, EndedMessage, HelloMessage
from allranks.protocol.node_names import NodeFiles
from allranks.protocol.orders import EndOrder, HelloOrder, ReleaseOrder

from .controller_session import ControllerSession, Taken, on
from .door import Door
from .journal import AgentDeath, Journal, Past, read_journal
from .link import Link, describe_error, hello, log_traceback, still_followed
from .node_directory import kept_outputs, remove
from .outlet import Outlet
from .processes import (
    PR_SET_CHILD_SUBREAPER,
    Process,
    clear_wake,
    descendants,
    end_all,
    everything,
    prctl,
    read_process,
    reap_children,
    remaining,
    wake_by_signals,
)
from .supervised import FAILURES, LEASE_OVER, RELEASED, AgentNote

TICK = 1.0
DRAIN_SECONDS = 5.0
LONGEST_LOOK = 2 * TICK  # what counts of the time between two looks: the rest of it, this process itself did not run
FIRST_PATIENCE = 30.0  # seconds for the agent's first beat: a loaded machine imports slowly


class AgentWatch:
    """Tells from its beats and its state whether an agent holds its ranks, and by when it had to end them.

    It counts the seconds that this process ran too: neither a sleeping machine nor a loaded one ends ranks.
    """

    def __init__(self, lease: float, now: float) -> None:
        self.now = now
        self._awake = 0.0
        self._beat_at = 0.0  # seconds awake, as is `_ends_by`
        self._patience = max(FIRST_PATIENCE, lease)
        self._ends_by = float("inf")
        self._stops = 0

    def pass_time(self, now: float) -> None:
        """Count the time since the last call, before what came meanwhile is read."""
        self._awake += min(now - self.now, LONGEST_LOOK)
        self.now = now

    def beats(self, note: AgentNote) -> None:
        """Take a beat, and what it says."""
        self._beat_at = self._awake
        self._patience = note.patience
        self._ends_by = self._awake + note.ends_by - self.now

    def look(self, agent: Optional[Process]) -> Optional[str]:
        """Say why the agent's ranks have to be ended, None while it holds them. Called a second apart."""
        state = "?" if agent is None else agent.state
        # A shell's momentary stop is none, nor is what a tracer does (state t).
        self._stops = self._stops + 1 if state == "T" else 0
        if self._stops >= 2:
            return "was stopped (SIGSTOP)"
        quiet = self._awake - self._beat_at
        if quiet > self._patience:
            return "did not answer for %.0f s (state %s)" % (quiet, state)
        if self._awake > self._ends_by:
            return "did not end its ranks with the lease (state %s)" % state
        return None


class Supervisor:
    """Waits for one agent. `link` is a socket pair to it: the pipes' read ends come over it."""

    def __init__(
        self, header: AgentHeader, node_dir: str, listener: socket.socket, agent: int, link: socket.socket
    ) -> None:
        self._header = header
        self._dir = node_dir
        self._listener = listener
        self._agent = agent
        self._link = link
        self._pipes: Dict[Stream, int] = {}
        self._watch = AgentWatch(header.lease, time.monotonic())
        self._next_sample = time.monotonic() + TICK
        self._agent_status: Optional[int] = None  # as waitpid gave it

    def run(self) -> None:
        """Watch the agent, and return when nothing of the run is left to be done here."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        wake = wake_by_signals()
        self._link.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(wake, selectors.EVENT_READ)
            selector.register(self._link, selectors.EVENT_READ)
            how = self._wait(selector, wake)
        # By lineage first: reading environments waits for a process that maps a file of a stalled disk.
        left = end_all(lambda: descendants([os.getpid()]), reap_children)
        if how != "released":
            left = end_all(partial(everything, self._header.run_tag), reap_children)
        if how == "released":
            remove(self._dir)
        elif how != "lease-over":
            self._after_death(how, left)

    def _wait(self, selector: selectors.BaseSelector, wake: int) -> str:
        """Until the agent has ended or holds its ranks no longer; says how.

        Raises an error of its own that comes again and again: the agent knows of it and ends the ranks.
        """
        failures = 0
        how: Optional[str] = None
        while how is None:
            try:
                how = self._poll_agent(selector, wake)
            except Exception as error:
                failures += 1
                log_traceback()
                with suppress(OSError):  # the agent has ended, or knows of the last ones
                    self._link.send(describe_error(error).encode("utf-8", "backslashreplace"))
                if self._agent_status is not None:
                    how = _how(self._agent_status)
                elif failures > FAILURES:
                    agent = read_process(self._agent)
                    if agent is not None and not agent.has_ended:
                        raise
                    how = "is gone"  # only this process can end its ranks
        return how

    def _poll_agent(self, selector: selectors.BaseSelector, wake: int) -> Optional[str]:
        selector.select(max(0.0, self._next_sample - time.monotonic()))
        now = time.monotonic()
        self._watch.pass_time(now)
        clear_wake(wake)
        statuses = reap_children()
        self._agent_status = statuses.get(self._agent, self._agent_status)
        self._take_pipes()
        if self._agent_status is not None:
            return _how(self._agent_status)
        if now >= self._next_sample:
            self._next_sample = now + TICK
            return self._watch.look(read_process(self._agent))
        return None

    def _take_pipes(self) -> None:
        while True:
            try:
                data, rights, _, _ = self._link.recvmsg(4096, socket.CMSG_SPACE(4))
            except OSError:
                return
            if not data:
                return
            fds = array.array("i")
            for level, kind, content in rights:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
            note = decode(AgentNote, read_json(data))
            self._watch.beats(note)
            for fd in fds:
                os.set_inheritable(fd, False)
                assert note.rank is not None and note.attempt is not None
                for old in [s for s in self._pipes if s.attempt < note.attempt]:  # at their end
                    os.close(self._pipes.pop(old))
                self._pipes[Stream(RANK_LOG, note.rank, note.attempt)] = fd

    def _after_death(self, how: str, left: List[Process]) -> None:
        """Drain the pipes, note the agent's death, and serve whoever comes until the lease is over."""
        outlet = Outlet(NodeFiles(self._dir).spool)
        outlet.add_existing_spools()
        death = AgentDeath(how, time.time(), tuple(remaining(left)))
        try:
            Journal(self._dir).note(death)
            self._drain(outlet)
        except Exception:
            log_traceback()  # what was drained is served
        outlet.add_file(Stream(NODE_LOG, 0, 0), NodeFiles(self._dir).log)
        past = read_journal(self._dir)._replace(death=death)
        if Keeper(self._dir, outlet, past, self._header.lease, self._header.cwd).serve(self._listener):
            remove(self._dir)

    def _drain(self, outlet: Outlet) -> None:
        """Move what the pipes still hold to the spool; all writers are dead, so each comes to its end."""
        deadline = time.monotonic() + DRAIN_SECONDS
        for stream, fd in self._pipes.items():
            spool = outlet.spool(stream) or outlet.add_spool(stream)
            while time.monotonic() < deadline and spool.pump(fd):
                pass


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        return "was killed by signal %d" % os.WTERMSIG(status)
    code = os.WEXITSTATUS(status)
    return {RELEASED: "released", LEASE_OVER: "lease-over"}.get(code, "ended with code %d" % code)


class Keeper:
    """Serves what a dead agent left: its state out of the journal, its output out of the spool."""

    def __init__(self, node_dir: str, outlet: Outlet, past: Past, lease: float, cwd: str = "/") -> None:
        self._dir = node_dir
        self._cwd = cwd
        self._outlet = outlet
        self._past = past
        self._released = False
        self._selector = selectors.DefaultSelector()
        self._session = ControllerSession(self._selector, outlet, self, lease)
        self._table: Dict[type, Callable[[Taken], None]] = dict(
            (*self._session.rows(), on(EndOrder, self._on_end), on(ReleaseOrder, self._on_release))
        )
        outlet.remember_drops(past.dropped)

    def serve(self, listener: socket.socket) -> bool:
        """Until a controller releases (True) or none is heard for the lease (False)."""
        session = self._session
        door = Door(listener, self._selector, session.take_over)
        while not self._released and time.monotonic() - session.heard < session.lease:
            self._take_input(min(TICK, session.lease))
            door.look(time.monotonic())
        self._selector.close()
        return self._released

    def serve_one(self, sock: socket.socket) -> bool:
        """Over this connection alone, until the controller at its other end releases (True) or leaves (False)."""
        self._session.take_over(Link(sock), [])
        while not self._released and self._session.link is not None:
            self._take_input(5 * TICK)
        return self._released

    def _take_input(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            if still_followed(self._selector, key):
                key.data()
        self._session.send_output()

    # -- controller_session.Owner --------------------------------------------------------------------

    def obey(self, order: Taken) -> None:
        """Carry out an order; those to an agent that lives are not answered."""
        take = self._table.get(type(order))
        if take is not None:
            take(order)

    def greet(self, order: HelloOrder) -> HelloMessage:
        """Say that the agent is dead, and how it died."""
        past = self._past
        greeting = hello(self._dir, self._cwd, past.attempt)._replace(dead=True, how="is gone")
        if past.death is None:
            return greeting
        return greeting._replace(how=past.death.how, died_t=past.death.t)

    def drained(self) -> DrainedMessage:
        """Say how much output there is: no more will come."""
        return DrainedMessage(self._past.attempt.attempt, self._outlet.sizes(), kept_outputs(self._dir))

    def _on_end(self, order: EndOrder) -> None:
        left = () if self._past.death is None else self._past.death.left
        self._session.tell(EndedMessage(self._past.attempt.attempt, left, "agent-death", 0.0, time.time()))
        self._session.report_drained()

    def _on_release(self, order: ReleaseOrder) -> None:
        self._released = True
