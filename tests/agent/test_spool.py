"""The spool keeps every byte across processes; a full disk drops and counts, never blocks."""

import contextlib
import os
import threading

import pytest
from tests.agent.test_checks_real import mounted

from allranks.agent import outlet as spools
from allranks.agent.outlet import Budget, Outlet, Spool
from allranks.protocol.frames import RANK_LOG, Stream, stream_key
from allranks.protocol.messages import MESSAGES

pytestmark = pytest.mark.processes


@pytest.fixture
def pipe():
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    yield read_end, write_end
    for fd in (read_end, write_end):
        with contextlib.suppress(OSError):
            os.close(fd)


def everything(spool: Spool) -> bytes:
    data, at = b"", spool.start
    while True:
        at, part = spool.read(at, 1 << 20)
        if not part:
            return data
        data, at = data + part, at + len(part)


def test_bytes_go_through_segments_in_order(tmp_path, pipe, monkeypatch):
    monkeypatch.setattr(spools, "SEGMENT", 10_000)
    read_end, write_end = pipe
    spool = Spool(str(tmp_path), "r", Budget())
    sent = b"".join(b"%06d\n" % i for i in range(20_000))

    def write():
        view = sent
        while view:
            view = view[os.write(write_end, view) :]
        os.close(write_end)

    writer = threading.Thread(target=write)
    writer.start()
    while spool.pump(read_end) is not None:
        pass
    writer.join()
    assert everything(spool) == sent
    assert spool.end == len(sent)
    before = len(list(tmp_path.iterdir()))
    assert before in (14, 15)  # the last look may have opened one more
    spool.acknowledge(70_000)
    assert spool.start == 70_000
    assert len(list(tmp_path.iterdir())) == before - 7


def test_full_disk_goes_to_memory_then_drops_and_counts(tmp_path, pipe):
    with mounted(tmp_path / "disk", "size=64k") as disk:
        read_end, write_end = pipe
        spool = Spool(str(disk), "r", Budget(100_000))
        sent = 0
        for _ in range(40):
            part = os.write(write_end, bytes(10_000))
            sent += part
            while part:  # where the disk is full, the rest comes with the next turn
                part -= spool.pump(read_end)
        held = len(everything(spool))
        assert spool.dropped > 0
        assert held + spool.dropped == sent
        assert held >= 150_000


def pumped(spool: Spool, pipe: tuple[int, int], size: int) -> None:
    """So many bytes through the pipe."""
    while size:
        part = os.write(pipe[1], bytes(min(size, 32_768)))
        assert spool.pump(pipe[0]) == part
        size -= part


def test_the_files_of_all_streams_share_one_bound(tmp_path, pipe):
    """As while the controller is away: then memory, then nothing; every byte is counted."""
    budget = Budget(50_000, disk=200_000)
    one, two = Spool(str(tmp_path), "r1", budget), Spool(str(tmp_path), "r2", budget)
    pumped(one, pipe, 150_000)
    assert (one.dropped, one.bounded, budget.on_disk) == (0, False, 150_000)
    pumped(two, pipe, 150_000)
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) == 200_000 == budget.on_disk
    assert two.bounded and two.end + two.dropped == 150_000 and 90_000 <= two.end <= 100_000
    assert len(everything(two)) == two.end
    two.acknowledge(two.end)
    one.acknowledge(one.end)


def test_what_the_controller_has_makes_room_again(tmp_path, pipe, monkeypatch):
    monkeypatch.setattr(spools, "LARGE", 50_000)
    budget = Budget(0, disk=100_000)
    spool = Spool(str(tmp_path), "r", budget)
    pumped(spool, pipe, 131_072)
    assert (spool.end, spool.dropped) == (100_000, 31_072)
    spool.acknowledge(100_000)
    assert budget.on_disk == 0 and spool.start == spool.end == 100_000
    pumped(spool, pipe, 65_536)
    assert (spool.end, spool.dropped, spool.bounded) == (165_536, 31_072, False)
    assert spool.read(100_000, 1 << 20) == (100_000, bytes(65_536))


def test_the_next_process_knows_how_far_an_empty_spool_was_and_what_is_on_disk(tmp_path, pipe, monkeypatch):
    monkeypatch.setattr(spools, "LARGE", 50_000)
    spool = Spool(str(tmp_path), "r", Budget())
    pumped(spool, pipe, 98_304)
    spool.acknowledge(98_304)
    pumped(spool, pipe, 32_768)
    budget = Budget()
    again = Spool(str(tmp_path), "r", budget)
    assert (again.start, again.end, budget.on_disk) == (98_304, 131_072, 32_768)
    os.write(pipe[1], b"after")
    again.pump(pipe[0])
    assert everything(again) == bytes(32_768) + b"after"


def test_the_bound_is_a_share_of_the_free_space(tmp_path):
    budget, found = Budget(), os.statvfs(tmp_path)
    free = found.f_bavail * found.f_frsize
    assert budget.limit(str(tmp_path)) == pytest.approx(min(free / 4, 16 << 30), rel=0.1)
    budget.on_disk = 4 << 30
    assert budget.limit(str(tmp_path)) == pytest.approx(min((free + (4 << 30)) / 4, 16 << 30), rel=0.1)
    assert Budget().limit(str(tmp_path / "gone")) == 16 << 20


def test_drops_are_told_in_all_and_again_to_the_next_controller(tmp_path, pipe):
    outlet = Outlet(str(tmp_path), Budget(0, disk=10_000))
    spool = outlet.add_spool(Stream(RANK_LOG, 3, 0))
    pumped(spool, pipe, 32_768)
    (drop,) = outlet.new_drops()
    assert MESSAGES.write(drop) == {
        "type": "dropped", "kind": RANK_LOG, "rank": 3, "attempt": 0, "total": 22_768, "bounded": True,
    }  # fmt: skip
    assert outlet.new_drops() == []
    pumped(spool, pipe, 1_000)
    assert [d.total for d in outlet.new_drops()] == [23_768]
    outlet.controller_has({})
    assert [d.total for d in outlet.new_drops()] == [23_768]
    drops = outlet.drops()
    after = Outlet(str(tmp_path))
    after.add_existing_spools()
    after.remember_drops(drops)
    assert [(d[:3], d.total) for d in after.new_drops()] == [((RANK_LOG, 3, 0), 23_768)]


def test_what_a_program_puts_among_the_segments_ends_no_supervisor(tmp_path, pipe):
    """A FIFO, a directory, a link, another's file, and names that no frame can hold."""
    name = f"{7:016d}"
    os.mkfifo(tmp_path / f"a0_rank_0.{name}")
    (tmp_path / f"a0_rank_1.{name}").mkdir()
    (tmp_path / f"a0_rank_2.{name}").symlink_to("/dev/null")
    for odd in ("a70000_rank_0", "a0_rank_99999999999", "a00_rank_3", "a0_rank_" + "9" * 60, "a\u0663_rank_0"):
        (tmp_path / f"{odd}.{name}").write_bytes(b"not ours")
    (tmp_path / "a0_rank_5.junk").write_bytes(b"not ours")
    spool = Spool(str(tmp_path), "a0_rank_5", Budget())
    os.write(pipe[1], b"last words")
    spool.pump(pipe[0])
    assert everything(Spool(str(tmp_path), "a0_rank_5", Budget())) == b"last words"
    outlet = Outlet(str(tmp_path))
    outlet.add_existing_spools()
    assert outlet.sizes()[stream_key(Stream(RANK_LOG, 5, 0))] == len(b"last words")
    assert set(outlet.sizes().values()) == {0, len(b"last words")}
    assert (tmp_path / "a0_rank_5.junk").read_bytes() == b"not ours"
