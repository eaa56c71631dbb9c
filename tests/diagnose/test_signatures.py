"""Every row: an example that it alone takes, a source, a cause; and nothing that the scan would lose."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.diagnose.causes import CAUSES
from allranks.diagnose.logs.lines import read_line
from allranks.diagnose.logs.scan import Filter
from allranks.diagnose.rules import LOG_RULES, SOURCES
from allranks.diagnose.signatures import BY_ID, ROWS, Role, Scope, cause_of, lost_peer, row_of, row_of_exception

HERE = Path(__file__).parent
EXAMPLES = [
    tuple(line.split(": ", 1)) for line in (HERE / "examples.txt").read_text().splitlines() if not line.startswith("#")
]


OF_LOGS = [(i, text) for i, text in EXAMPLES if Scope.LOG in BY_ID[i].scope]
TRACES = {
    "loader-handover": 'File "x/torch/utils/data/dataloader.py", line 9\n  File "y", line 2, in rebuild_storage_fd',
    "checkpoint-short": "PyTorchFileReader(name)",
    "checkpoint-empty": 'File "x/torch/serialization.py", line 9, in load',
}


@pytest.mark.parametrize(("identity", "text"), OF_LOGS, ids=[f"{i}-{n}" for n, (i, _) in enumerate(OF_LOGS)])
def test_an_example_is_taken_by_its_row(identity: str, text: str) -> None:
    (line,) = read_line(text)
    found = row_of(line.text)
    assert found is not None
    assert found[0].id == identity


@pytest.mark.parametrize(("identity", "text"), [(i, t) for i, t in EXAMPLES if Scope.LOG not in BY_ID[i].scope])
def test_an_example_of_an_exception_or_an_agent_is_taken_by_its_row(identity: str, text: str) -> None:
    row = BY_ID[identity]
    kind, _, said = text.partition(": ")
    if Scope.AGENT in row.scope:
        assert cause_of(text) == row.cause
    elif row.role is Role.CASCADE:
        assert lost_peer(kind, said) == identity
    else:
        taken = row_of_exception(kind, said, TRACES.get(identity, ""))
        assert taken is not None and taken.id == identity
        assert row_of(text) is None or row_of(text)[0].id != identity  # type: ignore[index]


@pytest.mark.parametrize(
    ("kind", "text", "cause"),
    [
        ("OSError", "[Errno 28] No space left on device: '/ckpt/a.pt'", "disk-full"),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", "cuda-out-of-memory"),
        ("socket.gaierror", "[Errno -2] Name or service not known", "name-resolution"),
        ("builtins.ModuleNotFoundError", "No module named 'apex'", "missing-module"),
        ("ImportError", "cannot import name 'A' from 'b'", "environment-mismatch"),
        ("ImportError", "attempted relative import with no known parent package", "missing-module"),
        ("RuntimeError", "Detected mismatch between collectives on ranks. Rank 0 is running collective: X, but Rank 1 "
         "is running collective: Y.Collectives differ in the following aspects:\n\tOp type: ALLREDUCE vs BROADCAST",
         "collective-mismatch"),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer", None),
        ("ValueError", "bad batch", None),
    ],
)  # fmt: skip
def test_the_exception_of_a_rank(kind: str, text: str, cause: str | None) -> None:
    row = row_of_exception(kind, text)
    assert (row.cause if row else None) == cause


@pytest.mark.parametrize("text", [text for _, text in OF_LOGS])
def test_the_scan_keeps_every_example_among_lines_of_no_interest(text: str) -> None:
    dull = "".join(f"step {n} loss 0.{n:06d} lr 1e-4\n" for n in range(500))
    scan = Filter()
    scan.feed((dull + text + "\n" + dull).encode())
    assert (500, text.encode()) in scan.kept
    assert len(scan.kept) == 1


def test_every_row_has_an_example_and_a_source() -> None:
    assert {i for i, _ in EXAMPLES} == set(BY_ID)
    assert len(BY_ID) == len(ROWS)
    assert all(row.source for row in ROWS)


def test_every_row_that_decides_names_a_label() -> None:
    deciding = [r for r in ROWS if r.role in (Role.ROOT, Role.WEAK, Role.SYMPTOM)]
    assert {r.cause for r in deciding} <= set(CAUSES)
    assert {r.also for r in ROWS if r.also} <= set(CAUSES)


def test_every_rule_that_a_row_names_exists_and_has_a_source() -> None:
    assert {r.rule for r in ROWS if r.rule} <= set(LOG_RULES)
    assert all(SOURCES.values())


def test_an_agents_words_that_name_no_cause() -> None:
    assert cause_of("could not make its output directory /data/out: Read-only file system") == "unknown"
    assert cause_of("the channel closed") == "unknown"
