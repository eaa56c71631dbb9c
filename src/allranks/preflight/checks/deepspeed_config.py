"""The batch sizes of a DeepSpeed configuration multiply out on this cluster.

train_batch_size = train_micro_batch_size_per_gpu × gradient_accumulation_steps × ranks. "auto" fits always, and one of
the three may be left out (deepspeed/runtime/config.py: _configure_train_batch_size). Ranks that share a batch (tensor
or sequence parallel) count once.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Dict, Mapping, Optional, Tuple

from allranks.text import join_names

from ..compare import Findings, Nodes, by_item, by_value, collected, fail, values_of
from ..host import CouldNotLook, Host
from ..launcher_config import MISSING, RankCounts, Table, absent, read_table, whole_number
from ..typed_facts import Request

ID = "deepspeed_config"
GROUP = "software"
LEVEL = "quick"
_LABEL = "deepspeed-config"
_TRAIN = "train_batch_size"
_MICRO = "train_micro_batch_size_per_gpu"
_STEPS = "gradient_accumulation_steps"
_SHARING = ("tensor_parallel.autotp_size", "sequence_parallel_size")
_KEYS = (_TRAIN, _MICRO, _STEPS, *_SHARING, MISSING)


def collect(host: Host) -> Optional[Dict[str, Table]]:
    """Read the figures of every configuration that the command names, by file; None where it names none."""
    launching = host.request.asked.launching
    paths = list(launching.deepspeed)
    if launching.accelerate:
        with suppress(CouldNotLook):  # accelerate_config says so
            paths.append(read_table(host, launching.accelerate).get("deepspeed_config.deepspeed_config_file", ""))
    tables = {path: read_table(host, path) for path in dict.fromkeys(filter(None, paths))}
    return values_of(tables, lambda table: {key: table[key] for key in _KEYS if key in table}) or None


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """deepspeed-config: which figure must be what; and files that differ between nodes."""
    ranks = RankCounts(request, facts_by_node)
    for path, by_node in by_item(collected(facts_by_node, ID, Dict[str, Table])).items():
        yield from absent(by_node, path)
        tables = {node: tuple(sorted(table.items())) for node, table in by_node.items() if MISSING not in table}
        groups = by_value(tables)
        if len(groups) > 1:
            odd = list(groups.values())[-1]
            message = f"{path} has other batch sizes on {join_names(odd)} than on the other nodes"
            yield fail(_LABEL, odd, message, "put the same file on every node, or run with --sync")
        for figures, nodes in groups.items():
            wrong = _wrong(dict(figures), ranks)
            if wrong is not None:
                yield fail(_LABEL, nodes, f"{path} on {join_names(nodes)}: {wrong[0]}", wrong[1])


def _wrong(table: Mapping[str, str], ranks: RankCounts) -> Optional[Tuple[str, str]]:
    """Say what does not multiply out, and the figures that would; None where it does."""
    figures = {key: whole_number(table.get(key)) for key in (_TRAIN, _MICRO, _STEPS)}
    for key, value in figures.items():
        if value is not None and value < 1:
            return f"{key} is {value}", f'set {key} to a number above 0, or "auto"'
    train, micro, steps = figures.values()
    world, shown = _readers(table, ranks)
    if train is None or ("auto" in [table.get(key) for key in figures] and not (micro and steps)):
        return None
    if micro and steps:
        product = micro * steps * world
        if product == train:
            return None
        fixes = [f"{_TRAIN}: {product}"]
        for key, factor in ((_MICRO, steps * world), (_STEPS, micro * world)):
            if train % factor == 0:
                fixes.append(f"{key}: {train // factor}")
        message = f"{_TRAIN} {train} is not {micro} ({_MICRO}) × {steps} ({_STEPS}) × {shown} = {product}"
        return message, f"set {', or '.join(fixes)}"
    unit = (micro or steps or 1) * world
    if train % unit == 0:
        return None
    factors = [f"{figures[key]} ({key}) × " for key in (_MICRO, _STEPS) if figures[key]]
    below = train // unit * unit
    fits = " or ".join(str(size) for size in (below, below + unit) if size)
    message = f"{_TRAIN} {train} is not a multiple of {''.join(factors)}{shown} = {unit}"
    return message, f'set {_TRAIN}: {fits}, or "auto"'


def _readers(table: Mapping[str, str], ranks: RankCounts) -> Tuple[int, str]:
    sharing = 1
    for key in _SHARING:
        sharing *= max(1, whole_number(table.get(key)) or 1)
    if sharing == 1 or ranks.world % sharing:
        return ranks.world, f"{ranks.world} (ranks: {ranks})"
    return ranks.world // sharing, f"{ranks.world // sharing} (of {ranks.world} ranks {sharing} share a batch)"
