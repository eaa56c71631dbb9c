"""Exceptions that no row knows: what their words, their traceback and the program's own options tell, on logs alone."""

from pathlib import Path

import pytest

from allranks.diagnose.causes import likeliest
from allranks.diagnose.signatures import row_of_exception
from allranks.diagnose.verdict import judge_logs
from allranks.findings import SURE, Verdict
from allranks.runs.logdiagnosis import read_logs

OWN_FRAME = ("Traceback (most recent call last):", '  File "/w/go.py", line 3, in go')


def judged(folder: Path, *lines: str) -> Verdict:
    path = folder / "job.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return judge_logs(read_logs([path]))


@pytest.mark.parametrize(
    ("kind", "text", "cause"),
    [
        ("RuntimeError", "this build of quux is too old: its version must match the driver's", "environment-mismatch"),
        ("NotImplementedError", "block-sparse decode is not supported on this platform", "environment-mismatch"),
        ("ValueError", "cannot fit 4 bundles on the nodes of this cluster", "cuda-device-unavailable"),
        ("ValueError", "rollout_batch must be divisible by grad_steps", "bad-launch-arguments"),
        ("AssertionError", "layers from the checkpoint (4) do not match those of the model (8)",
         "checkpoint-unreadable"),
        ("RuntimeError", "not enough device memory for 12 blocks", "cuda-out-of-memory"),
        ("ValueError", "the reward of sample 3 is negative", "program-exception"),
    ],
)  # fmt: skip
def test_words_decide_a_cause_and_never_surely(tmp_path: Path, kind: str, text: str, cause: str) -> None:
    assert row_of_exception(kind, text) is None  # a run, whose exception was observed, is not judged by words
    verdict = judged(tmp_path, *OWN_FRAME, f"{kind}: {text}")
    assert verdict.cause == cause
    assert SURE <= verdict.confidence < 0.8


@pytest.mark.parametrize("text", ["Worker 3 failed", "internal error in the planner", "it timed out"])
def test_words_that_tell_of_others_decide_nothing(tmp_path: Path, text: str) -> None:
    verdict = judged(tmp_path, f"RuntimeError: {text}")
    assert (verdict.cause, likeliest(verdict)) == ("unknown", "unknown")


def test_a_line_without_an_exception_is_most_likely_what_its_words_say(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "ERROR: quux failed: its version is incompatible with the driver's version")
    assert verdict.cause == "unknown"
    assert likeliest(verdict) == "environment-mismatch"


OF_A_PACKAGE = (
    *OWN_FRAME,
    '  File "/v/lib/python3.11/site-packages/quux/engine.py", line 9, in step',
    "AttributeError: 'Planner' object has no attribute 'fuse'",
)
OF_AN_OPTION = (
    *OWN_FRAME,
    "    total = args.engines * args.gpus_an_engine",
    "            ~~~~~~~~~~~~~^~~~~~~~~~~~~~~~~~~~~",
    "TypeError: unsupported operand type(s) for *: 'int' and 'NoneType'",
)


@pytest.mark.parametrize(
    ("lines", "cause", "named"),
    [
        pytest.param(OF_A_PACKAGE, "environment-mismatch", "quux==VERSION", id="the package of the innermost frame"),
        pytest.param(OF_AN_OPTION, "bad-launch-arguments", "`engines` or `gpus_an_engine`", id="an option not set"),
    ],
)
def test_a_traceback_names_what_is_at_fault(tmp_path: Path, lines: tuple[str, ...], cause: str, named: str) -> None:
    verdict = judged(tmp_path, *lines)
    assert verdict.cause == cause and named in verdict.finding.remedy


SIZES = (
    "[rank0]: rank 0 reduces a tensor of 1000 elements",
    "[rank1]: rank 1 reduces a tensor of {} elements",
    "[h1:1 :0:9] Caught signal 11 (Segmentation fault: address not mapped)",
)


@pytest.mark.parametrize(("size", "cause"), [("2000", "collective-shape-mismatch"), ("1000", "segfault-native")])
def test_ranks_that_print_other_sizes_before_a_crash(tmp_path: Path, size: str, cause: str) -> None:
    assert judged(tmp_path, *(line.format(size) for line in SIZES)).cause == cause
