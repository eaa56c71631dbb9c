"""What the rules for logs look at: lines that can tell something, what the rows see in them, who exists (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from allranks.findings import Where

from .lines import Line
from .sighting import Reader, Sighting

LINE = 240


@dataclass(frozen=True)
class Evidence:
    """`lines` are those the scan kept, in order; `tail` the last lines of the logs."""

    lines: tuple[Line, ...]
    sightings: tuple[Sighting, ...]
    tail: tuple[Line, ...] = ()

    @classmethod
    def of(cls, lines: Iterable[Line], tail: Sequence[Line] = ()) -> Evidence:
        """Reads the lines."""
        kept = tuple(lines)
        reader = Reader()
        reader.feed(kept)
        return cls(kept, tuple(reader.sightings), tuple(tail))

    def seen(self, *rows: str) -> list[Sighting]:
        """The sightings of rows, in order."""
        return [s for s in self.sightings if s.row.id in rows]

    def weighed_by(self, rule: str) -> list[Sighting]:
        """The sightings that a rule weighs."""
        return [s for s in self.sightings if s.row.rule == rule]

    @cached_property
    def ranks(self) -> frozenset[int]:
        """Every rank that says anything or is named by a report."""
        named = {int(v) for s in self.sightings for k, v in s.groups.items() if k in ("rank", "rank2") and v.isdigit()}
        return frozenset(named | {line.rank for line in self.lines if line.rank is not None})

    @cached_property
    def ranks_spoken(self) -> bool:
        """True where lines carry their ranks, so that one without belongs to none of them."""
        return any(s.line.rank is not None for s in self.sightings)

    @cached_property
    def nodes(self) -> dict[int, str]:
        """The node of a rank, as far as the lines tell."""
        return {k.rank: k.node for k in self.lines if k.rank is not None and k.node}


def place_of(sighting: Sighting) -> Where:
    """Node, peer, rank, interface, port and GPU as far as the line goes."""
    groups, line = sighting.groups, sighting.line
    return Where(
        node=first(groups.get("node"), groups.get("node2"), groups.get("node3"), line.node) or None,
        peer=first(groups.get("peer"), groups.get("peer2")) or None,
        rank=_rank(sighting),
        interface=groups.get("interface"),
        port=whole(groups.get("port") or groups.get("port2") or groups.get("port3")),
        gpu=_gpu(sighting),
    )


def _rank(sighting: Sighting) -> int | None:
    """The one that the text names; of several none."""
    groups = sighting.groups
    if "late" in groups:
        return whole(groups["late"].strip())
    return whole(groups["rank"]) if "rank" in groups else sighting.line.rank


def _gpu(sighting: Sighting) -> int | None:
    match = re.search(r"\bGPU ?(\d{1,2})\b(?!:)", sighting.line.text)
    return int(match[1]) if match else sighting.line.gpu


def first(*values: str | None) -> str:
    """The first that is there."""
    return next((v for v in values if v), "")


def whole(text: str | None) -> int | None:
    """A number, where it is one."""
    return int(text) if text is not None and re.fullmatch(r"-?\d{1,18}", text) else None


def cut(text: str, limit: int = LINE) -> str:
    """On one line, cut to a limit."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def shown(line: Line) -> str:
    """train.log:41: text, for the evidence."""
    return cut(f"{line.place}: {line.text.strip()}", LINE + 60)


def who(where: Where) -> str:
    """rank 3 on h2, GPU 1 of h2, port 29500; empty where nothing is known."""
    on = f" on {where.node}" if where.node else ""
    if where.rank is not None:
        return f"rank {where.rank}{on}"
    if where.gpu is not None:
        return f"GPU {where.gpu}{on}"
    return where.node or ", ".join(where.nodes[:8])
