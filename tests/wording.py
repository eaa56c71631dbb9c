"""What no finding, verdict or error may say: `1 ranks`, a message that ends where a value should stand, `ssh NODE` for
a node of this machine.

`watch()` looks at each text when it is made, whichever test makes it: a case that provokes a text is enough.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from allranks.errors import AllranksError
from allranks.findings import Finding, Verdict

# Nouns that are counted; "code 1 is", "rank 1 waits" and "the 1 s" count nothing.
COUNTED = (
    "addresses|agents|attempts|batches|bytes|checks|collectives|cores|devices|directories|entries|epochs|events|"
    "failures|files|GPUs|groups|hosts|interfaces|jobs|lines|links|names|nodes|packets|pairs|places|pods|ports|"
    "processes|ranks|rounds|runs|samples|seconds|secrets|settings|shards|sizes|slots|spares|steps|tasks|tests|threads|"
    "times|traces|values|variables|versions|warnings|workers"
)
ONE_OF_MANY = re.compile(rf"(?<![\w.,:/×=–-])(?<!rank )(?<!code )1 (?:more |other |of )?(?:{COUNTED})\b")
EMPTY_VALUE = re.compile(
    r"(?:[:(]|\bof|\bto|\bfrom|\bat|\bin|\bwith|\bby)\s*$|\(\?\)|(?<![\w)\]])\(\s*\)|:\s*[;,)]"
    r"|(?<!\w)(?<!found )(?<!schema )None\b"  # what was typed, and what a document has
)
SAID_TWICE = re.compile(r"(?<!\S)(\S+) \(\1\)|\bfrom (\d+) to \2\b")
LOCAL = re.compile(r"\bssh local[0-9]+\b")

faults: list[str] = []


def fault(message: str) -> str:
    """Say what is wrong with a message; empty where nothing is."""
    return _fault(message, ONE_OF_MANY, EMPTY_VALUE, SAID_TWICE)


def fault_of_fix(remedy: str) -> str:
    """Say what is wrong with a fix, which may end in an option without a value."""
    return _fault(remedy, ONE_OF_MANY, SAID_TWICE)


def fault_of_place(remedy: str) -> str:
    """Say where a verdict's fix has ssh go to a virtual node, which is this machine."""
    return _fault(remedy, LOCAL)


@functools.cache  # cases make the same sentences again and again
def _fault(text: str, *rules: re.Pattern[str]) -> str:
    match = next((match for rule in rules if (match := rule.search(text))), None)
    return f"wording, {match[0]!r}: {text!r}" if match else ""


def watch() -> None:
    """Look at every finding and error that is made in this process from now on."""
    _after(Finding, lambda made: (fault(made.message), fault_of_fix(made.remedy)))
    _after(Verdict, lambda made: (fault_of_place(made.finding.remedy),))
    _after(AllranksError, lambda made: (fault(str(made)),))


def _after(kind: type[Any], look: Callable[[Any], tuple[str, ...]]) -> None:
    plain = kind.__init__
    is_tuple = issubclass(kind, tuple)  # whose __new__ has taken the arguments

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **named: Any) -> None:
        if not is_tuple:
            plain(self, *args, **named)
        faults.extend(fault for fault in look(self) if fault)

    kind.__init__ = init
