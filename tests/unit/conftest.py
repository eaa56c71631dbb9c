"""Fixtures of the unit tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.shell import Shell


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
