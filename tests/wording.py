"""What no finding, verdict or error may say: `1 ranks`, a message that ends where a value should stand, `ssh NODE` for
a node of this machine.

They are looked for where there are many: findings that checks must give, verdicts of rules and logs, documents of runs
that tests have started, and refusals of command lines.
"""

import functools
import re
from collections.abc import Mapping
from typing import Any

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


def faults_of(finding: Mapping[str, Any], is_verdict: bool = False) -> list[str]:
    """Say what is wrong with a finding or a verdict of a document. What a program printed last may have any words."""
    message, remedy = str(finding["message"]).partition(", its last line: ")[0], str(finding.get("remedy", ""))
    found = [fault(message), fault_of_fix(remedy), fault_of_place(remedy) if is_verdict else ""]
    return [text for text in found if text]
