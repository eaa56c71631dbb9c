"""Let every test say `from tests.… import …`, wherever pytest was started; what holds for all tests."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

if find_spec("click") is None:
    raise pytest.UsageError("Click is not installed in this environment: .venv/bin/pip install -e . (or make setup)")
HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:
    sys.path.insert(0, str(HERE.parent))

from tests.campaign import ONE, SECONDS, SEED, Campaign, examples  # noqa: E402
from tests.shell import shell  # noqa: E402, F401

# -- order ---------------------------------------------------------------------------------------------

# What takes longest comes first, files of a minute or two and then their directories: what comes last should be short,
# as the other workers then idle. `--durations` shows what has become long.
LONG = (
    "fabric/ranks/", "agent/test_runner_torch.py", "data/test_probe.py", "hosts/test_lease.py",
    "hosts/test_teardown.py",
    "hosts/test_join.py", "slurm/", "hosts/test_verbs.py", "hosts/test_retries.py", "hosts/test_faults_",
    "examples/test_train", "agent/test_checks_real.py", "hosts/test_spares.py", "fabric/test_package.py",
    "data/test_loaders.py", "hosts/test_hangs.py", "hosts/test_fetch.py", "hosts/test_rendered.py",
    "hosts/test_launchers.py", "local/", "hosts/", "fabric/", "agent/", "sky/", "examples/", "data/",
)  # fmt: skip
# These fork ranks from one process that has imported torch: it is started once, in the worker that has all of a group.
FORKING = {"tests/fabric/ranks": "ranks", "tests/examples/test_train_": "training"}

# Each page by itself: its commands take from seconds to a minute.
PAGES = "tests/docs/test_pages_run.py"

# The marks of all tests in a directory, beside those that stand in the files.
MARKS = {"hosts": "hosts", "slurm": "hosts", "kubernetes": "hosts", "browser": "processes", "install": "install"}
MARKS |= dict.fromkeys(("examples", "local", "sky"), "processes")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start hosts or processes, and put files into the order in which xdist hands them out.

    Those of torch are skipped where it is not installed.
    """
    names = {path: path.relative_to(HERE).as_posix() for path in {item.path for item in items}}
    order = {path: place_in_order(name) for path, name in names.items()}
    for item in items:
        mark = MARKS.get(names[item.path].partition("/")[0])
        if mark:
            item.add_marker(mark)
        if item.get_closest_marker("torch") and find_spec("torch") is None:
            item.add_marker(pytest.mark.skip("torch is not installed"))
    items.sort(key=lambda item: order[item.path])


def place_in_order(name: str) -> int:
    return next((at for at, start in enumerate(LONG) if name.startswith(start)), len(LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests go to one worker, and those of the files that fork ranks from the same process."""
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - pytest runs without xdist too

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(PAGES):
                return nodeid
            group = next((group for start, group in FORKING.items() if nodeid.startswith(start)), None)
            return group or str(super()._split_scope(nodeid))

    return ByFile(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Each worker collects all files: torch, imported by one of them, would cost each of them seconds."""
    if "torch" in sys.modules and len(session.items) > 1000:
        raise pytest.UsageError("a test file imports torch at its top: import it where it is used")


# -- garbage -------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage among what stays until the end: modules, tests and their parameters.

    To look through a million of such objects again and again was a quarter of the unit tests' processor time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 10)
        gc.enable()


# -- what a test must not change -----------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """On a busy machine all later tests of a worker that yields to others would starve, and their ranks with them."""
    nice = os.nice(0)
    yield
    assert os.nice(0) == nice, f"{item.nodeid} has changed the priority of the tests' own process"


# -- fuzzers -------------------------------------------------------------------------------------------


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


# -- examples of hypothesis ----------------------------------------------------------------------------

# A busy machine makes examples slow, which is no finding: no deadline, no health check of speed. The examples are the
# same in every run. `HYPOTHESIS_PROFILE=search` looks for new ones.
ANY_SPEED = {"deadline": None, "suppress_health_check": (HealthCheck.too_slow, HealthCheck.data_too_large)}
settings.register_profile("same", max_examples=examples(40), derandomize=True, database=None, **ANY_SPEED)
settings.register_profile("search", max_examples=examples(40), print_blob=True, **ANY_SPEED)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "same")
settings.load_profile(PROFILE)
if PROFILE == "same" and hasattr(providers, "_get_local_constants"):
    # Examples hold constants of the modules that happen to be imported, whose sources are parsed for that.
    providers._get_local_constants = lambda: providers._local_constants  # noqa: SLF001 - no setting does it

# Runs note where they are in the user's state directory: those of tests in one of their own.
STATE = tempfile.mkdtemp(prefix="allranks-tests-state-")
os.environ["XDG_STATE_HOME"] = STATE


def pytest_unconfigure() -> None:
    shutil.rmtree(STATE, ignore_errors=True)


# Started in the background by a shell, everything below would ignore SIGINT: the tests of Ctrl-C could not pass.
signal.signal(signal.SIGINT, signal.default_int_handler)
