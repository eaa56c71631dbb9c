"""Host lists as Slurm and ClusterShell write them: `node[01-04,07],login1` to names, and names back to such a list.

`expand` knows several groups in a name (`a[1-2]b[3-4]`, the last one runs fastest), suffixes, zero padding (the
width of a range's first number), steps (`node[0-8/2]`) and exclusion (`node[1-8]!node[3,5]`). It does not judge
names: `names.check_host` does. Brackets around something with a colon are an IPv6 literal and stay as they are.
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
EXCLUDE = "!"
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+)(?:/([0-9]+))?)?")
_GROUP = re.compile(r"\[([^\[\]]*)\]")
_DIGITS = re.compile(r"[0-9]+")


def split_list(text: str) -> list[str]:
    """Items between commas that are outside brackets; one comma at the end is tolerated."""
    items = []
    start = 0
    depth = 0
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
        if not any(items):
            raise UsageError(f"{show(text)}: a host name is missing")
        raise UsageError(f"{show(text)}: a host name is missing beside a comma")
    return items


def expand(text: str) -> list[str]:
    """All names of a host list in order; UsageError if it is malformed or has more than 4096 names."""
    names: list[str] = []
    for item in split_list(text):
        names += expand_item(item, MAX_HOSTS - len(names))
    return names


def split_exclusions(item: str) -> tuple[str, list[str]]:
    """Split an item into its hosts and the names that it takes out of them: `n[1-4]!n2` is `n[1-4]`, [`n2`]."""
    if EXCLUDE not in item:
        return item, []
    hosts, *excluded_lists = item.split(EXCLUDE)
    if not hosts.strip(" \t") or not all(text.strip(" \t") for text in excluded_lists):
        raise UsageError(f"{show(item)}: write hosts before and behind '!', such as node[1-8]!node3")
    excluded: list[str] = []
    for text in excluded_lists:
        excluded += expand_item(text.strip(" \t"), MAX_HOSTS - len(excluded))
    return hosts.rstrip(" \t"), excluded


def expand_item(item: str, limit: int = MAX_HOSTS) -> list[str]:
    """Return all names of one item, a list without commas outside brackets."""
    hosts, excluded = split_exclusions(item)
    return exclude(_expand_groups(hosts, limit), excluded, item)


def exclude(names: Sequence[str], excluded: Sequence[str], item: str) -> list[str]:
    """Return the names without those excluded; UsageError where an excluded name is absent, or none is left."""
    for name in excluded:
        if name not in names:
            raise UsageError(f"{show(item)}: {show(name)} is excluded, but is not among the hosts before '!'")
    rest = [name for name in names if name not in excluded]
    if not rest:
        raise UsageError(f"{show(item)}: every host is excluded")
    return rest


def _expand_groups(item: str, limit: int) -> list[str]:
    parts: list[Sequence[str]] = []
    end = 0
    count = 1
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


def fold(names: Iterable[str]) -> str:
    """Write names, in their order, as a short host list: `expand(fold(names))` gives them back."""
    rest = list(names)
    items: list[str] = []
    start = 0
    while start < len(rest):
        start, item = _longest_group(rest, start)
        items.append(item)
    return ",".join(items)


def _longest_group(names: Sequence[str], start: int) -> tuple[int, str]:
    """Return the end of the longest run of names from `start` on that one item can have, and that item."""
    name = names[start]
    longest_end = start + 1
    longest = name
    if any(character in name for character in ":[],"):  # an IPv6 address gets no bracket
        return longest_end, longest
    for number in _DIGITS.finditer(name):
        prefix = name[: number.start()]
        suffix = name[number.end() :]
        numbers = list(_same_shape(names, start, prefix, suffix))
        if start + len(numbers) > longest_end:
            longest_end = start + len(numbers)
            longest = f"{prefix}[{_ranges(numbers)}]{suffix}"
    return longest_end, longest


def _plain(text: str, item: str) -> str:
    if "[" in text or "]" in text:
        raise UsageError(f"{show(item)}: a bracket is not closed, or brackets are inside brackets")
    return text


def _check_count(count: int, item: str, limit: int) -> None:
    if count > limit:
        raise UsageError(f"{show(item)}: more than {MAX_HOSTS} hosts. Check the range")


def _numbers(group: str, item: str, limit: int) -> list[str]:
    numbers: list[str] = []
    for part in group.split(","):
        match = _RANGE.fullmatch(part.strip(" \t"))
        if not match:
            raise UsageError(f"{show(item)}: {show(part)} is not a number or a range. Write node[01-04,07]")
        numbers += _range(match[1], match[2] or match[1], match[3] or "1", item, limit - len(numbers))
    return numbers


def _range(low: str, high: str, step: str, item: str, limit: int) -> list[str]:
    if max(len(low), len(high), len(step)) > MAX_DIGITS:
        raise UsageError(f"{show(item)}: a number of more than {MAX_DIGITS} digits")
    padded = high.startswith("0") or (low.startswith("0") and len(high) < len(low))
    if padded and len(high) != len(low):
        raise UsageError(f"{show(item)}: write both numbers of {low}-{high} with the same number of digits")
    first = int(low)
    last = int(high)
    if last < first:
        raise UsageError(f"{show(item)}: {low}-{high} runs backwards. Write {high}-{low}")
    if int(step) == 0:
        raise UsageError(f"{show(item)}: a step of 0. Write {low}-{high} or {low}-{high}/2")
    numbers = range(first, last + 1, int(step))
    _check_count(len(numbers), item, limit)
    return [str(number).zfill(len(low)) for number in numbers]


def _same_shape(names: Sequence[str], start: int, prefix: str, suffix: str) -> Iterable[str]:
    """Yield the numbers of the names from `start` on that are `prefix`, a number, `suffix`."""
    for name in itertools.islice(names, start, None):
        middle = name[len(prefix) : len(name) - len(suffix)]
        fits = len(name) > len(prefix) + len(suffix) and name.startswith(prefix) and name.endswith(suffix)
        if not (fits and _DIGITS.fullmatch(middle) and len(middle) <= MAX_DIGITS):
            return
        yield middle


def _ranges(numbers: Sequence[str]) -> str:
    runs: list[list[str]] = []
    for number in numbers:
        if runs and number == str(int(runs[-1][-1]) + 1).zfill(len(runs[-1][0])):
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
