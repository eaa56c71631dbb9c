"""The spool keeps every byte across processes; a full disk drops and counts, never blocks."""

import os
import subprocess
import threading

import pytest

from allranks.node import spool as spools
from allranks.node.spool import Budget, Spool


@pytest.fixture
def pipe():
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    yield read_end, write_end
    for fd in (read_end, write_end):
        try:
            os.close(fd)
        except OSError:
            continue


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


def test_another_process_goes_on_where_the_first_ended(tmp_path, pipe):
    read_end, write_end = pipe
    first = Spool(str(tmp_path), "r", Budget())
    os.write(write_end, b"before ")
    first.pump(read_end)
    os.write(write_end, b"after")
    second = Spool(str(tmp_path), "r", Budget())
    assert second.end == 7
    second.pump(read_end)
    assert everything(second) == b"before after"


def test_empty_pipe_and_end_of_pipe_differ(tmp_path, pipe):
    read_end, write_end = pipe
    spool = Spool(str(tmp_path), "r", Budget())
    assert spool.pump(read_end) == 0
    os.close(write_end)
    assert spool.pump(read_end) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_full_disk_goes_to_memory_then_drops_and_counts(tmp_path, pipe):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=True)
    try:
        read_end, write_end = pipe
        spool = Spool(str(tmp_path), "r", Budget(100_000))
        sent = 0
        for _ in range(40):
            sent += os.write(write_end, bytes(10_000))
            assert spool.pump(read_end) == 10_000
        held = len(everything(spool))
        assert spool.dropped > 0
        assert held + spool.dropped == sent
        assert held >= 150_000
        spool.close()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
