"""What the training program reports: datagrams of the runner, in the ranks and in what their launchers start.

Any process of the user may send some, and a program may send them faster than they are read.
"""

from __future__ import annotations

import selectors
import socket
import time
from typing import Dict, Optional

from allranks.protocol.codec import DecodeError
from allranks.protocol.foreign import ReportMessage, read_report
from allranks.protocol.messages import RefusedMessage
from allranks.protocol.node_names import NodeFiles

from .attempt import RankAttempt
from .ranks import Ranks
from .readiness import Readiness
from .this_node import ThisNode

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
        self.refused: Dict[str, int] = {}  # how many could not be read
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
                self._refuse(str(error))
                continue
            if report.event == "initialised":
                self._readiness.release_port()
                self._ranks.initialised(report)
            if not self._ranks.launched(report):
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

    def _refuse(self, why: str) -> None:
        if not self.refused:
            self._node.tell(RefusedMessage(REPORTS, why, time.time()))
        self.refused[REPORTS] = self.refused.get(REPORTS, 0) + 1
