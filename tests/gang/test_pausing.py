"""When the controller did not run: told from the clocks, and what the gang makes of it."""

import asyncio
import time

import pytest
from tests.gang.test_gang import Drive

from allranks.diagnose.recorded import AttemptFacts
from allranks.gang.clocks import LEAST, Instant, pause_between
from allranks.gang.links import LATE, Beats
from allranks.protocol.run_facts import LauncherPaused

TICK = 0.2


@pytest.mark.parametrize(
    ("monotonic", "boot", "pause"),
    [
        (TICK, TICK, None),
        (3.0, 3.0, None),  # a busy machine
        (TICK, TICK + 70.6, LauncherPaused(70.6, slept=True)),
        (TICK + 70.6, TICK + 70.6, LauncherPaused(70.6, slept=False)),
        (TICK + 10.0, TICK + 70.0, LauncherPaused(70.0, slept=True)),  # stopped, then asleep
        (TICK, TICK + LEAST - 0.1, None),
        (TICK, TICK - 60.0, None),  # a kernel that counts it otherwise
        (-1.0, -1.0, None),
    ],
)
def test_clocks_tell_sleep_from_a_stop(monotonic: float, boot: float, pause: LauncherPaused | None) -> None:
    before, after = Instant(1000.0, 5000.0), Instant(1000.0 + monotonic, 5000.0 + boot)
    found = pause_between(before, after, TICK, lease=60.0)
    assert found == (None if pause is None else LauncherPaused(pytest.approx(pause.seconds, abs=0.1), pause.slept))


def test_of_a_short_lease_a_short_pause_counts() -> None:
    before, after = Instant(0.0, 0.0), Instant(1.5, 1.5)
    assert pause_between(before, after, TICK, lease=2.0) is not None
    assert pause_between(before, after, TICK, lease=60.0) is None


def test_a_pause_is_kept_for_the_verdict_of_its_attempt() -> None:
    drive = Drive(retries=1).running()
    assert drive.feed(LauncherPaused(70.6, True)) == ["launcher-paused"]
    facts = AttemptFacts()
    for note in drive.notes:
        facts.take(note)
    paused = [stamped for stamped in facts.facts if isinstance(stamped.fact, LauncherPaused)]
    assert [(one.t, one.attempt, one.fact) for one in paused] == [(drive.now, 0, LauncherPaused(70.6, True))]
    drive.exit("1", "code=1")
    drive.through_the_end()
    drive.retry()
    for note in drive.notes[len(facts.facts) :]:
        facts.take(note)
    assert not any(isinstance(stamped.fact, LauncherPaused) for stamped in facts.facts)


def test_a_loop_that_is_held_has_its_beats_sent() -> None:
    """A stop of the whole process makes a beat late; a loop that waits does not."""

    async def held() -> tuple[bool, bool, int]:
        sent: list[float] = []
        def members() -> tuple[()]:
            sent.append(time.monotonic())
            return ()

        beats = Beats(0.2, members, 1.0)
        beats.start(lambda error: pytest.fail(str(error)), lambda reason, grace: pytest.fail(reason))
        time.sleep(2 * LATE)
        went_on = beats.turn()
        beats.end()
        time.sleep(0.4)  # the thread has ended
        at_end = len(sent)
        time.sleep(1.5 * LATE)
        return went_on, beats.turn(), at_end

    went_on, is_beating, sent = asyncio.run(held())
    assert (went_on, is_beating) == (True, False)
    assert sent >= 5
