"""The Python interpreters of this machine: the one that runs the tests, pyenv's, and those on PATH."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

Version = tuple[int, int]
OLDEST_ON_NODES: Version = (3, 8)


@cache
def interpreters() -> dict[Version, str]:
    """Interpreters from Python 3.8 on, by version."""
    paths = {sys.version_info[:2]: sys.executable}
    for path in Path.home().glob(".pyenv/versions/3.*/bin/python"):
        major, minor = path.parent.parent.name.split(".")[:2]
        paths.setdefault((int(major), int(minor)), str(path))
    for minor in range(8, 15):
        on_path = shutil.which(f"python3.{minor}")
        if on_path and (3, minor) not in paths and answers(on_path):
            paths[3, minor] = on_path
    return {version: paths[version] for version in sorted(paths) if version >= OLDEST_ON_NODES}


def answers(path: str) -> bool:
    """Whether it starts: pyenv puts programs on PATH that only say which version lacks."""
    return subprocess.run([path, "-c", ""], capture_output=True).returncode == 0


OLDEST = interpreters().get(OLDEST_ON_NODES)
