"""A rank crashed in native code: SIGSEGV, SIGBUS, SIGILL, SIGFPE or SIGABRT."""

from __future__ import annotations

import re

from ..candidate import Candidate, Strength
from ..incident import Incident
from ..words import further_words, last_lines
from .failures import ABORT, BUS, NATIVE, SHAPES, Failure, Role, failures, first_of

ID = "rank-crashed"
SOURCE = "wait(2) status, signal(7); CPython faulthandler's text; libstdc++'s terminate; gloo transport/tcp/pair.cc"
_OTHER_SIZE = re.compile(re.escape(SHAPES) + r"\.? (\d+) vs (\d+)")
_LAST_WORDS = re.compile(
    r"^(?:Fatal Python error: [^\n]+|terminate called [^\n]+|  what\(\): [^\n]{1,240})", re.MULTILINE
)


def apply(incident: Incident) -> Candidate | None:
    """The first crash that is no consequence of a peer's end."""
    failed = failures(incident)
    group = first_of(failed, "crashed", incident, Role.ROOT) or first_of(failed, "crashed", incident, Role.UNEXPLAINED)
    if group is None:
        return None
    first = group.first
    cause, confidence, what = _reading(first)
    pid = f" ({group.pid})" if group.pid else ""
    message = (
        f"{group.who(incident)} {what}{_line(first)}{pid}{further_words(incident, first.rank)}{group.also(incident)}"
    )
    strength = Strength.ROOT if first.role is Role.ROOT else Strength.WEAK
    return Candidate(
        ID,
        cause,
        strength,
        message,
        confidence,
        first.t,
        where=group.where(),
        evidence=_evidence(first),
        culprits=group.ranks,
    )


def _reading(first: Failure) -> tuple[str, float, str]:
    """Cause, confidence and the predicate."""
    if first.signature is not None:
        return first.signature.cause, first.signature.confidence, _sizes(first)
    if first.role is Role.UNEXPLAINED:
        what = "left the program without destroy_process_group and aborted (SIGABRT) on the way out"
        return "rank-exited-early", 0.6, what
    signal = NATIVE.get(first.signal or 0, "?")
    if first.signal == BUS and re.search(r"/dev/shm|shared memory", first.exit.tail):
        return "shm-too-small", 0.75, f"crashed with {signal}: its shared memory has no room behind it"
    what = f"aborted ({signal}) in native code" if first.signal == ABORT else f"crashed with {signal} in native code"
    return "segfault-native", 0.9, what


def _sizes(first: Failure) -> str:
    """Gloo's check (pair.cc): the bytes that came, and those there is room for."""
    match = _OTHER_SIZE.search(first.exit.tail)
    got = (
        f"got {match[1]} bytes where its collective expects {match[2]}"
        if match
        else ("got a message of another size than its collective expects")
    )
    return f"{got}: it and the rank that sent them called it with different shapes"


def _line(first: Failure) -> str:
    """Where Python was, if faulthandler said so."""
    frame = re.search(r"\(most recent call first\):\n((?: +File [^\n]*(?:\n|\Z))+)", first.exit.tail)
    frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', frame[1]) if frame else []
    of_user = [f for f in frames if not re.search(r"/(site|dist)-packages/|/lib/python3|^<", f[0])]
    if not of_user:
        return ""
    file, number, function = of_user[0]
    within = "" if function == "<module>" else f" in {function}"
    return f" at {file.rsplit('/', 1)[-1]}:{number}{within}"


def _evidence(first: Failure) -> tuple[str, ...]:
    fatal = _LAST_WORDS.findall(first.exit.tail)
    return tuple(line.strip() for line in fatal[-3:]) or last_lines(first.exit.tail)
