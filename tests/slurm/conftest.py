"""A real Slurm for the tests here: one for the session, whole again after each test."""

from collections.abc import Iterator

import pytest
from tests.slurm.bed import SlurmBed, missing


@pytest.fixture(scope="session")
def _slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmBed]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    with SlurmBed.up(4, tmp_path_factory.mktemp("slurm-")) as bed:
        yield bed


@pytest.fixture
def slurm(_slurm: SlurmBed) -> Iterator[SlurmBed]:
    """Four idle nodes h1 to h4 with two GPUs each."""
    yield _slurm
    _slurm.heal()
