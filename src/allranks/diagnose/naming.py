"""Lists of words and of ranks as people write them, and the names of signals (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# signal(7) of Linux; this module may stand on another system, so its own numbers are of no use
SIGNALS = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
    10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ",
}  # fmt: skip


def signal_name(number: int) -> str:
    """SIGTERM for 15."""
    return SIGNALS.get(number, f"signal {number}")


def listed(words: Sequence[str]) -> str:
    """a · a and b · a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def numbers(ranks: Iterable[int]) -> str:
    """0-3, 6 and 7."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][-1] == rank - 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    parts = [f"{s[0]}-{s[-1]}" if len(s) > 2 else None for s in spans]
    words = [w for s, part in zip(spans, parts, strict=True) for w in ([part] if part else [str(r) for r in s])]
    return listed(words)
