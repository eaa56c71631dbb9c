"""Compare what a page shows with what a command printed, apart from what differs between any two runs."""

import difflib
import re
from collections.abc import Sequence

ANY = "…"
# What is another in each run, and how it is written in both texts before they are compared. A page may show an example
# of it, or `…`.
VARYING = (
    (re.compile(r"\b(run|check|test)-\d{8}-\d{6}(?:-\d+)?\b"), r"\1-…"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?Z?"), ANY),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), ANY),
    (re.compile(r"\b\d+\.\d+ (s|ms|µs)(?!\w)"), rf"{ANY} \1"),
    (re.compile(r"\b(after|in) \d+ (s|min)(?: \d+ s)?(?!\w)"), rf"\1 {ANY} s"),
    (re.compile(r"\bpid \d+\b"), f"pid {ANY}"),
    (re.compile(r"\b(loss|reward) \d\.\d+"), rf"\1 {ANY}"),
    (re.compile(r"\b\d+ bytes/s"), f"{ANY} bytes/s"),
    (re.compile(r"\B#\d+ of\b"), f"#{ANY} of"),
    (re.compile(r"(\bjob[ =]|-job|^job {7})\d+\b"), rf"\1{ANY}"),
    (re.compile(r"\bh(\d) 10\.203\.\d+\.\d+:\d+"), rf"h\1 {ANY}"),
    (re.compile(r"\b(\d+\.\d+\.\d+\.\d+):\d+\b"), rf"\1:{ANY}"),
    (re.compile(r"\b10\.203\.\d+\."), f"10.203.{ANY}."),  # a bed takes the first subnet that is free
    (re.compile(r"\b\d+(?:\.\d+)? ([KMGT]i?B) (free|of disk)\b"), rf"{ANY} \1 \2"),
)

# A line of several ranks is one where they wrote it within half a second, which a loaded machine may not allow.
RANKS = re.compile(r"^\[(?:\d+ ranks|\S+ \d+(?: \+\d+ ranks?)?)\] ")

RANKS_FOLDED = re.compile(r"^\[ranks\] ")

# Torch's word on a resolver that does not know the hosts of a bed: it comes at any moment, and pages do not show it.
BED_NOISE = re.compile(
    r"\[c10d\] The hostname of the client socket cannot be retrieved|torch cannot look up the hostname of a peer"
)


# Lines about the time that a run took. Whether there are any depends on that time: a page may leave them out.
OF_TIME = re.compile(r"^(?:goodput {3}|first step after )")


def normal(line: str) -> str:
    """Write what varies between runs as `…`."""
    for pattern, written in VARYING:
        line = pattern.sub(written, line)
    return line.rstrip()


def fits(shown: str, printed: str) -> bool:
    """Tell whether a printed line is as the page shows it; `…` there is any text."""
    parts = [re.escape(part) for part in normal(shown).split(ANY)]
    return re.fullmatch(".*".join(parts), normal(printed)) is not None


def drift(shown: Sequence[str], printed: Sequence[str]) -> str | None:
    """Give a diff of what is shown and what was printed; None where they agree.

    A shown line that is only `…` stands for any number of lines. Blank lines at the end count for nothing.
    """
    wanted, got = _comparable(shown, printed)
    matched, complete = _matched(wanted, got)
    if complete:
        return None
    agreed = [matched.get(at, _as_shown(line, wanted)) for at, line in enumerate(got)]
    lines = difflib.unified_diff(wanted, agreed, "shown", "printed", lineterm="", n=2)
    return "\n".join(lines)


def with_figures(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """Give what is shown with the figures that were printed, in place of `…` and of those of another run.

    Only where the next run's figures fit as well: what a page shows stays true of any run.
    """
    wanted, got = _comparable(shown, printed)
    printed_for = {line: got[at] for at, line in _matched(wanted, got)[0].items()}
    figures = []
    for line in shown:
        ranks = RANKS.match(line)
        new = printed_for.get(RANKS.sub("[ranks] ", line.rstrip()), line)
        if ranks is not None:
            new = ranks[0] + RANKS_FOLDED.sub("", new) if new != line else line
        figures.append(new if normal(new) == normal(line) else line)
    return figures


def _comparable(shown: Sequence[str], printed: Sequence[str]) -> tuple[list[str], list[str]]:
    """Give the lines of both without what a page need not show."""
    wanted = _folded(_without_blank_end(shown))
    shows_time = any(OF_TIME.match(line) for line in wanted)
    heard = [line for line in printed if not BED_NOISE.search(line)]
    return wanted, _folded(_without_blank_end([line for line in heard if shows_time or not OF_TIME.match(line)]))


def _matched(wanted: Sequence[str], got: Sequence[str]) -> tuple[dict[int, str], bool]:
    """Give the shown line by the place of the printed one, and whether all that is shown was printed."""
    segments = _segments(wanted)
    ended_by_any = bool(wanted) and wanted[-1].strip() == ANY
    position = 0
    matched: dict[int, str] = {}
    complete = True
    for number, segment in enumerate(segments):
        is_last = number == len(segments) - 1
        starts = range(position, len(got) - len(segment) + 1)
        if number == 0:
            starts = range(min(1, len(got) - len(segment) + 1))
        if is_last and not ended_by_any:
            last = len(got) - len(segment)
            starts = range(last, last + 1) if last in starts else range(0)
        start = next((at for at in starts if _all_fit(segment, got[at : at + len(segment)])), None)
        if start is None:
            complete = False
            break
        matched |= {start + offset: line for offset, line in enumerate(segment)}
        position = start + len(segment)
    return matched, complete


def _segments(wanted: Sequence[str]) -> list[list[str]]:
    """Split at lines of only `…`: the first segment begins the output, the last ends it."""
    segments: list[list[str]] = [[]]
    for line in wanted:
        if line.strip() == ANY:
            segments.append([])
        else:
            segments[-1].append(line)
    return segments


def _all_fit(segment: Sequence[str], printed: Sequence[str]) -> bool:
    return all(fits(want, line) for want, line in zip(segment, printed, strict=True))


def _as_shown(line: str, wanted: Sequence[str]) -> str:
    """Give a printed line as the page has it, so that a diff shows what really differs."""
    return next((want for want in wanted if want.strip() not in ("", ANY) and fits(want, line)), line)


def _folded(lines: Sequence[str]) -> list[str]:
    """Write lines of ranks without their names, and what several ranks wrote side by side once."""
    folded: list[str] = []
    for line in lines:
        text = RANKS.sub("[ranks] ", line)
        if text != line and text in folded[-4:]:
            continue
        folded.append(text)
    return folded


def _without_blank_end(lines: Sequence[str]) -> list[str]:
    kept = [line.rstrip() for line in lines]
    while kept and not kept[-1]:
        kept.pop()
    return kept
