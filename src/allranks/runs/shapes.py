"""The types that the fields of a run's documents have: what has another type is left out when it is read (pure).

A run directory lies on a file system that others write to, and disks fail. Readers then meet an absent field, which
each of them expects, and never a text in the place of a list.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Union

LARGEST = 1 << 53  # of a number: seconds, bytes, pids and ranks stay below it
_ABSENT = object()


Shape = Union[type, "ObjectShape", list["Shape"]]


class ObjectShape(NamedTuple):
    """An object; it is left out without the fields that it `needs`. Of other fields than its own `others` is the shape.

    Without `others` they stay as they are.
    """

    fields: Mapping[str, Shape]
    needs: tuple[str, ...] = ()
    others: Shape | None = None


_WHERE = ObjectShape({"node": str, "peer": str, "rank": int, "interface": str, "port": int, "gpu": int, "pid": int})
_FINDING = ObjectShape(
    {"id": str, "status": str, "where": _WHERE, "message": str, "remedy": str, "evidence": [str]}, ("message",)
)
_VERDICT = ObjectShape(
    {
        **_FINDING.fields,
        "cause": str,
        "confidence": float,
        "victims": [int],
        "culprits": [int],
        "attempt": int,
        "detected_after_s": float,
        "runners_up": [ObjectShape({"cause": str, "confidence": float, "message": str})],
        "decision": str,
    },
    ("cause", "message"),
)
_RANK = ObjectShape(
    {"rank": int, "local_rank": int, "state": str, "pid": int, "step": int, "rate": float, "last_output": float},
    ("rank",),
)
SHAPES: dict[str, ObjectShape] = {
    "run.json": ObjectShape(
        {
            "run": str,
            "uid": str,
            "started": float,
            "command": [str],
            "spec": ObjectShape({}),
            "source": str,
            "workdir": str,
            "nodes": [
                ObjectShape(
                    {
                        "name": str,
                        "index": int,
                        "host": str,
                        "user": str,
                        "port": int,
                        "slots": int,
                        "is_local": bool,
                        "node_rank": int,
                        "life": int,
                        "address": str,
                    },
                    ("name",),
                )
            ],
            "versions": ObjectShape({"allranks": str, "python": str}),
            "engine": ObjectShape({"engine": str}),
            "slurm": ObjectShape({}),
            "controller": ObjectShape({"host": str, "pid": int, "start_time": float}),
        }
    ),
    "status.json": ObjectShape(
        {
            "run": str,
            "state": str,
            "t": float,
            "attempt": int,
            "world_size": int,
            "master": ObjectShape({"address": str, "port": int}),
            "nodes": [
                ObjectShape({"name": str, "index": int, "state": str, "ranks": [_RANK], "address": str}, ("name",))
            ],
        }
    ),
    "result.json": ObjectShape(
        {
            "run": str,
            "directory": str,
            "exit": int,
            "verdict": _VERDICT,
            "findings": [_FINDING],
            "program_exit": ObjectShape({"rank": int, "code": int, "signal": int}),
            "timing": ObjectShape({"total": float}),
            "attempts": [
                ObjectShape(
                    {
                        "attempt": int,
                        "outcome": str,
                        "cause": str,
                        "seconds": float,
                        "decision": str,
                        "reason": str,
                        "verdict": _VERDICT,
                    }
                )
            ],
            "left": ObjectShape({}),
            "unfetched": ObjectShape({}),
            "dropped": ObjectShape({}),
            "undecodable": ObjectShape({}),
            "outputs": ObjectShape({}),
        },
        ("exit",),
    ),
    "verdict.json": _VERDICT,
    "preflight.json": ObjectShape(
        {
            "schema": int,
            "t": float,
            "checks": [str],
            "request": ObjectShape({"spec": ObjectShape({})}, ("spec",)),
            "nodes": ObjectShape({}, others=ObjectShape({})),
            "unreachable": [_FINDING],
            "covered": str,
        },
        ("nodes",),
    ),
}


def shaped(name: str, document: dict[str, Any]) -> dict[str, Any] | None:
    """Give a document of a run by its file's name, without the fields that have another type than theirs.

    None where it lacks a field that it must have.
    """
    shape = SHAPES.get(name)
    if shape is None:
        return document
    fitted = _fit(document, shape)
    return fitted if isinstance(fitted, dict) else None


def _fit(value: object, shape: Shape) -> object:
    """The value; None stays; _ABSENT where it does not fit."""
    if value is None:
        return None
    if isinstance(shape, list):
        if not isinstance(value, list):
            return _ABSENT
        fitted = [_fit(one, shape[0]) for one in value]
        return [one for one in fitted if one is not _ABSENT and one is not None]
    if isinstance(shape, ObjectShape):
        return _fit_entry(value, shape)
    return value if _is_of(value, shape) else _ABSENT


def _fit_entry(value: object, shape: ObjectShape) -> object:
    if not isinstance(value, dict):
        return _ABSENT
    made = {}
    for key, one in value.items():
        kind = shape.fields.get(key, shape.others)
        fitted = one if kind is None else _fit(one, kind)
        if fitted is not _ABSENT:
            made[key] = fitted
    if any(made.get(name) is None for name in shape.needs):
        return _ABSENT
    return made


def _is_of(value: object, kind: type) -> bool:
    if isinstance(value, bool) or kind in (bool, str):
        return isinstance(value, kind)
    if kind is int:
        return isinstance(value, int) and abs(value) < LARGEST
    return isinstance(value, (int, float)) and math.isfinite(value) and abs(value) < LARGEST
