"""The words after `allranks join` for a spec: what a scheduler has to start on every node (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from allranks.spec import RunSpec, format_duration
from allranks.spec.fields import option_name

JOIN_PORT = 29400
# Fields that every node's `join` is told where they are not the default, in the order of the words.
TEXTS = (
    "launcher", "python", "guard_python", "prelude", "wrap", "network", "master_port", "expect_gpus", "test",
    "node_dir", "output_dir", "on_hang", "step_pattern",
)  # fmt: skip
TIMES = ("lease", "grace", "stop_grace", "init_timeout", "hang_timeout", "pg_timeout")
LISTS = ("allow", "data_paths")
FLAGS = ("debug",)
_DEFAULTS = {f.name: f.default for f in fields(RunSpec)}


def join_words(spec: RunSpec, name: str) -> list[str]:
    """Options and command; the node's rank, the master's address and the secret are not among them."""
    words = ["--name", name]
    if spec.nproc is not None or spec.gpus is not None:
        words += ["--nproc", str(spec.nproc or gpu_count(spec))]
    return [*words, *_settings(spec), "--", *spec.command]


def gpu_count(spec: RunSpec) -> int:
    """GPUs of a node; 0 where none were asked for."""
    return int(spec.gpus.rpartition(":")[2]) if spec.gpus else 0


def _settings(spec: RunSpec) -> Iterator[str]:
    changed = {name for name, default in _DEFAULTS.items() if getattr(spec, name) != default}
    for name in (n for n in TEXTS if n in changed):
        yield from (option_name(name), str(getattr(spec, name)))
    for name in (n for n in TIMES if n in changed):
        yield from (option_name(name), format_duration(getattr(spec, name)))
    for name in LISTS:
        for value in getattr(spec, name):
            yield from (option_name(name), value)
    for name in (n for n in FLAGS if n in changed):
        yield option_name(name)
    if not spec.check:
        yield "--no-check"
