"""Control messages between a node that dials and the coordinator, beside the bytes of its channels (pure, Python 3.8).

Records of `secure` carry them (`pack_control`). Texts for people are cut where they are shown.
"""

from __future__ import annotations

from typing import Optional, Union

from .codec import Annotated, Vocabulary, by_name, omit_empty, within
from .header import AgentHeader, FetchHeader
from .orders import MOST_HERE
from .records import NamedTuple

ChannelNumber = Annotated[int, within(0, (1 << 32) - 1)]  # four bytes carry it
ExitCode = Annotated[int, within(0, 255)]


@omit_empty()
class WaitControl(NamedTuple):
    """The coordinator is there; `say` is for the person at the node."""

    say: str = ""


class RefusedControl(NamedTuple):
    """The coordinator does not take this node."""

    exit: ExitCode
    message: str = ""


class OverControl(NamedTuple):
    """The run is over, with this exit code."""

    exit: ExitCode
    message: str = ""


class OpenControl(NamedTuple):
    """Open a channel: start a relay with this header, which connects to an agent or sends files."""

    number: ChannelNumber
    header: Union[AgentHeader, FetchHeader]


class CloseControl(NamedTuple):
    """Close a channel; from a node, its relay has ended."""

    number: ChannelNumber


class CallControl(NamedTuple):
    """Dial once more, for a command or a fetch of the person at node 0, and say this token there.

    A node does it only where it was started with --allow-exec."""

    token: str


@omit_empty()
class HelloControl(NamedTuple):
    """A node's first word. `instance` tells its process from others that come as the same rank; `begun`: an agent runs
    there already; `nproc`: its own --nproc. All nodes must have the four after it alike. `call`: this connection is the
    answer to a call with this token, and no node's place."""

    rank: int
    hostname: str = ""
    instance: str = ""
    begun: bool = False
    nproc: Optional[Annotated[int, within(1, MOST_HERE)]] = None
    nnodes: str = ""
    command: str = ""
    script: str = ""
    version: str = ""
    call: str = ""


class DeclinedControl(NamedTuple):
    """The node does not answer a call, and says why."""

    token: str
    message: str


class StopControl(NamedTuple):
    """The person at the node, or its engine, wants the run to end."""

    reason: str


class SignalControl(NamedTuple):
    """SIGUSR1 or SIGUSR2 came to the node's task and is for the ranks."""

    name: str


ToNode = Union[WaitControl, RefusedControl, OverControl, OpenControl, CloseControl, CallControl]
ToCoordinator = Union[HelloControl, CloseControl, DeclinedControl, StopControl, SignalControl]

TO_NODE: Vocabulary[ToNode] = Vocabulary("type", by_name(ToNode, "Control"))
TO_COORDINATOR: Vocabulary[ToCoordinator] = Vocabulary("type", by_name(ToCoordinator, "Control"))


class ChannelRequest(NamedTuple):
    """What a command on node 0 asks the coordinator for: a channel to a node, within so many seconds."""

    node: str
    seconds: float
    header: Union[AgentHeader, FetchHeader]


@omit_empty()
class ChannelAnswer(NamedTuple):
    """What it gets. Where both are empty the channel follows; `declined` are the node's words, `failed` any other's."""

    declined: str = ""
    failed: str = ""
