"""Python stacks as faulthandler and py-spy print them (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FAULTHANDLER = re.compile(r'\s+File "(?P<file>[^"]*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
_HEAD = re.compile(r"(?P<current>Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")
_PY_SPY = re.compile(r"\s+(?P<function>\S+) \((?P<file>.+):(?P<line>\d+)\)")
_PY_SPY_HEAD = re.compile(r"Thread (?P<id>\S+) \((?P<state>[^)]*)\): \"?(?P<name>[^\"]*)\"?")


@dataclass(frozen=True)
class Frame:
    """One call; `line` is 0 where it is not known."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        within = f" in {self.function}" if self.function != "<module>" else ""
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}{within}"


Stack = tuple[Frame, ...]


def main_stack(text: str) -> Stack:
    """The main thread's calls, the innermost first; empty where the text has none.

    faulthandler's signal handler runs in the main thread, which it then calls the current one; else the main
    thread is printed last. py-spy names it MainThread.
    """
    return _py_spy(text) if _PY_SPY_HEAD.search(text) else _faulthandler(text)


def _faulthandler(text: str) -> Stack:
    found: list[tuple[bool, list[Frame]]] = []
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            found.append((head["current"].startswith("Current"), []))
        elif found and (frame := _FAULTHANDLER.match(line)):
            number = int(frame["line"]) if frame["line"].isdigit() else 0
            found[-1][1].append(Frame(frame["file"], number, frame["function"].strip()))
    stacks = [frames for current, frames in found if current and frames] or [f for _, f in found if f]
    return tuple(stacks[-1]) if stacks else ()


def _py_spy(text: str) -> Stack:
    frames: list[Frame] = []
    inside = False
    for line in text.splitlines():
        head = _PY_SPY_HEAD.match(line)
        if head:
            inside = head["name"] == "MainThread"
        elif inside and (frame := _PY_SPY.match(line)):
            frames.append(Frame(frame["file"], int(frame["line"]), frame["function"]))
    return tuple(frames)
