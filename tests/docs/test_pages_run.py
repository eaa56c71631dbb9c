"""The commands of the pages, run where a reader runs them, print what the pages show.

A test is a page. `make test-docs` runs them, each beside others of another worker.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.blocks import Page, pages
from tests.docs.places import Place, run_page
from tests.hosts.bed import Bed
from tests.hosts.bed import missing as missing_hosts
from tests.hosts.waiting import wait_until
from tests.slurm.bed import SlurmBed
from tests.slurm.bed import missing as missing_slurm

pytestmark = pytest.mark.docs
HOSTS = 4


def in_place(where: str) -> list[object]:
    """Give the pages of a place that run something, the slow ones marked."""
    return [
        pytest.param(page, id=page.name, marks=[pytest.mark.slow] if page.slow else [])
        for page in pages()
        if page.runs and page.where == where
    ]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Four ssh hosts h1 to h4."""
    reason = missing_hosts()
    if reason:
        pytest.skip(reason)
    with Bed.up(HOSTS, tmp_path_factory.mktemp("bed-")) as bed:
        bed.connect_hosts()
        yield bed


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmBed]:
    """A Slurm cluster with the nodes h1 to h4."""
    reason = missing_slurm()
    if reason:
        pytest.skip(reason)
    with SlurmBed.up(HOSTS, tmp_path_factory.mktemp("slurm-")) as bed:
        yield bed


def assert_no_drift(page: Page, place: Place) -> None:
    """Run a page; nothing differs from what it shows, and nothing of it is left running."""
    try:
        drifts = list(run_page(page, place))
        assert not drifts, "\n\n".join(["the page shows something else than its commands print", *drifts])
        wait_until(lambda: not place.processes(), what=f"nothing of {page.name} runs on ({place.processes()})")
    finally:
        place.end_all()


@pytest.mark.parametrize("page", in_place("local"))
def test_page_on_this_machine(page: Page, tmp_path: Path) -> None:
    assert_no_drift(page, Place(tmp_path))


@pytest.mark.parametrize("page", in_place("hosts"))
def test_page_on_ssh_hosts(page: Page, tmp_path: Path, hosts: Bed) -> None:
    try:
        assert_no_drift(page, Place(tmp_path, hosts.env(), hosts.bin_dir()))
    finally:
        hosts.heal()


@pytest.mark.parametrize("page", in_place("slurm"))
def test_page_on_slurm(page: Page, tmp_path: Path, slurm: SlurmBed) -> None:
    try:
        assert_no_drift(page, Place(tmp_path, slurm.env()))
    finally:
        slurm.heal()
