"""What the parts of an agent share."""

from __future__ import annotations

import selectors
from typing import Callable

from allranks.protocol.header import AgentHeader
from allranks.protocol.messages import Message
from allranks.protocol.records import NamedTuple

from .forked_tasks import Tasks
from .outlet import Outlet


class ThisNode(NamedTuple):
    """This node in this run. `tell` takes messages for the controller, and for the journal what is read again."""

    header: AgentHeader
    directory: str
    selector: selectors.BaseSelector
    outlet: Outlet
    tasks: Tasks
    tell: Callable[[Message], None]
