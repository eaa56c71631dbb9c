"""Host lists as Slurm writes them: `node[01-04,07],login1` to names, and names back to such a list.

`expand` knows several groups in a name (`a[1-2]b[3-4]`, the last one runs fastest), suffixes and zero
padding (the width of a range's first number). It does not judge names: `names.check_host` does. Brackets
around something with a colon are an IPv6 literal and stay as they are.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

from ..errors import UsageError
from .names import show

MAX_HOSTS = 4096
MAX_DIGITS = 18
MAX_NAME = 512
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_GROUP = re.compile(r"\[([^\[\]]*)\]")
_DIGITS = re.compile(r"[0-9]+")


def split_list(text: str) -> list[str]:
    """Items between commas that are outside brackets; one comma at the end is tolerated."""
    items, start, depth = [], 0, 0
    for position, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth = max(0, depth - 1)
        elif character == "," and depth == 0:
            items.append(text[start:position].strip(" \t"))
            start = position + 1
    last = text[start:].strip(" \t")
    if last or not items:
        items.append(last)
    if not all(items):
        raise UsageError(f"{show(text)}: a host name is missing between commas or there is none at all")
    return items


def expand(text: str) -> list[str]:
    """All names of a host list in order; UsageError if it is malformed or has more than 4096 names."""
    names: list[str] = []
    for item in split_list(text):
        names += expand_item(item, MAX_HOSTS - len(names))
    return names


def expand_item(item: str, limit: int = MAX_HOSTS) -> list[str]:
    """All names of one item, a list without commas outside brackets."""
    parts: list[Sequence[str]] = []
    end, count = 0, 1
    for match in _GROUP.finditer(item):
        parts.append([_plain(item[end : match.start()], item)])
        literal = ":" in match[1] and item[: match.start()].rpartition("@")[2] == ""
        numbers: Sequence[str] = [match[0]] if literal else _numbers(match[1], item, limit)
        count *= len(numbers)
        _check_count(count, item, limit)
        parts.append(numbers)
        end = match.end()
    parts.append([_plain(item[end:], item)])
    _check_count(count, item, limit)
    if sum(len(part[-1]) for part in parts) > MAX_NAME:
        raise UsageError(f"{show(item)}: a name of more than {MAX_NAME} characters")
    return ["".join(words) for words in itertools.product(*parts)]


def compress(names: Iterable[str]) -> str:
    """The names, in their order, as a short host list: `expand(compress(names))` gives them back."""
    rest = list(names)
    items: list[str] = []
    start = 0
    while start < len(rest):
        best_end, best = start + 1, rest[start]
        for number in _DIGITS.finditer(rest[start]) if _can_group(rest[start]) else ():
            prefix, suffix = rest[start][: number.start()], rest[start][number.end() :]
            numbers = list(_same_shape(rest, start, prefix, suffix))
            if start + len(numbers) > best_end:
                best_end, best = start + len(numbers), f"{prefix}[{_ranges(numbers)}]{suffix}"
        items.append(best)
        start = best_end
    return ",".join(items)


def _plain(text: str, item: str) -> str:
    if "[" in text or "]" in text:
        raise UsageError(f"{show(item)}: a bracket is not closed, or brackets are inside brackets")
    return text


def _check_count(count: int, item: str, limit: int) -> None:
    if count > limit:
        raise UsageError(f"{show(item)}: more than {MAX_HOSTS} hosts; check the range")


def _numbers(group: str, item: str, limit: int) -> list[str]:
    """The numbers of one bracket group `01-04,07`, as text with their padding."""
    numbers: list[str] = []
    for part in group.split(","):
        match = _RANGE.fullmatch(part.strip(" \t"))
        if not match:
            raise UsageError(f"{show(item)}: {show(part)} is not a number or a range; write node[01-04,07]")
        numbers += _range(match[1], match[2] or match[1], item, limit - len(numbers))
    return numbers


def _range(low: str, high: str, item: str, limit: int) -> list[str]:
    if max(len(low), len(high)) > MAX_DIGITS:
        raise UsageError(f"{show(item)}: a number of more than {MAX_DIGITS} digits")
    if high.startswith("0") and len(high) != len(low):
        raise UsageError(f"{show(item)}: {low}-{high}: write both numbers with the same number of digits")
    first, last = int(low), int(high)
    if last < first:
        raise UsageError(f"{show(item)}: {low}-{high} runs backwards; write {high}-{low}")
    _check_count(last - first + 1, item, limit)
    return [str(n).zfill(len(low)) for n in range(first, last + 1)]


def _can_group(name: str) -> bool:
    """Whether a name may get a bracket: an IPv6 address may not."""
    return not any(c in name for c in ":[],")


def _same_shape(names: Sequence[str], start: int, prefix: str, suffix: str) -> Iterable[str]:
    """The numbers of the names from `start` on that are `prefix`, a number, `suffix`."""
    for name in itertools.islice(names, start, None):
        middle = name[len(prefix) : len(name) - len(suffix)]
        fits = len(name) > len(prefix) + len(suffix) and name.startswith(prefix) and name.endswith(suffix)
        if not (fits and _DIGITS.fullmatch(middle) and len(middle) <= MAX_DIGITS):
            return
        yield middle


def _ranges(numbers: Sequence[str]) -> str:
    """`01,02,03,07` as `01-03,07`."""
    runs: list[list[str]] = []
    for number in numbers:
        if runs and number == str(int(runs[-1][-1]) + 1).zfill(len(runs[-1][0])):
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
