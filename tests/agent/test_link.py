"""What an agent says first over a connection to a controller."""

from allranks.agent.link import hello
from allranks.protocol.frames import MAX_JSON
from allranks.protocol.messages import AttemptSummary, ExitMessage, RankSummary

TOO_LONG = "x" * (MAX_JSON // 2 + 1)


def test_an_error_too_long_for_a_message_keeps_no_other_out() -> None:
    errors = {0: {"text": "first"}, 1: {"text": TOO_LONG}, 2: {"text": "last"}}
    ranks = {rank: RankSummary(9 + rank, exit=ExitMessage(rank, code=1, error=error)) for rank, error in errors.items()}
    said = hello("/d", "/", AttemptSummary(0, {**ranks, 3: RankSummary(12)})).attempt
    assert said is not None
    kept = {rank: summary.exit and summary.exit.error for rank, summary in said.ranks.items()}
    assert kept == {0: errors[0], 1: None, 2: errors[2], 3: None}
