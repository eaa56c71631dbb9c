"""What a trainer gathers after generation: strings and token tensors whose lengths differ by rank; many times over."""

from __future__ import annotations

from functools import partial
from typing import Dict, List, Union

import torch
import torch.distributed as dist

from allranks.text import count_of

from .. import contributions as data
from .. import payload as tensors
from ..lab import Lab

SEQUENCES = 3  # a rank
PAD = 0  # data never holds it
VOCABULARY = 50261  # a prime, of the size that tokenizers have
BATCHES = 50
TURNS = 3
PADDED_TURNS = 5

Record = Dict[str, Union[List[str], List[int], int]]


def _sequences(rank: int) -> range:
    return range(rank * SEQUENCES, (rank + 1) * SEQUENCES)


def texts_of(rank: int, turn: int) -> list[str]:
    """Give the strings of a rank in a round."""
    return [data.text(sequence, turn) for sequence in _sequences(rank)]


def _record(texts: list[str], rank: int, turn: int) -> Record:
    tokens = [data.moved(rank, turn, place, VOCABULARY) for place in range(data.length(rank, turn))]
    return {"texts": texts, "tokens": tokens, "rank": rank}


def give_record(lab: Lab, turn: int) -> Record:
    """Make what this rank gives."""
    return _record(texts_of(lab.rank, turn), lab.rank, turn)


def _check_record(lab: Lab, record: object, source: int, turn: int) -> None:
    expected = texts_of(source, turn)
    texts = record.get("texts") if isinstance(record, dict) else None
    if isinstance(texts, list) and len(texts) == SEQUENCES:
        for text, right in zip(texts, expected):
            lab.check_object(text, right, turn, source)
    lab.check_object(record, _record(expected, source, turn), turn, source)


def gather_object(lab: Lab) -> str:
    """Gather objects on rank 0."""
    turns = lab.pick(1, TURNS)
    for turn in range(turns):
        lab.arrive(turn)
        _gather_object(lab, turn)
    return f"{count_of(turns, 'round')}, strings and lists of different lengths to rank 0"


def _gather_object(lab: Lab, turn: int) -> None:
    records: list[object] = []
    if lab.rank == 0:
        records = [None] * lab.world
    dist.gather_object(give_record(lab, turn), records or None, 0)
    for source, record in enumerate(records):
        _check_record(lab, record, source, turn)


def all_gather_object(lab: Lab) -> str:
    """Gather objects on every rank."""
    for turn in range(TURNS):
        lab.arrive(turn)
        records: list[object] = [None] * lab.world
        dist.all_gather_object(records, give_record(lab, turn))
        for source, record in enumerate(records):
            _check_record(lab, record, source, turn)
    return f"{TURNS} rounds, strings and lists of different lengths"


def padded_tokens(lab: Lab) -> str:
    """Gather lengths, then the padded tokens, as trainers do; checked after unpadding, and the padding too."""
    for turn in range(PADDED_TURNS):
        lab.arrive(turn)
        _padded_tokens(lab, turn)
    return f"{PADDED_TURNS} rounds, {SEQUENCES} sequences a rank  {lab.use('int64')}"


def _padded_tokens(lab: Lab, turn: int) -> None:
    expected = [[data.length(sequence, turn) for sequence in _sequences(rank)] for rank in range(lab.world)]
    lengths = lab.empty_blocks(SEQUENCES, "int64", lab.everyone)
    dist.all_gather(lengths, torch.tensor(expected[lab.rank], device=lab.device))
    for source, block in enumerate(lengths):
        lab.check_object(block.tolist(), expected[source], turn, source)
    # Of what is expected, so that ranks that got wrong lengths stay in step with the others.
    longest = max(1, *(max(row) for row in expected))
    give = torch.full((SEQUENCES, longest), PAD, dtype=torch.int64, device=lab.device)
    for at, length in enumerate(expected[lab.rank]):
        give[at, :length] = lab.give(partial(_tokens, at, turn), length, "int64")
    blocks = [torch.full_like(give, -1) for _ in range(lab.world)]
    dist.all_gather(blocks, give)
    for source, block in enumerate(blocks):
        for at, length in enumerate(expected[source]):
            lab.check(block[at, :length], _tokens(at, turn, source), turn, "int64 tokens", source)
            lab.check(block[at, length:], tensors.ZEROS, turn, "int64 padding", source)


def _tokens(at: int, turn: int, rank: int) -> tensors.Pattern:
    return tensors.moved(_sequences(rank)[at], turn, VOCABULARY)


def many_gathers(lab: Lab) -> str:
    """Gather one batch after the other without a pause: strings on rank 0, tokens on every rank."""
    batches = lab.pick(1, BATCHES)
    for turn in range(batches):
        lab.arrive(turn)
        _gather_object(lab, turn)
        _padded_tokens(lab, turn)
    return count_of(batches, "batch", "batches")


TESTS = (gather_object, all_gather_object, padded_tokens, many_gathers)
