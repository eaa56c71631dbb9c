"""The command line of `python -m allranks.fabric`, the same under allranks, torchrun, srun and mpirun."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from allranks.text import parse_duration, parse_size

SUITES = ("sync", "bandwidth", "pairs")
METRICS = "rank_{:02d}_metrics.jsonl"  # what allranks brings home from $ALLRANKS_OUTPUT_DIR

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """What is asked for: `size` in bytes a rank, `timeout` in seconds a test; `nodes` are names by GROUP_RANK.

    `out` is where JSON lines are appended, empty for nowhere. `dead` are pairs of nodes that do not reach one another
    and are not measured. `min_bandwidth` (bytes/s) and `max_latency` (seconds) are asked of every link; 0 asks nothing.
    """

    suite: str = "sync"
    backend: str = "auto"
    size: int = 256 << 20
    timeout: float = 60.0
    quick: bool = False
    only: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    dead: tuple[tuple[str, str], ...] = ()
    out: str = ""
    min_bandwidth: int = 0
    max_latency: float = 0.0


def parse(words: Sequence[str], rank: int) -> Options:
    """Read the command line; argparse ends the process with 2 where it is wrong."""
    parser = argparse.ArgumentParser(
        "python -m allranks.fabric",
        description=__doc__,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    size = _typed(parse_size)
    duration = _typed(parse_duration)
    names = _typed(_names)
    add = parser.add_argument
    add("--suite", choices=SUITES, help="what to test (sync)")
    add("--backend", choices=("auto", "gloo", "nccl"), help="NCCL where every rank has a GPU, else Gloo (auto)")
    add("--size", type=size, help="largest payload a rank (256MB)")
    add("--timeout", type=duration, help="limit of each test (60s)")
    add("--quick", action="store_true", help="tests of a few seconds in all")
    add("--only", type=names, help="names of tests, with commas")
    add("--nodes", type=names, help="the nodes' names by GROUP_RANK, with commas")
    add("--dead", type=_typed(_pairs), help="pairs not to measure: h1/h2,h3/h4")
    add("--min-bandwidth", type=size, help="bytes/s a link must carry")
    add("--max-latency", type=duration, help="longest round trip of a link")
    add("--out", help="file for JSON lines, or none")
    values = vars(parser.parse_args(list(words)))
    directory = os.environ.get("ALLRANKS_OUTPUT_DIR", "")
    out = values.pop("out", "")
    if out == "none":
        out = ""
    elif directory and not out:
        out = os.path.join(directory, METRICS.format(rank))
    return Options(out=out, **values)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for part in _names(text):
        one, slash, other = part.partition("/")
        if not slash or "/" in other:
            raise ValueError("pairs of nodes such as h1/h2,h3/h4")
        pairs.append((one, other))
    return tuple(pairs)


def _typed(read: Callable[[str], T]) -> Callable[[str], T]:
    """Make a type for argparse, which shows the text of its own error alone."""

    def typed(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"expected {error}, not {text!r}") from None

    return typed
