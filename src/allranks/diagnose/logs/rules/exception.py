"""An exception that no row knows is the program's own: the earliest that is not a launcher's or a transport's."""

from __future__ import annotations

import re
from dataclasses import replace

from ...rules.candidate import Candidate, Strength
from ..evidence import Evidence, cut, who
from ..sighting import Sighting
from .table import candidate

ID = "exception"
SOURCE = "CPython: traceback; torch: torch/csrc/Exceptions.cpp for the names that only repeat what C++ says"
NOT_OWN = frozenset(
    {
        "DistBackendError",
        "DistStoreError",
        "DistNetworkError",
        "DistError",
        "SignalException",
        "SystemExit",
        "KeyboardInterrupt",
        "ChildFailedError",
        "CalledProcessError",
        "BrokenPipeError",
        "ConnectionResetError",
        "ConnectionAbortedError",
        "EOFError",
        "StopIteration",
        "Empty",
        "RemoteTraceback",
        "ConnectionError",
        "NCCLError",
        "ProcessRaisedException",
    }
)
_TRANSPORT = re.compile(
    r"NCCL (?:error|Error)|NCCL communicator|gloo/|\[c10d\]|Connection (?:closed|reset)|Broken pipe"
    r"|Caught \w+ in DataLoader worker|Engine core|EngineCore"
)
OTHERS_CONFIG = (
    ("deepspeed/runtime/config", "deepspeed-config"),
    ("deepspeed/runtime/zero/config", "deepspeed-config"),
    ("accelerate/commands/", "accelerate-config"),
    ("torch/distributed/run.py", "bad-launch-arguments"),
    ("torch/distributed/argparse_util", "bad-launch-arguments"),
)


def apply(evidence: Evidence) -> list[Candidate]:
    """One candidate an exception: all ranks that raise alike are one."""
    groups: dict[str, list[Sighting]] = {}
    for sighting in evidence.weighed_by(ID):
        name = sighting.kind.rsplit(".", 1)[-1]
        if name not in NOT_OWN and not _TRANSPORT.search(sighting.line.text):
            groups.setdefault(f"{name} {_alike(sighting.line.text)}", []).append(sighting)
    return [_raised(evidence, seen) for seen in groups.values()]


def _raised(evidence: Evidence, seen: list[Sighting]) -> Candidate:
    head = next((s for s in seen if s.frame), seen[0])
    made = candidate(evidence, seen)
    at = f" at {head.frame}" if head.frame else ""
    name = (
        f"every rank seen ({len({s.rank for s in seen})})"
        if made.where.rank is None and len({s.rank for s in seen}) > 1
        else who(made.where)
    )
    made = replace(made, message=f"{name or 'the program'} raised {cut(head.line.text)}{at}")
    for part, cause in OTHERS_CONFIG:
        if head.kind.rsplit(".", 1)[-1] in ("ValueError", "AssertionError", "TypeError", "KeyError") and any(
            part in m for m in head.modules[-4:]
        ):
            return replace(made, cause=cause, strength=Strength.ROOT, confidence=0.75)
    return made


def _alike(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+|\d+", "#", text)[:200]
