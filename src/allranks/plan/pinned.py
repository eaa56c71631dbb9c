"""What a joined node lets a coordinator say: when, where and how many, never what runs (pure).

The coordinator's `setup` and `start` name a command, an interpreter and an environment. A node that joined by
itself takes none of them: it makes both messages anew from its own arguments and the terms of the attempt
(ranks, address, port, names), each of which is checked. Everything else passes only if it is known and harmless.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from allranks.cluster import Node
from allranks.spec import RunSpec

from .environment import Place
from .plan import orders
from .ranks import Attempt, NodePlan, Plan

Message = dict[str, Any]
PASS = ("hello", "ping", "ack", "end", "stacks", "release", "serve", "reach", "counters", "signal")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
MARK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}/node_[0-9]{2,6}")
HOST = re.compile(r"[A-Za-z0-9.:%_-]{1,255}")
INTERFACES = re.compile(r"[=^]?[A-Za-z0-9._,:-]{1,200}")
INTERFACE_NAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
MOST_RANKS, MOST_TEXT = 1 << 20, 4096


class NotPinned(ValueError):
    """An order that a joined node does not carry out; the text says why."""


@dataclass(frozen=True)
class Own:
    """What this node was started with. `setup` are the fields of a `setup` message that are its own."""

    spec: RunSpec
    setup: Mapping[str, Any]
    checks: tuple[str, ...]


def pinned_header(own: Own, header: Mapping[str, Any]) -> Message:
    """The header of a relay with this node's own directory; raises NotPinned."""
    mode = header.get("mode")
    if mode not in ("guard", "attach"):
        raise NotPinned(f"the relay's mode {str(mode)[:40]!r}")
    return {
        "mode": mode,
        "uid": _matching(header, "uid", NAME),
        "node": _matching(header, "node", NAME),
        "mark": _matching(header, "mark", MARK),
        "lease": _number(header, "lease", 1, 86400),
        "grace": _number(header, "grace", 0, 86400),
        "node_dir": own.spec.node_dir,
        "checks": _known(own, header),
        "tests": bool(header.get("tests")),
        "audit": bool(own.spec.audit_data),
    }


def pinned_message(own: Own, message: Mapping[str, Any], node_dir: str, facts: Mapping[str, Any]) -> Message:
    """A message as this node's guard may have it; `node_dir` and `facts` are what the guard itself said."""
    kind = message["type"]
    if kind in PASS:
        return dict(message)
    if kind == "setup":
        return {**message, **own.setup, "checks": _known(own, message)}
    if kind in ("listen", "probe"):
        return {**message, "nonce_dir": own.spec.output_dir}
    if kind == "start":
        terms = message.get("terms")
        if not isinstance(terms, Mapping):
            raise NotPinned("a start without terms")
        return _start(own, terms, node_dir, facts)
    raise NotPinned(f"a message of type {str(kind)[:40]!r}")


def _start(own: Own, terms: Mapping[str, Any], node_dir: str, facts: Mapping[str, Any]) -> Message:
    """The start message from this node's own arguments."""
    world, nproc = _whole(terms, "world_size", MOST_RANKS), _whole(terms, "nproc", 4096)
    node = NodePlan(
        Node(_whole(terms, "index", MOST_RANKS), "this", "this"), nproc, _whole(terms, "first_rank", MOST_RANKS),
        _whole(terms, "of", MOST_RANKS), "the coordinator", _whole(terms, "index", MOST_RANKS),
    )  # fmt: skip
    tests = tuple(_text(word) for word in _listed(terms, "tests"))
    attempt = Attempt(
        _whole(terms, "attempt", 65535), _matching(terms, "master_addr", HOST), _whole(terms, "master_port", 65535),
        _whole(terms, "repeats", 65535), tests,
    )  # fmt: skip
    if not tests and not own.spec.command:
        raise NotPinned("a training program on a node that was started to be looked at or tested")
    place = Place(
        node_dir=node_dir, workdir=str(own.setup["workdir"]), output_dir=own.spec.output_dir or f"{node_dir}/outputs",
        outputs_here=False, mark=_matching(terms, "mark", MARK), run=_matching(terms, "run", NAME),
        interfaces=_interfaces(terms.get("interfaces") or {}),
        torch=str((facts.get("interpreter") or {}).get("torch") or ""),
    )  # fmt: skip
    others = NodePlan(Node(0, "others", "others"), world - nproc, 0, node.of, "")
    return orders(own.spec, Plan((node, others)), node, place, attempt, facts)


def _interfaces(found: Any) -> dict[str, str]:
    if not isinstance(found, Mapping):
        raise NotPinned("interfaces that are no table")
    for name, value in found.items():
        if name not in INTERFACE_NAMES or not isinstance(value, str) or not INTERFACES.fullmatch(value):
            raise NotPinned(f"the setting {str(name)[:40]!r} as an interface")
    return dict(found)


def _known(own: Own, found: Mapping[str, Any]) -> list[str]:
    """Those of the checks asked for that this node has."""
    return [name for name in _listed(found, "checks") if name in own.checks]


def _listed(found: Mapping[str, Any], key: str) -> list[Any]:
    value = found.get(key)
    if not isinstance(value, (list, tuple, type(None))):
        raise NotPinned(f"{key} {str(value)[:60]!r}")
    return list(value or ())


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MOST_TEXT or "\0" in value:
        raise NotPinned("arguments of tests that are no texts")
    return value


def _matching(found: Mapping[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    value = found.get(key)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise NotPinned(f"{key} {str(value)[:60]!r}")
    return value


def _whole(found: Mapping[str, Any], key: str, most: int) -> int:
    value = found.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise NotPinned(f"{key} {str(value)[:60]!r}")
    return value


def _number(found: Mapping[str, Any], key: str, least: float, most: float) -> float:
    value = found.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise NotPinned(f"{key} {str(value)[:60]!r}")
    return float(value)
