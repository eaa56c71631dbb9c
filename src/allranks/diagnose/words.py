"""How ranks, nodes, lines and times are written in a verdict (pure)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from allranks.text import cut, first_line, group, join_words, name_with, plural, ranges, with_reason

from .exceptions import ExceptionLink, carries_worker, raised_in_thread

if TYPE_CHECKING:
    from .incident import Incident

LINE = 240  # characters
ABORT = 6  # SIGABRT, as the agents of all nodes number it
# Torch prints the one at every start where addresses have no names (c10d/socket.cpp), the other with each error of C++:
# neither means anything.
_IDLE = re.compile(r"hostname of the client socket cannot be retrieved|(?:^|: )frame #\d{1,4}: ")


# The store's connection ended inside init_process_group: what that leaves, and what decides between it.
LEFT_AT_START = (
    "Still possible: rank 0 ended and no line here says why, another program answers on the master's port, or the "
    "network cuts the connection"
)
DECIDE_AT_START = (
    "read rank 0's log first. `allranks check --hosts HOSTS` tries the master's port from every node, and "
    "`allranks test --hosts HOSTS --suite staged` starts a process group of each node, of pairs and of all"
)
LAX_SCRIPT = "see its pipes, `&` and `|| true`, and begin it with `set -eo pipefail`"
# Calls of torch/distributed that stand before the first step.
STARTING_CALLS = frozenset({"init_process_group", "rendezvous", "_store_based_barrier", "_create_c10d_store"})

# signal(7) of Linux; this module may stand on another system, so its own numbers are of no use
SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
}


def signal_name(number: int) -> str:
    """Name a signal: `SIGTERM` for 15."""
    return SIGNALS.get(number, f"signal {number}")


def signal_of_code(code: int) -> int | None:
    """Give the signal that an exit code tells: a shell makes 128 + N of it."""
    if code - 128 not in SIGNALS:
        return None
    return code - 128


def numbers(ranks: Iterable[int]) -> str:
    """Write numbers as a sentence does: `0-3, 6 and 7`."""
    words: list[str] = []
    for low, high in ranges(ranks):
        if high > low + 1:
            words.append(f"{low}-{high}")
        else:
            words += [str(rank) for rank in range(low, high + 1)]
    return join_words(words)


def one_line(text: str, limit: int = LINE) -> str:
    """Give the first line that says something, cut to a limit."""
    return first_line(text, limit)


def short(text: str, limit: int = LINE) -> str:
    """Put all of a text on one line, cut to a limit."""
    return cut(" ".join(text.split()), limit)


# What C++ and CUDA add to every message (c10/util/Backtrace.cpp, c10/cuda/CUDAException.cpp): from there on no news.
_BOILERPLATE = re.compile(
    r"Exception raised from |frame #\d|CUDA kernel errors might be|Search for `cuda\w+' in http|"
    r"Traceback \(most recent call"
)
JOINED = 6  # lines of a text that are put on one


def summary(text: str, limit: int = LINE) -> str:
    """Put an exception's text on one line: without build paths, and with what a headline announces."""
    text = re.sub(r"^\[(enforce fail at )?/\S+/([\w.]+:\d+)\] ?", r"[\2] ", text.strip())
    differ = re.search(r"differ in the following aspects:\s*(.+)", text, re.DOTALL)
    if differ:
        return f"Detected mismatch between collectives: {one_line(' '.join(differ[1].split()), limit)}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = list(itertools.takewhile(lambda line: not _BOILERPLATE.match(line), lines[:JOINED])) or lines[:1]
    sentence = "".join(telling[:1])
    for line in telling[1:]:
        sentence += (" " if sentence[-1] in ":,;.([{=" else "; ") + line
    return one_line(sentence, limit)


def last_lines(text: str, count: int = 3) -> tuple[str, ...]:
    """Give the last lines of a log that say something; a progress bar counts with its last state."""
    lines = [line.rsplit("\r", 1)[-1].rstrip() for line in text.rstrip().split("\n")]
    telling = [line for line in lines if line.strip() and not _IDLE.search(line)]
    return tuple(one_line(line) for line in telling[-count:])


def name_ranks(incident: Incident, ranks: Iterable[int]) -> str:
    """Name ranks with their nodes: `rank 3 on h2`, `ranks 0 and 1 on h1 and ranks 2 and 3 on h2`."""
    return name_by_node(ranks, incident.node_of)


def name_by_node(ranks: Iterable[int], node_of: Callable[[int], str]) -> str:
    """Name ranks as `name_ranks` does, where the nodes come from elsewhere."""
    listed = sorted(ranks)
    groups = group(listed, node_of)
    if len(groups) > 4:
        return f"{count_ranks(listed)} (on {len(groups)} nodes)"
    return join_words([on_node(count_ranks(of_node), node) for node, of_node in groups.items()])


def count_ranks(ranks: Collection[int]) -> str:
    """Name ranks: `rank 3`, `ranks 0-3, 6 and 7`."""
    return f"{plural(len(ranks), 'rank')} {numbers(ranks)}"


def on_node(name: str, node: str | None) -> str:
    """Add the node to a name: `rank 3 on h2`; the name alone where the node is not established."""
    return f"{name} on {node}" if node else name


def name_nodes(nodes: Sequence[str]) -> str:
    """Name nodes, of many only the first: `h1, h2 and h3`."""
    return join_words(nodes, limit=13)


def utc(t: float) -> str:
    """Write a unix time as a date and time that names its zone."""
    return datetime.fromtimestamp(t, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def controller_ended(t: float) -> str:
    """Say that the controller of a run ended before the run, and that nothing says how."""
    return f"the controller (allranks run) ended at {utc(t)}, before the run did, and no other took it over"


def place(raised: ExceptionLink) -> str:
    """Write where an exception was raised, `train.py:41 in step`; empty where it is not known."""
    if not raised.file or raised.line is None:
        return ""
    return place_of_frame(raised.file, raised.line, raised.function)


def place_of_frame(file: str, line: int | str, function: str) -> str:
    """Write a frame's place, `train.py:41 in step`; without the function for a module's own lines."""
    within = f" in {function}" if function and function != "<module>" else ""
    return f"{file.rsplit('/', 1)[-1]}:{line}{within}"


def without_numbers(text: str) -> str:
    """Remove from a text what two ranks say differently: numbers and addresses."""
    return re.sub(r"0x[0-9a-fA-F]+|[0-9]+", "#", text)


def exception(raised: ExceptionLink, limit: int = LINE) -> str:
    """Write an exception on one line: `ValueError: bad batch`."""
    text = summary(raised.text, limit)
    return with_reason(raised.type, text)


def placed(raised: ExceptionLink, limit: int = LINE) -> str:
    """Write an exception with its place: `ValueError: bad batch (train.py:41 in step)`."""
    return name_with(exception(raised, limit), place(raised))


def thread_words(tail: str, sentence: str = "") -> str:
    """Write what a thread of the rank had raised before, as the rest of a sentence; empty where none had.

    Empty also where the sentence says it already (`sentence`: its text). `tail` is the end of the rank's log.
    """
    raised = raised_in_thread(tail)
    if raised is None:
        return ""
    inner = [link for link in raised.links if not carries_worker(link)][-1]
    if sentence and inner.text == sentence:
        return ""
    return f", and before that its thread {raised.thread} had raised {placed(inner, 160)}"


def further_words(incident: Incident, rank: int) -> str:
    """Write what else is to say of a rank's process, as the rest of a sentence.

    It had become another program by exec, or it outlived its program.
    """
    words = ""
    if rank in incident.became:
        words = f", after it had become another program by exec: {incident.became[rank]}"
    left = incident.left.get(rank)
    if left is not None:
        words += ", and its process went on, waiting for threads that still ran"
        if left.fact.threads:
            words += f": {join_words(left.fact.threads)}"
    return words


def trace_lines(link: ExceptionLink, traceback: str) -> tuple[str, ...]:
    """Write the evidence: where it was raised (its full path), the source line there, and the exception."""
    if not link.file or link.line is None:
        before = last_lines(traceback, 3)[:-1] if traceback else ()
        return (*before, exception(link))
    directory = link.file.rpartition("/")[0]
    path = f"{directory}/" if directory or link.file.startswith("/") else ""
    head = f'File "{link.file}", line {link.line}, in '
    pairs = itertools.pairwise(traceback.splitlines())
    source = [one_line(after) for line, after in pairs if head in line and after.startswith(" ")]
    return (f"{path}{place(link)}", *source[-1:], exception(link))
