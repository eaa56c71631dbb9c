"""--no-requeue-code: a scheduler that starts a job again learns when that is of no use."""

from pathlib import Path

import pytest
from tests.local.running import LocalRun


@pytest.mark.parametrize(
    ("program", "code", "why"),
    [
        ("raise KeyError('x')", 42, "the program's own fault comes again at the same place"),
        ("import os; os.kill(os.getpid(), 9)", 1, None),
    ],
)
def test_the_programs_fault_has_the_code_that_was_asked_for(
    tmp_path: Path, program: str, code: int, why: str | None
) -> None:
    result = LocalRun(tmp_path, program, "--no-requeue-code", "42", nodes=1).result()
    assert (result["exit"], result.get("no_requeue")) == (code, why), result["verdict"]
