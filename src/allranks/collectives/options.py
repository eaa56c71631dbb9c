"""The command line of `python -m allranks.collectives`, the same under allranks, torchrun, srun and mpirun."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from .sizes import parse_seconds, parse_size

SUITES = ("sync", "bandwidth", "pairs")
SIZE = 256 << 20
TIMEOUT = 60.0
METRICS = "rank_{:02d}_metrics.jsonl"  # what allranks brings home from $ALLRANKS_OUTPUT_DIR


T = TypeVar("T")


class Options(NamedTuple):
    """What is asked: `size` in bytes a rank, `timeout` in seconds a test; `nodes` are names by GROUP_RANK.

    `out` is where the JSON lines go (appended), empty for nowhere. `dead` are pairs of nodes that are known not
    to reach one another: they are not measured. `min_bandwidth` (bytes/s) and `max_latency` (seconds) are asked of
    every link; 0 asks nothing. `quick` asks for a few seconds' worth.
    """

    suite: str = "sync"
    backend: str = "auto"
    size: int = SIZE
    timeout: float = TIMEOUT
    quick: bool = False
    only: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    dead: tuple[tuple[str, str], ...] = ()
    out: str = ""
    min_bandwidth: int = 0
    max_latency: float = 0.0


def parse(words: Sequence[str], rank: int) -> Options:
    """Options from the command line; argparse ends with 2 where they are wrong."""
    parser = argparse.ArgumentParser("python -m allranks.collectives", description=__doc__, allow_abbrev=False)
    parser.add_argument("--suite", choices=SUITES, default="sync")
    parser.add_argument("--backend", choices=("auto", "gloo", "nccl"), default="auto")
    parser.add_argument("--size", type=_reader(parse_size), default=SIZE, help="largest payload a rank (256MB)")
    parser.add_argument("--timeout", type=_reader(parse_seconds), default=TIMEOUT, help="limit of each test (60s)")
    parser.add_argument("--quick", action="store_true", help="a few seconds of it")
    parser.add_argument("--only", type=_names, default=(), help="names of tests, with commas")
    parser.add_argument("--nodes", type=_names, default=(), help="the nodes' names by GROUP_RANK, with commas")
    parser.add_argument("--dead", type=_pairs, default=(), help="pairs not to measure: h1/h2,h3/h4")
    parser.add_argument("--min-bandwidth", type=_reader(parse_size), default=0, help="bytes/s a link must carry")
    parser.add_argument("--max-latency", type=_reader(parse_seconds), default=0.0, help="longest round trip of a link")
    parser.add_argument("--out", default="", help="file for JSON lines, or none")
    found = parser.parse_args(list(words))
    directory = os.environ.get("ALLRANKS_OUTPUT_DIR", "")
    own = os.path.join(directory, METRICS.format(rank)) if directory else ""
    out = "" if found.out == "none" else found.out or own
    return Options(found.suite, found.backend, found.size, found.timeout, found.quick, found.only, found.nodes,
                   found.dead, out, found.min_bandwidth, found.max_latency)  # fmt: skip


def _names(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.split("/") for part in _names(text)]
    if any(len(pair) != 2 for pair in pairs):
        raise argparse.ArgumentTypeError(f"pairs of nodes such as h1/h2,h3/h4, not {text!r}")
    return tuple((pair[0], pair[1]) for pair in pairs)


def _reader(read: Callable[[str], T]) -> Callable[[str], T]:
    """argparse shows only its own error type's text."""

    def reader(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return reader
