"""One line of any log: who says it, when, and what, behind the prefixes that launchers put in front (pure).

Known: `[rank3]:` (torch), `[default0]:` (torchrun --tee), `3: ` (srun -l), `[pod/NAME/CONTAINER]` (kubectl
--prefix), `NAME  | ` (docker compose), `[1,3]<stderr>:` (mpirun), `host: ` (pdsh, DeepSpeed), `(Actor pid=7,
ip=10.0.0.2)` (Ray), `host:pid:tid [gpu]` (NCCL), glog's and Python's logging heads, syslog, dmesg, journals,
kubectl --timestamps. Ranks that write into one line are taken apart where a new `[rankN]:` begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timezone

LONGEST = 4000  # characters of a line that are looked at
YEAR = 2000  # of every clock, as many say none: good for an order only

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[()][A-Z0-9]|[=>78])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]+")
_APART = re.compile(r"(?=\[rank\d+\]:)")


@dataclass(frozen=True)
class Line:
    """A line without its prefixes. `number` counts from 1 in `file`; `t` is seconds into the year, by its own clock."""

    text: str
    file: str = ""
    number: int = 0
    rank: int | None = None
    node: str = ""
    pid: int | None = None
    gpu: int | None = None
    t: float | None = None
    local_rank: int | None = None

    @property
    def place(self) -> str:
        """train.log:41"""
        return f"{self.file}:{self.number}" if self.file else f"line {self.number}"


def read_line(raw: str, file: str = "", number: int = 0, at: Line | None = None) -> list[Line]:
    """The line of every rank that wrote into it; `at` is what the file's name already says."""
    raw = _ANSI.sub("", raw[:LONGEST]) if "\x1b" in raw else raw[:LONGEST]
    base = replace(at, file=file, number=number) if at is not None else Line("", file, number)
    lines = []
    for part in raw.split("\r"):
        if not part.strip():
            continue
        pieces = [p for p in _APART.split(part) if p.strip()] if "[rank" in part else [part]
        outer = base
        for piece in pieces:
            line = _read(_CONTROL.sub("", piece), outer)
            outer = replace(outer, node=line.node, t=line.t)
            if line.text:
                lines.append(line)
    return lines


def _read(text: str, line: Line) -> Line:
    for _ in range(8):
        for matching, take in _PREFIXES:
            match = matching(text)
            if match is None:
                continue
            line = take(match, line)
            text = text[match.end() :]
            break
        else:
            break
    spoken = _OWN_RANK.search(text) if line.rank is None else None
    rank = _spoken_rank(spoken) if spoken else line.rank
    return replace(line, text=text.rstrip(), rank=rank)


_OWN_RANK = re.compile(r"^\[Rank (\d+)\]|\[PG [^\[\]]{0,200}\bRank (\d+)\]|^\[rank (\d+)\]")
"""The rank that a message names as its own."""


def _spoken_rank(match: re.Match[str]) -> int:
    return int(next(g for g in match.groups() if g is not None))


def _time(match: re.Match[str], line: Line) -> Line:
    return replace(line, t=_iso(match)) if line.t is None else line


def _iso(match: re.Match[str]) -> float | None:
    parts = match.groupdict()
    month = parts.get("month") or "1"
    try:
        number = int(month) if month.isdecimal() else _MONTHS.index(month[:3]) + 1
        moment = datetime(
            YEAR,
            number,
            int(parts.get("day") or 1),
            int(parts["hour"]),
            int(parts["minute"]),
            int(parts["second"]),
            tzinfo=timezone.utc,
        )
    except (ValueError, KeyError):
        return None
    start = datetime(YEAR, 1, 1, tzinfo=timezone.utc)
    return (moment - start).total_seconds() + float("0." + (parts.get("fraction") or "0"))


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DATE = r"\d{4}[-/](?P<month>\d\d)[-/](?P<day>\d\d)"
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?"
_ZONE = r"(?:Z|[+-]\d\d:?\d\d)?"
_MONTH = r"(?P<month>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_LEVEL = r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|err|warn|info|notice|crit|alert|emerg)"


def _rank(match: re.Match[str], line: Line) -> Line:
    return replace(line, rank=int(match["rank"]))


def _local(match: re.Match[str], line: Line) -> Line:
    return replace(line, local_rank=int(match["rank"]))


def _node(match: re.Match[str], line: Line) -> Line:
    return replace(line, node=match["node"])


def _nccl(match: re.Match[str], line: Line) -> Line:
    gpu = int(match["gpu"]) if (match["gpu"] or "").isdecimal() else None
    return replace(line, node=match["node"], pid=int(match["pid"]), gpu=gpu)


def _ray(match: re.Match[str], line: Line) -> Line:
    return replace(line, pid=int(match["pid"]), node=match["node"] or line.node)


def _glog(match: re.Match[str], line: Line) -> Line:
    line = _time(match, line)
    return replace(line, pid=int(match["pid"])) if match["pid"] else line


def _syslog(match: re.Match[str], line: Line) -> Line:
    return replace(_time(match, line), node=match["node"])


def _nothing(_match: re.Match[str], line: Line) -> Line:
    return line


_PREFIXES = tuple(
    (re.compile(pattern).match, take)
    for pattern, take in (
        (r"\[rank(?P<rank>\d+)\]: ?", _rank),
        (r"\[[a-z_]+(?P<rank>\d+)\]: ?", _local),
        (r"\[pod/(?P<node>[^/\]]+)/[^\]]+\] ?", _node),
        (r"\[\d+,(?P<rank>\d+)\](?:<std(?:out|err|diag)>)?: ?", _rank),
        (r"\((?:\w+ )?pid=(?P<pid>\d+)(?:, ip=(?P<node>[\w.:-]+))?\) ?", _ray),
        (r" *(?P<rank>\d{1,4}): (?!\d)", _rank),
        (r"(?P<node>[\w.-]+):(?P<pid>\d+):\d+ \[(?P<gpu>[^\]]{0,40})\] (?=NCCL|\S+:\d+ |\[?\w)", _nccl),
        (r"\[(?P<level>[EWIF])(?P<month>\d\d?)(?P<day>\d\d) " + _CLOCK + r"(?P<pid>)(?: [\w.]+:\d+)?\] ?", _glog),
        (r"[EWIF](?P<month>\d\d)(?P<day>\d\d) " + _CLOCK + r" +(?P<pid>\d+) \S+:\d+\] ?", _glog),
        (r"\[[EWIF] \S+?:\d+\] ?", _nothing),
        (r"\[?" + _DATE + "[ T]" + _CLOCK + _ZONE + r"\]?:? ?(?:- )?", _time),
        (
            r"\[?(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?"
            + _MONTH
            + r" +(?P<day>\d\d?) (?:\d{4} )?"
            + _CLOCK
            + r"(?: \d{4})?\] ?",
            _time,
        ),
        (_MONTH + r" +(?P<day>\d\d?) " + _CLOCK + r" (?P<node>[\w.-]+) (?=[\w/.()-]+(?:\[\d+\])?: )", _syslog),
        (r"kernel: ", _nothing),
        (r"(?:kern|user|daemon|syslog) *:(?:" + _LEVEL + r") *: ", _nothing),
        (r"(?:<\d+>)?\[ *\d+\.\d{4,}\] ", _nothing),
        (r"(?P<node>[A-Za-z][\w.-]*\d)  +\| ", _node),
        (r" *(?P<node>(?!node\d*:\d)(?![\w.-]*\.(?:py|cc|cpp|cu|sh|so)\b)(?=[\w.-]*\d)[A-Za-z][\w.-]*): (?=\S)", _node),
        (r"(?P<node>\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}): (?=\S)", _node),
        (r"\[?" + _LEVEL + r"\]?(?::[\w.]+)?[:\]]? +(?=\[|\S+Error)", _nothing),
        (r"(?:ERROR|WARNING|INFO|CRITICAL):[\w.]+:", _nothing),
        (r"\[" + _LEVEL + r"\] ", _nothing),
    )
)

_FILE_RANK = re.compile(r"(?:^|[/_.-])rank[_.=-]?(\d{1,5})(?=\D|$)", re.IGNORECASE)
_FILE_NODE = re.compile(r"(?:^|/)node_\d\d_([^/]+)/")


def from_name(path: str) -> Line:
    """What a log's own name says: rank_003.log, node_01_h2/…, host-rank3.err."""
    rank = _FILE_RANK.search(path)
    node = _FILE_NODE.search(path)
    return Line("", rank=int(rank[1]) if rank else None, node=node[1] if node else "")
