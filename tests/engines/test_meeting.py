"""The meeting of `join`: how nodes are called."""

from hypothesis import given
from hypothesis import strategies as st

from allranks.engines.joined import unique_names


@given(st.lists(st.sampled_from(["a", "a-0", "a-1", "a-2", "a-1-1", "b"]), min_size=1, max_size=6))
def test_nodes_of_one_name_get_names_of_their_own(hostnames: list[str]) -> None:
    """Machines a, a and a-1 were a-0, a-1 and a-1: two nodes in one place."""
    names = unique_names(dict(enumerate(hostnames)))
    assert list(names) == list(range(len(hostnames)))
    assert len(set(names.values())) == len(hostnames)
    for rank, hostname in enumerate(hostnames):
        assert hostnames.count(hostname) > 1 or names[rank] == hostname
