"""The node's side of a channel that the node itself opens: dial the controller, start the relay, carry frames.

Where nobody can log in (Kubernetes pods, tasks of a scheduler, a second terminal), every node dials the node
that coordinates. Records carry control messages (`C` and JSON) or bytes of a channel (`D`, 4 bytes its number).

    node → controller: hello, closed, stop, signal  controller → node: wait, refused, open, close, over

A connection that breaks is dialled again for as long as the lease lasts; the guard and its ranks do not notice.
"""

import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from .frames import Decoder, FrameError, pack_json
from .processes import USER_SIGNALS
from .secure import Handshake, Records, SecureError

CONNECT_SECONDS = 5.0
HANDSHAKE_SECONDS = 10.0
SILENT = 20.0  # seconds without a word after which a connection is taken for dead; beats come every 5
PAUSES = (0.2, 0.5, 1.0, 2.0)
HIGH_WATER = 4 << 20
OVER_SECONDS = 5.0
USER_SIGNALS_KEPT = 16  # of those that come while there is no connection
USAGE, NODE_FAILED, CTRL_C, SIGTERM_CODE = 2, 4, 130, 143


class Outcome(NamedTuple):
    """How it ended: the exit code, and a sentence for the person at this node."""

    exit: int
    message: str


class Refused(Exception):
    """This node does not do what it was asked to; the text says why."""


Message = Dict[str, Any]
Spawn = Callable[[Message], "subprocess.Popen[bytes]"]


class Rules:
    """What a node does with an order before it goes to the guard. This one lets everything pass."""

    def header(self, header: Message) -> Message:
        """The header of a relay; raises Refused."""
        return header

    def down(self, data: bytes) -> bytes:
        """Bytes for the guard; raises Refused."""
        return data

    def up(self, data: bytes) -> None:
        """Bytes from the guard, as they pass."""


class Dialler:
    """Dials, and serves the connection until the run is over. `say` shows a line to the person at this node."""

    def __init__(
        self, places: List[Tuple[str, int]], secret: bytes, hello: Message, spawn: Spawn, rules: Rules,
        patience: float, lease: float, say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._places, self._secret, self._hello = places, secret, hello
        self._spawn, self._rules, self._say = spawn, rules, say
        self._patience, self._lease = patience, lease
        self._socket: Optional[socket.socket] = None
        self._records: Optional[Records] = None
        self._child: Optional["subprocess.Popen[bytes]"] = None
        self._number = -1
        self._header: Message = {}
        self._out, self._in = bytearray(), bytearray()  # to the controller, to the child
        self._heard = 0.0
        self._begun = False  # a guard has been started here
        self._over: Optional[Outcome] = None
        self._over_at = 0.0
        self._signals: List[int] = []
        self._for_the_ranks: List[str] = []  # names of signals that the controller has not been told of
        self._passed_on = False
        self.one_signal = False  # an engine repeats it, and ends us by SIGKILL when its time is up
        self._said = ""
        self._wake_read, self._wake_write = os.pipe()

    # -- the loop ----------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Until the controller says that it is over, refuses this node, or stays away for too long."""
        self._catch_signals()
        self._heard = time.monotonic()
        tries = 0
        while True:
            outcome = self._dial()
            if outcome is not None:
                return outcome
            if self._socket is not None:
                tries = 0
                outcome = self._serve()
                self._hang_up()
                if outcome is not None:
                    return outcome
            if self._signals:
                return self._leave(self._signals[0])
            limit = self._lease if self._begun else self._patience
            if time.monotonic() - self._heard > limit:
                return self._alone(limit)
            self._rest(PAUSES[min(tries, len(PAUSES) - 1)])
            tries += 1

    def _catch_signals(self) -> None:
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda got, _: self._signals.append(got))
        for number in USER_SIGNALS.values():
            signal.signal(number, self._keep_for_ranks)

    def _keep_for_ranks(self, number: int, frame: object) -> None:
        """A signal for the ranks came here. The controller passes it on to all of them, once it is told."""
        if len(self._for_the_ranks) < USER_SIGNALS_KEPT:
            self._for_the_ranks += [name for name, known in USER_SIGNALS.items() if known == number]

    def _rest(self, seconds: float) -> None:
        """Sleeps, but a signal ends it."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            if selector.select(seconds):
                self._clear_wake()

    def _clear_wake(self) -> None:
        try:
            os.read(self._wake_read, 512)
        except OSError:
            pass

    def _once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._say(text)

    # -- dialling ----------------------------------------------------------------------------------

    def _dial(self) -> Optional[Outcome]:
        """One try at every address; an outcome only where another try is of no use."""
        why = "no address"
        for host, port in self._places:
            try:
                sock = socket.create_connection((host, port), CONNECT_SECONDS)
            except OSError as error:
                why = "%s:%d: %s" % (host, port, error.strerror or error)
                continue
            try:
                self._greet(sock)
                return None
            except SecureError as error:
                sock.close()
                return Outcome(USAGE, "%s:%d: %s; set the same ALLRANKS_JOIN_SECRET everywhere" % (host, port, error))
            except (OSError, EOFError) as error:
                sock.close()
                why = "%s:%d hung up during the handshake (%s)" % (host, port, error or "another secret?")
        self._once("waiting for the coordinator: " + why)
        return None

    def _greet(self, sock: socket.socket) -> None:
        """Handshake and hello; raises OSError, EOFError, SecureError."""
        sock.settimeout(HANDSHAKE_SECONDS)
        shake = Handshake(self._secret, listens=False)
        sock.sendall(shake.begin())
        while not shake.done:
            data = sock.recv(4096)
            if not data:
                raise EOFError
            sock.sendall(shake.feed(data))
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._records = sock, shake.channel()
        self._heard = time.monotonic()
        self._out.clear()
        self._tell({**self._hello, "type": "hello", "begun": self._begun})

    # -- serving -----------------------------------------------------------------------------------

    def _serve(self) -> Optional[Outcome]:
        """Carries bytes until the connection breaks (None) or it is over."""
        with selectors.PollSelector() as selector:  # relays come and go, and their descriptors' numbers with them
            while True:
                if self._signals:
                    self._pass_signal()
                while self._for_the_ranks:
                    self._tell({"type": "signal", "name": self._for_the_ranks.pop(0)})
                if self._over is not None and (self._child is None or time.monotonic() > self._over_at):
                    self._end_child()
                    return self._over
                try:
                    self._round(selector)
                except (EOFError, OSError):
                    return self._over
                except (SecureError, FrameError, ValueError, TypeError, KeyError, struct.error) as error:
                    self._once("the connection to the coordinator is given up: %s" % error)
                    return self._over
                except Refused as error:
                    return self._refuse(str(error))
                if time.monotonic() - self._heard > SILENT:
                    self._once("the coordinator is silent: dialling again")
                    return self._over

    def _round(self, selector: selectors.BaseSelector) -> None:
        assert self._socket is not None
        child_in = child_out = -1
        if self._child is not None:
            assert self._child.stdin is not None and self._child.stdout is not None
            child_in, child_out = self._child.stdin.fileno(), self._child.stdout.fileno()
        wanted = {
            self._socket.fileno(): (len(self._in) < HIGH_WATER, bool(self._out)),
            child_out: (len(self._out) < HIGH_WATER, False),
            child_in: (False, bool(self._in)),
            self._wake_read: (True, False),
        }
        _want(selector, wanted)
        for key, events in selector.select(1.0):
            if key.fd == self._wake_read:
                self._clear_wake()
            elif key.fd == child_out:
                self._from_child(child_out)
            elif key.fd == child_in:
                self._to_child()
            else:
                if events & selectors.EVENT_READ:
                    self._from_controller()
                if events & selectors.EVENT_WRITE and self._socket is not None:
                    del self._out[: self._socket.send(memoryview(self._out)[: 256 << 10])]

    def _from_controller(self) -> None:
        assert self._socket is not None and self._records is not None
        try:
            data = self._socket.recv(256 << 10)
        except BlockingIOError:
            return
        if not data:
            raise EOFError
        self._heard = time.monotonic()
        for record in self._records.feed(data):
            if record[:1] == b"C":
                self._obey(json.loads(record[1:].decode()))
            elif record[:1] == b"D" and struct.unpack_from(">I", record, 1)[0] == self._number:
                self._in += self._rules.down(record[5:])

    def _obey(self, message: Message) -> None:
        kind = message["type"]
        if kind == "wait":
            if message.get("say"):
                self._once(str(message["say"]))
        elif kind == "open":
            self._end_child()
            self._header = self._rules.header(message["header"])
            self._number, self._begun = int(message["number"]), True
            self._child = self._spawn(self._header)
            assert self._child.stdin is not None and self._child.stdout is not None
            for pipe in (self._child.stdin, self._child.stdout):
                os.set_blocking(pipe.fileno(), False)
        elif kind == "close" and message.get("number") == self._number:
            self._end_child()
        elif kind in ("over", "refused"):
            code = int(message["exit"])
            self._over = Outcome(code, str(message.get("message") or ""))
            self._over_at = time.monotonic() + OVER_SECONDS

    def _from_child(self, fd: int) -> None:
        try:
            data = os.read(fd, 256 << 10)
        except BlockingIOError:
            return
        if not data:
            number = self._number
            self._end_child()
            self._tell({"type": "closed", "number": number})
            return
        self._rules.up(data)
        assert self._records is not None
        self._out += self._records.pack(b"D" + struct.pack(">I", self._number) + data)

    def _to_child(self) -> None:
        assert self._child is not None and self._child.stdin is not None
        try:
            del self._in[: os.write(self._child.stdin.fileno(), memoryview(self._in)[: 256 << 10])]
        except BlockingIOError:
            return
        except OSError:
            self._in.clear()  # its end of output will tell

    def _tell(self, message: Message) -> None:
        assert self._records is not None
        self._out += self._records.pack(b"C" + json.dumps(message).encode())

    # -- ends --------------------------------------------------------------------------------------

    def _end_child(self) -> None:
        """Ends the relay (never the guard)."""
        child, self._child = self._child, None
        self._in.clear()
        if child is None:
            return
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass
        if child.poll() is None:
            child.kill()
        child.wait()

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = self._records = None
        self._end_child()
        self._number = -1

    def _pass_signal(self) -> None:
        """The coordinator ends the run in order; a second signal does not wait for it."""
        if len(self._signals) > 1 and not self.one_signal:
            self._over = self._leave(self._signals[0])
        elif not self._passed_on:
            self._passed_on = True
            self._tell({"type": "stop", "reason": "ctrl-c" if self._signals[0] == signal.SIGINT else "sigterm"})

    def _refuse(self, why: str) -> Outcome:
        """An order that this node does not carry out ends what runs here."""
        self._hang_up()
        self._end_guard(0.0, "refused")
        return Outcome(NODE_FAILED, "this node refused an order of the coordinator: " + why)

    def _leave(self, number: int) -> Outcome:
        self._hang_up()
        self._end_guard(0.0, "stop")
        if number == signal.SIGINT:
            return Outcome(CTRL_C, "ended by Ctrl-C")
        return Outcome(SIGTERM_CODE, "ended by %s" % signal.Signals(number).name)

    def _alone(self, limit: float) -> Outcome:
        where = ", ".join("%s:%d" % place for place in self._places)
        if not self._begun:
            return Outcome(NODE_FAILED, "no coordinator answered at %s within %g s" % (where, limit))
        self._end_guard(0.0, "lease")
        text = "nothing was heard from the coordinator (%s) for the lease of %g s: the ranks here are ended"
        return Outcome(NODE_FAILED, text % (where, limit))

    def _end_guard(self, grace: float, reason: str) -> None:
        """Has this node's guard end its ranks and itself, and waits for it (as a controller would)."""
        if not self._begun:
            return
        child = self._spawn({**self._header, "mode": "attach"})
        assert child.stdin is not None and child.stdout is not None
        hello = {"type": "hello", "protocol": 1, "lease": 10.0, "have": {}}
        try:
            child.stdin.write(pack_json(hello) + pack_json({"type": "end", "grace": grace, "reason": reason}))
            child.stdin.flush()
            self._await_end(child)
        except (OSError, ValueError):
            pass
        finally:
            self._child = child
            self._end_child()

    def _await_end(self, child: "subprocess.Popen[bytes]") -> None:
        assert child.stdin is not None and child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        decoder, deadline = Decoder(), time.monotonic() + 15.0
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while time.monotonic() < deadline:
                if not selector.select(0.5):
                    continue
                data = os.read(child.stdout.fileno(), 1 << 18)
                if not data:
                    return
                kinds = [f["type"] for f in decoder.feed(data) if isinstance(f, dict)]
                if "fault" in kinds or "ended" in kinds:
                    child.stdin.write(pack_json({"type": "release"}))
                    child.stdin.flush()
                    deadline = min(deadline, time.monotonic() + 2.0)


def _want(selector: selectors.BaseSelector, wanted: Dict[int, Tuple[bool, bool]]) -> None:
    """Makes the selector watch exactly what is wanted: descriptor → (read, write)."""
    masks = {
        fd: (selectors.EVENT_READ if read else 0) | (selectors.EVENT_WRITE if write else 0)
        for fd, (read, write) in wanted.items()
        if fd >= 0
    }
    present = {key.fd: key.events for key in selector.get_map().values()}
    for fd, events in present.items():
        if not masks.get(fd):
            selector.unregister(fd)
        elif masks[fd] != events:
            selector.modify(fd, masks[fd])
    for fd, mask in masks.items():
        if mask and fd not in present:
            selector.register(fd, mask)
