"""The process that ssh starts: it makes the node directory, leaves supervisor and agent, and relays bytes.

It dies with the ssh session and nothing else does. Modes: `agent` starts a run on this node, `attach`
connects to one that is there, `sweep` lists or ends what earlier runs left, `fetch` sends files of a run's outputs,
`dial` opens the channel itself (srun starts it on every node of a step, a joined node for each command of node 0, ssh
with --reach dial) and starts the others as it is asked to.
"""

from __future__ import annotations

import errno
import gc
import os
import resource
import selectors
import signal
import socket
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Union

from allranks.protocol.codec import decode, encode
from allranks.protocol.frames import NODE_LOG, Stream
from allranks.protocol.header import AgentHeader, DialHeader, FetchHeader, SweepHeader, pack_header, read_header
from allranks.protocol.jsontext import JsonObject, read_json, read_object, write_json
from allranks.protocol.messages import MOST_ANSWER, DialledMessage, FaultMessage, Message, pack_message
from allranks.protocol.node_names import RUN_TAG, NodeFiles

from . import node_directory as nodedir
from .files import grow_pipe, open_left, write_all
from .journal import read_journal
from .link import log_traceback, want
from .node_check import logind
from .outlet import Outlet, splice
from .processes import (
    PR_SET_CHILD_SUBREAPER,
    USER_SIGNALS,
    end_all,
    prctl,
    raise_limits,
    read_process,
    reap_children,
    survive_user_signals,
    tagged,
)
from .supervisor import Keeper, Supervisor

if TYPE_CHECKING:
    import subprocess

    from .dial import Dialler, Rules

BUFFER = 1 << 20
PIPE = 256 << 10  # bytes between this process and sshd
MOST_HEADER = 8 << 20
ARCHIVE_LINE = "import sys; sys.path.insert(0, '/proc/self/fd/%d'); from allranks.agent import boot; boot.enter()"
FILES = 24  # 13 that stay open with one rank, and what the check of the node takes; with 16 parts of it failed

Files = Dict[str, bytes]


def main(value: JsonObject, files: Files) -> None:
    """Entry point, called by the boot line with the header that the controller sent."""
    survive_user_signals()
    raise_limits()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        header = read_header(value)
        if isinstance(header, SweepHeader):
            from .sweep import sweep  # late: other modes do without

            _say(sweep(header))
            return
        if isinstance(header, FetchHeader):
            from .sending import answer  # late: other modes do without

            answer(header)
            return
        if header.engine:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # every process of the step gets it: ranks heed it, we stay
        if isinstance(header, DialHeader):
            _dial(header, files)
        elif header.mode == "attach":
            _attach(header)
        else:
            _start(header, files)
    except nodedir.NoNodeDir as error:
        _say(FaultMessage("node-dir", str(error)))
    except Exception as error:
        import traceback  # late: as in link.py

        text = "%s: %s" % (type(error).__name__, error)
        _say(FaultMessage("boot", text, traceback=traceback.format_exc()[-2000:]))


def _ignore_user_signals() -> None:
    """In a child before exec: until its own `survive_user_signals` nothing may end it."""
    for number in USER_SIGNALS.values():
        signal.signal(number, signal.SIG_IGN)


def _say(message: Message) -> None:
    write_all(1, pack_message(message))


def _start(header: AgentHeader, files: Files) -> None:
    if header.engine:
        holder = read_process(os.getppid())  # the engine's own task: without it no controller can come back to us
        if holder is not None:
            header = header._replace(holder=(holder.pid, holder.start))
    try:
        header = header._replace(cwd=os.getcwd())
    except OSError:  # it has been removed
        pass
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= limit < FILES:  # later each part of the agent would fail in a way of its own
        few = "Too many open files: the limit (ulimit -Hn) is %d, and an agent needs %d" % (limit, FILES)
        _say(FaultMessage("few-files", few))
        return
    for run_tag in header.ends:  # ranks of an agent before this one, which is lost or dead, must not live beside it
        end_all(partial(tagged, run_tag), reap_children)
    directory = nodedir.make(header.node_dir, header.uid, header.node)
    for name, content in files.items():
        if content:
            with open(os.path.join(directory, name), "wb") as file:
                file.write(content)
    from .sweep import tidy  # late: other modes do without

    tidy(header.node_dir)
    names = NodeFiles(directory)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(names.orders)
    listener.listen(8)
    _leave_session(names.log, partial(_supervise, header, directory, listener))
    listener.close()
    _relay(names.orders)


def _dial(header: DialHeader, files: Files) -> None:
    # late: with the handshake 4 ms, which other modes do not need
    from allranks.protocol.controls import HelloControl

    from .dial import CallRules, Dialler, Relay, Rules, Tries

    rank = int(os.environ[header.rank_from]) if header.rank_from else header.rank
    hostname = socket.gethostname()
    instance = header.instance or "%d-%d" % (os.getpid(), time.time_ns())
    hello = HelloControl(rank, hostname, instance, call=header.call)
    archive = os.open(sys.path[0], os.O_RDONLY)  # this program's zip
    os.environ.pop(RUN_TAG, None)  # it is of this process alone: relays and agents are started from here

    where = "node %d (%s)" % (rank, hostname)
    if header.call:
        where += ", a command or fetch of node 0"

    def say(text: str) -> None:
        os.write(2, ("allranks: %s, %s\n" % (where, text)).encode("utf-8", "replace"))

    # SSH_CONNECTION has ports behind it.
    places = [(os.path.expandvars(host).partition(" ")[0], port) for host, port in header.places]
    places = list(dict.fromkeys(place for place in places if not place[0].startswith("$")))
    spawn = partial(_start_relay, archive, files)
    tries = Tries(places, bytes.fromhex(header.secret))
    relay = Relay(spawn, ends_agent=not header.apart)

    def dialler(rules: Rules) -> Dialler:
        return Dialler(
            tries, hello, relay, rules, say, patience=header.patience, lease=header.lease, one_signal=header.engine
        )

    if header.apart:
        _say(_dial_apart(dialler))
        return
    rules = CallRules(header.node_dir) if header.call else Rules()
    outcome = dialler(rules).run()
    if outcome.exit and not header.call:  # of a call, the command on node 0 says how it ended
        say(outcome.message)
    sys.exit(outcome.exit)


def _dial_apart(make: Callable[[Rules], Dialler]) -> DialledMessage:
    """Dial in a process that outlives this session, and return once the controller has taken it, or why it has not."""
    from .dial import encryption  # late: other modes do without

    login = logind()
    if login is not None and login.KillUserProcesses and login.in_session:
        return DialledMessage(why="logind ends there what an ssh session leaves behind (KillUserProcesses=yes)")
    if encryption() is None:
        return DialledMessage(why="the connection would not be encrypted: its Python has no ssl module")
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as answer:
        try:
            _leave_session(None, partial(_dial_and_report, make, read_end, write_end))
        except OSError as error:
            return DialledMessage(why="nothing that dials could be started there: %s" % (error.strerror or error))
        finally:
            os.close(write_end)
        text = answer.read().decode("utf-8", "replace")
    return decode(DialledMessage, read_json(text)) if text else DialledMessage()


def _dial_and_report(make: Callable[[Rules], Dialler], session: int, report: int) -> None:
    """Dial; `report` gets why the controller has not taken this node, and is closed where it has.

    `session` is its other end, which the ssh session reads."""
    from .dial import LeavingRules, reasons  # late: other modes do without

    os.close(session)
    rules = LeavingRules(report)
    try:
        outcome = make(rules).run()
        tried = reasons(outcome.tried)
        failure = DialledMessage(tried[:MOST_ANSWER], "" if tried else outcome.message[:MOST_ANSWER])
        rules.tell(write_json(encode(failure)))
    except Exception as error:
        rules.tell(write_json(encode(DialledMessage(why=("%s: %s" % (type(error).__name__, error))[:MOST_ANSWER]))))


def _start_relay(archive: int, files: Files, header: Union[AgentHeader, FetchHeader]) -> subprocess.Popen[bytes]:
    import subprocess  # late: 2 ms that most starts do without

    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", ARCHIVE_LINE % archive],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(archive,),
        start_new_session=True,
        bufsize=0,
        preexec_fn=_ignore_user_signals,
    )
    assert child.stdin is not None
    for part in pack_header(header, files):
        write_all(child.stdin.fileno(), part)
    return child


def _leave_session(log: Optional[str], work: Callable[[], None]) -> None:
    """Have work done by a process outside of the ssh session, which writes to `log`; raise OSError where none can be
    made."""
    leader = os.fork()
    if leader == 0:
        status = 1
        try:
            os.setsid()
            if os.fork() == 0:
                _detach_output(log)
                work()
            status = 0
        except BaseException:
            log_traceback()
        finally:
            os._exit(status)
    if os.waitpid(leader, 0)[1]:
        raise OSError("no process could leave the session")


def _detach_output(log: Optional[str]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    out = os.dup(null) if log is None else open_left(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(null)
    os.close(out)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _supervise(header: AgentHeader, directory: str, listener: socket.socket) -> None:
    os.chdir("/")  # the session's may be removed, or its file system unmounted
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    nodedir.hold(directory)  # by this process and the agent, until both have ended
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent = os.fork()
    if agent == 0:
        status = 1
        try:
            gc.disable()
            from .agent import Agent  # late: the supervisor does without what an agent needs

            _keep_modules()
            ours.close()
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            status = Agent(header, directory, listener, theirs).run()
        except BaseException:
            log_traceback()
        finally:
            os._exit(status)
    theirs.close()
    Supervisor(header, directory, listener, agent, ours).run()


def _attach(header: AgentHeader) -> None:
    """To an agent (or its supervisor) that lives, else to what the node directory still holds."""
    directory = nodedir.find(header.node_dir, header.uid, header.node)
    if directory is None:
        _say(FaultMessage("no-run", "nothing of run %s is on this node" % header.uid))
        return
    names = NodeFiles(directory)
    if _relay(names.orders):
        return
    outlet = Outlet(names.spool)
    outlet.add_existing_spools()
    outlet.add_file(Stream(NODE_LOG, 0, 0), names.log)
    keeper = Keeper(directory, outlet, read_journal(directory), lease=float("inf"))
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        _shuttle(theirs)
        os._exit(0)
    theirs.close()
    if keeper.serve_one(ours):
        nodedir.remove(directory)


def _relay(path: str) -> bool:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(path)
    except OSError:
        return False
    _shuttle(sock)
    return True


class _Down:
    """Bytes from the socket to standard output: within the kernel into a pipe, as sshd's is, else through a buffer."""

    def __init__(self, sock: socket.socket) -> None:
        self.rest = bytearray()
        self._sock = sock
        self._is_pipe = True  # until the kernel says else
        self._is_full = False  # the pipe
        grow_pipe(1, PIPE)  # sshd empties it in small pieces, and each would wake this process

    @property
    def wants_input(self) -> bool:
        return not self._is_full and len(self.rest) < BUFFER

    @property
    def wants_room(self) -> bool:
        return self._is_full or bool(self.rest)

    def readable(self) -> None:
        """Move what the socket has; raise EOFError at its end, and OSError."""
        if not self._is_pipe:
            _take(self._sock.recv(BUFFER), self.rest)
            return
        try:
            moved = splice(self._sock.fileno(), 1, BUFFER)
        except BlockingIOError:
            self._is_full = True
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                raise
            self._is_pipe = False
            return
        if not moved:
            raise EOFError

    def writable(self) -> None:
        """Go on where there was no room; raise OSError."""
        self._is_full = False
        if self.rest:
            del self.rest[: os.write(1, self.rest)]


def _shuttle(sock: socket.socket) -> None:
    """Bytes from standard input to the socket and from the socket to standard output, both at once."""
    sock.setblocking(False)
    os.set_blocking(0, False)
    os.set_blocking(1, False)
    up = bytearray()
    down = _Down(sock)
    poll = selectors.PollSelector()
    while True:
        want(poll, 0, selectors.EVENT_READ * (len(up) < BUFFER))
        want(poll, 1, selectors.EVENT_WRITE * down.wants_room)
        want(poll, sock.fileno(), selectors.EVENT_READ * down.wants_input | selectors.EVENT_WRITE * bool(up))
        for key, events in poll.select():
            try:
                if key.fd == 0:
                    _take(os.read(0, 65536), up)
                elif key.fd == 1:
                    down.writable()
                else:
                    if events & selectors.EVENT_READ:
                        down.readable()
                    if events & selectors.EVENT_WRITE:
                        del up[: sock.send(up)]
            except BlockingIOError:
                continue
            except (EOFError, OSError):
                _last_words(down.rest)
                return


def _take(data: bytes, buffer: bytearray) -> None:
    if not data:
        raise EOFError
    buffer += data


def _last_words(data: bytearray) -> None:
    deadline = time.monotonic() + 1
    while data and time.monotonic() < deadline:
        try:
            del data[: os.write(1, data)]
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:
            return


def _read_exactly(count: int) -> bytes:
    data: List[bytes] = []
    while count:
        part = os.read(0, min(count, 1 << 20))
        if not part:
            raise SystemExit(1)
        data.append(part)
        count -= len(part)
    return b"".join(data)


def enter() -> None:
    """Read the header (4 bytes length, JSON), then the files that it names (the same), and go to `main`."""
    _keep_modules()
    _restore_functions()
    header = read_object(_read_part(), MOST_HEADER)
    main(header, {str(name): _read_part() for name in header["files"]})


def _keep_modules() -> None:
    """Collect garbage from here on, but not among the modules: they stay, and their memory is shared with forks."""
    gc.freeze()
    gc.enable()


def _restore_functions() -> None:
    """Bash's exported functions, which a /bin/sh between it and us has dropped: a prelude calls `module`."""
    for entry in bytes.fromhex(os.environ.pop("ALLRANKS_FUNCTIONS", "")).split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name:
            os.environb.setdefault(name, value)


def _read_part() -> bytes:
    return _read_exactly(int.from_bytes(_read_exactly(4), "big"))
