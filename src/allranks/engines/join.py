"""join: every node runs the same command, and node 0 coordinates over TCP (IO).

Here are both sides of the meeting: what a node says of itself, who is admitted, and the node that follows.
The coordinator's run is an ordinary one, over `dialled.DialledTransport`.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import allranks
from allranks.agent.dial import (
    CallDeclined,
    Dialler,
    DialOutcome,
    DialRefused,
    Relay,
    RelayHeader,
    Rules,
    Tries,
)
from allranks.agent.processes import read_process
from allranks.findings import Finding
from allranks.gang.agent_archive import BOOT, MARKER, payload
from allranks.gang.transport import die_with_the_controller
from allranks.plan.own_orders import NotOurs, OwnOrders
from allranks.protocol.command_words import read_command
from allranks.protocol.controls import HelloControl
from allranks.protocol.frames import PROTOCOL, Decoder, Frame, OutputFrame, pack_json
from allranks.protocol.header import AgentHeader, DialHeader, Header
from allranks.protocol.jsontext import Json
from allranks.settings import RunSpec
from allranks.settings.document import to_document
from allranks.settings.secrets import redact_argv
from allranks.text import format_duration, format_size_option, name_with

from .dialled import NotYet, Refuse, Seat

SCRIPT_LIMIT = 16 << 20
BOOT_SECONDS = 30.0
BANNER_LIMIT = 64 << 10  # bytes before the marker
CALL_TOKEN = re.compile(r"[0-9a-f]{32}")
SHOWN = 2000  # characters of a command
MOST_CALLS = 16  # commands and fetches of node 0 at once
CALL_PATIENCE = 30.0  # seconds for the connection that answers a call
CALL_LEASE = 10.0  # seconds that a command outlives it
CALL_END = 15.0  # seconds for what answers calls to end what it runs


# -- who is admitted -----------------------------------------------------------------------------------


def hello_of(spec: RunSpec, rank: int, workdir: str) -> HelloControl:
    """Make a node's first message.

    All nodes must agree on the command (secrets hidden) with all that decides what runs, and on the script's bytes.
    """
    tests = spec.tests
    what: list[Json] = [spec.launch.launcher, tests.test, spec.launch.wrap or ""]
    if tests.test:
        what += [tests.suite, tests.backend, tests.size, tests.timeout, spec.preflight.only]
        what += [tests.min_bandwidth, tests.max_latency]
    if spec.launch.roles:
        what += [to_document(spec)["roles"]]
    digest = hashlib.sha256(repr((what, spec.launch.command)).encode()).hexdigest()[:12]
    shown = f"{_shown(spec)} [{digest}]"
    return HelloControl(
        rank,
        socket.gethostname(),
        secrets.token_hex(8),
        nproc=spec.launch.nproc,
        nnodes=str(spec.target.nodes or 1),
        command=shown,
        script=_script_digest(spec, workdir),
        version=f"{allranks.__version__}/{PROTOCOL}",
    )


def _shown(spec: RunSpec) -> str:
    if spec.launch.command:
        return " ".join(redact_argv(spec.launch.command))[:SHOWN]
    if spec.launch.roles:
        commands = (f"{role.name}: {' '.join(redact_argv(role.command))}" for role in spec.launch.roles)
        return "; ".join(commands)[:SHOWN]
    tests = spec.tests
    if tests.test:
        return (
            f"--test {tests.suite} --size {format_size_option(tests.size)} --timeout {format_duration(tests.timeout)}"
        )
    return "--check"


def _script_digest(spec: RunSpec, workdir: str) -> str:
    """sha256 of the script; empty where the command has none or it can't be read (the ranks will say so)."""
    if not spec.launch.command:
        return ""
    words = read_command(spec.launch.command)
    if words.kind != "python-script":
        return ""
    try:
        with open(os.path.join(spec.launch.workdir or workdir, words.program[0]), "rb") as file:
            return hashlib.sha256(file.read(SCRIPT_LIMIT)).hexdigest()[:12]
    except OSError:
        return ""


DUPLICATE = "rank-missing-or-duplicate"


# Where a node differs from the coordinator: the cause, the words, and what mends it.
COMPARED = {
    "version": (
        "environment-mismatch",
        "runs allranks {theirs}, {host} {ours}: install the same on all",
        "install the same allranks on all nodes, or copy one allranks.pyz to them",
    ),
    "nnodes": (
        "world-size-mismatch",
        "was started with --nnodes {theirs}, {host} with {ours}",
        "start all nodes with the same --nnodes",
    ),
    "command": (
        "bad-launch-arguments",
        "was started with `{theirs}`, {host} with `{ours}`: all nodes run the same command",
        "start the same command on all nodes",
    ),
    "script": (
        "environment-mismatch",
        "has another script (sha256 {theirs}) than {host} ({ours}): bring the same code to all",
        "copy the script from {host}, or start it in a directory that the nodes share",
    ),
}


class Admission:
    """Decides who gets a seat. A contradiction before the start is `failure`, which ends the meeting at once."""

    def __init__(self, expected: HelloControl) -> None:
        self._expected = expected
        self._hostname = expected.hostname
        self.started = False
        self.failure: Finding | None = None

    def __call__(self, seats: dict[int, Seat], hello: HelloControl, address: str) -> int:
        """Return the rank of a node that is admitted; raise Refuse."""
        rank = hello.rank
        who = name_with(hello.hostname, address)
        self._compare(hello, f"node {rank}, {who},")
        if rank not in seats:
            most = int(self._expected.nnodes) - 1
            message = f"{who} came as node {rank}. Node ranks are 0 to {most}, and 0 is {self._hostname}"
            self._contradict(DUPLICATE, message, f"give each node its own --node-rank from 0 to {most}")
        seat = seats[rank]
        if seat.taken and seat.hello.instance != hello.instance:
            self._same_rank(seat, hello, who)
        if hello.begun and not seat.taken:
            raise Refuse(f"node {rank}, {who}, belongs to another run: its ranks end with its lease")
        return rank

    def _same_rank(self, seat: Seat, hello: HelloControl, who: str) -> None:
        rank = hello.rank
        other = name_with(seat.hello.hostname, seat.address)
        if self.started and seat.is_vacant and hello.hostname == seat.hello.hostname:
            return  # it was started again
        if self.started and seat.line is None and hello.hostname == seat.hello.hostname:
            raise NotYet(f"node {rank} was started again: waiting for the next attempt")
        if self.started:
            raise Refuse(f"the run has begun with {other} as node {rank}: {who} can't take its place")
        if seat.line is not None:
            message = f"two nodes came as node {rank}: {other} and {who}. Set another --node-rank on one of them"
            self._contradict(DUPLICATE, message, "give each node its own --node-rank")

    def _compare(self, hello: HelloControl, who: str) -> None:
        for key, (cause, words, remedy) in COMPARED.items():
            ours = getattr(self._expected, key)
            theirs = getattr(hello, key)
            if ours != theirs and ours and theirs:
                differs = words.format(theirs=theirs[:300], ours=ours, host=self._hostname)
                self._contradict(cause, f"{who} {differs}", remedy.format(host=self._hostname))

    def _contradict(self, cause: str, text: str, remedy: str) -> None:
        if not self.started:
            self.failure = self.failure or Finding(cause, "fail", text, remedy)
        raise Refuse(text)


# -- a node that follows -------------------------------------------------------------------------------


class Calls:
    """What node 0 may have this node do beside the run: any command, any fetch, or nothing without --allow-exec.

    Each call is answered by a process of its own, which dials node 0 once more and proves the secret again. `say` shows
    a line to who is here.
    """

    def __init__(
        self, spec: RunSpec, secret: bytes, places: Sequence[tuple[str, int]], say: Callable[[str], None]
    ) -> None:
        self._spec = spec
        self._secret = secret
        self._places = places
        self._say = say
        self._running: list[subprocess.Popen[bytes]] = []

    def answer(self, token: str) -> None:
        """Start what answers a call; raise CallDeclined."""
        if not self._spec.launch.allow_exec:
            raise CallDeclined("it joined without --allow-exec")
        if not CALL_TOKEN.fullmatch(token):
            raise CallDeclined("the token of the call is not one")
        self._running = [process for process in self._running if process.poll() is None]
        if len(self._running) >= MOST_CALLS:
            raise CallDeclined(f"{MOST_CALLS} commands and fetches run there already")
        header = DialHeader(
            places=tuple(self._places),
            rank_from="",
            secret=self._secret.hex(),
            patience=CALL_PATIENCE,
            lease=CALL_LEASE,
            call=token,
            rank=self._spec.target.node_rank or 0,
            node_dir=self._spec.places.node_dir,
        )
        try:
            self._running.append(spawn(header))
        except OSError as error:
            raise CallDeclined(f"the process for it could not be started: {error.strerror or error}") from None
        self._say("node 0 begins a command or a fetch here (--allow-exec)")

    def end(self) -> None:
        """End what answers calls, and what it runs."""
        for process in self._running:
            process.terminate()
        deadline = time.monotonic() + CALL_END
        for process in self._running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()  # an agent of its own ends with its lease
                process.wait()


class OwnRules(Rules):
    """What becomes of the coordinator's messages on this node: see `plan.own_orders`."""

    def __init__(self, own: OwnOrders, calls: Calls) -> None:
        self._own = own
        self._calls = calls
        self._down, self._up = Decoder(), Decoder()

    def call(self, token: str) -> None:
        """Let a command or a fetch of node 0 begin, where this node was started to let it; raise CallDeclined."""
        self._calls.answer(token)

    def header(self, header: RelayHeader) -> AgentHeader:
        """Return the header of a relay of this node's own; raise DialRefused."""
        self._down, self._up = Decoder(), Decoder()
        if not isinstance(header, AgentHeader):
            raise DialRefused(f"the relay's mode {header.mode[:40]!r}")
        own = read_process(os.getpid())
        return self._own.header(header)._replace(holder=(own.pid, own.start) if own is not None else None)

    def down(self, data: bytes) -> bytes:
        """Return this node's own orders; raise DialRefused."""
        return b"".join(self._order(frame) for frame in self._down.feed(data))

    def _order(self, frame: Frame) -> bytes:
        if isinstance(frame, OutputFrame):
            raise DialRefused("bytes of a file")
        try:
            return pack_json(self._own.order(frame))
        except NotOurs as error:
            raise DialRefused(str(error)) from None

    def up(self, data: bytes) -> None:
        """Remember what this node's own agent says."""
        for frame in self._up.feed(data):
            if isinstance(frame, dict):
                self._own.heard(frame)


def spawn(header: Header) -> subprocess.Popen[bytes]:
    """Start a relay on this machine and send it its header. Raise OSError, where no relay is left behind.

    One that answers a call ends with this process. A relay ends with its standard input.
    """
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", BOOT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        bufsize=0,
        preexec_fn=die_with_the_controller if isinstance(header, DialHeader) else None,
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        _await_marker(child.stdout.fileno())
        data = memoryview(payload(header))
        while data:
            data = data[child.stdin.write(data) or 0 :]
    except BaseException:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
        raise
    return child


def _await_marker(pipe: int) -> None:
    """Read up to the marker, which is the first that a relay prints; raise OSError where it does not come in time."""
    readable = select.poll()
    readable.register(pipe, select.POLLIN)
    deadline = time.monotonic() + BOOT_SECONDS
    banner = b""
    while MARKER not in banner:
        left = deadline - time.monotonic()
        if left <= 0 or not readable.poll(left * 1000):
            raise OSError(f"the agent could not start: {sys.executable} said nothing for {BOOT_SECONDS:g} s")
        part = os.read(pipe, max(1, len(MARKER) - len(banner)))  # not a byte of what follows the marker
        if not part or len(banner) > BANNER_LIMIT:
            raise OSError(f"the agent could not start: {sys.executable} ended, or printed something else")
        banner += part


def follow(
    spec: RunSpec,
    own: OwnOrders,
    secret: bytes,
    hello: HelloControl,
    places: list[tuple[str, int]],
    say: Callable[[str], None],
) -> DialOutcome:
    """Join as a node that is not the first, and stay until the run is over."""
    calls = Calls(spec, secret, places, say)
    if spec.launch.allow_exec:
        say("--allow-exec: who started node 0 may run any command here, and fetch any file that you may read")
    rules = OwnRules(own, calls)
    limits = spec.limits
    tries = Tries(places, secret)
    dialler = Dialler(tries, hello, Relay(spawn), rules, say, patience=limits.init_timeout, lease=limits.lease)
    try:
        return dialler.run()
    finally:
        calls.end()
