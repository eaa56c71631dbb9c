"""deepspeed: a hostfile for all, a script for each node (--no_ssh), and a configuration whose batch sizes multiply out.

A configuration that the command names is taken over with train_batch_size as micro batch × accumulation × ranks;
figures that are "auto" or absent stay so. Without one a small one is written, for a program that wants it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from allranks.errors import UsageError
from allranks.text import join_words

from ..launchers.config_keys import launcher_settings
from ..launchers.deepspeed import OURS, arguments
from ..launchers.training_command import read_training
from .request import Rendered, RenderRequest, script_name
from .shell import Here, script

HOSTFILE = "hostfile"
OWN = "ds_config.json"
_TRAIN = "train_batch_size"
_MICRO = "train_micro_batch_size_per_gpu"
_STEPS = "gradient_accumulation_steps"
_NOTE = f"# {OWN} fits these nodes: give it to the program, or to deepspeed.initialize(config=…)"


def deepspeed(request: RenderRequest) -> Rendered:
    """{hostfile, configurations, script of each node: text}."""
    named = {path: path.rpartition("/")[2] for path in launcher_settings(request.spec)["deepspeed"]}
    for name in named.values():
        alike = [path for path, other in named.items() if other == name]
        if len(alike) > 1:
            raise UsageError(f"render deepspeed: {join_words(alike)} would be one file, {name}. Rename one of them")
    files: Rendered = {HOSTFILE: "".join(f"{n.node.name} slots={n.nproc}\n" for n in request.plan.nodes)}
    for path, name in named.items():
        if path not in request.texts:
            raise UsageError(f"render deepspeed: {path} does not exist here")
        files[name] = _fitting(path, request.texts[path], request.plan.world_size)
    if not named:
        sizes = {_TRAIN: request.plan.world_size, _MICRO: 1, _STEPS: 1}
        files[OWN] = _written({**sizes, "zero_optimization": {"stage": 1}})
    program = _beside(read_training(request.spec).program, named)
    lines = () if named else (_NOTE,)
    for node in request.plan.nodes:
        options = [Here(w) if w == HOSTFILE else w for w in arguments(node, request.attempt, HOSTFILE)]
        files[script_name(node)] = script(
            request, node, "deepspeed.launcher.runner", options, OURS, program=program, lines=lines
        )
    return files


def _fitting(path: str, text: str, world: int) -> str:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"render deepspeed cannot read {path}: {error}") from None
    if not isinstance(config, dict):
        raise UsageError(f"render deepspeed: {path} is not a table of settings")
    micro, steps, train = (config.get(key) for key in (_MICRO, _STEPS, _TRAIN))
    if isinstance(micro, int) and isinstance(steps, int) and _TRAIN in config and train != "auto":
        config[_TRAIN] = micro * steps * world
    elif isinstance(train, int):
        unit = next((n for n in (micro, steps) if isinstance(n, int) and n > 0), 1) * world
        if train % unit:
            raise UsageError(
                f"render deepspeed: {_TRAIN} of {path} is {train}, expected a multiple of {unit} on {world} ranks. "
                f"Set {max(1, train // unit) * unit}, or write {_MICRO} and {_STEPS}"
            )
    return _written(config)


def _written(config: dict[str, object]) -> str:
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def _beside(program: Sequence[str], named: dict[str, str]) -> list[str]:
    words: list[str] = []
    for word in program:
        option, equals, value = word.partition("=")
        if equals and value in named:  # --deepspeed_config=ds.json: two words mean the same
            words += [option, Here(named[value])]
        else:
            words.append(Here(named[word]) if word in named else word)
    return words
