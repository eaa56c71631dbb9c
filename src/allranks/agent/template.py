"""The template: a process that has imported what the ranks import, and from which ranks are forked.

It is started just as a rank is, with the variables that the ranks have in common; agent/runner_template.py is its side,
agent/forking.py says when there is one. This module is loaded where one is started.
"""

from __future__ import annotations

import array
import os
import select
import signal
import socket
import time
from hashlib import sha256
from itertools import chain
from typing import Dict, List, Optional, Sequence, Tuple

from allranks.protocol.messages import TemplateMessage
from allranks.protocol.node_names import OWN_NAMES, TEMPLATE
from allranks.protocol.orders import RankOrder
from allranks.protocol.processes import ImportRecord

from .processes import Process, read_process, send_signal
from .rank_start import RankStartError, TemplateLost, output_pipe, start_process

FORK_SECONDS = 10.0  # a fork takes 10 ms
ANSWER_LIMIT = 1 << 20
SEND_BUFFER = 1 << 20  # bytes; the kernel gives twice net.core.wmem_max, 416 KB. 2,000 modules take 190 KB
OUTPUT_SHOWN = 200


class TemplateProcess:
    """The process. `order` is that of one of its ranks, `common` the environment that it was started with."""

    def __init__(self, order: RankOrder, common: Dict[str, str], record: ImportRecord) -> None:
        """Start it, and have it import; raise RankStartError, OSError."""
        self.order = order
        self.common = common
        self.record = record
        self._began = time.monotonic()
        self._data = bytearray()
        self.channel, other = socket.socketpair()
        self.ready = False
        environment = dict(common)
        environment[TEMPLATE] = str(other.fileno())
        try:
            self.process, self._output = start_process(order, environment, os.getpid(), other.fileno())
        except RankStartError:
            self.channel.close()
            raise
        finally:
            other.close()
        words = [*OWN_NAMES, "", *chain(*record.own.items()), "", *chain(*record.modules.items())]
        # The interpreter reads this once it has started; the agent does not wait, so all of it must fit now.
        self.channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self.channel.setblocking(False)
        try:
            self._send(words)
        except OSError as error:
            self.close()
            raise RankStartError("the names of %d modules do not reach it: %s" % (len(record.modules), error)) from None

    def _send(self, fields: Sequence[str], descriptors: Sequence[int] = ()) -> None:
        data = b"".join(os.fsencode(field) + b"\0" for field in fields)
        data = len(data).to_bytes(4, "big") + data
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        sent = self.channel.sendmsg([data], rights)
        self.channel.sendall(data[sent:])

    def take_answer(self) -> Optional[TemplateMessage]:
        """Read what has come after the imports: ready, or off; None where that is not all. Raise TemplateLost."""
        try:
            part = self.channel.recv(1 << 16)
        except BlockingIOError:
            return None
        except OSError:
            part = b""
        self._data += part
        if not part or len(self._data) > ANSWER_LIMIT:
            raise TemplateLost(self.last_words())
        length = int.from_bytes(self._data[:4], "big")
        if len(self._data) < 4 or len(self._data) < 4 + length:
            return None
        fields = [os.fsdecode(field) for field in bytes(self._data[4 : 4 + length]).split(b"\0")[:-1]]
        del self._data[: 4 + length]
        why = "".join(fields[1:2]) or "the process that imports said nothing"
        if fields[:1] == ["ready"]:
            why = self._against(fields[2:])
        if why:
            return TemplateMessage("off", 0, why=why)
        self.ready = True
        seconds = round(time.monotonic() - self._began, 3)
        return TemplateMessage("ready", 0, len(self.record.modules), seconds)

    def _against(self, changed: Sequence[str]) -> str:
        """Say by what the program would notice that it was forked; empty where nothing is known."""
        printed = self._words()
        if printed:
            return "what it imports prints: %s" % printed
        variables = (variable.partition("=") for variable in changed)
        now = {name: digest(value) for name, _, value in variables}
        for name, expected in self.record.changed.items():
            if now.get(name) != (expected or digest("")):
                return "the program changes the variable %s" % name
        return ""

    def last_words(self) -> str:
        """Say that it has ended, and what it has printed."""
        return "the process that imports ended: %s" % (self._words() or "it printed nothing")

    def _words(self) -> str:
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
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        poll.register(self.channel, select.POLLIN)
        poll.poll(FORK_SECONDS * 1000)
        os.set_blocking(pipe, False)
        try:
            text = os.read(pipe, 64).decode("ascii", "replace").strip()
        except BlockingIOError:
            text = ""
        process = read_process(int(text)) if text.isdecimal() else None
        if process is None or process.parent != os.getpid():
            answer = self.take_answer()  # why it forks no rank
            raise TemplateLost(answer.why if answer is not None else "it forked no rank within %g s" % FORK_SECONDS)
        return process

    def close(self) -> None:
        """End the process."""
        send_signal(self.process, signal.SIGKILL)
        self.channel.close()
        os.close(self._output)


def digest(value: str) -> str:
    """Stand for the value of a variable, which may be a secret."""
    return sha256(os.fsencode(value)).hexdigest()


def stamp_of(file: str) -> str:
    """Return what changes with a file; raise OSError. agent/runner_template.py looks at it before a fork."""
    status = os.stat(file)
    return "%d %d %d" % (status.st_mtime_ns, status.st_size, status.st_ino)
