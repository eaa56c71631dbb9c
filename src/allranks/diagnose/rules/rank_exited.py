"""A rank ended with a code and no exception: sys.exit, a refused argument, an absent script, a shell's 127."""

from __future__ import annotations

import re

from ..candidate import Candidate, Strength
from ..incident import ExitRecord, Incident
from ..words import further_words, last_lines, one_line, thread_words
from .failures import NO_SCRIPT, Role, failures, first_of, no_module

ID = "rank-exited"
SOURCE = "argparse (exit code 2, `usage:` and `error:`); CPython Modules/main.c (can't open file), Lib/runpy.py; sh(1)"
Reading = tuple[str, float, str, str]


def apply(incident: Incident) -> Candidate | None:
    """The first exit code that speaks for itself, else the first that does not."""
    failed = failures(incident)
    group = first_of(failed, "exited", incident, Role.ROOT) or first_of(failed, "exited", incident, Role.UNEXPLAINED)
    if group is None:
        return None
    first = group.first
    cause, confidence, remedy, what = _reading(first.exit)
    if cause == "rank-exited-early" and (group.scope == "all" or incident.world_size == 1):
        cause = "program-exception"  # no rank went on
    head, mark, rest = what.partition("; ")
    tail = mark + rest + thread_words(first.exit.tail) + further_words(incident, first.rank)
    pid = f" ({group.pid})" if group.pid else ""
    return Candidate(
        ID,
        cause,
        Strength.ROOT if first.role is Role.ROOT else Strength.WEAK,
        f"{group.who(incident)} {head}{pid}{tail}{group.also(incident)}",
        confidence,
        first.t,
        remedy.format(rank=first.rank),
        group.where(),
        last_lines(first.exit.tail),
        group.ranks,
    )


def _reading(end: ExitRecord) -> Reading:
    """Cause, confidence, remedy and the predicate."""
    last = one_line((last_lines(end.tail, 1) or ("",))[0], 160)
    absent = NO_SCRIPT.search(end.tail) if end.code == 2 else None
    if absent:
        denied = absent[2] == "13"
        why = absent[3] or "no __main__ there"
        return (
            "permission-denied" if denied else "remote-path-missing",
            0.95,
            f"check it against the working directory (--workdir) on the node: ls -l {_plain(absent[1])}",
            f"could not open the script {absent[1]}: {why.rstrip(']')}",
        )
    if end.code == 2 and re.search(r"^usage: ", end.tail, re.MULTILINE):
        return ("bad-launch-arguments", 0.95, "", "refused the arguments of the program" + _refusal(end.tail))
    lacking = no_module(end.tail)
    if lacking:
        module = lacking["module"] or lacking["parent"]
        install = f"{lacking['python']} -m pip install {module.partition('.')[0]}"
        return (
            "missing-module",
            0.95,
            _plain(f"{install} on every node, or choose another interpreter with --python"),
            f"found no module {module} in {lacking['python']}",
        )
    if end.code in (126, 127):
        cause = "permission-denied" if end.code == 126 else "remote-path-missing"
        what = f"ended with code {end.code}" + (f": {last}" if last else "")
        return cause, 0.8, "check the command, PATH and --prelude on the node", what
    what = f"ended with code {end.code}" + (f"; its last line: {last}" if last else " and said nothing")
    return "rank-exited-early", 0.6, "", what


def _refusal(tail: str) -> str:
    """What argparse said, after a colon; empty where its line has scrolled out of what was kept."""
    refusal = next((one_line(line) for line in reversed(tail.splitlines()) if "error: " in line), "")
    return f": {refusal}" if refusal else ""


def _plain(text: str) -> str:
    """For a text that goes through str.format."""
    return text.replace("{", "{{").replace("}", "}}")
