"""The meeting of `join`: how nodes are called, and what Kubernetes is told of the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.engines.joined import TERMINATION_LIMIT, unique_names, write_termination
from allranks.findings import Finding, Verdict, Where


@given(st.lists(st.sampled_from(["a", "a-0", "a-1", "a-2", "a-1-1", "b"]), min_size=1, max_size=6))
def test_nodes_of_one_name_get_names_of_their_own(hostnames: list[str]) -> None:
    """Machines a, a and a-1 were a-0, a-1 and a-1: two nodes in one place."""
    names = unique_names(dict(enumerate(hostnames)))
    assert list(names) == list(range(len(hostnames)))
    assert len(set(names.values())) == len(hostnames)
    for rank, hostname in enumerate(hostnames):
        assert hostnames.count(hostname) > 1 or names[rank] == hostname


@pytest.mark.parametrize("letter", ["x", "\u00fc", "\U0001f600"])
@pytest.mark.parametrize("has_verdict", [True, False])
def test_a_termination_message_is_json_that_kubernetes_keeps_whole(
    letter: str, has_verdict: bool, tmp_path: Path
) -> None:
    """A message of letters that are no ASCII was cut in the middle: the JSON of no reader."""
    long = letter * 5000
    verdict = None
    if has_verdict:
        finding = Finding("program-error", "fail", long, long, Where(node="h1", rank=3))
        verdict = Verdict(finding, "program-error", 0.9)
    path = tmp_path / "termination-log"
    write_termination(str(path), verdict, long)
    data = path.read_bytes()
    assert len(data) <= TERMINATION_LIMIT
    document = json.loads(data)
    assert document["message"][:10] == long[:10] and len(document["message"]) > 300
    assert not has_verdict or document["cause"] == "program-error"
