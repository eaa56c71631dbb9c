"""Let every test say `from tests.… import …`, wherever pytest was started; settings that hold for all tests."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:
    sys.path.insert(0, str(HERE.parent))

from tests.campaign import ONE, SECONDS, SEED, Campaign  # noqa: E402

# Directories whose files take minutes come first: what comes last should be short, as the other workers then idle.
LONG = ("slurm", "hosts", "collectives_pairs", "collectives", "examples", "data", "node", "sky")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order in which xdist hands out files."""
    place = {name: at for at, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.relative_to(HERE).parts[0], len(LONG)))


@pytest.fixture
def campaign(request: pytest.FixtureRequest) -> Iterator[Campaign]:
    """Cases for a fuzzer; how many there were is said at the end of `make fuzz`."""
    made = Campaign(request.node.nodeid.split("::", 1)[-1])
    yield made
    request.node.user_properties += [("cases", made.done), ("counts", made.counts)]
    if made.at:
        request.node.user_properties.append(("case", made.at))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line a campaign: `make fuzz` is read for them."""
    reports = [r for found in terminalreporter.stats.values() for r in found if getattr(r, "when", "") == "teardown"]
    for report in reports if SECONDS or ONE else ():
        found = dict(report.user_properties)
        if "cases" in found:
            more = "".join(f", {count:,} {what}" for what, count in found["counts"].items())
            failed = f", failed: ALLRANKS_FUZZ_CASE={found['case']!r}" if "case" in found else ""
            terminalreporter.write_line(f"{found['cases']:>10,} cases  {report.nodeid}{more}{failed}")
    if SECONDS:
        terminalreporter.write_line(f"seed {SEED} (ALLRANKS_FUZZ_SEED), {SECONDS:g} s a campaign")


# A busy machine makes examples slow, which is no finding: no deadline, no health check of speed. The examples are the
# same in every run. `HYPOTHESIS_PROFILE=search` looks for new ones.
ANY_SPEED = {"deadline": None, "suppress_health_check": (HealthCheck.too_slow, HealthCheck.data_too_large)}
settings.register_profile("same", derandomize=True, database=None, **ANY_SPEED)
settings.register_profile("search", print_blob=True, **ANY_SPEED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# Started in the background by a shell, everything below would ignore SIGINT: the tests of Ctrl-C could not pass.
signal.signal(signal.SIGINT, signal.default_int_handler)
