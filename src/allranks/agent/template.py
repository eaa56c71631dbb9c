"""The template: a process that has imported what the ranks import, and forks the ranks of the next attempt.

While an attempt runs, the ranks are asked what they have imported until nothing is added. Then a process is started
just as a rank is, with the variables that the ranks have in common; agent/runner_template.py is its side. A rank is
forked from it only where everything else is the same; whatever is not, or fails, is said, and the rank is started.
"""

from __future__ import annotations

import array
import os
import select
import signal
import socket
import time
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from allranks.protocol.messages import Message, TemplateMessage
from allranks.protocol.orders import RankOrder, StartOrder
from allranks.protocol.records import NamedTuple

from .processes import Process, lives, read_process, send_signal
from .rank_start import RankStartError, environment_of, output_pipe, start_process

CHANNEL = "ALLRANKS_TEMPLATE"
# What each rank, or each attempt, has of its own (plan/environment.py): a module that reads one when it is imported
# can't be imported beforehand.
OWN_NAMES = (
    "RANK",
    "LOCAL_RANK",
    "ROLE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_ERROR_FILE",
    "ALLRANKS_ATTEMPT",
    "ALLRANKS_LAST_VERDICT",
    "ALLRANKS_STACKS_FILE",
    "ALLRANKS_ASK_SOCKET",
    "ALLRANKS_SAVE_FILE",
    "NCCL_DEBUG_FILE",
)
ASK_SECONDS = 2.0  # between two questions to the ranks
MOST_QUESTIONS = 150  # a program that imports something new for so long has no template
FORK_SECONDS = 10.0  # a fork takes 10 ms
ANSWER_LIMIT = 1 << 20
SEND_BUFFER = 1 << 20  # bytes; the kernel gives twice net.core.wmem_max, 416 KB. 2,000 modules take 190 KB
OUTPUT_SHOWN = 200
DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of NVIDIA, AMD, WSL
NO_DEVICES = ("", "-1", "NoDevFiles")


class ImportRecord(NamedTuple):
    """What the ranks of this node have imported of installed packages, in that order, with their files.

    `changed`: the variables that the programs, or their imports, have set, None for one that was removed."""

    modules: Mapping[str, str]
    changed: Mapping[str, Optional[str]]


class TemplateLost(Exception):
    """The template has ended, or does not answer."""


class TemplateProcess:
    """The process. `order` is that of one of its ranks, `common` the environment that it was started with."""

    def __init__(self, order: RankOrder, common: Dict[str, str], record: ImportRecord) -> None:
        """Start it, and have it import; raise RankStartError, OSError."""
        self.order = order
        self.common = common
        self._record = record
        self._began = time.monotonic()
        self._data = bytearray()
        self.channel, other = socket.socketpair()
        self.ready = False
        environment = dict(common)
        environment[CHANNEL] = str(other.fileno())
        try:
            self.process, self._output = start_process(order, environment, os.getpid(), other.fileno())
        except RankStartError:
            self.channel.close()
            raise
        finally:
            other.close()
        words = [*OWN_NAMES, ""]
        for name, file in record.modules.items():
            words += [name, file]
        # The interpreter reads this once it has started; the agent waits for nobody, so all of it must fit now.
        self.channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self.channel.setblocking(False)
        try:
            self._send(words)
        except OSError as error:
            self.close()
            raise RankStartError("the names of %d modules do not reach it: %s" % (len(record.modules), error)) from None
        self.channel.settimeout(FORK_SECONDS)

    def _send(self, fields: Sequence[str], descriptors: Sequence[int] = ()) -> None:
        """Send one message; raise OSError."""
        data = b"".join(os.fsencode(field) + b"\0" for field in fields)
        data = len(data).to_bytes(4, "big") + data
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        sent = self.channel.sendmsg([data], rights)
        self.channel.sendall(data[sent:])

    def take_answer(self) -> Optional[TemplateMessage]:
        """Read what has come after the imports: ready, or off; None where that is not all. Raise TemplateLost."""
        try:
            part = self.channel.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            part = b""
        self._data += part
        if not part or len(self._data) > ANSWER_LIMIT:
            raise TemplateLost("the process that imports ended: %s" % (self._words() or "it printed nothing"))
        length = int.from_bytes(self._data[:4], "big")
        if len(self._data) < 4 or len(self._data) < 4 + length:
            return None
        word, *fields = [os.fsdecode(field) for field in bytes(self._data[4:]).split(b"\0")[:-1]]
        why = "".join(fields[:1])
        if word == "ready":
            why = self._against(fields[1:])
        if why:
            return TemplateMessage("off", 0, why=why)
        self.ready = True
        seconds = round(time.monotonic() - self._began, 3)
        return TemplateMessage("ready", 0, len(self._record.modules), seconds)

    def _against(self, changed: Sequence[str]) -> str:
        """Say by what the program would notice that it was forked; empty where nothing is known."""
        printed = self._words()
        if printed:
            return "what it imports prints: %s" % printed
        now = dict(variable.partition("=")[::2] for variable in changed)
        for name, value in self._record.changed.items():
            if now.get(name) != (value or ""):
                return "the program changes the variable %s" % name
        return ""

    def _words(self) -> str:
        """Return the end of what it has printed, in one line."""
        try:
            data = os.read(self._output, 1 << 16)
        except OSError:
            return ""
        return " ".join(data.decode("utf-8", "replace").split())[-OUTPUT_SHOWN:]

    def fork(self, environment: Dict[str, str]) -> Tuple[Process, int]:
        """Fork a rank, a child of this process; raise TemplateLost, OSError."""
        ends: List[int] = []
        try:
            ends += output_pipe()
            ends += os.pipe()
            read_end, write_end, announced, announce = ends
            self._send(["%s=%s" % item for item in environment.items()], [write_end, announce])
            os.close(ends.pop())
            process = self._announced(announced)
            ends.remove(read_end)
            return process, read_end
        finally:
            for end in ends:
                os.close(end)

    def _announced(self, pipe: int) -> Process:
        """Read which process the rank is."""
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        poll.register(self.channel, select.POLLHUP)
        poll.poll(FORK_SECONDS * 1000)
        os.set_blocking(pipe, False)
        try:
            text = os.read(pipe, 64).decode("ascii", "replace").strip()
        except BlockingIOError:
            text = ""
        process = None
        if text.isdecimal():
            process = read_process(int(text))
        if process is None or process.parent != os.getpid():
            raise TemplateLost("it forked no rank within %g s" % FORK_SECONDS)
        return process

    def close(self) -> None:
        """End the process."""
        send_signal(self.process, signal.SIGKILL)
        self.channel.close()
        os.close(self._output)


class Forking:
    """When there is a template, and which ranks come from it. `ask` runs `ask_imports` in a task; `watch` and `forget`
    are told of the template's channel."""

    def __init__(
        self,
        tell: Callable[[Message], None],
        ask: Callable[[Callable[[Optional[ImportRecord], str], None]], None],
        watch: Callable[[socket.socket], None],
        forget: Callable[[socket.socket], None],
    ) -> None:
        self._tell = tell
        self._ask = ask
        self._watch = watch
        self._forget = forget
        self._template: Optional[TemplateProcess] = None
        self._order: Optional[StartOrder] = None
        self._base: Dict[str, str] = {}
        self._attempt = 0
        self._wanted = False
        self._waiting: List[int] = []
        self._asking = False
        self._questions = 0
        self._next = 0.0
        self._record: Optional[ImportRecord] = None
        self._forked = 0

    @property
    def process(self) -> Optional[Process]:
        """The template, which is none of an attempt's processes."""
        if self._template is None:
            return None
        return self._template.process

    def begin(self, order: StartOrder, base: Dict[str, str]) -> None:
        """Take the order of an attempt, before its ranks start."""
        self._order = order
        self._base = base
        self._attempt = order.attempt
        self._forked = 0
        self._questions = 0
        self._record = None
        self._asking = False
        self._waiting = [rank.rank for rank in order.ranks]
        self._wanted = order.template and self._template is None
        if not self._wanted:
            return
        against = devices_seen(environment_of(order.ranks[0], base))
        if against:
            self._off(against)

    def begun(self) -> None:
        """All ranks run: say how many of them the template has given."""
        if self._forked:
            self._tell(TemplateMessage("used", self._attempt, ranks=self._forked))
        if self._order is not None and not self._order.template:
            self._end()  # no attempt follows

    def initialised(self, rank: int) -> None:
        """Note that a rank has a process group: it can be asked."""
        if rank in self._waiting:
            self._waiting.remove(rank)
            self._next = time.monotonic() + ASK_SECONDS

    def tick(self, now: float) -> None:
        """Ask the ranks, where it is time to."""
        if self._wanted and not self._waiting and not self._asking and now >= self._next:
            self._asking = True
            attempt = self._attempt
            self._ask(lambda record, error: self._answered(attempt, record, error))

    def _answered(self, attempt: int, record: Optional[ImportRecord], error: str) -> None:
        if attempt != self._attempt or not self._wanted:
            return
        self._asking = False
        self._next = time.monotonic() + ASK_SECONDS
        self._questions += 1
        if record is not None and record == self._record:
            self._start(record)
        elif self._questions >= MOST_QUESTIONS:
            self._off(error or "the ranks import something new all the time")
        self._record = record

    def _start(self, record: ImportRecord) -> None:
        """Start the template."""
        self._wanted = False
        order = self._order
        assert order is not None
        environments = [environment_of(rank, self._base) for rank in order.ranks]
        common = {name: value for name, value in environments[0].items() if name not in OWN_NAMES}
        for environment in environments[1:]:
            name = difference(common, environment)
            if name:
                self._off("the ranks of this node differ in %s" % name)
                return
        try:
            self._template = TemplateProcess(order.ranks[0], common, record)
        except (RankStartError, OSError) as error:
            self._off("it could not be started: %s" % error)
            return
        self._watch(self._template.channel)

    def on_channel(self) -> None:
        """Read what the template says, or see that it has ended."""
        template = self._template
        if template is None:
            return
        try:
            answer = template.take_answer()
        except TemplateLost as error:
            self._off(str(error))
            return
        if answer is None:
            return
        if answer.state == "off":
            self._off(answer.why)
        else:
            self._tell(answer._replace(attempt=self._attempt))

    def fork(self, order: RankOrder, environment: Dict[str, str]) -> Optional[Tuple[Process, int]]:
        """Give a rank of the template; None where it is to be started."""
        template = self._template
        if template is None:
            return None
        if not lives(template.process.pid, template.process.start):
            self._off("the process that imports ended")
            return None
        if not template.ready:
            self._off("its imports were not done when the attempt began")
            return None
        if (order.argv, order.workdir) != (template.order.argv, template.order.workdir):
            self._off("the command of this attempt is another")
            return None
        name = difference(template.common, environment)
        if name:
            self._off("this attempt differs in %s" % name)
            return None
        try:
            begun = template.fork(environment)
        except (TemplateLost, OSError) as error:
            self._off(str(error))
            return None
        self._forked += 1
        return begun

    def _off(self, why: str) -> None:
        """Say why the next ranks are started, and end the template."""
        self._wanted = False
        self._end()
        self._tell(TemplateMessage("off", self._attempt, why=why))

    def _end(self) -> None:
        if self._template is not None:
            self._forget(self._template.channel)
            self._template.close()
            self._template = None


def difference(common: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Name the variable in which a rank differs from the template, but for what is its own; empty where none does."""
    for name in sorted({*common, *environment}):
        if name not in OWN_NAMES and common.get(name) != environment.get(name):
            return name
    return ""


def devices_seen(environment: Mapping[str, str]) -> str:
    """Say why the devices forbid a template; empty where they do not."""
    if not any(os.path.exists(device) for device in DEVICES):
        return ""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        if environment.get(name) in NO_DEVICES:
            return ""
    return "the ranks see GPUs"
