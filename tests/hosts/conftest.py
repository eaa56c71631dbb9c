"""Beds for the host tests. Without root, sshd, ip or nft each test that asks for one is skipped."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.hosts.bed import Bed, missing
from tests.hosts.launching import Launch

MakeBed = Callable[..., Bed]


def _need_root() -> None:
    reason = missing()
    if reason:
        pytest.skip(reason)


def _shared_bed(n: int, factory: pytest.TempPathFactory) -> Iterator[Bed]:
    _need_root()
    with Bed.up(n, factory.mktemp(f"bed{n}-")) as bed:
        yield bed


@pytest.fixture(scope="session")
def bed4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Four hosts for all tests of a worker; healed after each."""
    yield from _shared_bed(4, tmp_path_factory)


@pytest.fixture(scope="session")
def bed2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Two hosts for all tests of a worker; healed after each."""
    yield from _shared_bed(2, tmp_path_factory)


@pytest.fixture
def launch(bed2: Bed, tmp_path: Path) -> Iterator[Launch]:
    """On two hosts; a file with tests on other hosts has its own."""
    launch = Launch(bed2, tmp_path)
    yield launch
    launch.forget()


@pytest.fixture
def make_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeBed]:
    """`make_bed(n, shm=…, names=…)`: a bed of the test's own."""
    _need_root()
    with ExitStack() as stack:

        def make(n: int, **options: object) -> Bed:
            up: Callable[..., Bed] = Bed.up
            return stack.enter_context(up(n, tmp_path_factory.mktemp("bed-"), **options))

        yield make


@pytest.fixture(autouse=True)
def _heal(request: pytest.FixtureRequest) -> Iterator[None]:
    """What one test broke must not fail the next."""
    beds = [request.getfixturevalue(name) for name in ("bed2", "bed4") if name in request.fixturenames]
    yield
    for bed in beds:
        bed.heal()
