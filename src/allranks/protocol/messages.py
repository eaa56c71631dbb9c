"""Messages: what a node's agent sends to the controller, one record each (pure, Python 3.8).

`MESSAGES` names them in JSON as their records are called. The controller decodes each once, where it arrives
(`read_message`); one that does not fit is counted and left out. `t` is unix time by the node's clock.
"""

from __future__ import annotations

from typing import List, Mapping, Optional, Tuple, Union

from .codec import Annotated, DecodeError, Vocabulary, at_most, by_name, encode, like, omit_empty, omit_none, spread
from .foreign import NAME, CalledGroup, ReportMessage, check_report, clean_called, clean_error, clean_name, cut
from .frames import pack_json
from .jsontext import Json, JsonObject
from .orders import MOST_PORTS, MOST_RANKS, Port
from .processes import ImportRecord, PortOwner, RemainingProcess, SweptProcess
from .records import NamedTuple
from .samples import LinkCount, NodeUsage, RankCalls, RankProfile, SuspectLook

LOW_SPACE = "low-space"  # a remark: the file system of the node directory runs full
LITTLE_SPACE = 1 << 30  # bytes: so much of it is little, before the start and while ranks run
MOST_ANSWER = 300  # characters of what a server answered
Cpus = Annotated[str, like(r"[0-9,-]{0,4096}", "CPUs")]
MOST_LEFT = 3  # programs that a rank has left running
MOST_WORLDS = 16  # of other launchers, in one attempt on one node


@omit_none
@omit_empty("background")
class ExitMessage(NamedTuple):
    """A rank's main process ended; `error` is its error file. `expected`: allranks was ending it.

    `calls` are the collectives that this rank, or each that it has started, has noted at its end. `background` are
    programs of Python that it had left running, which are ended with it."""

    rank: int
    attempt: int = 0
    t: Optional[float] = None
    code: Optional[int] = None
    signal: Optional[int] = None
    expected: bool = False
    oom_kills: int = 0
    error: Optional[JsonObject] = None
    calls: Mapping[int, Tuple[CalledGroup, ...]] = {}
    pid: Optional[int] = None
    background: Tuple[str, ...] = ()

    @property
    def failed_by_itself(self) -> bool:
        """Tell whether it ended with anything but code 0, and allranks was not ending it."""
        return self.code != 0 and not self.expected


class RankSummary(NamedTuple):
    """A rank of an agent that was away."""

    pid: int
    exit: Optional[ExitMessage] = None


@omit_empty("program")
class WorldMessage(NamedTuple):
    """A world that another launcher has made below this node's ranks; `number` tells an attempt's worlds apart.

    `size` is its number of ranks, `here` how many of them were seen on this node, `program` what they run. `is_all`:
    the rank's process does nothing but start it, so that no other world can follow. `is_own`: the program has made it
    of its own processes, as torch.multiprocessing.spawn does.
    """

    attempt: int
    number: int
    size: int
    here: int
    lives: bool = False
    program: str = ""
    is_all: bool = False
    is_own: bool = False


@omit_empty("worlds")
class AttemptSummary(NamedTuple):
    """The attempt of an agent that was away: its ranks, and how many signals it has passed on.

    `awaited` are ranks that start once what they are forked from has imported.
    """

    attempt: int
    ranks: Mapping[int, RankSummary] = {}
    ending: bool = False
    signals: int = 0
    awaited: Tuple[int, ...] = ()
    worlds: Tuple[WorldMessage, ...] = ()


@omit_none
class HelloMessage(NamedTuple):
    """The first word of an agent, or of its supervisor (`dead`: `how` the agent ended, and when).

    `launch` is what it was given to keep, for a controller that asks for it."""

    node_dir: str
    hostname: str
    pid: int = 0
    t: Optional[float] = None
    cwd: str = ""
    dead: bool = False
    how: str = ""
    died_t: Optional[float] = None
    attempt: Optional[AttemptSummary] = None
    launch: Optional[JsonObject] = None


class GotMessage(NamedTuple):
    """So many bytes of the synced tree have arrived; `begin`: the answer to a `ship` order."""

    bytes: int
    begin: bool = False


@omit_empty()
class ShippedMessage(NamedTuple):
    """The synced tree lies at `path`, or `error` says why it does not."""

    path: str
    sha256: str = ""
    files: int = 0
    error: str = ""
    errno: Optional[int] = None


class FactsMessage(NamedTuple):
    """The facts of a node (see `facts` and `plan_facts`), or why there are none."""

    facts: Mapping[str, Json] = {}
    error: str = ""


class PortFailure(NamedTuple):
    """Why a port could not be opened."""

    port: Optional[int] = None
    errno: Optional[str] = None
    text: Optional[str] = None
    owner: Optional[PortOwner] = None


class ListeningMessage(NamedTuple):
    """The master's port is open, or `error` says why it is not."""

    port: int = 0
    error: Optional[PortFailure] = None
    more: Annotated[Tuple[Port, ...], at_most(MOST_PORTS)] = ()


@omit_none
class AddressProbe(NamedTuple):
    """What became of one address: `error` is one word (plan.network reads it), `text` the system's."""

    address: str
    ok: bool = False
    port: int = 0
    seconds: Optional[float] = None
    local_address: Optional[str] = None
    error: Optional[str] = None
    text: Optional[str] = None
    ip: Optional[str] = None  # of a name


class ProbedMessage(NamedTuple):
    """The addresses of the master as this node reaches them; `shared`: it sees the nonce of the output directory."""

    results: Tuple[AddressProbe, ...] = ()
    error: str = ""
    shared: bool = True


class ReadyMessage(NamedTuple):
    """Whether a server is ready, and what it answered: a status, or why there is none.

    `is_there`: a program has the port, ready or not.
    """

    ok: bool = False
    answer: Annotated[str, at_most(MOST_ANSWER)] = ""
    error: str = ""
    is_there: bool = False


class StartedMessage(NamedTuple):
    """A rank's process runs."""

    rank: int
    pid: int = 0
    attempt: int = 0
    t: Optional[float] = None


@omit_empty("allowed", "why")
class BoundMessage(NamedTuple):
    """The CPUs that ranks of this node run on, by a `rule` of --bind and the NUMA nodes of so many `gpus`.

    `allowed`: those that this process may use, where they are not all. `why` says what the rule could not give."""

    rule: str
    cpus: Mapping[int, Cpus] = {}
    gpus: int = 0
    allowed: Cpus = ""
    why: Annotated[str, at_most(MOST_ANSWER)] = ""


@omit_none
class TemplateMessage(NamedTuple):
    """What became of a node's template: `state` is ready, used (ranks of this attempt are forked from it) or off.

    `modules` and `seconds` of import where it is ready, `ranks` where it is used, `why` where it is off."""

    state: str
    attempt: int
    modules: Optional[int] = None
    seconds: Optional[float] = None
    ranks: Optional[int] = None
    why: str = ""


class EndedMessage(NamedTuple):
    """The node has ended its ranks and looked for others. Reason `lease`: its lease ran out, no order came."""

    attempt: int = 0
    left: Tuple[RemainingProcess, ...] = ()
    reason: str = ""
    seconds: float = 0.0
    t: Optional[float] = None


class DrainedMessage(NamedTuple):
    """All output was sent. `sizes` say where each stream ends, `outputs` where the program's own files stay, and
    `refused` how many texts of the program could not be read, by source."""

    attempt: int = 0
    sizes: Mapping[str, int] = {}
    outputs: Optional[str] = None
    refused: Mapping[str, int] = {}


@omit_none
class StacksMessage(NamedTuple):
    """Stack samples by rank (see agent.sample), and NCCL's word on the job. `asked` is the order's."""

    ranks: Mapping[int, JsonObject] = {}
    ras: Optional[str] = None
    error: str = ""
    asked: int = 0


class ProfiledMessage(NamedTuple):
    """What came of an order to profile, by rank. `asked` is the order's."""

    ranks: Mapping[int, RankProfile] = {}
    error: str = ""
    asked: int = 0


class CountersMessage(NamedTuple):
    """How many collectives each rank has begun and done, in numbers that only grow."""

    ranks: Mapping[int, JsonObject] = {}
    error: str = ""


class CallTimesMessage(NamedTuple):
    """When each rank called its newest collectives, the counters of its connections, and a look at suspects."""

    ranks: Mapping[int, RankCalls] = {}
    links: Tuple[LinkCount, ...] = ()
    suspects: Mapping[int, SuspectLook] = {}
    t: Optional[float] = None
    error: str = ""


class RankSaving(NamedTuple):
    """How far a rank is with a request to save: how often it has called `should_save`, and its newest two steps.

    `holds`: it waits at the proposed step. `saved` is the step at which it was let save, and `is_back`: it has called
    again since."""

    calls: int = 0
    last: int = 0
    before: int = 0
    holds: bool = False
    saved: Optional[int] = None
    is_back: bool = False


class SavingMessage(NamedTuple):
    """The answer to an order to save, and what changes after it. The first fields are the order's."""

    attempt: int
    request: int
    phase: str
    step: int
    ranks: Mapping[int, RankSaving] = {}


@omit_none
class FaultMessage(NamedTuple):
    """An agent's own failure, or that of the way to it."""

    id: str
    message: str
    rank: Optional[int] = None
    t: Optional[float] = None
    traceback: str = ""


class RemarkMessage(NamedTuple):
    """What is amiss on this node and ends nothing: a warning from now to the end of the run, once of each `id`.

    The controller names the node and the remedy (gang/connections.py), so `message` goes on behind "h1: ".
    """

    id: Annotated[str, like(r"[a-z][a-z0-9-]{1,40}", "the name of a warning")]
    message: Annotated[str, at_most(MOST_ANSWER)]


class PongMessage(NamedTuple):
    """The answer to a ping: the controller's time in it, and the node's."""

    sent: float
    t: float


class RefusedMessage(NamedTuple):
    """A text of the training program could not be read."""

    source: str = ""
    why: str = ""
    t: Optional[float] = None


class DroppedMessage(NamedTuple):
    """Bytes of a stream that were dropped in all; `bounded`: the spool has its share of the disk."""

    kind: int
    rank: int
    attempt: int
    total: int
    bounded: bool = False


class ReplacedMessage(NamedTuple):
    """Another controller has connected."""


class ServingMessage(NamedTuple):
    """The ports on which peers may try this node."""

    port: int
    udp: int


@spread("way")
@omit_none
class PeerResult(NamedTuple):
    """What became of a peer, as agent/peers.py tried it: TCP, then packets of UDP, then sizes."""

    way: AddressProbe = AddressProbe("")  # to its main address
    connect_s: Optional[float] = None
    bulk: Optional[bool] = None  # whether 256 KB have arrived
    bulk_s: Optional[float] = None
    sent: int = 0  # packets
    arrived: int = 0
    mtu_arrived: int = 0  # bytes of IP packets
    mtu_local: int = 0
    ways: Tuple[AddressProbe, ...] = ()  # to its other addresses


class ReachedMessage(NamedTuple):
    """What became of each peer, and what names resolve to here; an empty list where a name does not."""

    pairs: Mapping[str, PeerResult] = {}
    names: Mapping[str, Tuple[str, ...]] = {}
    error: str = ""


@omit_none
class SweptMessage(NamedTuple):
    """The answer to a sweep of a node; None is what was not asked for.

    `processes` are orphans, `directories` those that no agent uses, `foreign` the user's processes outside any run,
    `left` what could not be ended, `kept` directories of outputs, which stay."""

    processes: Optional[List[SweptProcess]] = None
    directories: Optional[List[str]] = None
    foreign: Optional[List[SweptProcess]] = None
    left: Optional[List[SweptProcess]] = None
    kept: Optional[List[str]] = None


@omit_empty()
class DialledMessage(NamedTuple):
    """A node was to dial back. It has, where both are empty; else it ends, and says why.

    `tried` are the addresses, each with what became of it. `why` is any other reason."""

    tried: Annotated[str, at_most(MOST_ANSWER)] = ""
    why: Annotated[str, at_most(MOST_ANSWER)] = ""


class OutputFile(NamedTuple):
    """A file of a run's outputs: its path below their directory, and its bytes."""

    path: str
    size: int


class ListedMessage(NamedTuple):
    """Files of a run's outputs; `last`: no others follow. `skipped` are links, pipes, and files beyond the limit.

    `is_absent`: the directory is not there, which `error` says too."""

    files: Tuple[OutputFile, ...] = ()
    last: bool = False
    skipped: int = 0
    error: str = ""
    is_absent: bool = False


class SentMessage(NamedTuple):
    """All of a wanted file was sent: how long it is, and the hash of all of it; or why it could not be."""

    index_: int
    size: int = 0
    sha256: str = ""
    error: str = ""


Message = Union[
    HelloMessage,
    GotMessage,
    ShippedMessage,
    FactsMessage,
    ListeningMessage,
    ProbedMessage,
    ReadyMessage,
    StartedMessage,
    WorldMessage,
    BoundMessage,
    TemplateMessage,
    ImportRecord,
    ReportMessage,
    ExitMessage,
    EndedMessage,
    DrainedMessage,
    StacksMessage,
    ProfiledMessage,
    CountersMessage,
    NodeUsage,
    CallTimesMessage,
    SavingMessage,
    FaultMessage,
    RemarkMessage,
    PongMessage,
    RefusedMessage,
    DroppedMessage,
    ReplacedMessage,
    ServingMessage,
    ReachedMessage,
    SweptMessage,
    DialledMessage,
    ListedMessage,
    SentMessage,
]

MESSAGES: Vocabulary[Message] = Vocabulary(
    "type", by_name(Message, "Message", {NodeUsage: "usage", ImportRecord: "imports"})
)


def pack_message(message: Message) -> bytes:
    """Make the frame of a message."""
    return pack_json(MESSAGES.write(message))


def read_message(value: JsonObject) -> Message:
    """Decode a message of an agent; raise DecodeError. What came from the training program is cleaned again."""
    message = MESSAGES.read(value)
    if isinstance(message, ExitMessage):
        return _clean_exit(message)
    if isinstance(message, ReportMessage):
        return check_report(message)
    if isinstance(message, WorldMessage):
        return _clean_world(message)
    if isinstance(message, HelloMessage):
        if not message.node_dir:
            raise DecodeError("$.node_dir: expected the path of a directory")
        summary = message.attempt and _clean_summary(message.attempt)
        return message._replace(hostname=clean_name(message.hostname), attempt=summary)
    return message


def _clean_summary(summary: AttemptSummary) -> AttemptSummary:
    ranks = {}
    for number, rank in summary.ranks.items():
        if rank.exit is not None:
            rank = rank._replace(exit=_clean_exit(rank.exit))
        ranks[number] = rank
    return summary._replace(ranks=ranks, worlds=tuple(map(_clean_world, summary.worlds)))


def _clean_world(world: WorldMessage) -> WorldMessage:
    """Raise DecodeError where there can be no such world. Its program stands in a command to paste."""
    if not 0 <= world.number < MOST_WORLDS or not 0 < world.here <= world.size <= MOST_RANKS:
        raise DecodeError("expected a world of at most %d ranks, got %r" % (MOST_RANKS, world))
    return cut(world._replace(program=world.program if world.program.isprintable() else ""))


def _clean_exit(message: ExitMessage) -> ExitMessage:
    calls = {rank: clean_called(list(map(encode, groups))) for rank, groups in message.calls.items()}
    background = tuple(command[:NAME] for command in message.background[:MOST_LEFT])
    return message._replace(error=clean_error(message.error), calls=calls, background=background)
