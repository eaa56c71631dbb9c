"""What earlier runs left: directories of dead runs, and outputs, which stay."""

import os
import time
from pathlib import Path

import pytest

from allranks.agent import sweep
from allranks.protocol.header import SweepHeader

NODE = "node_00"


def left(base: Path, run: str, days: float, outputs: bool = False) -> Path:
    """Make what a killed run leaves on a node."""
    directory = base / f"allranks-{os.getuid()}" / run / NODE
    (directory / "outputs").mkdir(parents=True)
    (directory / "node.log").write_text("")
    if outputs:
        (directory / "outputs/model.pt").write_text("w")
    then = time.time() - days * 86400
    os.utime(directory, (then, then))
    return directory


def test_outputs_are_listed_apart_and_stay(tmp_path: Path) -> None:
    """They were listed as if they could be ended, and were there again."""
    kept, gone = left(tmp_path, "kept", 1, outputs=True), left(tmp_path, "gone", 1)
    first = sweep.sweep(SweepHeader(node_dir=str(tmp_path)))
    assert first.directories == sorted([str(gone), str(kept)])
    sweep.sweep(SweepHeader(node_dir=str(tmp_path), remove=tuple(first.directories)))
    second = sweep.sweep(SweepHeader(node_dir=str(tmp_path)))
    assert (second.directories, second.kept) == ([], [str(kept / "outputs")])
    assert (kept / "outputs/model.pt").exists() and not gone.exists()


def test_old_directories_of_dead_runs_go_when_another_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, kept, young = left(tmp_path, "old", 8), left(tmp_path, "kept", 8, outputs=True), left(tmp_path, "young", 6)
    lives = left(tmp_path, "lives", 9)
    monkeypatch.setattr(sweep, "_agents", lambda paths: ({"lives/node_00"}, []))
    sweep.tidy(str(tmp_path))
    assert not old.exists() and young.exists() and lives.exists()
    assert [path.name for path in kept.iterdir()] == ["outputs"]
