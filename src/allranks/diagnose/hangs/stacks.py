"""Python stacks as faulthandler and py-spy print them (pure)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..words import place_of_frame

RUNNER = "<allranks "  # how the files of the runner's frames begin (agent/runner.py, NAME)
_FAULTHANDLER = re.compile(r'\s+File "(?P<file>[^"]*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
_HEAD = re.compile(r"(?P<current>Current thread|Thread) 0x[0-9a-f]+(?![0-9a-f]).*\(most recent call first\):")
_PY_SPY_HEAD = re.compile(
    r"^Thread (?P<id>\S+) \((?P<state>idle|active[^)\n]*)\)(?:: \"?(?P<name>[^\"\n]*)\"?)?", re.MULTILINE
)
_PY_SPY_PROCESS = re.compile(r"^Process (\d+):", re.MULTILINE)
# With --native py-spy puts calls of C, C++, Fortran, Rust and Cython between the Python ones: a library, or a source.
_NATIVE = re.compile(r"\.so(\.[\d.]+)?$|\.(c|cc|cpp|cxx|cu|h|hpp|f|f90|rs|pyx|S)$|^\?+$|^python[\d.]*$|^\[vdso\]$")
# What stands between the code that a program calls and the kernel, and between Python and that code.
_SYSTEM = re.compile(r"^(libc|libpthread|ld-linux|ld-musl|libm|librt|\[vdso)[.\-\]]|^libc$")
_GLUE = re.compile(r"^(libffi|libpython|python\d|_ctypes|callproc\.c|call\.c|ceval\.c|methodobject\.c|\?$)")


@dataclass(frozen=True)
class Frame:
    """One call; `line` is 0 where it is not known."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return place_of_frame(self.file, self.line, self.function)


Stack = tuple[Frame, ...]
LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen", "<string>")


def innermost_of_program(frames: Sequence[Frame]) -> Frame | None:
    """Find the innermost frame of the program's own, else of Python; None without one. The innermost comes first."""
    python = [frame for frame in frames if not _is_native(frame)]
    of_program = [frame for frame in python if not any(part in frame.file for part in LIBRARY)]
    return next(iter((*of_program, *python)), None)


def main_stack(text: str) -> Stack:
    """Read the main thread's calls, the innermost first; empty where the text has none.

    Frames of the runner below the program are left out, as in tracebacks.

    faulthandler's signal handler runs in the main thread, which it then calls the current one; else the main
    thread is printed last. py-spy names it MainThread.
    """
    stack = _py_spy(text) if _PY_SPY_HEAD.search(text) else _faulthandler(text)
    return tuple(frame for frame in stack if not frame.file.startswith(RUNNER)) or stack


def thread_stacks(text: str) -> list[Stack]:
    """Read the calls of all threads, as `main_stack` reads those of one."""
    threads: list[list[Frame]] = []
    for line in text.splitlines():
        if _HEAD.match(line) or _PY_SPY_HEAD.match(line):
            threads.append([])
            continue
        found = _FAULTHANDLER.match(line)
        frame = _frame(found) if found else _read_py_spy(line)
        if threads and frame is not None and not _is_native(frame) and not frame.file.startswith(RUNNER):
            threads[-1].append(frame)
    return [tuple(frames) for frames in threads if frames]


def _frame(found: re.Match[str]) -> Frame:
    return Frame(found["file"], int(found["line"].strip("?") or 0), found["function"].strip())


def _faulthandler(text: str) -> Stack:
    threads: list[tuple[bool, list[Frame]]] = []
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            threads.append((head["current"].startswith("Current"), []))
        elif threads and (found := _FAULTHANDLER.match(line)):
            threads[-1][1].append(_frame(found))
    current_stacks = [frames for is_current, frames in threads if is_current and frames]
    stacks = current_stacks or [frames for _, frames in threads]
    return tuple([[], *filter(None, stacks)][-1])


def native_call(text: str) -> str:
    """Name the main thread's call below Python by py-spy's native frames: `snooze (slow.so)`; empty without one.

    It is the innermost that is neither the C library's nor Python's own, else the outermost of the C library's.
    """
    above = list(itertools.takewhile(_is_native, py_spy_frames(text)))
    of_program = [k for k in above if not _SYSTEM.search(_name(k)) and not _GLUE.search(_name(k))]
    if of_program:
        return _native_words(of_program[0])
    system = list(itertools.takewhile(lambda k: _SYSTEM.search(_name(k)), above))
    return "".join(map(_native_words, system[-1:]))


def _native_words(frame: Frame) -> str:
    where = _name(frame)
    if frame.line:
        where += f":{frame.line}"
    if frame.function.startswith("0x"):
        return f"({where})"
    return f"{frame.function} ({where})"


def _name(frame: Frame) -> str:
    return frame.file.rsplit("/", 1)[-1]


def _is_native(frame: Frame) -> bool:
    return _NATIVE.search(_name(frame)) is not None


def _py_spy(text: str) -> Stack:
    return tuple(frame for frame in py_spy_frames(text) if not _is_native(frame))


def py_spy_frames(text: str) -> list[Frame]:
    """Read the main thread's frames, native too. It is named MainThread, or has no name and the process's number."""
    frames: list[Frame] = []
    inside = False
    process = _PY_SPY_PROCESS.search(text)
    for line in text.splitlines():
        head = _PY_SPY_HEAD.match(line)
        if head:
            unnamed = head["name"] is None and process is not None and head["id"] == process[1]
            inside = head["name"] == "MainThread" or unnamed
        elif inside and (frame := _read_py_spy(line)) is not None:
            frames.append(frame)
    return frames


def _read_py_spy(line: str) -> Frame | None:
    """Read `    load (/work/data.py:41)`; a C++ name has blanks and brackets too."""
    function, mark, place = line.strip().rpartition(" (")
    if not mark or not line[:1].isspace() or not place.endswith(")"):
        return None
    file, colon, number = place[:-1].rpartition(":")
    if colon and number.isdecimal():
        return Frame(file, int(number), function)
    return Frame(place[:-1], 0, function)
