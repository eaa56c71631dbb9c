"""What a trainer gathers after generation: strings and token tensors whose lengths differ by rank; many times over."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from .. import data, tensors
from ..lab import Lab, Test

SEQUENCES = 3  # a rank
PAD = 0  # data never holds it
VOCABULARY = 50261  # a prime, of the size that tokenizers have
BATCHES = 50


def record(texts: list[str], rank: int, turn: int) -> dict[str, Any]:
    """What a rank sends as an object."""
    tokens = [data.moved(rank, turn, place, VOCABULARY) for place in range(data.length(rank, turn))]
    return {"texts": texts, "tokens": tokens, "rank": rank}


def texts_of(rank: int, turn: int) -> list[str]:
    """A rank's completions as strings, some of them empty."""
    return [data.text(rank * SEQUENCES + at, turn) for at in range(SEQUENCES)]


def give_record(lab: Lab, turn: int) -> dict[str, Any]:
    """This rank's own."""
    texts = lab.give_texts([rank * SEQUENCES + at for rank in lab.pretended() for at in range(SEQUENCES)], turn)
    return record(texts, lab.rank, turn)


def check_record(lab: Lab, found: Any, source: int, turn: int) -> None:
    """Strings one by one, then the rest."""
    due = record(texts_of(source, turn), source, turn)
    texts = found.get("texts") if isinstance(found, dict) else None
    if isinstance(texts, list) and len(texts) == SEQUENCES:
        for text, right in zip(texts, due["texts"]):  # noqa: B905  (Python 3.9)
            lab.check_object(text, right, turn, source)
    lab.check_object(found, due, turn, source)


def gather_object(lab: Lab) -> str:
    """To rank 0."""
    turns = 1 if lab.quick else 3
    for turn in range(turns):
        lab.arrive(turn)
        _gather_object(lab, turn)
    return f"{turns} round{'s' * (turns != 1)}, strings and lists of different lengths to rank 0"


def _gather_object(lab: Lab, turn: int) -> None:
    found: list[Any] | None = [None] * lab.world if lab.rank == 0 else None
    dist.gather_object(give_record(lab, turn), found, 0)
    for source, item in enumerate(found or []):
        check_record(lab, item, source, turn)


def all_gather_object(lab: Lab) -> str:
    """To all."""
    for turn in range(3):
        lab.arrive(turn)
        _all_gather_object(lab, turn)
    return "3 rounds, strings and lists of different lengths"


def _all_gather_object(lab: Lab, turn: int) -> None:
    found: list[Any] = [None] * lab.world
    dist.all_gather_object(found, give_record(lab, turn))
    for source, item in enumerate(found):
        check_record(lab, item, source, turn)


def padded_tokens(lab: Lab) -> str:
    """Lengths first, then the padded tokens, as trainers do; checked after unpadding, and the padding too."""
    for turn in range(5):
        lab.arrive(turn)
        _padded_tokens(lab, turn)
    return f"5 rounds, {SEQUENCES} sequences a rank  {lab.use('int64')}"


def _padded_tokens(lab: Lab, turn: int) -> None:
    due = [[data.length(rank * SEQUENCES + at, turn) for at in range(SEQUENCES)] for rank in lab.everyone]
    lengths = [lab.empty(SEQUENCES, "int64") for _ in lab.everyone]
    dist.all_gather(lengths, torch.tensor(due[lab.rank], device=lab.device))
    for source, got in enumerate(lengths):
        lab.check_object(got.tolist(), due[source], turn, source)
    # Of what is due, so that ranks that were told wrong lengths stay in step with the others.
    longest = max(1, *(max(row) for row in due))
    own = torch.full((SEQUENCES, longest), PAD, dtype=torch.int64, device=lab.device)
    for at, length in enumerate(due[lab.rank]):
        own[at, :length] = lab.give(partial(_tokens, at, turn), length, "int64")
    blocks = [torch.full_like(own, -1) for _ in lab.everyone]
    dist.all_gather(blocks, own)
    for source, block in enumerate(blocks):
        for at, length in enumerate(due[source]):
            lab.check(block[at, :length], _tokens(at, turn, source), turn, "int64 tokens", source)
            lab.check(block[at, length:], tensors.nothing(), turn, "int64 padding", source)


def _tokens(at: int, turn: int, rank: int) -> tensors.Pattern:
    return tensors.moved(rank * SEQUENCES + at, turn, VOCABULARY)


def many_gathers(lab: Lab) -> str:
    """One batch after the other without a pause: strings to rank 0, tokens to all."""
    batches = 1 if lab.quick else BATCHES
    for turn in range(batches):
        lab.arrive(turn)
        _gather_object(lab, turn)
        _padded_tokens(lab, turn)
    return f"{batches} batch{'es' * (batches != 1)}"


OBJECTS = (
    Test("gather_object", gather_object),
    Test("all_gather_object", all_gather_object),
    Test("padded_tokens", padded_tokens),
    Test("many_gathers", many_gathers),
)
