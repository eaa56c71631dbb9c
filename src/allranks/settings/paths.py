"""The one rule for relative paths of settings that name places on the nodes (pure).

An agent stands elsewhere, and ranks may stand in a copy of the tree. So a relative path is made absolute before
anything reads it. What lasts or is needed early is against the working directory by its name here, also under --sync,
whose copy is temporary. Data is against the directory that the ranks have. `python` is looked up on each node, as a
shell in the ranks' directory would. Other paths are files of this machine.
"""

from __future__ import annotations

import posixpath

from .runspec import RunSpec


def anchored(spec: RunSpec, cwd: str, home: str) -> RunSpec:
    """Return the settings with absolute paths; `cwd` is where allranks was called, `home` what `~` stands for.

    >>> spec = anchored(RunSpec.of(output_dir="ck", workdir="~/p", data_paths=("d",)), "/a", "/home/u")
    >>> spec.places.output_dir, spec.launch.workdir, spec.preflight.data_paths
    ('/home/u/p/ck', '/home/u/p', ('/home/u/p/d',))
    """
    workdir = None if spec.launch.workdir is None else against(cwd, spec.launch.workdir, home)
    base = workdir or cwd
    changed: dict[str, str | tuple[str, ...] | None] = {"workdir": workdir}
    for name in ("output_dir", "node_dir"):
        path = spec.value(name)
        if isinstance(path, str):
            changed[name] = against(base, path, home)
    if spec.launch.agent_python and "/" in spec.launch.agent_python:
        changed["agent_python"] = against(base, spec.launch.agent_python, home)
    if not spec.launch.sync:  # else the copy on each node is known later: gang.places.setup_order
        changed["data_paths"] = tuple(against(base, path, home) for path in spec.preflight.data_paths)
    return spec.changed(**changed)


def against(base: str, path: str, home: str = "~") -> str:
    """Return an absolute path, which a relative one makes with `base`; a leading `~/` is the home directory."""
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    if path.startswith("~"):  # another user's, which each node knows
        return path
    return posixpath.normpath(posixpath.join(base, path))
