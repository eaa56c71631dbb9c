"""A run is its log: what is made of facts as they come is what is made of the file, for facts of every kind."""

import itertools
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from allranks.diagnose.recorded import AttemptFacts, fold, last_attempt
from allranks.protocol.codec import field_names, json_name
from allranks.protocol.run_facts import KINDS, Fact, Stamped, read_line, write_line
from allranks.report.timeline import timeline
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import NodeStatus, RankStatus, RunDocument, StatusDocument
from allranks.runs.timeledger import Timekeeper, ledger_of

NODES = ("h1", "h2")
VALUES = st.sampled_from(
    [0, 1, 7, 3.5, True, None, "x", "failure", "warn", [], [0], ["h1"], {}, {"h1": 1}, {"status": "fail", "id": "x"}]
)


@st.composite
def told(draw: st.DrawFn) -> list[Stamped[Fact]]:
    """Facts of a run in the order of its attempts, each with what fits of drawn values."""
    facts: list[Stamped[Fact]] = []
    attempts = itertools.count()
    number = next(attempts)
    for at in range(draw(st.integers(0, 25))):
        name = draw(st.sampled_from(sorted(KINDS)))
        if name == "attempt-start" and facts:
            number = next(attempts)
        fields: dict[str, Any] = {json_name(field): draw(VALUES) for field in field_names(KINDS[name])}
        line = {**fields, "event": name, "t": 1000.0 + at, "node": draw(st.sampled_from(NODES)), "attempt": number}
        stamped = read_line(line)
        again = read_line(write_line(stamped)) if stamped is not None else None  # without what no line keeps
        if again is not None:
            facts.append(again)
    return facts


@given(told())
def test_live_and_saved_are_one(facts: list[Stamped[Fact]]) -> None:
    keeper, kept = Timekeeper(), AttemptFacts()
    with tempfile.TemporaryDirectory() as place:
        run = RunDirectory(Path(place))
        for stamped in facts:
            keeper.take(stamped)
            kept.take(stamped)
            run.append(stamped)
        saved, _ = run.read_facts()
    assert saved == facts
    last = last_attempt(saved)
    assert fold(kept.facts, last, NODES) == fold(saved, last, NODES)
    assert ledger_of(saved, StatusDocument()) == ledger_of(facts, StatusDocument()) == keeper.ledger(keeper.latest)
    status = StatusDocument(nodes=tuple(NodeStatus(name, ranks=(RankStatus(at),)) for at, name in enumerate(NODES)))
    assert timeline(saved, RunDocument(), status) == timeline(facts, RunDocument(), status)
