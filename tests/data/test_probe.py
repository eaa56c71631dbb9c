"""The probe in real torch processes: the program sees no difference, and the rows say what it read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hosts.waiting import BOUND

from allranks.data import probe
from allranks.data.auditing import conclude, read_rows
from allranks.data.rows import BatchRow, EndRow, EpochRow, LoaderRow, RankRow
from allranks.gang.agent_archive import beside_the_runner

HERE = Path(__file__).parent
FOLDER = Path(probe.__file__).parent
START = (
    f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import probe; del sys.path[0]; assert probe.install(); "
    "import runpy; sys.argv[:1] = []; sys.path[0] = sys.argv[0].rpartition('/')[0]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)

pytestmark = pytest.mark.torch


def environment(**more: str) -> dict[str, str]:
    return {**{k: v for k, v in os.environ.items() if not k.startswith("ALLRANKS_")}, "OMP_NUM_THREADS": "1", **more}


def run(argv: list[str], **more: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=BOUND, env=environment(**more))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def plain() -> str:
    return run([sys.executable, str(HERE / "behaviour.py")])


@pytest.mark.parametrize("batches", ["3", *(pytest.param(n, marks=pytest.mark.slow) for n in ("1", "all"))])
def test_the_program_sees_no_difference(plain: str, tmp_path: Path, batches: str) -> None:
    path = tmp_path / "rows.jsonl"
    script = str(HERE / "behaviour.py")
    more = {"ALLRANKS_AUDIT_FILE": str(path), "ALLRANKS_AUDIT_BATCHES": batches}
    assert run([sys.executable, under_runner(tmp_path), script], **more) == plain
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


def test_a_file_that_cannot_be_written_harms_nobody(plain: str) -> None:
    more = {"ALLRANKS_AUDIT_FILE": "/nowhere/rows", "ALLRANKS_AUDIT_BATCHES": "2"}
    command = START.replace("assert probe.install()", "probe.install()")
    assert run([sys.executable, "-c", command, str(HERE / "behaviour.py")], **more) == plain


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


@pytest.mark.slow
def test_ranks_of_a_real_group(tmp_path: Path) -> None:
    """Two processes with gloo and DDP, each with a sampler of its local rank as on two nodes."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    processes = []
    for rank in range(2):
        more = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "GROUP_RANK": str(rank),
                "ALLRANKS_AUDIT_FILE": str(tmp_path / f"{rank}.jsonl"), "ALLRANKS_AUDIT_BATCHES": "2"}  # fmt: skip
        argv = [sys.executable, "-c", START, str(script), str(tmp_path / "store")]
        processes.append(subprocess.Popen(argv, env=environment(**more), stderr=subprocess.PIPE, text=True))
    for process in processes:
        _, complaint = process.communicate(timeout=BOUND)
        assert process.returncode == 0, complaint
    rows = [row for rank in range(2) for row in read_rows(tmp_path / f"{rank}.jsonl")]
    found = conclude(rows, {0: ("0", 0), 1: ("1", 0)})
    assert [(one.id, one.status) for one in found.findings] == [("data-not-sharded", "fail")]
    assert json.loads(json.dumps(found.to_json()))["ok"] is False


TRAIN = """
import sys, torch, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import os
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
data = TensorDataset(torch.rand(32, 3, generator=torch.Generator().manual_seed(1)))
sampler = DistributedSampler(data, num_replicas=1, rank=int(os.environ["LOCAL_RANK"]))
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (x,) in DataLoader(data, 4, sampler=sampler, num_workers=1):
        model(x).sum().backward()
dist.destroy_process_group()
"""
