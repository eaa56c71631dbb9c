"""The batch sizes of a DeepSpeed configuration multiply out on this cluster.

train_batch_size = train_micro_batch_size_per_gpu × gradient_accumulation_steps × ranks; "auto" fits always, and one of
the three may be left out (deepspeed/runtime/config.py: _configure_train_batch_size). Ranks that share a batch (tensor
or sequence parallel) count once.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

from allranks.findings import Finding
from allranks.text import join_names

from ..compare import Nodes, by_value, part, place
from ..figures import MISSING, Ranks, absent, read_table, whole_number
from ..host import CouldNotLook, Host, Record, Request

ID = "deepspeed_config"
GROUP = "software"
LEVEL = "quick"
_LABEL = "deepspeed-config"
_TRAIN = "train_batch_size"
_MICRO = "train_micro_batch_size_per_gpu"
_STEPS = "gradient_accumulation_steps"
_SHARING = ("tensor_parallel.autotp_size", "sequence_parallel_size")
_KEYS = (_TRAIN, _MICRO, _STEPS, *_SHARING)


def collect(host: Host) -> Optional[Record]:
    """The figures of every configuration that the command names, by file; None where it names none."""
    launching = host.request.get("launching") or {}
    paths = list(launching.get("deepspeed") or ())
    if launching.get("accelerate"):
        try:
            named = read_table(host, launching["accelerate"]).get("deepspeed_config.deepspeed_config_file")
            paths += [named] if named else []
        except CouldNotLook:
            pass  # accelerate_config says so
    tables: Dict[str, Any] = {}
    for path in dict.fromkeys(paths):
        table = read_table(host, path)
        tables[path] = {key: table[key] for key in (*_KEYS, MISSING) if key in table}
    return tables or None


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """deepspeed-config: which figure must be what; and files that differ between nodes."""
    ranks = Ranks(request, facts_by_node)
    findings = []
    files = {path: None for f in facts_by_node.values() for path in part(f, ID)}
    for path in files:
        findings += absent({n: part(f, ID).get(path) or {} for n, f in facts_by_node.items()}, path)
        tables = {
            n: tuple(sorted(part(f, ID)[path].items()))
            for n, f in facts_by_node.items()
            if path in part(f, ID) and MISSING not in part(f, ID)[path]
        }
        groups = by_value(tables)
        if len(groups) > 1:
            message = f"{path} has other batch sizes on {join_names(list(groups.values())[-1])} than on the other nodes"
            remedy = "put the same file on every node, or run with --sync"
            findings.append(Finding(_LABEL, "fail", message, remedy, place(list(groups.values())[-1])))
        for table, nodes in groups.items():
            wrong = _wrong(dict(table), ranks)
            if wrong is not None:
                findings.append(
                    Finding(_LABEL, "fail", f"{path} on {join_names(nodes)}: {wrong[0]}", wrong[1], place(nodes))
                )
    return findings


def _wrong(table: Mapping[str, str], ranks: Ranks) -> Optional[Tuple[str, str]]:
    """What does not multiply out, and the figures that would; None where it does."""
    train, micro, steps = (whole_number(table.get(key)) for key in (_TRAIN, _MICRO, _STEPS))
    for key, value in ((_TRAIN, train), (_MICRO, micro), (_STEPS, steps)):
        if value is not None and value < 1:
            return f"{key} is {value}", f'set {key} to a number above 0, or "auto"'
    world, shown = _readers(table, ranks)
    if train is None or ("auto" in (table.get(_TRAIN), table.get(_MICRO), table.get(_STEPS)) and not (micro and steps)):
        return None
    if micro and steps:
        product = micro * steps * world
        if product == train:
            return None
        fixes = [f"{_TRAIN}: {product}"]
        fixes += [f"{_MICRO}: {train // (steps * world)}"] if train % (steps * world) == 0 else []
        fixes += [f"{_STEPS}: {train // (micro * world)}"] if train % (micro * world) == 0 else []
        message = f"{_TRAIN} {train} is not {micro} ({_MICRO}) × {steps} ({_STEPS}) × {shown} = {product}"
        return message, "set " + ", or ".join(fixes)
    unit = (micro or steps or 1) * world
    if train % unit == 0:
        return None
    factor = ""
    if micro or steps:
        factor = f"{micro or steps} ({_MICRO if micro else _STEPS}) × "
    below = train // unit * unit
    fits = f"{below} or {below + unit}" if below else str(unit)
    return f"{_TRAIN} {train} is no multiple of {factor}{shown} = {unit}", f'set {_TRAIN}: {fits}, or "auto"'


def _readers(table: Mapping[str, str], ranks: Ranks) -> Tuple[int, str]:
    """Ranks that read batches of their own."""
    sharing = 1
    for key in _SHARING:
        sharing *= max(1, whole_number(table.get(key)) or 1)
    if sharing == 1 or ranks.world % sharing:
        return ranks.world, f"{ranks.world} (ranks: {ranks})"
    return ranks.world // sharing, f"{ranks.world // sharing} (of {ranks.world} ranks {sharing} share a batch)"
