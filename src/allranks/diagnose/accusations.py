"""What ranks say of another rank: who did not come, or has another model (pure).

An accusation names the culprit, and whoever makes it is a victim. Where ranks contradict each other the fewer are at
fault; two that contradict each other leave it open.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from allranks.text import join_words, plural

from .candidate import Candidate
from .words import count_ranks

# torch reducer.cpp and logger.cpp, verify_params_across_processes
PARAMETERS = re.compile(
    r"DDP expects same model across all ranks, but Rank (\d{1,9}) has (\d{1,9}) params, "
    r"while rank (\d{1,9}) has inconsistent (\d{1,9})\b"
)
SHAPES = re.compile(
    r"in this process with sizes .{0,400} appears not to match (?:sizes|strides) of the same param in process \d+"
)
# torch ProcessGroupGloo.cpp, monitoredBarrier
BARRIER = re.compile(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier")


Statement = tuple[int | None, str]  # the rank, None where a log does not show it, and what it says


def accusation(statements: Iterable[Statement], all_ranks: frozenset[int] = frozenset()) -> Candidate | None:
    """Find whom ranks accuse; None where none accuses another. `all_ranks` is empty where they are not known.

    Its message is to follow `rank 2 on h3`, where there are culprits.
    """
    listed = [statement for statement in statements if statement[1]]
    return _missed_barrier(listed) or _other_parameters(listed) or _other_sizes(listed, all_ranks)


def _missed_barrier(statements: Sequence[Statement]) -> Candidate | None:
    """Read who did not come to monitored_barrier: rank 0 alone knows it."""
    accusers: set[int] = set()
    late: set[int] = set()
    for rank, text in statements:
        for ranks in BARRIER.findall(text):
            late.update(map(int, re.findall(r"\b\d{1,9}\b", ranks)))
            if rank is not None:
                accusers.add(rank)
    if not late:
        return None
    who = count_ranks(accusers - late) if accusers - late else "the others"
    words = f"did not come to the monitored_barrier in which {who} waited"
    return Candidate("straggler", 0.9, words, culprits=frozenset(late))


def _other_parameters(statements: Sequence[Statement]) -> Candidate | None:
    """Compare the counts of parameters that DDP gathered; a count of 0 means only that the gathering had failed."""
    counts: dict[int, int] = {}
    for _, text in statements:
        for rank, of_rank, other, count in PARAMETERS.findall(text):
            if int(count):
                counts[int(rank)] = int(of_rank)
                counts[int(other)] = int(count)
    if len(set(counts.values())) < 2:
        return None
    most = Counter(counts.values()).most_common(2)
    if most[0][1] == most[1][1]:
        each = join_words([f"rank {rank} has {count}" for rank, count in sorted(counts.items())])
        words = f"DDP got models with different numbers of parameters: {each}"
        return _unlike(words)
    usual = most[0][0]
    odd = frozenset(rank for rank, count in counts.items() if count != usual)
    of_odd = join_words(sorted({str(counts[rank]) for rank in odd}))
    words = f"{plural(len(odd), 'gives', 'give')} DDP a model of {of_odd} parameters, the others one of {usual}"
    return _unlike(words, odd)


def _other_sizes(statements: Sequence[Statement], all_ranks: frozenset[int]) -> Candidate | None:
    """Find the rank whose parameters have other sizes: each rank compares its own with those of rank 0."""
    differing = {rank for rank, text in statements if rank is not None and SHAPES.search(text)}
    if not differing:
        return None
    others = all_ranks - differing - {0}
    words = "gives DDP parameters of other sizes than the other ranks"
    if differing >= all_ranks - {0} and len(differing) > 1:
        return _unlike(words, {0})
    if len(differing) > 1:
        words = words.replace("gives", "give", 1)
    if others:
        return _unlike(words, differing)
    words = f"the parameters that {count_ranks(differing)} gives DDP have other sizes than those of rank 0"
    return _unlike(words)


def _unlike(words: str, odd: Iterable[int] = ()) -> Candidate:
    culprits = frozenset(odd)
    return Candidate("collective-shape-mismatch", 0.9 if culprits else 0.6, words, culprits=culprits)
