"""Orders: what the controller asks of a node's agent, one record each (pure, Python 3.8).

`ORDERS` names them in JSON as their records are called. An agent decodes each once, where it arrives; what does not fit
is refused there. What a field may hold stands at the field, for every transport alike.
"""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Tuple, Union

from .codec import Annotated, Vocabulary, at_most, by_name, like, one_of, spread, within
from .frames import FOLLOWED, PROTOCOL, pack_json
from .jsontext import Json
from .processes import ImportRecord
from .records import NamedTuple

MOST_RANKS = 1 << 20
MOST_ATTEMPTS = (1 << 16) - 1  # what a frame of output can name
MOST_CALLS = 400  # collectives of a rank in one answer
MOST_PATH = 4096  # bytes of a path (PATH_MAX)
MOST_HERE = 4096  # ranks of one node
MOST_ADDRESSES = 16  # of the master that a node tries, or of a peer
MOST_PORTS = 64
MOST_SECONDS = 366 * 86400.0
LARGEST_STEP = (1 << 53) - 1  # a step comes from the training program, and JSON has no larger whole numbers
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"

Seconds = Annotated[float, within(0, MOST_SECONDS)]
Count = Annotated[int, within(0, LARGEST_STEP)]
Size = Annotated[int, within(0, (1 << 63) - 1)]
Port = Annotated[int, within(0, 65535)]
Rank = Annotated[int, within(0, MOST_RANKS)]
AttemptNumber = Annotated[int, within(0, MOST_ATTEMPTS)]
Step = Annotated[int, within(-LARGEST_STEP, LARGEST_STEP)]
Ranks = Annotated[Tuple[Rank, ...], at_most(MOST_HERE)]
StreamName = Annotated[str, like(r"[0-9]{1,3}/[0-9]{1,10}/[0-9]{1,5}", "kind/rank/attempt")]  # frames.stream_key
FileName = Annotated[str, like(NAME, "a name of letters, digits, '.', '_' and '-'")]
RunTag = Annotated[str, like(NAME + r"/node_[0-9]{2,6}(_[0-9]{1,4})?", "a run and its node")]
Token = Annotated[str, like(r"[A-Za-z0-9_/-]{1,128}", "a token")]
HostName = Annotated[str, like(r"[^\s\x00-\x1f/]{0,255}", "an address")]
NodeName = Annotated[str, like(r"[^-,\s\x00-\x1f][^,\s\x00-\x1f]{0,254}", "a name of a node")]
InterfaceSetting = Annotated[str, one_of("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")]
Placeholder = Annotated[str, like(r"[a-z][a-z0-9_.-]{0,127}", "a placeholder")]
RoleValue = Annotated[str, like(r"[^\s\x00-\x1f]{0,1048576}", "addresses, hosts or a port")]  # of a placeholder
InterfaceNames = Annotated[str, like(r"[=^]?[A-Za-z0-9._,:-]{1,200}", "names of interfaces")]
Reason = Annotated[str, like(r"[A-Za-z0-9 _-]{0,64}", "a word")]


class HelloOrder(NamedTuple):
    """The first word of a controller. `have` are the sizes of its logs, by stream (`frames.stream_key`).

    `asks_launch`: it has taken the run over, and needs what another one gave the agent to keep (`KeepOrder`)."""

    protocol: int = PROTOCOL
    lease: Optional[Seconds] = None
    have: Mapping[StreamName, Size] = {}
    asks_launch: bool = False


class KeepOrder(NamedTuple):
    """Keep in memory what ranks are started with, secrets among it, for a controller that takes the run over."""

    launch: Mapping[str, Json]


class ShipOrder(NamedTuple):
    """A synced tree comes: bytes of the archive, and bytes and files that it holds."""

    sha256: Annotated[str, at_most(64)]
    packed: Size
    bytes: Size
    files: Count


class Environments(NamedTuple):
    """Where the training interpreter may be: environments of the caller, and that of allranks."""

    virtual_env: Optional[str] = None
    conda_prefix: Optional[str] = None
    own_environment: Optional[str] = None


@spread("environments")
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
    environments: Environments = Environments()
    environ: Mapping[str, str] = {}
    prelude: Optional[str] = None
    master_port: int = 0
    nproc: Optional[int] = None
    data_paths: Tuple[str, ...] = ()
    expect_gpus: Optional[int] = None
    node_dir: Optional[str] = None
    output_dir: Optional[str] = None
    target: Json = None
    uid: Annotated[str, like(f"({NAME})?", "a name, or none")] = ""
    checks: Tuple[str, ...] = ()
    seconds: Seconds = 30.0


class ListenOrder(NamedTuple):
    """Open the master's port for the rendezvous check (0: a free one); a nonce goes into a shared directory.

    `more`: so many further free ports are named, for what the ranks of a role serve."""

    port: Port
    token: Token
    nonce_dir: Optional[str] = None
    more: Annotated[int, within(0, MOST_PORTS)] = 0


class ProbeOrder(NamedTuple):
    """Connect to the master's port at each address."""

    addresses: Annotated[Tuple[HostName, ...], at_most(MOST_ADDRESSES)]
    port: Port
    token: Token
    seconds: Seconds
    nonce_dir: Optional[str] = None


class ReadyOrder(NamedTuple):
    """Say whether a server answers: at a port, or with a success to a GET of `path` (`secure`: over TLS)."""

    address: HostName
    port: Port
    path: Annotated[str, at_most(MOST_PATH)] = ""
    secure: bool = False
    seconds: Seconds = 2.0


class RankOrder(NamedTuple):
    """One process to start. `weak` names variables that yield to the node's own; `path_first` goes before PATH;
    `files` are written first; `starts_ranks`: the ranks that it starts are watched by their exit."""

    rank: Rank
    local_rank: Rank
    argv: Tuple[str, ...]
    env: Dict[str, str]
    workdir: str
    weak: Tuple[str, ...] = ()
    path_first: Optional[str] = None
    files: Mapping[str, str] = {}
    error_files: Tuple[str, ...] = ()
    starts_ranks: bool = False

    @property
    def ranks(self) -> range:
        """The ranks that the process is, or starts."""
        return range(self.rank, self.rank + max(1, len(self.error_files)))


class FollowedFile(NamedTuple):
    """A file that others write and that travels to the run directory; `kind` as in `frames.FOLLOWED`."""

    kind: Annotated[str, one_of(*FOLLOWED)]
    rank: Rank
    path: Annotated[str, at_most(MOST_PATH)]


class SuiteNodes(NamedTuple):
    """Where collective tests run: nodes in the gang's order, and `dead` pairs that --suite pairs leaves out."""

    nodes: Tuple[NodeName, ...]
    dead: Tuple[Tuple[NodeName, NodeName], ...] = ()


class StartTerms(NamedTuple):
    """When, where and how many: from these a joined node makes its own order to start.

    The node is `index` of `of`; `repeats` of the attempts cost none. `master_port` is a text in <> in a dry run, where
    it is chosen later.
    """

    world_size: Rank
    index_: Rank
    of: Rank
    first_rank: Rank
    nproc: Annotated[int, within(0, MOST_HERE)]
    attempt: AttemptNumber
    repeats: AttemptNumber
    master_addr: HostName
    master_port: Union[Port, str]
    run: FileName
    run_tag: RunTag
    node_dir: str = ""
    interfaces: Mapping[InterfaceSetting, InterfaceNames] = {}
    tests: Optional[SuiteNodes] = None
    peers: Mapping[Placeholder, RoleValue] = {}  # what is known of all roles


OF_A_FORMER_RUN = ("auto", "torch")  # values of --preload with which a run imports what a former one has


class PreloadOrder(NamedTuple):
    """Begin to import what the ranks of an attempt will need, before they start. `rank` is the first of this node.

    `imports` are what another node's ranks have imported; without them, what a former run of this program has."""

    attempt: AttemptNumber
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

    attempt: AttemptNumber
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

    sizes: Mapping[StreamName, Size] = {}


class TakenOrder(NamedTuple):
    """The controller has taken so many bytes of output from this connection."""

    output: Size = 0


class EndOrder(NamedTuple):
    """End the ranks: SIGTERM, and SIGKILL after `grace` seconds. `note_calls`: they first note what they called."""

    grace: Seconds
    reason: Reason = ""
    note_calls: bool = False


class StacksOrder(NamedTuple):
    """Sample the stacks of ranks; `ask`: what their flight recorders are asked for (agent/sample.py).

    `asked` counts the questions of people, 0: the gang's own. Such a look signals no rank, and is of all ranks of the
    node where none is named. `native`: stop them for the frames below Python.
    """

    ranks: Ranks = ()
    ask: Annotated[str, one_of("", "look", "see", "dump")] = ""
    asked: Annotated[int, within(0, 1 << 53)] = 0
    native: bool = False


MOST_PROFILES = 9999  # of a run


class ProfileOrder(NamedTuple):
    """Begin to profile ranks, for so many seconds at the most; with `is_end`, end it and let the traces travel.

    `number` is the profile's in its run, `asked` counts the questions of people."""

    ranks: Ranks = ()
    seconds: Seconds = 0.0
    number: Annotated[int, within(1, MOST_PROFILES)] = 1
    asked: Annotated[int, within(0, 1 << 53)] = 0
    is_end: bool = False


class CountersOrder(NamedTuple):
    """Say how many collectives the ranks have begun and done."""

    ranks: Ranks = ()


class UsageOrder(NamedTuple):
    """While ranks run, say every so many seconds what this machine does."""

    every: Seconds


class CallTimesOrder(NamedTuple):
    """Say when the ranks called their newest collectives, `most` each; look at what `suspects` do for some seconds."""

    ranks: Ranks = ()
    most: Annotated[int, within(0, MOST_CALLS)] = 0
    suspects: Ranks = ()


class ServeOrder(NamedTuple):
    """Open two ports on which peers try this node."""

    token: Token
    seconds: Seconds


class PeerAddress(NamedTuple):
    """Where a peer serves: its main address with both ports, and other addresses that are connected to only."""

    address: HostName
    port: Port
    ways: Annotated[Tuple[HostName, ...], at_most(MOST_ADDRESSES)] = ()
    udp: Optional[Port] = None


class ReachOrder(NamedTuple):
    """Try the peers, and resolve names. `sender` is this node's number."""

    token: Token
    sender: Rank
    seconds: Seconds
    names: Tuple[str, ...] = ()
    peers: Mapping[str, PeerAddress] = {}


class ReleaseOrder(NamedTuple):
    """All is done and fetched: remove the node directory and exit."""


class SignalOrder(NamedTuple):
    """SIGUSR1 or SIGUSR2 (`name` without SIG) for the ranks, numbered in its attempt: none is sent twice."""

    attempt: AttemptNumber
    order: Count
    name: Annotated[str, one_of("USR1", "USR2")]


SAVE_PHASES = ("asked", "proposed", "agreed")


class SaveOrder(NamedTuple):
    """Where `allranks.should_save` returns True: a request to save, numbered in its attempt, and how far it is.

    `phase` is one of SAVE_PHASES: asked (the ranks go on), proposed (a rank that comes to `step` waits there), agreed.
    """

    attempt: AttemptNumber
    request: Count
    phase: Annotated[str, one_of(*SAVE_PHASES)]
    step: Step = 0
    ranks: Ranks = ()


Order = Union[
    HelloOrder,
    KeepOrder,
    ShipOrder,
    SetupOrder,
    ListenOrder,
    ProbeOrder,
    ReadyOrder,
    PreloadOrder,
    ImportsOrder,
    StartOrder,
    PingOrder,
    AckOrder,
    TakenOrder,
    EndOrder,
    StacksOrder,
    ProfileOrder,
    CountersOrder,
    UsageOrder,
    CallTimesOrder,
    ServeOrder,
    ReachOrder,
    ReleaseOrder,
    SignalOrder,
    SaveOrder,
]

ORDERS: Vocabulary[Order] = Vocabulary("type", by_name(Order, "Order"))


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
