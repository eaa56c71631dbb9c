"""Which launcher's options and configuration files speak of nodes, ranks and batches: for the checks (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from allranks.settings import RunSpec
from allranks.settings.tools import read_tool

from .training_command import ranks_asked_for, read_training

MODULES = {"torchrun": "torch", "accelerate": "accelerate", "deepspeed": "deepspeed", "colossalai": "colossalai",
           "ray": "ray", "ray-driver": "ray"}  # fmt: skip
"""What `python -m` starts of each launcher, by its first level."""
_DEEPSPEED = ("deepspeed", "ds_config", "ds-config")


def launcher_settings(spec: RunSpec, nodes: int | None = None) -> dict[str, Any]:
    """{"name", "options" of the launcher; "accelerate": path of its configuration ("": the default one), or None;
    "deepspeed": paths}. "holds": the options are used as they stand, allranks sets none. "ranks_asked_for": ranks of
    a node, where the options say a number."""
    tool = read_tool(spec.launch.command)
    name = spec.launch.launcher
    options: dict[str, str | None] = {}
    words = spec.launch.command
    if tool is not None:
        name = tool.name
        options = {option.name: option.value for option in tool.options}
        words = (*(word for option in tool.options for word in option.words), *tool.program)
    return {
        "name": name,
        "options": options,
        "accelerate": (options.get("config_file") or "") if name == "accelerate" else None,
        "deepspeed": _json_files(words),
        "holds": tool is not None and spec.launch.launcher != tool.name,
        "ranks_asked_for": ranks_asked_for(spec, nodes),
    }


def needed_modules(spec: RunSpec) -> list[str]:
    """Modules of the first level that the training interpreter must have before a line of the program runs."""
    modules = [MODULES[spec.launch.launcher]] if spec.launch.launcher in MODULES else []
    if spec.tests.test:
        modules.append("torch")
    words = read_training(spec) if spec.launch.command else None
    if words is not None and words.kind == "python-module":
        modules.append(words.program[1].partition(".")[0])
    return list(dict.fromkeys(modules))


def _json_files(words: Sequence[str]) -> list[str]:
    paths = []
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.startswith("-") and any(part in name for part in _DEEPSPEED):
            if not equals:
                value = "".join(words[index + 1 : index + 2])
            if value.endswith(".json"):
                paths.append(value)
    return list(dict.fromkeys(paths))
