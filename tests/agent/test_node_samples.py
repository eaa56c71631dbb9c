"""What an agent watches by itself while ranks run: the room that is left for what they write."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.real_agent import real_agent
from tests.agent.test_checks_real import mounted

from allranks.agent.node_samples import SPACE_EVERY, SpaceWatch
from allranks.protocol.codec import DecodeError
from allranks.protocol.messages import LITTLE_SPACE, LOW_SPACE, MESSAGES, RemarkMessage, read_message
from allranks.protocol.orders import HelloOrder

ROOM = LITTLE_SPACE + (64 << 20)


@pytest.fixture
def disk() -> Iterator[Path]:
    """A file system of its own with a little more than little space, at a path that a socket's address may have."""
    with tempfile.TemporaryDirectory(prefix="disk-") as place, mounted(Path(place, "disk"), f"size={ROOM}") as disk:
        yield disk


def fill(disk: Path, size: int) -> None:
    with (disk / "data").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def test_room_that_runs_out_is_said_once(disk: Path) -> None:
    watch = SpaceWatch(str(disk))
    assert watch.look(100.0) is None
    fill(disk, 128 << 20)
    assert watch.look(100.0 + SPACE_EVERY / 2) is None  # not yet due
    remark = watch.look(100.0 + SPACE_EVERY)
    assert remark == RemarkMessage(LOW_SPACE, f"960 MB are left in {disk}")
    fill(disk, 256 << 20)
    assert watch.look(100.0 + 9 * SPACE_EVERY) is None


def test_an_agent_remarks_it_to_each_controller_that_comes(disk: Path) -> None:
    with real_agent(parent=str(disk)) as agent:
        agent.start("import time; time.sleep(600)")
        fill(disk, 128 << 20)
        remark = agent.expect(RemarkMessage)
        assert remark.id == LOW_SPACE and str(disk) in remark.message
        agent.tell(HelloOrder(lease=60.0))
        assert agent.expect(RemarkMessage) == remark


def test_what_never_had_room_and_what_is_not_there_say_nothing(disk: Path, tmp_path: Path) -> None:
    fill(disk, 128 << 20)  # before anyone looks
    removed = tmp_path / "removed"
    removed.mkdir()
    watches = [SpaceWatch(str(place)) for place in (disk, tmp_path / "absent", removed)]
    removed.rmdir()
    for at in range(3):
        assert [watch.look(100.0 + at * SPACE_EVERY) for watch in watches] == [None] * 3


@pytest.mark.parametrize("field", [{"id": "Disk full"}, {"id": ""}, {"message": "x" * 400}])
def test_a_node_remarks_within_bounds(field: dict[str, Any]) -> None:
    written = MESSAGES.write(RemarkMessage(LOW_SPACE, "5 MB are left in /tmp"))
    assert read_message(written) == RemarkMessage(LOW_SPACE, "5 MB are left in /tmp")
    with pytest.raises(DecodeError):
        read_message({**written, **field})
