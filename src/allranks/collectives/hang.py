"""Who had arrived when a test did not end, from what every rank's watchdog last said. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

BEFORE = -1  # in the test, but not yet at its first collective
END = 1 << 30  # all collectives of the test are behind it


class Place(NamedTuple):
    """Where a rank is: test, round, seconds since the test began there, a counter of life signs, its error."""

    test: int
    turn: int
    seconds: float
    beat: int
    error: str = ""


class Hang(NamedTuple):
    """What can be said of a test that did not end."""

    test: str
    text: str
    arrived: list[int]
    missing: list[int]
    silent: list[int]
    places: dict[str, dict[str, object]]
    stacks: dict[str, list[str]]


def standing(place: Place | None, test: int) -> int:
    """How far a rank has come in a test."""
    if place is None or place.test < test:
        return BEFORE
    return END if place.test > test else place.turn


def split(places: dict[int, Place | None], test: int) -> tuple[list[int], list[int]]:
    """Ranks that had arrived and ranks that had not: those least far, unless all are equally far."""
    far = {rank: standing(place, test) for rank, place in places.items()}
    least = min(far.values())
    if least == max(far.values()) and least != BEFORE:
        return sorted(far), []
    return sorted(r for r in far if far[r] > least), sorted(r for r in far if far[r] == least)


def silent_ranks(before: dict[int, Place | None], after: dict[int, Place | None]) -> list[int]:
    """Ranks whose watchdog gave no sign of life between two looks."""

    def beat(place: Place | None) -> int:
        return place.beat if place else 0

    return sorted(rank for rank in after if beat(after[rank]) == beat(before.get(rank)))


def where(place: Place | None, test: int) -> str:
    far = standing(place, test)
    if place and place.error and place.test == test:
        return f"gave up: {place.error}"
    if far == BEFORE:
        return "had not arrived"
    return "had finished" if far == END else f"in round {far}"


def names(ranks: list[int]) -> str:
    """`rank 2`, `ranks 0-3 7`."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][-1] == rank - 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    words = [f"{p[0]}-{p[-1]}" if len(p) > 2 else " ".join(map(str, p)) for p in parts]
    return f"rank{'s' if len(ranks) > 1 else ''} {' '.join(words)}"


def describe(reason: str, places: dict[int, Place | None], test: int, silent: list[int]) -> str:
    """The sentence: who was missing, where the others were, who is gone."""
    groups: dict[str, list[int]] = {}
    for rank in sorted(places, key=lambda rank: (standing(places[rank], test), rank)):
        groups.setdefault(where(places[rank], test), []).append(rank)
    text = f"{reason}: " + "; ".join(f"{names(ranks)} {how}" for how, ranks in groups.items())
    if silent:
        text += f"; no sign of life from {names(silent)} (ended or stopped)"
    return text


def decode(raw: list[Any]) -> Place:
    return Place(int(raw[0]), int(raw[1]), float(raw[2]), int(raw[3]), str(raw[4]))
