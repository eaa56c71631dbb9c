"""Command lines of `allranks`, given in this process as a shell gives them."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests import wording
from tests.reference.validating import printed_faults

from allranks.cli import main
from allranks.cli.declare import Declared, DeclaredCommand


class Answer(NamedTuple):
    """What a command line came to."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The JSON on standard output."""
        found: dict[str, Any] = json.loads(self.out)
        return found


class Shell:
    """Gives words to `allranks`; the words' first is the verb."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *words: str) -> Answer:
        self._monkeypatch.setattr(sys, "argv", ["allranks", *words])
        with pytest.raises(SystemExit) as ended:
            main.main()
        out, err = self._capsys.readouterr()
        if "--json" in words:
            assert _faults(words, out) == [], out
        assert wording.fault(err.strip()) == "", err
        return Answer(int(ended.value.code or 0), out, err)


def _faults(words: Sequence[str], out: str) -> list[str]:
    """What of a document that was printed is not as its JSON Schema says; lines of JSON are no document."""
    try:
        document = json.loads(out)
    except ValueError:
        return []
    return printed_faults(words, document)


def given_of(declared: Declared, words: list[str]) -> dict[str, object]:
    """The settings that a command gets for these words."""
    command = DeclaredCommand(declared)
    return command.typed_settings(command.make_context(declared.name, list(words)))


def command_of(document: dict[str, Any]) -> list[str]:
    """The words behind the interpreter and our runner, of the first rank of a dry run."""
    argv: list[str] = document["nodes"][0]["ranks"][0]["argv"]
    at = next((i for i, word in enumerate(argv) if word.endswith("/runner.py")), None)
    return argv if at is None else argv[at + 1 :]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """In a directory with two scripts, and an environment that says nothing of nodes and ranks."""
    for name in list(os.environ):
        if name.startswith(("ALLRANKS_", "SLURM_")) or name in ("WORLD_SIZE", "NODE_RANK", "NNODES", "NPROC_PER_NODE"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "other.py"):
        (tmp_path / name).write_text("")
    return Shell(capsys, monkeypatch)
