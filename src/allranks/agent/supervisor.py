"""The supervisor: the agent's parent, and the guarantee that nothing outlives a run.

It does little, so that little can go wrong: it waits. When the agent dies, or is found stopped twice, it
ends its whole tree, drains the output pipes into the spool and serves the agent's socket so that the
controller can fetch what is left and learn what happened.
"""

import array
import json
import os
import selectors
import signal
import socket
import time
from typing import Any, Dict, List, Optional

from allranks.protocol.frames import NODE_LOG, FrameError, Output, Stream

from .cgroups import members
from .cgroups import remove as remove_group
from .link import HIGH_WATER, Journal, Link, hello, read_journal
from .nodedir import kept_outputs, remove
from .outlet import RANK_LOG, Outlet
from .processes import (
    PR_SET_CHILD_SUBREAPER,
    Process,
    command_of,
    end_all,
    everything,
    prctl,
    read_process,
    reap_children,
)

TICK = 1.0
END_SECONDS = 5.0
DRAIN_SECONDS = 5.0
RELEASED = 0
LEASE_OVER = 3


class Supervisor:
    """Waits for one agent. `link` is a socket pair to it: beats and the pipes' read ends come over it."""

    def __init__(
        self, header: Dict[str, Any], node_dir: str, listener: socket.socket, agent: int, link: socket.socket
    ) -> None:
        self._header = header
        self._dir = node_dir
        self._listener = listener
        self._agent = agent
        self._link = link
        self._group: Optional[str] = None
        self._pipes: Dict[Stream, int] = {}
        self._stops = 0

    def run(self) -> None:
        """Returns when nothing of the run is left to be done here."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        read_end, write_end = os.pipe()
        for end in (read_end, write_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        self._link.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(read_end, selectors.EVENT_READ)
            selector.register(self._link, selectors.EVENT_READ)
            how = self._wait(selector, read_end)
        left = end_all(self._everything, reap_children, END_SECONDS)
        remove_group(self._group)
        if how == "released":
            remove(self._dir)
        elif how != "lease-over":
            self._after_death(how, left)

    def _wait(self, selector: selectors.BaseSelector, wake: int) -> str:
        """Until the agent has ended or is stopped; says how."""
        next_look = time.monotonic() + TICK
        while True:
            selector.select(max(0.0, next_look - time.monotonic()))
            self._take_pipes()
            try:
                os.read(wake, 4096)
            except BlockingIOError:
                pass
            statuses = reap_children()
            if self._agent in statuses:
                return _how(statuses[self._agent])
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + TICK
                if self._agent_is_stopped():
                    return "was stopped (SIGSTOP)"

    def _agent_is_stopped(self) -> bool:
        """Two looks a second apart: a shell's momentary stop is none."""
        process = read_process(self._agent)
        self._stops = self._stops + 1 if process is not None and process.state in "Tt" else 0
        return self._stops >= 2

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
            note = json.loads(data.decode())
            self._group = note.get("group", self._group)
            for fd in fds:
                os.set_inheritable(fd, False)
                self._keep(Stream(RANK_LOG, note["rank"], note["attempt"]), fd)

    def _keep(self, stream: Stream, fd: int) -> None:
        """Pipes of earlier attempts are at their end and no longer needed."""
        for old in [s for s in self._pipes if s.attempt < stream.attempt]:
            os.close(self._pipes.pop(old))
        self._pipes[stream] = fd

    def _everything(self) -> List[Process]:
        return everything(self._header["mark"], [p for p in members(self._group) if p != self._agent])

    def _after_death(self, how: str, left: List[Process]) -> None:
        """The agent is gone: drain, note it, and serve whoever comes until the lease is over."""
        outlet = Outlet(os.path.join(self._dir, "spool"))
        outlet.add_existing_spools()
        self._drain(outlet)
        outlet.add_file(Stream(NODE_LOG, 0, 0), os.path.join(self._dir, "node.log"))
        names = [{"pid": p.pid, "state": p.state, "command": command_of(p.pid)} for p in left]
        journal = os.path.join(self._dir, "journal.jsonl")
        Journal(journal).write({"event": "agent-death", "how": how, "left": names, "t": time.time()})
        keeper = Keeper(self._dir, outlet, read_journal(journal))
        if keeper.serve(self._listener, float(self._header["lease"])):
            remove(self._dir)

    def _drain(self, outlet: Outlet) -> None:
        """What the pipes still hold goes to the spool; all writers are dead, so each comes to its end."""
        deadline = time.monotonic() + DRAIN_SECONDS
        for stream, fd in self._pipes.items():
            spool = outlet.spool(stream) or outlet.add_spool(stream)
            while time.monotonic() < deadline:
                if not spool.pump(fd):
                    break


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        return "was killed by signal %d" % os.WTERMSIG(status)
    code = os.WEXITSTATUS(status)
    return {RELEASED: "released", LEASE_OVER: "lease-over"}.get(code, "ended with code %d" % code)


class Keeper:
    """Serves what a dead agent left: its state out of the journal, its output out of the spool."""

    def __init__(self, node_dir: str, outlet: Outlet, journal: List[Dict[str, Any]]) -> None:
        self._dir = node_dir
        self._outlet = outlet
        self._journal = journal
        self._told = False
        self._greeted = False  # no output flows before a controller said how much it has
        drops = [e["streams"] for e in journal if e.get("event") == "drops"]
        outlet.remember_drops(drops[-1] if drops else {})

    def serve(self, listener: socket.socket, lease: float) -> bool:
        """Until a controller releases (True) or none is heard for the lease (False)."""
        listener.setblocking(False)
        heard = time.monotonic()
        link: Optional[Link] = None
        while time.monotonic() - heard < lease:
            with selectors.DefaultSelector() as selector:
                selector.register(listener, selectors.EVENT_READ)
                if link is not None:
                    mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.backlog else 0)
                    selector.register(link.sock, mask)
                selector.select(min(TICK, lease))
            link = self._accept(listener, link)
            if link is None:
                continue
            try:
                frames = link.receive()
                if frames:
                    heard = time.monotonic()
                if self.answer(link, frames):
                    return True
            except (EOFError, OSError, FrameError):
                link.close()
                link = None
        return False

    def _accept(self, listener: socket.socket, link: Optional[Link]) -> Optional[Link]:
        try:
            sock, _ = listener.accept()
        except OSError:
            return link
        if link is not None:
            link.close()
        self._told = self._greeted = False
        return Link(sock)

    def answer(self, link: Link, frames: List[Any]) -> bool:
        """Answers frames and sends output; True once released."""
        for frame in frames:
            kind = "" if isinstance(frame, Output) else frame["type"]
            if kind == "hello":
                self._greeted = True
                self._outlet.controller_has(frame.get("have", {}))
                link.send(self._hello())
            elif kind == "ping":
                link.send({"type": "pong", "sent": frame.get("sent"), "t": time.time()})
            elif kind == "ack":
                self._outlet.acknowledge(frame.get("sizes", {}))
            elif kind == "release":
                return True
            elif kind == "end":
                link.send(
                    {
                        "type": "ended",
                        "attempt": self._summary()["attempt"],
                        "left": self._left(),
                        "reason": "agent-death",
                        "seconds": 0.0,
                        "t": time.time(),
                    }
                )
                self._told = False
        link.flush()
        if self._greeted and link.backlog < HIGH_WATER:
            link.send_bytes(self._outlet.fill(HIGH_WATER))
            for drop in self._outlet.new_drops():
                link.send(drop.to_message())
        if self._outlet.drained and not self._told and self._greeted:
            self._told = True
            link.send(
                {
                    "type": "drained",
                    "attempt": self._summary()["attempt"],
                    "sizes": self._outlet.sizes(),
                    "outputs": kept_outputs(self._dir),
                }
            )
        link.flush()
        return False

    def _hello(self) -> Dict[str, Any]:
        death = [e for e in self._journal if e.get("event") == "agent-death"]
        over = [e for e in self._journal if e.get("event") == "lease-over"]
        if death:
            how = death[-1]["how"]
        elif over:
            how = "ended: its lease was over"
        else:
            how = "is gone"
        died_t = (death or over or [{"t": None}])[-1]["t"]
        return hello(self._dir, dead=True, how=how, died_t=died_t, attempt=self._summary())

    def _left(self) -> List[Dict[str, Any]]:
        death = [e for e in self._journal if e.get("event") == "agent-death"]
        return list(death[-1]["left"]) if death else []

    def _summary(self) -> Dict[str, Any]:
        """The last attempt's ranks as the journal has them."""
        number = max([e.get("attempt", 0) for e in self._journal if e.get("type") == "started"] or [0])
        ranks: Dict[str, Any] = {}
        for entry in self._journal:
            if entry.get("attempt") != number:
                continue
            if entry.get("type") == "started":
                ranks[str(entry["rank"])] = {
                    "pid": entry["pid"],
                    "start_time": entry["start_time"],
                    "exit": None,
                }
            elif entry.get("type") == "exit" and str(entry["rank"]) in ranks:
                ranks[str(entry["rank"])]["exit"] = entry
        return {"attempt": number, "ranks": ranks, "ending": True, "ended": self._left()}
