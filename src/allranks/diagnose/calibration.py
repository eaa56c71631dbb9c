"""How often an answer on logs was right, by the kind of its evidence (pure).

The figures are counted on the answers to 91 real logs that were recorded before any rule had been tuned to them
(bench/calibration/dev2_answers.json), each as (right + 1) / (answered + 2). A later rule takes the figure of its kind.
Do not count again on logs that rules were tuned to: they say 99 % of everything.
"""

from __future__ import annotations

import enum

from allranks.findings import EvidenceName

from .candidate import Candidate, Strength

DISTINCT = 0.9  # of a candidate's own weight: a text that this fault alone prints
LIKELY = 0.5  # of its weight: below, it is one of several causes of the same text


class EvidenceKind(enum.Enum):
    """What an answer rests on."""

    STATED = "a text that one fault alone prints"
    GENERAL = "a text that explains itself, and that other faults print too"
    OWN_FAILURE = "an exception or a crash of the program, without its reason"
    COMPLAINT = "what a rank says of others, or a comparison of what ranks say"
    GUESS = "one of several causes of the same text"


FIGURES = {
    EvidenceKind.STATED: 0.93,  # 40 of 42
    EvidenceKind.GENERAL: 0.61,  # 13 of 21
    EvidenceKind.OWN_FAILURE: 0.55,  # 5 of 9
    EvidenceKind.COMPLAINT: 0.58,  # 6 of 10
    EvidenceKind.GUESS: 0.4,  # never answered as a cause: below SURE by definition
}


NAMES: dict[EvidenceKind, EvidenceName] = {
    EvidenceKind.STATED: "stated",
    EvidenceKind.GENERAL: "general",
    EvidenceKind.OWN_FAILURE: "own-failure",
    EvidenceKind.COMPLAINT: "complaint",
    EvidenceKind.GUESS: "guess",
}


def kind_of(rule_strength: Strength, weight: float) -> EvidenceKind:
    """Tell the kind of a candidate's evidence from its strength and its own weight."""
    if weight < LIKELY:
        return EvidenceKind.GUESS
    if rule_strength >= Strength.FINDING:
        if weight >= DISTINCT:
            return EvidenceKind.STATED
        return EvidenceKind.GENERAL
    if rule_strength is Strength.WEAK:
        return EvidenceKind.OWN_FAILURE
    return EvidenceKind.COMPLAINT


def evidence_name(candidate: Candidate) -> EvidenceName:
    """Name the kind of a candidate's evidence as documents do."""
    return NAMES[kind_of(candidate.strength, candidate.confidence)]


def figure(candidate: Candidate) -> float:
    """Give how often an answer of this kind was right."""
    return FIGURES[kind_of(candidate.strength, candidate.confidence)]
