"""What the lines of logs tell: sightings of known texts in their order, who speaks, who exists (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from allranks.findings import Where

from ..exceptions import innermost
from ..hangs.recorder import RankRecording
from ..signatures import BY_ID, DOTTED, EXCEPTION, MENTIONED, Row, Sign, row_of
from ..values import find_value
from ..words import LINE, on_node, place_of_frame, short
from ..worlds import Worlds, read_worlds
from .lines import LogLine

UNNAMED = Row(
    "exception",
    "program-exception",
    role=Sign.WEAK,
    source="CPython: an uncaught exception",
    literals="",
    pattern=r"(?!)",
    confidence=0.6,
    rule="exception",
)
LOGGED = Row(
    "exception-logged", "program-exception", role=Sign.SYMPTOM, source="CPython: an exception in a message",
    literals="", pattern=r"(?!)", confidence=0.4,
    means="nothing here shows that it ended the program", rule="exception-logged",
)  # fmt: skip
ALARM = BY_ID["alarm"]
_ANY = re.compile("")
TELLING = 2000  # sightings that are searched for values
BELOW_FRAME = 3  # lines from the line of code of a traceback's last frame to its exception: marks below the code


@dataclass(frozen=True)
class Sighting:
    """A row's text in a line. `groups` are what its pattern caught; `frame` is the place that a traceback tells."""

    row: Row
    line: LogLine
    groups: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""  # an exception's type, without its module
    frame: str = ""  # file:line in function
    modules: tuple[str, ...] = ()  # files of its traceback
    calls: tuple[str, ...] = ()  # functions of its traceback, the innermost last
    order: int = 0

    def number(self, *names: str) -> int | None:
        """Give the first of these groups that is there, as a number; None where it is none."""
        return _number(first(*(self.groups.get(name) for name in names)))

    @property
    def exception(self) -> str:
        """Write an exception as Python does, without what a logger puts in front of it."""
        return ": ".join(filter(None, (self.groups.get("type"), self.groups.get("text"))))

    @property
    def place(self) -> Where:
        """Node, peer, rank, interface, port and GPU, as far as the line tells."""
        groups = self.groups
        gpu = re.search(r"\bGPU ?(\d{1,2})\b(?!:)", self.line.text)
        rank = self.line.rank
        node: str = self.line.node
        if "late" in groups:
            rank = _number(groups["late"].strip())  # the one that the text names; of several none
            node = ""  # of who reports it
        elif "rank" in groups:
            rank = self.number("rank")
        return Where(
            node=first(groups.get("node"), groups.get("node2"), groups.get("node3"), node) or None,
            peer=first(groups.get("peer"), groups.get("peer2")) or None,
            rank=rank,
            interface=groups.get("interface"),
            port=self.number("port", "port2", "port3"),
            gpu=int(gpu[1]) if gpu else self.line.gpu,
        )

    @property
    def complains(self) -> bool:
        """Whether the line's own rank is the one that waits or suffers."""
        return self.row.role in (Sign.SYMPTOM, Sign.CASCADE) and "late" not in self.groups


@dataclass(frozen=True)
class Evidence:
    """`lines` are those the scan kept, in order; `tail` the last lines of the logs.

    `recordings` are torch's flight recorders that lay beside the logs.
    """

    lines: tuple[LogLine, ...] = ()
    sightings: tuple[Sighting, ...] = ()
    tail: tuple[LogLine, ...] = ()
    recordings: tuple[RankRecording, ...] = ()

    @classmethod
    def of(
        cls, lines: Iterable[LogLine], tail: Sequence[LogLine] = (), recordings: Sequence[RankRecording] = ()
    ) -> Evidence:
        """Read the lines, one log after the other."""
        kept = tuple(lines)
        return cls(kept, tuple(_sightings(kept)), tuple(tail), tuple(recordings))

    def of_rows(self, *rows: str) -> list[Sighting]:
        """Give the sightings of rows, in order."""
        return [s for s in self.sightings if s.row.id in rows]

    def weighed_by(self, rule: str) -> list[Sighting]:
        """Give the sightings that a rule weighs."""
        return [s for s in self.sightings if s.row.rule == rule]

    @cached_property
    def ranks(self) -> frozenset[int]:
        """Every rank that says anything or is named by a report."""
        named = {s.number("rank", "rank2") for s in self.sightings} | {line.rank for line in self.lines}
        return frozenset(rank for rank in named if rank is not None)

    @cached_property
    def _node_of_address(self) -> Mapping[str, str]:
        """The nodes of addresses: each rank says once at which one NCCL listens."""
        addresses = ((s.groups["address"], s.line.node) for s in self.of_rows("nccl-address"))
        return {address: node for address, node in addresses if node}

    def node_of_address(self, peer: str) -> str | None:
        """Find the node that a peer's address belongs to; a name is its own node. None where it is not known."""
        if re.fullmatch(r"[\d.]{7,15}|\[?[0-9a-fA-F]{0,4}(?::[0-9a-fA-F.]{0,15}){1,8}\]?", peer):
            return self._node_of_address.get(peer)
        return peer or None

    @cached_property
    def worlds(self) -> Worlds:
        """The accelerator, the fabric and the starter that the lines speak of."""
        return read_worlds(line.text for line in (*self.lines, *self.tail))

    def value_of(self, name: str) -> str | None:
        """Find a value that a fix needs in any of the lines that tell something."""
        if name not in self._values:
            texts = [s.line.text for s in self.sightings[:TELLING]] + [line.text for line in self.tail]
            self._values[name] = find_value(name, texts)
        return self._values[name]

    @cached_property
    def _values(self) -> dict[str, str | None]:
        return {}

    def node_of_rank(self, rank: int) -> str | None:
        """Find the one node whose lines bear a rank; None where none or several do."""
        nodes = {line.node for line in self.lines if line.rank == rank and line.node}
        if len(nodes) == 1:
            return nodes.pop()
        return None

    def ranks_of_node(self, node: str) -> frozenset[int]:
        """List the ranks whose lines bear a node."""
        return frozenset(line.rank for line in self.lines if line.node == node and line.rank is not None)

    @cached_property
    def names_ranks(self) -> bool:
        """Whether lines carry their ranks, so that one without belongs to none of them."""
        return any(s.line.rank is not None for s in self.sightings)


def _sightings(lines: Iterable[LogLine]) -> Iterable[Sighting]:
    """Find the rows' texts in lines; an exception has the frames of its rank's newest traceback."""
    frames: dict[tuple[str, int | None], list[re.Match[str]]] = {}
    code: dict[tuple[str, int | None], int] = {}  # the number of the line behind the newest frame
    for order, line in enumerate(lines, 1):
        stream = (line.file, line.rank)
        text = line.text
        if text.lstrip().startswith("Traceback (most recent call last)"):
            frames[stream] = []
            continue
        frame = _FRAME.search(text)
        if frame:
            frames.setdefault(stream, []).append(frame)
            code[stream] = line.number + 1
            continue
        if code.get(stream) == line.number and text.startswith("    "):  # a line of code holds texts of errors
            continue
        raised = EXCEPTION.match(text.strip())
        mentioned = None if raised else MENTIONED.search(text)
        if not raised and 0 <= line.number - code.get(stream, -BELOW_FRAME - 1) <= BELOW_FRAME:
            raised = mentioned or DOTTED.match(text)
        row, match = row_of(text) or (UNNAMED, raised)
        if row is ALARM and (raised or mentioned):
            row, match = UNNAMED, raised
        if match is None and mentioned is not None:
            row, match = LOGGED, mentioned
        if match is None and line.is_error:
            row, match = ALARM, _ANY.match(text)
        if match is None:
            continue
        sighting = Sighting(row, line, {k: v for k, v in match.groupdict().items() if v}, order=order)
        if row is LOGGED:
            sighting = replace(sighting, kind=match["type"].rpartition(".")[2])
        elif raised:
            trace = frames.get(stream, [])
            file, number, function = innermost([(at["file"], at["line"], at["function"] or "") for at in trace])
            sighting = replace(
                sighting,
                kind=raised["type"].rpartition(".")[2],
                frame=place_of_frame(file, number, function.strip()) if file else "",
                modules=tuple(frame["file"] for frame in trace[-12:]),
                calls=tuple((frame["function"] or "").strip() for frame in trace[-12:]),
            )
        yield sighting


_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d*)(?:.*?, in (?P<function>.*))?')


# -- how they are written --------------------------------------------------------------------------------


def first(*values: str | None) -> str:
    """Give the first that is there."""
    return next((v for v in values if v), "")


def _number(text: str) -> int | None:
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    return None


def quoted(line: LogLine) -> str:
    """Write `train.log:41: text`, for the evidence."""
    return short(f"{line.place}: {line.text.strip()}", LINE + 60)


def name_place(where: Where) -> str:
    """Name the rank, the GPU, the node or the nodes: `rank 3 on h2`; empty where nothing is established."""
    if where.rank is not None:
        return on_node(f"rank {where.rank}", where.node)
    if where.gpu is not None:
        return on_node(f"GPU {where.gpu}", where.node)
    return where.node or ", ".join(where.nodes[:8])
