"""Orders: what the controller asks of a node's agent, one record each (pure, Python 3.8).

`ORDERS` names them in JSON. An agent decodes each once, where it arrives; what does not fit is refused there.
"""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Tuple, Union

from .codec import Vocabulary
from .frames import PROTOCOL, pack_json
from .jsontext import Json
from .processes import ImportRecord
from .records import NamedTuple

MOST_RANKS = 1 << 20
MOST_ATTEMPTS = (1 << 16) - 1  # what a frame of output can name
MOST_CALLS = 400  # collectives of a rank in one answer
MOST_PATH = 4096  # bytes of a path (PATH_MAX)


class HelloOrder(NamedTuple):
    """The first word of a controller. `have` are the sizes of its logs, by stream (`frames.stream_key`).

    `asks_launch`: it has taken the run over, and needs what another one gave the agent to keep (`KeepOrder`)."""

    protocol: int = PROTOCOL
    lease: Optional[float] = None
    have: Mapping[str, int] = {}
    asks_launch: bool = False


class KeepOrder(NamedTuple):
    """Keep in memory what ranks are started with, secrets among it, for a controller that takes the run over."""

    launch: Mapping[str, Json]


class ShipOrder(NamedTuple):
    """A synced tree comes: bytes of the archive, and bytes and files that it holds."""

    sha256: str
    packed: int
    bytes: int
    files: int


class SetupOrder(NamedTuple):
    """Collect the facts of the node, after the prelude and with the named checks.

    The checks that the order names read all of it by name (`Host.request`); `launching` is theirs alone."""

    workdir: Optional[str] = None
    command: Tuple[str, ...] = ()
    kind: Optional[str] = None
    launching: Json = None
    modules: Tuple[str, ...] = ()
    python: Optional[str] = None
    launcher_python: Optional[str] = None
    virtual_env: Optional[str] = None
    conda_prefix: Optional[str] = None
    own_environment: Optional[str] = None
    environ: Mapping[str, str] = {}
    prelude: Optional[str] = None
    master_port: int = 0
    nproc: Optional[int] = None
    data_paths: Tuple[str, ...] = ()
    expect_gpus: Optional[int] = None
    node_dir: Optional[str] = None
    output_dir: Optional[str] = None
    target: Json = None
    uid: str = ""
    checks: Tuple[str, ...] = ()
    seconds: float = 30.0


class ListenOrder(NamedTuple):
    """Open the master's port for the rendezvous check (0: a free one); a nonce goes into a shared directory."""

    port: int
    token: str
    nonce_dir: Optional[str] = None


class ProbeOrder(NamedTuple):
    """Connect to the master's port at each address; a joined node looks up names in `only` alone."""

    addresses: Tuple[str, ...]
    port: int
    token: str
    seconds: float
    nonce_dir: Optional[str] = None
    only: Optional[Tuple[str, ...]] = None


class RankOrder(NamedTuple):
    """One process to start. `weak` names variables that yield to the node's own; `path_first` goes before PATH;
    `files` are written first; `starts_ranks`: the ranks that it starts are watched by their exit."""

    rank: int
    local_rank: int
    argv: Tuple[str, ...]
    env: Dict[str, str]
    workdir: str
    weak: Tuple[str, ...] = ()
    path_first: Optional[str] = None
    files: Mapping[str, str] = {}
    error_files: Tuple[str, ...] = ()
    starts_ranks: bool = False


class FollowedFile(NamedTuple):
    """A file that others write and that travels to the run directory; `kind` as in `frames.FOLLOWED`."""

    kind: str
    rank: int
    path: str


class SuiteNodes(NamedTuple):
    """Where collective tests run: nodes in the gang's order, and `dead` pairs that --suite pairs leaves out."""

    nodes: Tuple[str, ...]
    dead: Tuple[Tuple[str, str], ...] = ()


class StartTerms(NamedTuple):
    """When, where and how many: from these a joined node makes its own order to start.

    The node is `index` of `of`; `repeats` of the attempts cost none. `master_port` is a text in <> in a dry run, where
    it is chosen later.
    """

    world_size: int
    index_: int
    of: int
    first_rank: int
    nproc: int
    attempt: int
    repeats: int
    master_addr: str
    master_port: Union[int, str]
    run: str
    run_tag: str
    node_dir: str = ""
    interfaces: Mapping[str, str] = {}
    tests: Optional[SuiteNodes] = None


class PreloadOrder(NamedTuple):
    """Begin to import what the ranks of an attempt will need, before they start. `rank` is the first of this node.

    `imports` are what another node's ranks have imported; without them, what a former run of this program has."""

    attempt: int
    rank: RankOrder
    preload: str
    imports: Optional[ImportRecord] = None
    terms: Optional[StartTerms] = None


class ImportsOrder(NamedTuple):
    """Say what the template of this node has imported: a spare is to import it too."""


class StartOrder(NamedTuple):
    """Make the directories and start the ranks. `terms` are for a joined node, which makes its own order of them.

    `template`: while these ranks run, keep a process that has imported what they have, and fork the next from it.
    `preload` is the setting; where it is auto or torch, these ranks may be forked too, and what they import is kept."""

    attempt: int
    ranks: Tuple[RankOrder, ...]
    make: Tuple[str, ...] = ()
    follow: Tuple[FollowedFile, ...] = ()
    terms: Optional[StartTerms] = None
    template: bool = False
    preload: str = "never"


class PingOrder(NamedTuple):
    """Answer with the node's time; `sent` is the controller's."""

    sent: float


class AckOrder(NamedTuple):
    """The controller has these sizes on its disk, by stream."""

    sizes: Mapping[str, int] = {}


class TakenOrder(NamedTuple):
    """The controller has taken so many bytes of output from this connection."""

    output: int = 0


class EndOrder(NamedTuple):
    """End the ranks: SIGTERM, and SIGKILL after `grace` seconds. `note_calls`: they first note what they called."""

    grace: float
    reason: str = ""
    note_calls: bool = False


class StacksOrder(NamedTuple):
    """Sample the stacks of ranks; `ask`: look or dump, what their flight recorders are asked for."""

    ranks: Tuple[int, ...] = ()
    ask: str = ""


class CountersOrder(NamedTuple):
    """Say how many collectives the ranks have begun and done."""

    ranks: Tuple[int, ...] = ()


class UsageOrder(NamedTuple):
    """While ranks run, say every so many seconds what this machine does."""

    every: float


class CallTimesOrder(NamedTuple):
    """Say when the ranks called their newest collectives, `most` each; look at what `suspects` do for some seconds."""

    ranks: Tuple[int, ...] = ()
    most: int = 0
    suspects: Tuple[int, ...] = ()


class ServeOrder(NamedTuple):
    """Open two ports on which peers try this node."""

    token: str
    seconds: float


class PeerAddress(NamedTuple):
    """Where a peer serves: its main address with both ports, and other addresses that are connected to only."""

    address: str
    port: int
    ways: Tuple[str, ...] = ()
    udp: Optional[int] = None


class ReachOrder(NamedTuple):
    """Try the peers, and resolve names. `sender` is this node's number."""

    token: str
    sender: int
    seconds: float
    names: Tuple[str, ...] = ()
    peers: Mapping[str, PeerAddress] = {}


class ReleaseOrder(NamedTuple):
    """All is done and fetched: remove the node directory and exit."""


class SignalOrder(NamedTuple):
    """SIGUSR1 or SIGUSR2 (`name` without SIG) for the ranks, numbered in its attempt: none is sent twice."""

    attempt: int
    order: int
    name: str


class SaveOrder(NamedTuple):
    """Where `allranks.should_save` returns True: a request to save, numbered in its attempt, and how far it is.

    `phase` is one of SAVE_PHASES: asked (the ranks go on), proposed (a rank that comes to `step` waits there), agreed.
    """

    attempt: int
    request: int
    phase: str
    step: int = 0
    ranks: Tuple[int, ...] = ()


SAVE_PHASES = ("asked", "proposed", "agreed")
Order = Union[
    HelloOrder,
    KeepOrder,
    ShipOrder,
    SetupOrder,
    ListenOrder,
    ProbeOrder,
    PreloadOrder,
    ImportsOrder,
    StartOrder,
    PingOrder,
    AckOrder,
    TakenOrder,
    EndOrder,
    StacksOrder,
    CountersOrder,
    UsageOrder,
    CallTimesOrder,
    ServeOrder,
    ReachOrder,
    ReleaseOrder,
    SignalOrder,
    SaveOrder,
]

ORDERS: Vocabulary[Order] = Vocabulary(
    "type",
    {
        "hello": HelloOrder,
        "keep": KeepOrder,
        "ship": ShipOrder,
        "setup": SetupOrder,
        "listen": ListenOrder,
        "probe": ProbeOrder,
        "preload": PreloadOrder,
        "imports": ImportsOrder,
        "start": StartOrder,
        "ping": PingOrder,
        "ack": AckOrder,
        "taken": TakenOrder,
        "end": EndOrder,
        "stacks": StacksOrder,
        "counters": CountersOrder,
        "usage": UsageOrder,
        "call-times": CallTimesOrder,
        "serve": ServeOrder,
        "reach": ReachOrder,
        "release": ReleaseOrder,
        "signal": SignalOrder,
        "save": SaveOrder,
    },
)


def terms_alone(order: Order) -> Order:
    """Give what a node reads of an order that makes its own of it: no command, and no variable of another machine."""
    if isinstance(order, SetupOrder):
        return SetupOrder(uid=order.uid, checks=order.checks, seconds=order.seconds)
    if isinstance(order, StartOrder):
        return StartOrder(order.attempt, (), terms=order.terms)
    if isinstance(order, PreloadOrder):
        rank = RankOrder(order.rank.rank, order.rank.local_rank, (), {}, "")
        return PreloadOrder(order.attempt, rank, order.preload, terms=order.terms)
    return order


def pack_order(order: Order) -> bytes:
    """Make the frame of an order."""
    return pack_json(ORDERS.write(order))
