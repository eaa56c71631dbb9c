"""A rank ended by its own failure: an exception, a crash in native code, a signal from outside, or an exit code.

The first rank that failed of each kind is at fault, with those that failed alike; failures.py has set aside what
follows from a peer's end.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from allranks.settings.tools import is_program
from allranks.text import name_with, plural, with_reason

from ..candidate import Candidate, Strength
from ..exceptions import ExceptionLink, is_of_library
from ..hangs.compared import UNLIKE_CALLS, UNLIKE_SHAPES, odd_call
from ..hangs.stacks import main_stack
from ..incident import Incident, RankEnd
from ..out_of_memory import gpu_levers, host_levers, read_gpu, setting_of
from ..signatures import lost_peer, row_of_exception
from ..words import (
    ABORT,
    LAX_SCRIPT,
    exception,
    further_words,
    last_lines,
    name_ranks,
    one_line,
    place,
    placed,
    signal_name,
    thread_words,
    trace_lines,
)
from ..worlds import read_worlds
from .failures import (
    BUS,
    CLOCK_ERROR,
    KILL,
    LOST_ENVIRONMENT,
    NO_COMMAND,
    NO_PAGE,
    NO_SCRIPT,
    NOT_ON_PATH,
    NOT_STARTED,
    SHAPES,
    USAGE,
    AlikeFailures,
    Failure,
    FailureRole,
    first_of,
    no_module,
    refuses_arguments,
    telling,
)
from .hung import DESTROYED, called_at, place_of

_BY_WRONG_COUNTS = ("collective-mismatch", "uneven-data", "unknown")  # hangs of ranks that all wait
NO_GROUP = "Default process group has not been initialized"  # torch, distributed_c10d.py, _get_default_group
SHORT = 160  # characters of a text in the sentence; the evidence has more


def _rule(
    kind: str, read: Callable[[Incident, AlikeFailures], Candidate]
) -> Callable[[Incident, Sequence[Failure]], Candidate | None]:
    def apply(incident: Incident, failed: Sequence[Failure]) -> Candidate | None:
        group = first_of(failed, kind, incident)
        if group is None:
            return None
        first = group.first
        reading = read(incident, group)
        where = group.where()
        culprits = frozenset() if group.is_shared else group.ranks
        if reading.culprits:  # it names others
            culprits = reading.culprits
            where = place_of(incident, culprits)
        further = further_words(incident, first.rank)
        return replace(
            reading,
            strength=Strength.ROOT if first.role is FailureRole.ROOT else Strength.WEAK,
            message=f"{group.who(incident)} {reading.message}{further}{group.also(incident)}{_hidden(first.exit)}",
            evidence=reading.evidence or last_lines(first.exit.tail),
            culprits=culprits,
            where=where,
            t=first.t,
        )

    return apply


def _hidden(end: RankEnd) -> str:
    """Say that a script has hidden what failed, and how it would show it."""
    if not end.hides:
        return ""
    return f". The script hid that and ended with code 0: {LAX_SCRIPT}"


def out_of_memory(incident: Incident, end: RankEnd, head: str) -> Candidate | None:
    """Blame memory where the kernel has killed a process on the node meanwhile; None where its counter stood still."""
    if not incident.oom_kills(end.node):
        return None
    message = f"{head}: the kernel ran out of memory on {end.node}, or at the limit of a control group there"
    remedy = _out_of_host_memory(incident, end)
    return Candidate("host-out-of-memory", 0.85, message, remedy, evidence=_memory_evidence(incident, end))


def _memory_evidence(incident: Incident, end: RankEnd) -> tuple[str, ...]:
    counter = f"out-of-memory kills on {end.node} during the attempt: {incident.oom_kills(end.node)}"
    return (counter, *last_lines(end.tail, 2))


def _out_of_host_memory(incident: Incident, end: RankEnd) -> str:
    return host_levers(setting_of(incident, end), end.node, incident.memory.get(end.node))


# -- exceptions ------------------------------------------------------------------------------------------


WITH_PYTHONPATH = (
    "--env PYTHONPATH hands on the PYTHONPATH that is set here, where the nodes have its directories. Else install the "
    "module on every node, or ship it with --sync"
)


def _raised(incident: Incident, group: AlikeFailures) -> Candidate:
    """Write `raised ValueError: bad batch (train.py:41 in step, pid 77)`, with the cause that the text tells."""
    first = group.first
    raised = first.raised
    quoted = first.quoted
    assert raised is not None and quoted is not None
    row = first.signature
    cause = "program-exception"
    confidence = 0.85
    remedy = ""
    predicate = f"raised {exception(quoted, SHORT)}"
    if row is not None:
        cause = row.cause
        confidence = row.confidence
        remedy = row.fix
        if row.means:
            predicate += f", because {row.means}"
    is_killed = any("Killed" in link.text for link in raised.links)
    if cause == "dataloader-worker-killed" and first.exit.fact.oom_kills and is_killed:
        cause = "host-out-of-memory"
    if cause == "cuda-out-of-memory":
        remedy = gpu_levers(read_gpu(quoted.text), setting_of(incident, first.exit), read_worlds([quoted.text]))
    elif cause == "host-out-of-memory":
        remedy = _out_of_host_memory(incident, first.exit)
    elif cause == "missing-module" and "PYTHONPATH" in incident.withheld:
        remedy = WITH_PYTHONPATH
    if first.from_log:
        confidence *= 0.8
    worker = quoted.worker or (raised.thread and f"thread {raised.thread}")
    at = ", ".join(filter(None, (place(quoted), worker and f"in {worker}", group.pid)))
    predicate = name_with(predicate, at)
    departed = incident.departed.get(first.rank)
    if NO_GROUP in quoted.text and departed is not None and departed.t < first.t:
        called = name_with("destroy_process_group", called_at(incident, [first.rank]))
        predicate += f", as it had called {called} before"
        remedy = DESTROYED
    evidence = trace_lines(quoted, raised.traceback)
    inner, outer = _neighbours(first, quoted)
    if inner is not None or outer is not None:
        evidence = (evidence[0], evidence[-1])
    if inner is not None:
        predicate += f", because of {placed(inner, SHORT)}"
        evidence += (f"because of {placed(inner)}",)
    if outer is not None:
        predicate += f", which led to {placed(outer, SHORT)}"
        evidence += (f"which led to {placed(outer)}",)
    predicate += thread_words(first.exit.tail, quoted.text)
    return Candidate(cause, confidence, predicate, remedy, evidence=evidence)


def _neighbours(failure: Failure, quoted: ExceptionLink) -> tuple[ExceptionLink | None, ExceptionLink | None]:
    """Find what the quoted exception came from and what it led to, without what repeats it or tells of a peer."""
    assert failure.raised is not None
    links = telling(failure.raised)
    inner = links[-1]
    outer = links[0]
    of_peer = lost_peer(outer.type, outer.text) and row_of_exception(outer.type, outer.text) is None
    return (
        None if _is_same(inner, quoted) else inner,
        None if _is_same(outer, quoted) or of_peer else outer,
    )


def _is_same(one: ExceptionLink, other: ExceptionLink) -> bool:
    return (one.name, one.text) == (other.name, other.text)


# What numbers that are wrong can end a program with: a count, an index, a loss that is not finite.
_BY_WRONG_NUMBERS = frozenset(
    {
        *("AssertionError", "FloatingPointError", "IndexError", "MemoryError", "OverflowError", "RuntimeError"),
        *("UnicodeDecodeError", "UnpicklingError", "ValueError", "ZeroDivisionError"),
    }
)


def called_unlike(incident: Incident, failed: Sequence[Failure]) -> Candidate | None:
    """Name ranks that called a collective unlike the others, where what they received may have ended the program."""
    finding = next((f for f in incident.findings if f.id in (UNLIKE_SHAPES, UNLIKE_CALLS)), None)
    if finding is None:
        return None
    t = _followed(incident, failed)
    if t is None or (incident.hang is not None and finding.id == UNLIKE_CALLS):
        return None  # ranks that stand in another operation are the hang itself, and its message says where they stand
    return Candidate(
        "collective-shape-mismatch" if finding.id == UNLIKE_SHAPES else "collective-mismatch",
        0.9,
        f"{finding.message}{_then_raised(incident, failed)}",
        finding.remedy,
        t=t - 2 * CLOCK_ERROR,  # it was called before
        where=finding.where,
        evidence=tuple(line for f in failed[:1] for line in last_lines(f.exit.tail, 1)),
        culprits=frozenset(() if finding.where.rank is None else (finding.where.rank,)),
    )


def _then_raised(incident: Incident, failed: Sequence[Failure]) -> str:
    """Write `. Then rank 2 on h2 raised ValueError: loss is nan`."""
    first = next((f for f in failed if f.role is FailureRole.ROOT and f.quoted is not None), None)
    if first is None or first.quoted is None:
        return ""
    return f". Then {name_ranks(incident, [first.rank])} raised {exception(first.quoted, SHORT)}"


def _followed(incident: Incident, failed: Sequence[Failure]) -> float | None:
    """Give when the failure came that wrong numbers may be behind; None where the failure has another reason."""
    roots = [f for f in failed if f.role is FailureRole.ROOT]
    if incident.hang is not None:
        if incident.hang.cause not in _BY_WRONG_COUNTS:
            return None
        return incident.detected_t
    if any(f.signature is not None or f.quoted is None or f.quoted.name not in _BY_WRONG_NUMBERS for f in roots):
        return None
    return min((f.t for f in failed if f.role is not FailureRole.ENDED), default=None)


# -- crashes ---------------------------------------------------------------------------------------------

_OTHER_SIZE = re.compile(re.escape(SHAPES) + r"\.? (\d+) vs (\d+)")
_LAST_WORDS = re.compile(
    r"^(?:Fatal Python error: [^\n]+|terminate called [^\n]+|  what\(\): [^\n]{1,240})", re.MULTILINE
)


def _crashed(incident: Incident, group: AlikeFailures) -> Candidate:
    first = group.first
    tail = first.exit.tail
    signal = signal_name(first.signal or 0)
    cause = "segfault-native"
    confidence = 0.9
    what = f"crashed with {signal} in native code"
    late: frozenset[int] = frozenset()
    if first.signature is not None:
        cause = first.signature.cause
        confidence = first.signature.confidence
        # no recorder shows which of the two is odd
        what = f"{_got(tail)}: it and the rank that sent them called it with different shapes"
        odd = odd_call(incident.calls, group.ranks, incident.all_ranks)
        if odd is not None:
            late = odd.culprits
            cause = odd.cause
            what = _got(tail)
            if late:
                confidence = max(confidence, 0.9)
                what += f", as {name_ranks(incident, late)} called it unlike the others"
            what += f": {odd.message}"
    elif first.role is FailureRole.UNEXPLAINED:
        cause = "rank-exited-early"
        confidence = 0.6
        what = "left the program without destroy_process_group and aborted (SIGABRT) on the way out"
    elif first.signal == BUS and re.search(r"/dev/shm|shared memory", tail):
        cause = "shm-too-small"
        confidence = 0.75
        what = f"crashed with {signal}: its shared memory has no room behind it"
    elif first.signal == BUS:
        confidence = 0.6  # a retry may help, and a full /dev/shm is not established
        what = f"crashed with {signal}: {NO_PAGE}"
    elif first.signal == ABORT:
        what = f"aborted ({signal}) in native code"
    evidence = tuple(line.strip() for line in _LAST_WORDS.findall(tail)[-3:])
    words = name_with(f"{what}{_python_line(tail)}", group.pid)
    return Candidate(cause, confidence, words, evidence=evidence, culprits=late)


def _got(tail: str) -> str:
    """Read Gloo's check (pair.cc): the bytes that came, and those there is room for."""
    match = _OTHER_SIZE.search(tail)
    if match:
        return f"got {match[1]} bytes where the collective expects {match[2]}"
    return "got a message of another size than the collective expects"


def _python_line(tail: str) -> str:
    """Say where Python was in the thread that crashed, if faulthandler tells it."""
    of_user = (frame for frame in main_stack(tail) if not is_of_library(frame.file))
    return "".join(f" at {frame}" for frame in itertools.islice(of_user, 1))


# -- signals ---------------------------------------------------------------------------------------------

# agent/runner_ray.py says which process of Ray was killed, and ends alike.
_OF_RAY = re.compile(r"^ray-(?:head|worker): ([a-z_ ]+) \(pid (\d+)\) was killed", re.MULTILINE)


def _killed(incident: Incident, group: AlikeFailures) -> Candidate:
    """Read a signal's end; its sender is not named, as the program may have sent it to itself."""
    first = group.first
    end = first.exit
    was = plural(1 if group.scope == "all" else len(group.ranks), "was", "were")
    of_ray = _OF_RAY.search(end.tail)
    pid = f"{of_ray[1]}, pid {of_ray[2]}" if of_ray else group.pid
    how = name_with(f"killed by {signal_name(first.signal or 0)}", pid)
    if first.raised is not None:
        within = ", ".join(filter(None, (place(first.raised), group.pid)))
        how = name_with(f"interrupted by {first.raised.type}", within)
    head = f"{was} {how}, and not by allranks"
    if first.signal != KILL:
        return Candidate("rank-killed", 0.7, f"{head}: sender unknown{thread_words(end.tail)}")
    of_memory = out_of_memory(incident, end, head)
    if of_memory is not None:
        return of_memory
    why = "sender unknown, and the kernel's out-of-memory counter did not move"
    return Candidate("rank-killed", 0.7, f"{head}: {why}", evidence=_memory_evidence(incident, end))


# -- exit codes ------------------------------------------------------------------------------------------


RUNNER = "/runner.py"


def _exited(incident: Incident, group: AlikeFailures) -> Candidate:
    """Read a code without an exception: sys.exit, a refused argument, an absent script, a shell's 127."""
    end = group.first.exit
    code = end.fact.code
    threads = thread_words(end.tail)
    stated = _stated(incident, end)
    if stated is not None:
        return replace(stated, message=name_with(stated.message, group.pid) + threads)
    alone = group.scope == "all" or incident.world_size == 1  # no rank went on
    cause = "program-exception" if alone else "rank-exited-early"
    last = _last_line(end)
    if last:
        message = name_with(f"ended with code {code}", group.pid)
        return Candidate(cause, 0.6, f"{message}, its last line: {last}{threads}")
    message = name_with(f"ended with code {code} and printed nothing", group.pid) + threads
    remedy = f"look for sys.exit({code}) and os._exit({code}) in the program and in what it calls"
    if is_program(incident.command):
        remedy = "see where the command sends its output (`>`, `2>&1`, `&>`), and read that file"
    return Candidate(cause, 0.6, message, remedy)


def _stated(incident: Incident, end: RankEnd) -> Candidate | None:
    """Read what a rank's code and its last words state; None where only the program can tell."""
    absent = NO_SCRIPT.search(end.tail) if end.hides or end.fact.code == 2 else None
    if absent:
        why = absent[3] or "no __main__ there"
        script = absent[1]
        remedy = f"check it against the working directory (--workdir) on the node with `ls -l {script}`"
        if end.node not in incident.logins.local:
            remedy += ", or ship this directory to the nodes with `run --sync`"
        if script.endswith(RUNNER):  # allranks' own: only a container hides it
            remedy = f"mount {script.removesuffix(RUNNER)} into the container of --wrap (Apptainer: --bind DIRECTORY)"
        cause = "permission-denied" if absent[2] == "13" else "remote-path-missing"
        return Candidate(cause, 0.95, f"could not open the script {script}: {why.rstrip(']')}", remedy)
    is_usage = end.fact.code == 2 and USAGE.search(end.tail)
    if is_usage or (end.hides and refuses_arguments(end.tail)):
        refusals = [one_line(line) for line in end.tail.splitlines() if "error: " in line]
        message = ": ".join(("refused the arguments of the program", *refusals[-1:]))
        return Candidate("bad-launch-arguments", 0.95, message)
    lacking = no_module(end.tail)
    if lacking:
        module = lacking["module"] or lacking["parent"]
        python = lacking["python"]
        remedy = f"run `{python} -m pip install {module.partition('.')[0]}` on every node, or choose another "
        remedy += "interpreter with --python"
        if "PYTHONPATH" in incident.withheld:
            remedy = WITH_PYTHONPATH
        return Candidate("missing-module", 0.95, f"found no module {module} in {python}", remedy)
    row = LOST_ENVIRONMENT
    if row.find(end.tail):
        return Candidate(row.cause, row.confidence, f"began without RANK: {row.means}", row.fix)
    absent = NO_COMMAND.search(end.tail)
    if end.fact.code in NOT_STARTED or (end.hides and absent):
        how = "found no program" if end.hides else f"ended with code {end.fact.code}"
        message = with_reason(how, _last_line(end))
        remedy = "check the command, PATH and --prelude on the node"
        if absent:
            remedy = NOT_ON_PATH.format(path=absent[1], nodes=end.node)
        return Candidate(NOT_STARTED.get(end.fact.code or 0, "remote-path-missing"), 0.8, message, remedy)
    return None


def _last_line(end: RankEnd) -> str:
    return one_line("".join(last_lines(end.tail, 1)), SHORT)


RULES = {
    "called-unlike": ("torch's flight recorders, compared at the end (FlightRecorder.hpp)", called_unlike),
    "rank-raised": (
        "the error files of the runner (torchelastic's format), else a traceback at the end of a log, ../signatures",
        _rule("raised", _raised),
    ),
    "rank-crashed": (
        "wait(2) status, signal(7), CPython's faulthandler, libstdc++'s terminate, gloo transport/tcp/pair.cc",
        _rule("crashed", _crashed),
    ),
    "rank-killed": (
        "wait(2) status, oom_kill of /proc/vmstat (mm/oom_kill.c counts each process it ends), signal(7)",
        _rule("killed", _killed),
    ),
    "rank-exited": (
        "argparse (exit code 2, usage and error), CPython Modules/main.c and Lib/runpy.py, sh(1)",
        _rule("exited", _exited),
    ),
}
