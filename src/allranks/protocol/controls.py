"""Control messages between a node that dials and the coordinator, beside the bytes of its channels (pure, Python 3.8).

Records of `secure` carry them (`pack_control`). Both ends check numbers and texts where they use them.
"""

from __future__ import annotations

from typing import Optional, Union

from .codec import DecodeError, Vocabulary, omit_empty
from .header import AgentHeader
from .jsontext import JsonObject
from .records import NamedTuple

LAST_NUMBER = (1 << 32) - 1  # of a channel: four bytes carry it


@omit_empty()
class WaitControl(NamedTuple):
    """The coordinator is there; `say` is for the person at the node."""

    say: str = ""


class RefusedControl(NamedTuple):
    """The coordinator does not take this node."""

    exit: int
    message: str = ""


class OverControl(NamedTuple):
    """The run is over, with this exit code."""

    exit: int
    message: str = ""


class OpenControl(NamedTuple):
    """Open a channel: start a relay with this header."""

    number: int
    header: AgentHeader


class CloseControl(NamedTuple):
    """Close a channel."""

    number: int


@omit_empty()
class HelloControl(NamedTuple):
    """A node's first word. `instance` tells its process from others that come as the same rank; `begun`: an agent runs
    there already; `nproc`: its own --nproc. All nodes must have the last four alike."""

    rank: int
    hostname: str = ""
    instance: str = ""
    begun: bool = False
    nproc: Optional[int] = None
    nnodes: str = ""
    command: str = ""
    script: str = ""
    version: str = ""


class ClosedControl(NamedTuple):
    """The relay of a channel has ended."""

    number: int


class StopControl(NamedTuple):
    """The person at the node, or its engine, wants the run to end."""

    reason: str


class SignalControl(NamedTuple):
    """SIGUSR1 or SIGUSR2 came to the node's task and is for the ranks."""

    name: str


ToNode = Union[WaitControl, RefusedControl, OverControl, OpenControl, CloseControl]
ToCoordinator = Union[HelloControl, ClosedControl, StopControl, SignalControl]

TO_NODE: Vocabulary[ToNode] = Vocabulary(
    "type",
    {
        "wait": WaitControl,
        "refused": RefusedControl,
        "over": OverControl,
        "open": OpenControl,
        "close": CloseControl,
    },
)
TO_COORDINATOR: Vocabulary[ToCoordinator] = Vocabulary(
    "type", {"hello": HelloControl, "closed": ClosedControl, "stop": StopControl, "signal": SignalControl}
)


def read_to_node(value: JsonObject) -> ToNode:
    """Decode what the coordinator sends; raise DecodeError."""
    control = TO_NODE.read(value)
    if isinstance(control, (RefusedControl, OverControl)) and not 0 <= control.exit <= 255:
        raise DecodeError("$.exit: expected an exit code")
    if isinstance(control, OpenControl) and not 0 <= control.number <= LAST_NUMBER:
        raise DecodeError("$.number: expected a number of a channel")
    return control
