"""How much output an agent sends ahead of what the controller has read: what is said behind it must not come late."""

import socket
from collections import Counter

import pytest

from allranks.agent.link import FIND_EVERY, LEAST_AHEAD, MOST_AHEAD, SLOWEST, Link
from allranks.agent.outlet import DIGITS, Outlet
from allranks.protocol.frames import CHUNK, METRICS, NODE_LOG, RANK_LOG, Decoder, Stream
from allranks.protocol.messages import PongMessage

SIZE = 8 << 20


class Pair:
    """The agent's end of a connection, and all that has been read at the other."""

    def __init__(self, outlet):
        ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self.outlet = outlet
        self.link = Link(ours)
        self._decoder = Decoder()
        self.output = Counter()
        self.messages = []

    def send(self, now):
        """Send as an agent does at each turn, and read it; return the bytes of output that came."""
        before = self.output.total()
        self.outlet.send_to(self.link, now)
        while self.link.events != 1:
            self.link.flush()
            for frame in self._decoder.feed(self._theirs.recv(1 << 20)):
                if isinstance(frame, dict):
                    self.messages.append(frame["type"])
                else:
                    self.output[frame.stream.rank] += len(frame.data)
        return self.output.total() - before

    def taken(self, now):
        self.link.output_taken(self.output.total(), now)

    def close(self):
        self.link.close()
        self._theirs.close()


@pytest.fixture
def pair(tmp_path):
    outlet = Outlet(str(tmp_path))
    for rank in range(3):
        path = tmp_path / f"rank-{rank}"
        path.write_bytes(bytes(SIZE))
        outlet.add_file(Stream(RANK_LOG, rank, 0), str(path))
    pair = Pair(outlet)
    yield pair
    pair.close()


def test_an_agent_sends_only_so_much_ahead_of_the_controllers_word_and_messages_still_pass(pair):
    assert LEAST_AHEAD <= pair.send(0.0) < LEAST_AHEAD + CHUNK
    assert [pair.send(float(second)) for second in range(1, 5)] == [0, 0, 0, 0]
    pair.link.send(PongMessage(1.0, 2.0))
    pair.send(5.0)
    assert pair.messages == ["pong"]


def sizes(pair, delays):
    """What is sent in each turn whose word comes after a delay."""
    now, found = 0.0, []
    for delay in delays:
        found.append(pair.send(now))
        now += delay
        pair.taken(now)
    return found


def test_a_quick_controller_gets_more_ahead_and_a_slow_one_less(pair):
    found = sizes(pair, [SLOWEST / 2] * 6 + [SLOWEST * 2] * 6)
    assert found[0] < found[1] < found[5]
    assert MOST_AHEAD <= found[5] < MOST_AHEAD + CHUNK
    assert LEAST_AHEAD <= found[-1] < LEAST_AHEAD + CHUNK


def test_a_busy_machine_whose_word_comes_late_in_any_case_gets_more_ahead(pair):
    """A word takes as long with little on its way as with much: what is said behind output is no later for it."""
    assert MOST_AHEAD <= sizes(pair, [5 * SLOWEST] * 6)[-1] < MOST_AHEAD + CHUNK


@pytest.mark.parametrize("a_second", [300_000, 1_000_000])
def test_on_a_slow_line_no_more_is_on_its_way_however_long_it_lasts(a_second):
    """What takes longer the more there is of it is the output's own doing: also after it was found anew many times."""
    link = Link(socket.socketpair()[0])
    now, most = 0.0, 0
    for _ in range(300):
        size = max(0, link.room)
        link.send_output([], size, now)
        most = max(most, size)
        now += size / a_second
        link.output_taken(1 << 62, now)
    link.close()
    assert now > 10 * FIND_EVERY / 2
    assert most <= 2 * LEAST_AHEAD


def test_a_word_of_more_than_was_sent_opens_no_room(pair):
    sent = pair.send(0.0)
    pair.link.output_taken(1 << 62, 0.0)
    assert pair.link.room <= MOST_AHEAD
    pair.link.output_taken(0, 0.0)  # nor does a smaller one close it
    assert pair.send(0.0) >= sent


def test_streams_take_turns_where_there_is_room_for_one(pair):
    sizes(pair, [2 * SLOWEST] * 30)
    assert set(pair.output) == {0, 1, 2}
    assert max(pair.output.values()) - min(pair.output.values()) <= CHUNK


def test_a_rank_that_prints_without_a_pause_holds_no_file_up(tmp_path):
    (tmp_path / f"a0_rank_0.{0:0{DIGITS}d}").write_bytes(bytes(40 * CHUNK))
    (tmp_path / "node.log").write_bytes(b"a line\n")
    outlet = Outlet(str(tmp_path))
    outlet.add_existing_spools()
    outlet.add_file(Stream(NODE_LOG, 0, 0), str(tmp_path / "node.log"))
    kinds = []
    for turn in range(20):
        pieces, _ = outlet.fill(1, float(turn))
        kinds += [frame.stream.kind for frame in Decoder().feed(b"".join(pieces))]
    assert (kinds.count(NODE_LOG), kinds.count(RANK_LOG)) == (1, 19)


def test_all_arrives_in_the_end(pair):
    while not pair.outlet.drained:
        assert pair.send(0.0)
        pair.taken(0.0)
    assert pair.output == {0: SIZE, 1: SIZE, 2: SIZE}


def sent(outlet):
    """What an outlet gives for a controller that has nothing yet of it: offset and bytes of each frame."""
    pieces, _ = outlet.fill(1 << 20)
    return [(frame.offset, frame.data) for frame in Decoder().feed(b"".join(pieces))]


def test_of_metrics_only_what_comes_from_now_on(tmp_path):
    """An output directory that several nodes share has the rows that another node's agent has sent already, and one
    that an earlier run has used has that run's."""
    path = tmp_path / "rank_02_metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n')
    outlet = Outlet(str(tmp_path))
    stream = Stream(METRICS, 2, 0)
    outlet.add_file(stream, str(path))
    assert sent(outlet) == []
    with path.open("ab") as file:
        file.write(b'{"step": 21}\n')
    assert sent(outlet) == [(0, b'{"step": 21}\n')]
    outlet.add_file(stream, str(path))  # at the next attempt of the same agent
    with path.open("ab") as file:
        file.write(b'{"step": 22}\n')
    assert sent(outlet) == [(13, b'{"step": 22}\n')]
    outlet.controller_has({})  # a new controller, which has nothing
    assert sent(outlet) == [(0, b'{"step": 21}\n{"step": 22}\n')]


def test_of_a_file_that_was_emptied_its_new_rows_follow(tmp_path):
    """A program that is tried again may open its metrics for writing: no row is missing, and none is cut."""
    path = tmp_path / "rank_00_metrics.jsonl"
    outlet = Outlet(str(tmp_path))
    outlet.add_file(Stream(METRICS, 0, 0), str(path))
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n')
    assert sent(outlet) == [(0, b'{"step": 1}\n{"step": 2}\n')]
    path.write_bytes(b'{"step": 100}\n')
    assert sent(outlet) == [(24, b'{"step": 100}\n')]
    with path.open("ab") as file:
        file.write(b'{"step": 101}\n')
    assert sent(outlet) == [(38, b'{"step": 101}\n')]
    assert outlet.drained
    outlet.controller_has({})  # what a new controller lacks is not there any more
    assert sent(outlet) == [(24, b'{"step": 100}\n{"step": 101}\n')]
