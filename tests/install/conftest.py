"""The packages that the tests of this directory share."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from tests.install.packages import Packages, build


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    if find_spec("build") is None:
        pytest.skip("build is not installed: make test-install")
    return build(tmp_path_factory.mktemp("packages"))
