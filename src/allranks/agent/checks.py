"""Runs the `collect` of checks on this node, side by side, each within its own limit.

A check that hangs loses only itself: its thread is left behind and dies with this (forked) process.
"""

import importlib
import threading
import time
from typing import Iterable, List

from allranks.preflight.check import Check, read_check
from allranks.preflight.host import CouldNotLook
from allranks.protocol.codec import encode
from allranks.protocol.jsontext import JsonObject

from .real_host import NodeHost

PACKAGE = "allranks.preflight.checks."


def collect(names: Iterable[str], host: NodeHost) -> JsonObject:
    """{name: what it found, or {"error": why not}}. Never raises."""
    facts: JsonObject = {}
    checks: List[Check] = []
    for name in names:
        try:
            checks.append(read_check(importlib.import_module(PACKAGE + name)))
        except Exception as error:
            facts[name] = {"error": "%s: %s" % (type(error).__name__, error)}
    side_by_side = [c for c in checks if c.collect is not None and not c.alone]
    _run_all(side_by_side, host, facts)
    for check in checks:
        if check.collect is not None and check.alone:
            _run_all([check], host, facts)
    return dict(facts)


def _run_all(checks: List[Check], host: NodeHost, facts: JsonObject) -> None:
    begun = time.monotonic()
    results: JsonObject = {}
    threads = []
    for check in checks:
        thread = threading.Thread(target=_run, args=(check, host, results), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads allowed
            _run(check, host, results)
        threads.append((check, thread))
    for check, thread in threads:
        if thread.ident is not None:
            thread.join(max(0.0, begun + check.seconds - time.monotonic()))
    facts.update(results.copy())
    for check in checks:
        facts.setdefault(check.name, {"error": "no answer within %g s" % check.seconds})


def _run(check: Check, host: NodeHost, results: JsonObject) -> None:
    assert check.collect is not None
    try:
        result = encode(check.collect(host))
    except CouldNotLook as error:
        result = {"error": str(error)}
    except OSError as error:
        place = "%s: " % error.filename if error.filename else ""
        result = {"error": "%s%s" % (place, error.strerror or error)}
    except Exception as error:
        result = {"error": "%s: %s" % (type(error).__name__, error)}
    results[check.name] = result
