"""The packages that the tests of this directory share."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.install.packages import Packages, build, environment_of


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    if find_spec("build") is None:
        pytest.skip("build is not installed: make test-install")
    return build(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="session")
def installed(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `allranks` of an environment with the wheel in it, and with nothing that the tests use themselves."""
    return environment_of(sys.executable, tmp_path_factory.mktemp("installed") / "environment", packages.wheel)
