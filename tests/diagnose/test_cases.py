"""Logs in the words of their sources (cases/*.txt) and what must be answered; ways of reading that must not matter."""

import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests import wording

from allranks.diagnose.causes import CAUSES
from allranks.diagnose.logs.lines import LogLine, read_line
from allranks.diagnose.logs.sightings import Evidence
from allranks.diagnose.signatures import row_of_exception
from allranks.diagnose.verdict import judge_logs
from allranks.findings import Verdict
from allranks.protocol.codec import encode

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    name: str
    expect: dict[str, str]
    log: str


def cases() -> Iterator[Case]:
    for path in sorted((HERE / "cases").glob("*.txt")):
        for part in path.read_text(encoding="utf-8").split("=== ")[1:]:
            head, _, log = part.partition("\n")
            name, _, wanted = head.partition(" | ")
            words = dict(_pairs(wanted))
            yield Case(f"{path.stem}: {name}", words, log)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    before, _, says = text.partition(" says=")
    says, _, runner = says.partition(" runner=")
    for word in before.split():
        key, _, value = word.partition("=")
        yield key, value
    if says:
        yield "says", says
    if runner:
        yield "runner", runner


CASES = list(cases())


def lines_of(log: str, first: int = 1) -> list[LogLine]:
    return [line for number, text in enumerate(log.split("\n"), first) for line in read_line(text, "job.log", number)]


def judged_lines(lines: list[LogLine]) -> Verdict:
    return judge_logs(Evidence.of(lines, lines[-20:]))


def judged(log: str) -> Verdict:
    return judged_lines(lines_of(log))


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_case(case: Case) -> None:
    verdict = judged(case.log)
    message, where, expect = verdict.finding.message, verdict.finding.where, case.expect
    assert verdict.cause == expect["cause"], message
    assert "\n" not in message
    assert wording.faults_of(encode(verdict.finding), is_verdict=True) == []
    assert len(verdict.finding.evidence) <= 3
    assert verdict.finding.remedy
    for key in ("rank", "port", "peer", "node"):
        if key in expect:
            assert str(getattr(where, key)) == expect[key], message
    if "victims" in expect:
        assert ",".join(map(str, verdict.victims)) == expect["victims"]
    if "runner" in expect:
        assert expect["runner"] in [f.id for f in verdict.runners_up]
    assert expect.get("says", "") in message


def test_every_rule_for_logs_has_a_case() -> None:
    assert len(CASES) > 50
    assert {c.expect["cause"] for c in CASES} <= set(CAUSES)


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_windows_line_ends_and_colours_do_not_matter(case: Case) -> None:
    coloured = "\r\n".join(f"\x1b[0m{line}\x1b[39m" for line in case.log.split("\n"))
    assert judged(coloured).cause == case.expect["cause"]


DULL = 300  # lines


@functools.cache
def dull_lines(first: int) -> list[LogLine]:
    texts = [f"2026-03-09 10:00:00,{n:03d} - root - INFO - step {n} loss 2.{n}" for n in range(DULL)]
    return lines_of("\n".join(texts), first)


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_a_long_dull_log_around_it_does_not_matter(case: Case) -> None:
    lines = [*dull_lines(1), *lines_of(case.log, 1 + DULL), *dull_lines(10_000)]
    assert judged_lines(lines).cause == case.expect["cause"]


@pytest.mark.parametrize("seed", range(40))
def test_any_mixture_gets_one_answer(seed: int) -> None:
    chance = random.Random(seed)
    lines = [line for case in CASES for line in case.log.split("\n")]
    prefixes = ["", "[rank1]: ", "3: ", "[pod/a/b] ", "gpu01: ", "2026-03-09 10:11:12 "]
    verdict = judged("\n".join(chance.choice(prefixes) + chance.choice(lines) for _ in range(chance.randrange(1, 40))))
    assert verdict.cause in CAUSES
    assert verdict.cause not in [f.id for f in verdict.runners_up]
    assert 0 < verdict.confidence <= 1


def test_two_ranks_in_one_line_are_taken_apart() -> None:
    lines = read_line("Epoch 1:  40%|##  |[rank0]: ValueError: a[rank1]: KeyError: 'b'")
    assert [(k.rank, k.text.strip()) for k in lines[1:]] == [(0, "ValueError: a"), (1, "KeyError: 'b'")]


def test_messages_behind_a_progress_bar_or_another_message_are_taken_apart() -> None:
    bar = "40%|##   | 4/10 [00:10<00:15,  2.50s/it]"
    glog = "W0309 10:11:12.345000 4711 site-packages/torch/run.py:792] boom"
    (_, second) = read_line(f"gpu-07: {bar}{glog}")
    assert (second.node, second.text) == ("gpu-07", "boom")
    lines = read_line("[rank1]:[E309 10:11:12.1 A.cpp:1] [Rank 1] one.[E B.cpp:2] two. terminate called after throwing")
    assert [(k.rank, k.text.strip()) for k in lines] == [
        (1, "[Rank 1] one."), (1, "two."), (1, "terminate called after throwing")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "rank", "node", "text"),
    [
        ("[rank12]: boom", 12, "", "boom"),
        ("  7: boom", 7, "", "boom"),
        ("[1,4]<stderr>:boom", 4, "", "boom"),
        ("[pod/train-worker-0/pytorch] [rank1]: boom", 1, "train-worker-0", "boom"),
        ("gpu-07: boom", None, "gpu-07", "boom"),
        ("gpu-07: [rank3]: boom", 3, "gpu-07", "boom"),
        ("10.0.0.7: [rank3]: boom", 3, "10.0.0.7", "boom"),
        ("10.0.0.7: boom", None, "10.0.0.7", "boom"),
        ("worker-1  | boom", None, "worker-1", "boom"),
        ("(RayTrainWorker pid=77, ip=10.0.0.5) boom", None, "10.0.0.5", "boom"),
        ("gpu01:4711:4801 [2] NCCL INFO boom", None, "gpu01", "NCCL INFO boom"),
        ("[5] gpu01:4711:4801 [2] NCCL INFO boom", 5, "gpu01", "NCCL INFO boom"),
        ("[trainer0|1]:[rank1]: boom", 1, "", "boom"),
        ("[0]:boom", None, "", "boom"),
        ("2026-03-09T10:11:12.123456789Z [rank1]: boom", 1, "", "boom"),
        ("[E309 10:11:12.111222333 ProcessGroupNCCL.cpp:632] [Rank 5] boom", 5, "", "[Rank 5] boom"),
        ("Mar  9 10:11:12 gpu-a kernel: boom", None, "gpu-a", "boom"),
        ("[Mon Mar  9 10:11:12 2026] boom", None, "", "boom"),
        ("train.py: error: boom", None, "", "train.py: error: boom"),
        ("RuntimeError: boom", None, "", "RuntimeError: boom"),
    ],
)
def test_prefixes(raw: str, rank: int | None, node: str, text: str) -> None:
    (line,) = read_line(raw)
    assert (line.rank, line.node, line.text) == (rank, node, text)


PROJECT_IMPORT = "ImportError: cannot import name 'Block' from 'model.blocks' (/home/me/project/model/blocks.py)"
LIBRARY_IMPORT = (
    "ImportError: cannot import name 'Cache' from 'transformers' "
    "(/opt/venv/lib/python3.11/site-packages/transformers/__init__.py)"
)
CIRCULAR_IMPORT = (
    "ImportError: cannot import name 'a' from partially initialized module 'b' (most likely due to a circular import) "
    "(/home/me/project/b.py)"
)


@pytest.mark.parametrize(
    ("line", "cause", "parts"),
    [
        (PROJECT_IMPORT, "environment-mismatch", ["git rev-parse HEAD", "--sync"]),
        (LIBRARY_IMPORT, "environment-mismatch", ["image or environment"]),
        (CIRCULAR_IMPORT, "program-exception", ["Correct the program"]),
        ("ModuleNotFoundError: No module named 'model.blocks'", "missing-module", ["git status", "--sync"]),
        ("RuntimeError: Expected world size 16 but got 8", "world-size-mismatch", ["nvidia-smi -L | wc -l"]),
    ],
)
def test_fixes_of_code_and_counts_that_differ(line: str, cause: str, parts: list[str]) -> None:
    """In a log, and as the exception of a rank; only code of the project is a matter of git."""
    verdict = judged(f"Traceback (most recent call last):\n{line}\n")
    assert verdict.cause == cause, verdict.finding.message
    assert [part for part in parts if part not in verdict.finding.remedy] == []
    kind, _, text = line.partition(": ")
    row = row_of_exception(kind, text)
    assert row is not None or cause == "world-size-mismatch"
    assert row is None or row.cause == cause
    assert ("git" in verdict.finding.remedy) == (line in (PROJECT_IMPORT,) or cause == "missing-module")


@pytest.mark.parametrize("more", ["", "W0309 10:11:12 run.py:1] To enable traceback see: https://pytorch.org/docs\n"])
def test_logs_of_a_healthy_job_are_not_told_to_ask_the_kernel(more: str) -> None:
    """Logs do not prove that a job is well: that nothing tells of a failure is said over a good end alone."""
    verdict = judged(f"step 1 loss 2.0\n{more}step 2 loss 1.9\n")
    assert verdict.cause == "unknown" and "do not say how the job ended" in verdict.finding.message
    assert verdict.finding.remedy.startswith("A job that goes on, or has ended well, needs nothing.")
    assert "dmesg" not in verdict.finding.remedy
    assert "tells of a failure" not in judged("").finding.message


@pytest.mark.parametrize("identity", ["alarm", "exit-words", "exit-line", "composer-exit", "lightning-exit"])
def test_no_log_with_a_word_of_trouble_is_called_calm(identity: str) -> None:
    rows = (HERE / "examples.txt").read_text(encoding="utf-8").splitlines()
    texts = [line.partition(": ")[2] for line in rows if line.startswith(f"{identity}: ")]
    assert texts
    for text in texts:
        verdict = judged(f"step 1 loss 2.0\n{text}\nstep 2 loss 1.9\n")
        assert "no line of these logs" not in verdict.finding.message, text
        assert text[-20:].split()[-1] in verdict.finding.evidence[0], text


@pytest.mark.parametrize("text", ["error: 0.031", "val error: 1e-3, lr 0.1", "exit code: 0", "finished, 0 errors"])
def test_figures_and_good_ends_are_no_trouble(text: str) -> None:
    message = judged(f"step 1 loss 2.0\n{text}\n").finding.message
    ends_well = text.endswith(("code: 0", "errors"))
    assert ("no line of these logs tells of a failure" if ends_well else "do not say how the job ended") in message


@pytest.mark.parametrize("last", ["initializing ddp: GLOBAL_RANK: 0, MEMBER: 1/8", "errno: 97 - Address family", "ok"])
def test_a_log_without_an_end_is_never_called_calm(last: str) -> None:
    """What an excerpt does not say, it may have left out."""
    assert "tells of a failure" not in judged(f"Training finished\n{last}\n").finding.message
