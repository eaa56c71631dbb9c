"""Python stacks as faulthandler and py-spy print them (pure)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..words import place_of_frame

RUNNER = "<allranks "  # how the files of the runner's frames begin (agent/runner.py, NAME)
_FAULTHANDLER = re.compile(r'\s+File "(?P<file>[^"]*)", line (?P<line>\d{1,9}|\?\?\?) in (?P<function>.*)')
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
    """Find the innermost frame of the program's own, else of a library, else of Python; None without one.

    The innermost comes first. A deep import has none of the program's own: faulthandler prints 100 frames.
    """
    python = [frame for frame in frames if not _is_native(frame)]
    of_program = [frame for frame in python if not any(part in frame.file for part in LIBRARY)]
    of_library = [frame for frame in python if not frame.file.startswith("<")]
    return next(iter((*of_program, *of_library, *python)), None)


def main_stack(text: str) -> Stack:
    """Read the main thread's calls, the innermost first; empty where the text has none."""
    return tuple(_without_runner([frame for frame in _main_thread(text) if not _is_native(frame)]))


def thread_stacks(text: str) -> list[Stack]:
    """Read the calls of all threads, as `main_stack` reads those of one."""
    stacks = (
        tuple(frame for frame in frames if not _is_native(frame) and not frame.file.startswith(RUNNER))
        for _, frames in _threads(text)
    )
    return [stack for stack in stacks if stack]


def main_frames(text: str) -> list[Frame]:
    """Read the main thread's frames, native ones too."""
    return _without_runner(_main_thread(text))


def _without_runner(frames: list[Frame]) -> list[Frame]:
    """Leave out the runner's frames, which are below the program; before it has begun they are all there is."""
    return [frame for frame in frames if not frame.file.startswith(RUNNER)] or frames


def _main_thread(text: str) -> list[Frame]:
    """Choose the main thread.

    faulthandler's signal handler runs in it, so that it is the current one; else it is printed last.
    """
    threads = _threads(text)
    main = [frames for is_main, frames in threads if is_main and frames]
    if not main and not _PY_SPY_HEAD.search(text):
        main = [frames for _, frames in threads if frames]
    return [[], *main][-1]


def _threads(text: str) -> list[tuple[bool, list[Frame]]]:
    """Read the frames of each thread, and whether it is the main one.

    py-spy names that MainThread, or it has no name and the process's number.
    """
    threads: list[tuple[bool, list[Frame]]] = []
    process = _PY_SPY_PROCESS.search(text)
    for line in text.splitlines():
        head = _HEAD.match(line)
        spied = _PY_SPY_HEAD.match(line)
        if head:
            threads.append((head["current"].startswith("Current"), []))
        elif spied:
            unnamed = spied["name"] is None and process is not None and spied["id"] == process[1]
            threads.append((spied["name"] == "MainThread" or unnamed, []))
        elif threads and (frame := _read_frame(line)) is not None:
            threads[-1][1].append(frame)
    return threads


def _read_frame(line: str) -> Frame | None:
    """Read `  File "/work/data.py", line 41 in load`, or `    load (/work/data.py:41)`."""
    found = _FAULTHANDLER.match(line)
    if found:
        return Frame(found["file"], int(found["line"].strip("?") or 0), found["function"].strip())
    function, mark, place = line.strip().rpartition(" (")  # of py-spy; a C++ name has blanks and brackets too
    if not mark or not line[:1].isspace() or not place.endswith(")"):
        return None
    file, colon, number = place[:-1].rpartition(":")
    if colon and number.isdecimal() and len(number) < 10:
        return Frame(file, int(number), function)
    return Frame(place[:-1], 0, function)


def native_call(text: str) -> str:
    """Name the main thread's call below Python by py-spy's native frames: `snooze (slow.so)`; empty without one.

    It is the innermost that is neither the C library's nor Python's own, else the outermost of the C library's.
    """
    above = list(itertools.takewhile(_is_native, _main_thread(text)))
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
