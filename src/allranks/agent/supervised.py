"""What an agent and its supervisor say to each other, and the agent's side of it.

Over a socket pair of datagrams. The agent's are notes: its beat, and the pipes of its ranks. The supervisor's are texts
of its defects.
"""

from __future__ import annotations

import array
import os
import selectors
import signal
import socket
from typing import Callable, Optional

from allranks.protocol.codec import encode
from allranks.protocol.jsontext import write_json
from allranks.protocol.records import NamedTuple

from .link import log
from .processes import read_process, send_signal

FAILURES = 5  # errors of its own after which each of the two gives up
# how an agent ends; anything else is a death
RELEASED = 0
LEASE_OVER = 3


class AgentNote(NamedTuple):
    """What an agent sends its supervisor at each turn of its loop; with the read end of a pipe, whose output that is.

    Times are seconds of CLOCK_MONOTONIC, which both have.
    """

    rank: Optional[int] = None
    attempt: Optional[int] = None
    patience: float = 0.0  # seconds in which another note comes, while the agent's loop runs
    ends_by: float = 0.0  # when its ranks have ended if no controller is heard from now on


def write_note(note: AgentNote) -> bytes:
    """Make the datagram of a note."""
    return write_json(encode(note))


class SupervisorLink:
    """The agent's side. `note` gives the present note; `fault` takes what ends the ranks: its kind, and a text."""

    def __init__(
        self,
        channel: socket.socket,
        selector: selectors.BaseSelector,
        note: Callable[[], AgentNote],
        fault: Callable[[str, str], None],
    ) -> None:
        self.pid = os.getppid()
        self.is_gone = False
        self._channel = channel
        self._selector = selector
        self._note = note
        self._fault = fault
        self._stops = 0
        selector.register(channel, selectors.EVENT_READ, self._on_word)

    def beat(self) -> None:
        """Tell the supervisor that this loop runs, and by when the ranks will have ended without a controller.

        It ends them where no beat comes, or that time has passed. Nothing here waits for it.
        """
        try:
            self._channel.send(write_note(self._note()), socket.MSG_DONTWAIT)
        except OSError:
            pass  # it has ended, or has not run for long: `look` sees both

    def pass_pipe(self, rank: int, attempt: int, pipe: int) -> None:
        """Hand over the read end of a rank's output."""
        note = write_note(self._note()._replace(rank=rank, attempt=attempt))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [pipe]))]
        try:
            self._channel.sendmsg([note], rights, socket.MSG_DONTWAIT)
        except OSError as error:
            log("the supervisor did not take a pipe: %s" % error)

    def look(self) -> None:
        """See whether the supervisor is dead, or was stopped twice: it is the guarantee against orphans."""
        if os.getppid() != self.pid:
            while word := self._read_word():  # why it died may wait to be read
                self._fault("internal-error", word)
            self._has_gone("died")
            return
        process = read_process(self.pid)
        if process is None or process.state != "T":  # t: a tracer looks at it
            self._stops = 0
            return
        self._stops += 1
        if self._stops >= 2:
            send_signal(process, signal.SIGKILL)
            self._has_gone("was stopped")

    def _has_gone(self, how: str) -> None:
        if not self.is_gone:
            self.is_gone = True
            log("the supervisor %s" % how)
            self._fault("supervisor-lost", "the supervisor process %s" % how)

    def _on_word(self) -> None:
        word = self._read_word()
        if word:
            self._fault("internal-error", word)
        elif word is not None:
            self._selector.unregister(self._channel)  # `look` sees the death

    def _read_word(self) -> Optional[str]:
        """Read the supervisor's one kind of message; None without one, "" once it has ended."""
        try:
            return self._channel.recv(4096, socket.MSG_DONTWAIT).decode("utf-8", "replace")
        except BlockingIOError:
            return None
        except OSError:
            return ""
