"""Every row: an example that it alone takes, a source, a cause; and nothing that the scan would lose."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from allranks.diagnose.causes import CAUSES
from allranks.diagnose.logs.lines import read_line
from allranks.diagnose.logs.scan import Filter
from allranks.diagnose.rules import FAILURE_RULES, LOG_RULES, RULES
from allranks.diagnose.signatures import (
    BY_ID,
    ROWS,
    Row,
    Scope,
    Sign,
    cause_of,
    lost_peer,
    row_by_words,
    row_of,
    row_of_exception,
    vocabulary,
)

if sys.version_info >= (3, 11):
    from re import _parser as regex_parser  # type: ignore[attr-defined]
else:
    import sre_parse as regex_parser

HERE = Path(__file__).parent
EXAMPLES = [
    tuple(line.split(": ", 1)) for line in (HERE / "examples.txt").read_text().splitlines() if not line.startswith("#")
]

OF_LOGS = [(i, text) for i, text in EXAMPLES if Scope.LOG in BY_ID[i].scope]
OF_OTHERS = [(i, text) for i, text in EXAMPLES if Scope.LOG not in BY_ID[i].scope]
TRACES = {
    "loader-handover": 'File "x/torch/utils/data/dataloader.py", line 9\n  File "y", line 2, in rebuild_storage_fd',
    "checkpoint-short": "PyTorchFileReader(name)",
    "generator-index": 'File "x/torch/cuda/random.py", line 9, in cb',
    "checkpoint-empty": 'File "x/torch/serialization.py", line 9, in load',
    "accelerate-refuses": '  File "x/accelerate/accelerator.py", line 9, in prepare',
    "deepspeed-refuses": '  File "x/deepspeed/runtime/config.py", line 9, in f\n  File "x/pydantic.py", line 2, in g',
    "accelerate-command": '  File "x/accelerate/commands/launch.py", line 9, in launch_command',
    "torchrun-refuses": '  File "x/torch/distributed/run.py", line 9, in config_from_args',
    "deepspeed-launcher": '  File "x/deepspeed/launcher/runner.py", line 9, in parse_resource_filter',
    "hostfile-refused": '  File "x/deepspeed/launcher/runner.py", line 9, in fetch_hostfile',
    "launcher-variable": '  File "x/deepspeed/launcher/multinode_runner.py", line 9, in get_cmd',
    "deepspeed-combination": '  File "x/deepspeed/runtime/engine.py", line 9, in _do_args_sanity_check',
    "config-json": '  File "x/deepspeed/runtime/config.py", line 9, in f\n  File "/l/json/decoder.py", line 2, in g',
    "arguments-refused": '  File "x/arguments.py", line 9, in validate_args\n  File "<string>", line 2, in __init__',
    "rendezvous-refuses": '  File "x/torch/distributed/elastic/rendezvous/api.py", line 9, in create_handler',
    "trl-server": '  File "x/trl/extras/vllm_client.py", line 9, in init_communicator',
    "library-assertion": '  File "/v/site-packages/vllm/state.py", line 9, in broadcast',
    "command-refuses": '  File "/v/site-packages/swift/cli/main.py", line 9, in cli_main',
    "library-attribute": '  File "/v/site-packages/vllm/entrypoints/llm.py", line 9, in collective_rpc',
    "library-model": '  File "/v/site-packages/transformers/models/auto/configuration_auto.py", line 9, in __getitem__',
    "library-argument": '  File "/v/site-packages/transformers/trainer.py", line 9, in training_step',
}


def row_that_takes(text: str) -> str | None:
    """The row that takes a line of a log."""
    (line,) = read_line(text)
    taken = row_of(line.text)
    return taken[0].id if taken else None


def test_every_example_is_taken_by_its_row() -> None:
    assert len(OF_LOGS) > 200
    wrong = [
        f"the example of {identity} is taken by {row_that_takes(text)} (None: no literal or no pattern fits): {text}"
        for identity, text in OF_LOGS
        if row_that_takes(text) != identity
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("identity", dict(OF_OTHERS))
def test_an_example_of_an_exception_or_an_agent_is_taken_by_its_row(identity: str) -> None:
    row = BY_ID[identity]
    for text in (text for i, text in OF_OTHERS if i == identity):
        kind, _, said = text.partition(": ")
        if Scope.AGENT in row.scope:
            assert cause_of(text) == row.cause, text
        elif row.role is Sign.CASCADE:
            assert lost_peer(kind, said) == identity, text
        elif row in (*vocabulary.ROWS, *vocabulary.OF_TRACE):
            worded = row_by_words(kind, said, TRACES.get(identity, ""))
            assert worded is not None and worded.id == identity, (text, worded)
            assert row_of_exception(kind, said) is None, text
        else:
            taken = row_of_exception(kind, said, TRACES.get(identity, ""))
            assert taken is not None and taken.id == identity, text
            assert row_that_takes(text) != identity, text


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


def test_the_scan_keeps_every_example_among_lines_of_no_interest() -> None:
    dull = "".join(f"step {n} loss 0.{n:06d} lr 1e-4\n" for n in range(500))
    lost = []
    for _, text in OF_LOGS:
        scan = Filter()
        scan.feed((dull + text + "\n" + dull).encode())
        if list(scan.kept) != [(500, text.encode())]:
            lost.append((text, scan.kept))
    assert lost == []


def test_every_row_has_an_example_and_a_source() -> None:
    without = set(BY_ID) - {i for i, _ in EXAMPLES}
    assert not without, f"give a line `id: text` in tests/diagnose/examples.txt for each of {without}"
    assert {i for i, _ in EXAMPLES} <= set(BY_ID)
    assert len(BY_ID) == len(ROWS)
    assert all(row.source for row in ROWS)


def test_every_row_names_a_label_and_a_rule_that_there_are() -> None:
    deciding = [r for r in ROWS if r.role in (Sign.ROOT, Sign.WEAK, Sign.SYMPTOM)]
    assert {r.cause for r in deciding} | {r.also for r in ROWS if r.also} <= set(CAUSES)
    assert {r.rule for r in ROWS if r.rule} <= set(LOG_RULES)
    assert all(source for source, _ in (*RULES.values(), *FAILURE_RULES.values(), *LOG_RULES.values()))


def test_an_agents_words_that_name_no_cause() -> None:
    assert cause_of("could not make its output directory /data/out: Read-only file system") == "unknown"
    assert cause_of("the channel closed") == "unknown"


GAP = "\0"
"""Stands where a pattern takes any text."""


def _sequences(nodes: Iterable[tuple[Any, Any]]) -> list[str]:
    """Every text that a parsed pattern must find, with GAP for what may be anything; look-arounds are left out."""
    texts = [""]
    for op, argument in nodes:
        one_each = _choices(str(op), argument)
        texts = list(dict.fromkeys(text + more for text in texts for more in one_each))[:4000]
    return texts


def _choices(op: str, argument: Any) -> list[str]:
    if op == "LITERAL":
        return [chr(argument)]
    if op == "IN" and len(argument) <= 3 and all(str(kind) == "LITERAL" for kind, _ in argument):
        return [chr(code) for _, code in argument]
    if op == "SUBPATTERN":
        return _sequences(argument[-1])
    if op == "BRANCH":
        return [text for branch in argument[1] for text in _sequences(branch)]
    if op in ("MAX_REPEAT", "MIN_REPEAT"):
        least, most, repeated = argument
        texts = _sequences(repeated)
        if least == 0:
            return ["", *texts] if most == 1 else [GAP]
        return texts if most == 1 else [text + GAP for text in texts]
    return [""] if op in ("ASSERT", "ASSERT_NOT", "AT") else [GAP]


@pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])
def test_every_text_that_a_row_finds_holds_one_of_its_literals(row: Row) -> None:
    """A line without a literal of a row is never searched, so an alternative without one would never be found."""
    ignores_case = "(?i" in row.pattern
    needs = [need.lower() if ignores_case else need for need in row.needs]
    texts = _sequences(regex_parser.parse(row.pattern).data)
    wanting = [t for t in texts if not any(need in (t.lower() if ignores_case else t) for need in needs)]
    assert [text.replace(GAP, "…") for text in wanting[:5]] == []
