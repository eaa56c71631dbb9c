"""Which link of a run is slow: compared with the others, without the time for which a receiver had no room."""

from typing import Any

import pytest

from allranks.diagnose.stragglers.slow_findings import find_slow_links, links_between, slow_link_finding
from allranks.protocol.samples import LinkCount

NODE_OF = {rank: f"h{rank}" for rank in range(4)}
NODE_AT = {f"10.0.0.{rank}": f"h{rank}" for rank in range(4)}
MB = 1_000_000
SECONDS = 10.0


def ring(**of_first: Any) -> list[LinkCount]:
    """Each rank has sent 20 MB to the next in 0.2 s; `of_first` are other figures of rank 1."""
    usual = LinkCount(0, "", 20 * MB, 200_000, 0, 14_000, 0)
    counts = [usual._replace(rank=rank, peer=f"10.0.0.{(rank + 1) % 4}") for rank in range(4)]
    counts[1] = counts[1]._replace(**of_first)
    return counts


def between(after: list[LinkCount], before: list[LinkCount] | None = None) -> list[str]:
    start = before or [LinkCount(one.rank, one.peer) for one in after]
    links = links_between(start, after, SECONDS, NODE_OF, NODE_AT)
    return [f"{one.sender}-{one.receiver}{'!' if one.is_lossy else ''}" for one in find_slow_links(links)]


@pytest.mark.parametrize(
    ("of_first", "slow"),
    [
        ({}, []),
        ({"busy": 8_000_000}, ["h1-h2"]),
        ({"busy": 8_000_000, "resent": 300}, ["h1-h2!"]),
        ({"busy": 8_000_000, "held": 7_900_000}, []),  # the receiver did not read: no fault of the link
        ({"busy": 1_500_000}, []),  # slow, and not worth a word
        ({"busy": 700_000}, []),
        ({"acked": 1000, "busy": 8_000_000}, []),  # it carries nothing: a control connection
    ],
)
def test_a_link_stands_out_or_does_not(of_first: dict[str, int], slow: list[str]) -> None:
    assert between(ring(**of_first)) == slow


def test_a_network_that_is_slow_everywhere_is_no_fault_of_a_link() -> None:
    assert between([one._replace(busy=8_000_000) for one in ring()]) == []


def test_new_connections_and_unknown_addresses_are_left_out() -> None:
    before = ring(acked=90 * MB, busy=9_000_000)
    assert between(ring(busy=8_000_000), before) == []
    odd = [*ring(), LinkCount(1, "192.0.2.1", 20 * MB, 9_000_000)]
    assert between(odd) == []


def test_two_links_cannot_be_compared() -> None:
    assert between(ring(busy=8_000_000)[1:3]) == []


def test_the_sentence_names_the_link_and_the_command_to_come() -> None:
    after = ring(busy=8_000_000, resent=300)
    links = links_between([LinkCount(one.rank, one.peer) for one in after], after, SECONDS, NODE_OF, NODE_AT)
    finding = slow_link_finding(find_slow_links(links))
    assert finding.message == (
        "the link from h1 to h2 is slow: it carries 2.5 MB/s, the usual link of this run 100 MB/s. It is busy for 80 % "
        "of the time. Packets get lost, 2 % were sent again"
    )
    assert (finding.id, finding.status, finding.where.node, finding.where.peer) == ("slow-link", "warn", "h1", "h2")
    assert "allranks test --hosts h1,h2 --suite pairs" in finding.remedy
