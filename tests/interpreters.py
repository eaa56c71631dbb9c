"""The Python interpreters of this machine: the one that runs the tests, pyenv's, and those on PATH.

ALLRANKS_TEST_PYTHONS has the paths of others (`make test-pythons PYTHONS=…`): then these alone are tested. With "all"
tests that take the oldest and the newest take every one.
"""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

Version = tuple[int, int]
OLDEST_ON_NODES: Version = (3, 8)
GIVEN = os.environ.get("ALLRANKS_TEST_PYTHONS", "").split()


@cache
def interpreters() -> dict[Version, str]:
    """Interpreters from Python 3.8 on, by version."""
    if GIVEN and GIVEN != ["all"]:
        return {version_of(path): path for path in GIVEN}
    paths = {sys.version_info[:2]: sys.executable}
    for path in Path.home().glob(".pyenv/versions/3.*/bin/python"):
        major, minor = path.parent.parent.name.split(".")[:2]
        paths.setdefault((int(major), int(minor)), str(path))
    for minor in range(8, 16):
        on_path = shutil.which(f"python3.{minor}")
        if on_path and (3, minor) not in paths and answers(on_path):
            paths[3, minor] = on_path
    return {version: paths[version] for version in sorted(paths) if version >= OLDEST_ON_NODES}


def version_of(path: str) -> Version:
    words = [path, "-c", "import sys; print(*sys.version_info[:2])"]
    major, minor = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return int(major), int(minor)


def answers(path: str) -> bool:
    """Whether it starts: pyenv puts programs on PATH that only say which version lacks."""
    return subprocess.run([path, "-c", ""], capture_output=True).returncode == 0


OLDEST = interpreters().get(OLDEST_ON_NODES)
