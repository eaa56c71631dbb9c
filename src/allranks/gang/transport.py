"""What a gang needs of its engine: channels to nodes, and what becomes of the nodes. Engines fill it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from allranks.cluster import Node
from allranks.findings import Finding
from allranks.protocol.header import Header
from allranks.protocol.jsontext import JsonObject
from allranks.protocol.orders import Order
from allranks.runs.directory import RunDirectory


class NodeHungUp(Exception):
    """What dialled from a node has ended, and dials no more: its host answers, and no connection came."""


class Client(Protocol):
    """This side's end of a channel: descriptors that do not block. `boots`: a marker comes before the first frame."""

    stdin: int
    stdout: int
    stderr: int | None
    boots: bool

    def code(self, seconds: float = 0.0) -> int | None:
        """Return the exit code of the client's process; None while it runs after `seconds`, or without a process."""
        ...

    def end(self) -> None:
        """Close the descriptors and end the process, never anything on the node but the relay."""
        ...


class Transport(Protocol):
    """Starts channels to nodes, and words why one cannot be had."""

    async def connect(self, node: Node, header: Header, seconds: float) -> Client | None:
        """Start a channel; None where the node does not come within `seconds`.

        Raise OSError, SubprocessError or AllranksError where this machine cannot start it: see `not_started`. Raise
        NodeHungUp where waiting is of no use.
        """
        ...

    def described(self, node: Node) -> list[str]:
        """Return the command that reaches a node, as `--dry-run` shows it."""
        ...

    def opening(self, node: Node) -> bytes:
        """Return what is written before the marker is awaited."""
        ...

    def read_there(self, node: Node, order: Order) -> Order:
        """Return what the node's side reads of an order: what it does not read is not sent."""
        ...

    def failure(self, node: Node, stdout: bytes, stderr: str, code: int | None) -> Finding:
        """Return why the node's process ended before its marker came."""
        ...

    def not_started(self, node: Node, error: Exception) -> Finding:
        """Return why this machine could not start a channel; `error` is what `connect` raised."""
        ...

    def mute(self, node: Node, seconds: float) -> Finding:
        """Return the finding on a node whose Python started and whose agent said nothing."""
        ...

    def silence(self, node: Node, seconds: float, stderr: str = "") -> Finding:
        """Return the finding on a node that did not answer within `seconds`. Its client has printed `stderr`."""
        ...

    def retry(self, node: Node, stderr: str) -> bool:
        """Return whether the same again may well succeed."""
        ...


class TimeLeft(NamedTuple):
    """How many seconds ranks have until the engine ends everything by force, and what sets them."""

    seconds: float
    source: str


class BegunSession(Protocol):
    """The session whose nodes are reached, as far as an engine speaks to it (`gang.session.Session`)."""

    run_dir: RunDirectory

    def stop_from_afar(self, reason: str) -> None:
        """End the run because a node wants it, from any thread."""

    def signal_at_node(self, node: str, name: str) -> None:
        """Take SIGUSR1 or SIGUSR2, which came to a node's task; from any thread."""

    def step_ended(self) -> None:
        """Give up all nodes; from any thread."""

    def say_note(self, text: str) -> None:
        """Show and keep a remark."""


class NodeReach:
    """How a session's nodes are reached: by `transport`. These nodes are not taken back; an engine that may, overrides.

    `warning_signal`: what the engine sends before it takes the nodes back. `document`: `slurm` of run.json.
    `run_suffix`: what a run directory has behind its name. `keeps_launch`: another controller may take the run over.
    `awaited_since`: when nodes that come by themselves were first waited for (unix seconds).
    """

    warning_signal: int | None = None
    awaited_since: float | None = None
    run_suffix = ""

    def __init__(self, transport: Transport, keeps_launch: bool = False) -> None:
        self.transport = transport
        self.keeps_launch = keeps_launch

    @property
    def document(self) -> JsonObject:
        """Return what the engine has in run.json."""
        return {}

    def run_directory(self, runs_dir: str) -> RunDirectory | None:
        """Return the run directory that is there for this run already."""
        return None

    def begin(self, session: BegunSession) -> None:
        """Prepare the nodes for a session that is about to run."""

    def warned(self) -> None:
        """Take note that the warning signal has come."""

    def time_left(self) -> TimeLeft | None:
        """Return how long the engine leaves ranks; None where it ends nothing by force. It may take a while."""
        return None

    def finding(self, is_stopped: bool) -> Finding | None:
        """Return the engine's own reason for the end of the ranks; None where it has none."""
        return None

    def listed_again(self) -> Sequence[Node]:
        """Return the nodes of the host list, where that has changed since the last call; it is asked once a second."""
        return ()

    def against_retry(self) -> str:
        """Return why the nodes cannot have another attempt; empty where they can."""
        return ""

    def refuse_requeue(self) -> str:
        """Have the engine not start this run again, as it would fail the same way; say what was done."""
        return ""

    def linger(self, cause: str) -> None:
        """Stay as long as the engine needs this process after a run that ended by `cause`."""

    def end(self) -> None:
        """Give the nodes back."""
