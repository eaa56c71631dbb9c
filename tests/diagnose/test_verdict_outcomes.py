"""Exit codes of the design."""

import pytest

from allranks.diagnose.causes import exit_code
from allranks.findings import Finding, Verdict


def on(cause: str, message: str = "") -> Verdict:
    return Verdict(Finding(cause, "fail", message), cause, 0.9)


@pytest.mark.parametrize(
    ("cause", "stop", "failed", "code"),
    [
        (None, None, False, 0),
        (None, None, True, 1),
        (None, "ctrl-c", True, 130),
        (None, "sigterm", True, 143),
        (None, "stop", False, 143),
        ("program-exception", None, True, 1),
        ("program-exception", "ctrl-c", True, 1),  # it had failed before the stop
        ("disk-full", None, True, 1),
        ("disk-full", None, False, 3),  # a check found it
        ("memlock-limit", None, False, 3),
        ("segfault-native", None, True, 1),
        ("unknown", None, True, 1),
        ("rank-killed", None, True, 1),
        ("rank-exited-early", None, True, 1),
        ("data-not-split", None, False, 3),
        ("internal-error", None, True, 70),
        ("internal-error", None, False, 70),
        ("a-cause-of-a-later-version", None, True, 1),
        ("unknown", None, False, 4),  # an agent was killed before any rank
        ("host-out-of-memory", None, True, 1),
        ("ssh-unreachable", None, False, 4),
        ("port-blocked", None, False, 4),
        ("node-network-down", None, True, 4),
        ("port-in-use", None, True, 4),
        ("remote-path-missing", None, False, 4),
        ("remote-path-missing", None, True, 1),
        ("rendezvous-timeout", None, True, 5),
        ("rendezvous-timeout", None, False, 5),
        ("straggler", None, True, 5),
        ("peer-died", None, True, 1),
    ],
)
def test_exit_code(cause: str | None, stop: str | None, failed: bool, code: int) -> None:
    assert exit_code(on(cause) if cause else None, stop, failed) == code


DONE = "rank 1 on h2 had finished (destroy_process_group) while rank 0 on h1 was still communicating"


@pytest.mark.parametrize(
    ("cause", "message", "code"),
    [
        ("uneven-data", DONE, 1),
        ("uneven-data", "rank 1 on h2 ended with code 0 while rank 0 waits", 5),
        ("collective-mismatch", "every rank raised RuntimeError: x", 1),
        ("collective-mismatch", "rank 1 on h1 is in another collective", 5),
    ],
)
def test_only_ranks_that_wait_hang(cause: str, message: str, code: int) -> None:
    assert exit_code(on(cause, message), None, True) == code
