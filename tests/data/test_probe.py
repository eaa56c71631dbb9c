"""The probe in real torch processes: the program sees no difference, and the rows say what it read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hosts.waiting import BOUND

from allranks.data import probe
from allranks.data.auditing import read_rows
from allranks.data.rows import BatchRow, EndRow, EpochRow, LoaderRow, RankRow
from allranks.gang.agent_archive import beside_the_runner

BEHAVIOUR = str(Path(__file__).parent / "behaviour.py")
pytestmark = pytest.mark.torch


def environment(**more: str) -> dict[str, str]:
    return {**{k: v for k, v in os.environ.items() if not k.startswith("ALLRANKS_")}, "OMP_NUM_THREADS": "1", **more}


def run(argv: list[str], **more: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=BOUND, env=environment(**more))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def plain() -> str:
    return run([sys.executable, BEHAVIOUR])


@pytest.mark.parametrize("batches", ["3", *(pytest.param(n, marks=pytest.mark.slow) for n in ("1", "all"))])
def test_the_program_sees_no_difference(plain: str, tmp_path: Path, batches: str) -> None:
    path = tmp_path / "rows.jsonl"
    more = {"ALLRANKS_AUDIT_FILE": str(path), "ALLRANKS_AUDIT_BATCHES": batches}
    assert run([sys.executable, under_runner(tmp_path), BEHAVIOUR], **more) == plain
    rows = read_rows(path)
    loaders = [row for row in rows if isinstance(row, LoaderRow)]
    assert len(loaders) == probe.LOADERS
    of_first = [row for row in rows if isinstance(row, BatchRow) and row.loader == 0]
    assert len(of_first) == {"1": 1, "3": 3, "all": 4}[batches]
    assert sum(row.n for row in of_first) == {"1": 3, "3": 9, "all": 10}[batches]
    ends = [row for row in rows if isinstance(row, EndRow) and row.epoch == 0]
    assert {row.loader: row.batches for row in ends} == {0: 4, 1: 2, 2: 4, 3: 5, 4: 5, 5: 5, 6: 9, 7: 3}


def under_runner(place: Path) -> str:
    """The runner with the probe beside it, as in a node directory."""
    for name, content in beside_the_runner(False, True).items():
        (place / name).write_bytes(content)
    return str(place / "runner.py")


def test_the_traceback_of_a_dataset_that_raises_has_no_frame_of_ours(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from torch.utils.data import DataLoader, Dataset\n"
        "class Bad(Dataset):\n    def __len__(self): return 4\n"
        "    def __getitem__(self, index):\n        if index: raise KeyError(index)\n        return index\n"
        "for batch in DataLoader(Bad(), 1): print(batch)\n"
    )
    more = {"ALLRANKS_AUDIT_FILE": str(tmp_path / "rows_{rank}"), "ALLRANKS_AUDIT_BATCHES": "3", "RANK": "7"}
    processes = [
        subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         env=environment(**more))
        for words in ([str(script)], [under_runner(tmp_path), str(script)])
    ]  # fmt: skip
    plain, under = ((*process.communicate(timeout=BOUND), process.returncode) for process in processes)
    assert plain == under and plain[2] == 1
    assert "KeyError: 1" in under[1] and "probe" not in under[1]
    rows = read_rows(tmp_path / "rows_007")
    assert [type(row) for row in rows] == [RankRow, LoaderRow, BatchRow, EpochRow]


def test_off_unless_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for batches in (None, "0", "-1", "many", ""):
        monkeypatch.setenv("ALLRANKS_AUDIT_FILE", str(tmp_path / "rows"))
        if batches is None:
            monkeypatch.delenv("ALLRANKS_AUDIT_BATCHES", raising=False)
        else:
            monkeypatch.setenv("ALLRANKS_AUDIT_BATCHES", batches)
        assert probe.install(None) is False
    monkeypatch.setenv("ALLRANKS_AUDIT_BATCHES", "3")
    monkeypatch.delenv("ALLRANKS_AUDIT_FILE")
    assert probe.install(None) is False


def test_a_file_that_cannot_be_written_harms_nobody(plain: str, tmp_path: Path) -> None:
    more = {"ALLRANKS_AUDIT_FILE": "/nowhere/rows", "ALLRANKS_AUDIT_BATCHES": "2"}
    assert run([sys.executable, under_runner(tmp_path), BEHAVIOUR], **more) == plain


def test_nothing_is_left_after_the_first_batches(tmp_path: Path) -> None:
    import torch
    import torch.utils.data.dataloader as module

    notes = probe.Notes(str(tmp_path / "rows"), 2)
    undo = probe.patch(module.DataLoader, module._BaseDataLoaderIter, notes)  # noqa: SLF001 - what the probe changes
    try:
        loader = module.DataLoader(torch.arange(12), 2)
        for _ in range(probe.EPOCHS):
            assert len(list(loader)) == 6
        size = (tmp_path / "rows").stat().st_size
        later = iter(loader)
        assert type(later) is module._SingleProcessDataLoaderIter  # noqa: SLF001
        assert "_allranks_epoch" not in vars(later)
        assert len(list(later)) == 6
        assert (tmp_path / "rows").stat().st_size == size
    finally:
        undo()
    assert "allranks" not in module.DataLoader.__iter__.__code__.co_filename
