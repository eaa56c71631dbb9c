"""What every provoked failure must show, whichever part it hits; the table of cases is in docs/explanation/failures.md.

`Launch.result` has asserted already that `allranks diagnose` gives the same verdict from the run directory's files.
"""

from collections.abc import Sequence
from typing import Any

from tests.hosts.launching import Launch
from tests.hosts.test_faults_start import nothing_left

from allranks.diagnose.causes import CAUSES

Verdict = dict[str, Any]


def explained(
    launch: Launch, cause: str, culprit: tuple[str | None, int | None], *says: str,
    victims: Sequence[int] | None = None, code: int = 1, clean: bool = True,
) -> Verdict:  # fmt: skip
    """The one verdict: its cause, the culprit (node, rank), who is not blamed, the exit code.

    And nothing is left, unless `clean` is False: a host that was cut off keeps its files.
    """
    result = launch.result()
    verdict: Verdict = result["verdict"]
    assert verdict is not None, (result, launch.stderr)
    told = (verdict["cause"], verdict["where"].get("node"), verdict["where"].get("rank"))
    assert told == (cause, *culprit), verdict
    assert cause in CAUSES
    for part in says:
        assert part in verdict["message"], verdict["message"]
    if victims is not None:
        assert verdict["victims"] == list(victims)
    assert verdict["remedy"] and len(verdict["evidence"]) <= 3
    assert result["exit"] == code, verdict
    if clean:
        nothing_left(launch.bed, launch)
    print(f"PROVOKED {cause} | {verdict['message']} | {result['timing']['total']:.1f}")
    return verdict
