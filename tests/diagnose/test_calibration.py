"""The figures of log diagnosis are those of the answers that were recorded before any rule was tuned to the logs."""

import io
import json
from collections import defaultdict
from pathlib import Path

import pytest

from allranks.diagnose.candidate import Strength
from allranks.diagnose.verdict import FIGURES, evidence_name, judge_logs
from allranks.findings import EvidenceName
from allranks.protocol.codec import encode
from allranks.runs.logdiagnosis import read_stream

RECORDED = Path(__file__).parents[2] / "bench/calibration/dev2_answers.json"


def counted() -> dict[EvidenceName, list[bool]]:
    right: dict[EvidenceName, list[bool]] = defaultdict(list)
    for row in json.loads(RECORDED.read_text(encoding="utf-8"))["rows"]:
        if row["cause"] != "unknown":
            chosen = row["chosen"]
            right[evidence_name(Strength[chosen["strength"].upper()], chosen["confidence"])].append(row["right"])
    return right


@pytest.mark.parametrize("kind", [kind for kind in FIGURES if kind != "guess"])
def test_figure_is_what_was_counted(kind: EvidenceName) -> None:
    right = counted()[kind]
    assert FIGURES[kind] == round((sum(right) + 1) / (len(right) + 2), 2), (sum(right), len(right))


def test_nothing_was_answered_on_a_guess() -> None:
    assert counted()["guess"] == []
    assert FIGURES["guess"] < 0.5


@pytest.mark.parametrize(
    ("log", "kind", "confidence"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n", "stated", 0.93),
        ("Traceback (most recent call last):\nKeyError: 'lr'\n", "own-failure", 0.55),
        ("step 1\nstep 2\n", "none", 0.1),
    ],
)
def test_a_verdict_on_logs_says_what_its_confidence_goes_by(log: str, kind: str, confidence: float) -> None:
    verdict = judge_logs(read_stream(io.BytesIO(log.encode())))
    assert (verdict.evidence_kind, verdict.confidence) == (kind, confidence), verdict
    assert encode(verdict)["evidence_kind"] == kind
