"""Which link loses what ranks send, from both ends' counters as the kernel gave them when h2 dropped what h1 sent."""

import pytest

from allranks.diagnose.hangs.links import dead_link, lossy_link, slow_link
from allranks.protocol.samples import RankSocket, StackSample

NAMES = {0: "h1", 1: "h2"}
ADDRESSES = {"10.0.0.1": "h1", "10.0.0.2": "h2"}
# rank 0 on h1 has sent 424 bytes that rank 1 on h2 has not acknowledged
SENDER = RankSocket("10.0.0.1:5000", "10.0.0.2:6000", queued=424, retransmits=6, acked=90_001, received=90_000)
RECEIVER = RankSocket("10.0.0.2:6000", "10.0.0.1:5000", acked=90_000, received=90_000)


def sampled(sender: RankSocket, receiver: RankSocket | None = RECEIVER) -> dict[int, StackSample]:
    """Both ranks, as one look finds them."""
    others = () if receiver is None else (receiver,)
    return {0: StackSample(0, sockets=(sender,)), 1: StackSample(1, sockets=others)}


@pytest.mark.parametrize(
    ("sender", "receiver", "nodes", "says", "confidence"),
    [
        pytest.param(SENDER, RECEIVER, ("h1", "h2"), "packets from h1 do not reach h2", 0.9, id="it does not arrive"),
        pytest.param(
            SENDER, RECEIVER._replace(received=90_424), ("h2", "h1"), "packets from h2 do not reach h1", 0.9,
            id="it arrives and the acknowledgement does not",
        ),
        pytest.param(SENDER, None, ("h1", "h2"), "packets are lost between h1 and h2", 0.8, id="the direction is open"),
        pytest.param(
            RankSocket("10.0.0.1:5000", "10.0.0.2:6000", connecting=True, retransmits=4), None, ("h1", "h2"),
            "h1 gets no answer from h2 (10.0.0.2:6000)", 0.8, id="a connection that is never answered",
        ),
    ],
)  # fmt: skip
def test_a_link_that_loses_what_is_sent(
    sender: RankSocket, receiver: RankSocket | None, nodes: tuple[str, str], says: str, confidence: float
) -> None:
    look = sampled(sender, receiver)
    hang = dead_link(look, look, NAMES, ADDRESSES)
    assert hang is not None and (hang.nodes, hang.confidence) == (nodes, confidence) and says in hang.message


def test_the_evidence_is_what_was_not_acknowledged() -> None:
    hang = dead_link(sampled(SENDER), sampled(SENDER), NAMES, ADDRESSES)
    assert hang is not None
    assert hang.evidence == ("rank 0: 424 B to 10.0.0.2:6000 (rank 1) not acknowledged, sent 7 times",)


@pytest.mark.parametrize(
    ("sender", "before"),
    [
        pytest.param(SENDER._replace(retransmits=0), None, id="the peer does not read: its kernel acknowledges"),
        pytest.param(SENDER._replace(retransmits=2), None, id="a single loss"),
        pytest.param(SENDER._replace(queued=0), None, id="nothing is on its way"),
        pytest.param(SENDER, SENDER._replace(acked=80_000), id="it still moves"),
    ],
)
def test_no_link_is_blamed(sender: RankSocket, before: RankSocket | None) -> None:
    assert dead_link(sampled(before or sender), sampled(sender), NAMES, ADDRESSES) is None


def test_after_a_long_silence_a_link_that_gets_through_now_and_then_is_not_dead() -> None:
    """A link that was dead for ten minutes has been tried eleven times, one with much loss a few times."""
    pair = sampled(SENDER)
    assert dead_link(pair, pair, NAMES, ADDRESSES, 12.0) is not None
    assert dead_link(pair, pair, NAMES, ADDRESSES, 600.0) is None
    often = sampled(SENDER._replace(retransmits=11))
    assert dead_link(often, often, NAMES, ADDRESSES, 600.0) is not None


FULL = SENDER._replace(queued=2_000_000, retransmits=0)


def test_data_that_moves_slowly_is_a_slow_link_and_no_hang() -> None:
    hang = slow_link(sampled(FULL), sampled(FULL._replace(acked=590_001)), NAMES, 4.0)
    assert hang is not None and hang.slow and (hang.cause, hang.nodes, hang.culprits) == ("slow-link", ("h1", "h2"), ())
    assert "h1 sends 125 KB/s to h2" in hang.message
    assert "1.91 MB on their way to rank 1" in hang.evidence[0] and "488.28 KB acknowledged" in hang.evidence[0]


def test_no_network_is_between_ranks_of_one_node() -> None:
    """A stopped rank was a slow link from h1 to h1, over which rank 0 asks the store in its own process."""
    own = FULL._replace(peer="10.0.0.1:6000")
    other = RECEIVER._replace(local="10.0.0.1:6000")
    first, second = (
        {0: StackSample(0, sockets=(sent, other))} for sent in (own, own._replace(acked=590_001, resent=40))
    )
    assert slow_link(first, second, NAMES, 4.0) is None and lossy_link(first, second, NAMES) is None


@pytest.mark.parametrize("counted", [{"retransmits": 2}, {"resent": 40}])
def test_data_that_is_sent_again_and_may_yet_arrive_is_loss_and_no_hang(counted: dict[str, int]) -> None:
    first = sampled(FULL)
    hang = lossy_link(first, sampled(FULL._replace(**counted)), NAMES)
    assert hang is not None and hang.slow and hang.cause == "mtu-or-packet-loss"
    assert "packets between h1 and h2 get lost" in hang.message
    assert lossy_link(first, first, NAMES) is None, "the peer does not read"


@pytest.mark.parametrize(
    ("sender", "before"),
    [
        pytest.param(FULL, FULL, id="the peer does not read"),
        pytest.param(FULL._replace(acked=590_001), FULL._replace(queued=0), id="the link keeps up"),
        pytest.param(FULL._replace(acked=590_001, peer="10.9.9.9:1"), FULL._replace(peer="10.9.9.9:1"), id="no rank"),
    ],
)
def test_no_link_is_slow(sender: RankSocket, before: RankSocket) -> None:
    assert slow_link(sampled(before), sampled(sender), NAMES, 4.0) is None


def test_a_slow_link_of_8192_ranks() -> None:
    """To look for the other end of each connection in all samples would take many minutes."""
    ends = [(f"10.1.{rank >> 8}.{rank & 255}:5000", f"10.1.{rank >> 8}.{rank & 255}:6000") for rank in range(1 << 13)]
    names = {rank: f"h{rank}" for rank in range(1 << 13)}
    look = {
        rank: StackSample(rank, sockets=(FULL._replace(local=own, peer=ends[rank - 1][1]),
                                         RECEIVER._replace(local=other, peer=ends[(rank + 1) % len(ends)][0])))
        for rank, (own, other) in enumerate(ends)
    }  # fmt: skip
    moved = look[7].sockets[0]._replace(acked=590_001)
    hang = slow_link(look, {**look, 7: StackSample(7, sockets=(moved, look[7].sockets[1]))}, names, 4.0)
    assert hang is not None and hang.nodes == ("h7", "h6")
