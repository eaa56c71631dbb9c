"""One line of any log: who says it, when, and what, behind the prefixes that launchers put in front (pure).

Known: `[rank3]:` (torch), `[default0]:` (torchrun --tee), `[trainer0|1]:` (torchx), `3: ` (srun -l),
`[pod/NAME/CONTAINER]` (kubectl --prefix), `TIME stderr F ` (CRI's own files), `NAME  | ` (docker compose),
`[1,3]<stderr>:` (mpirun), `Mon Mar  9 10:11:12 2026[3]<stderr>:` (horovodrun), `host: ` (pdsh, DeepSpeed),
`(Actor pid=7, ip=10.0.0.2)` (Ray), `[12-16 14:27:10 TP3] ` (SGLang), `ERROR 12-16 14:27:10 core.py:9] ` (vLLM),
`host:pid:tid [gpu]` (NCCL), glog's and Python's logging heads, syslog, dmesg,
journals, kubectl --timestamps. Ranks that write into one line are taken apart where a new `[rankN]:` begins, and so
are messages that begin behind a progress bar or another message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

LONGEST = 4000  # characters of a line that are looked at

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[()][A-Z0-9]|[=>78])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]+")
_APART = re.compile(r"(?=\[rank\d+\]:)")
_HEADS = re.compile(
    r"(?=\[[EWIF]\d{3,4} \d\d:\d\d:\d\d)|(?=\[[EWIF] \w{1,40}\.[ch]pp:\d)"
    r"|(?=(?<![\w.\[])[EWIF]\d{4} \d\d:\d\d:\d\d\.\d{1,9} +\d+ \S)"
    r"|(?=slurmstepd: error: )|(?=terminate called after throwing)"
    r"|(?=torch\.distributed\.elastic\.multiprocessing\.errors\.ChildFailedError)"
)
"""Where another program's or thread's line begins behind text without a line end: a progress bar, a message."""


@dataclass(frozen=True)
class LogLine:
    """A line without its prefixes. `number` counts from 1 in `file`; `t` is seconds into the year, by its own clock."""

    text: str
    file: str = ""
    number: int = 0
    rank: int | None = None
    node: str = ""
    gpu: int | None = None
    t: float | None = None
    is_error: bool = False  # its level says so

    @property
    def place(self) -> str:
        """train.log:41"""
        if self.file:
            return f"{self.file}:{self.number}"
        return f"line {self.number}"


def read_line(raw: str, file: str = "", number: int = 0, at: LogLine | None = None) -> list[LogLine]:
    """Read a line for each rank that wrote into it; `at` is what the file's name already says."""
    raw = _ANSI.sub("", raw[:LONGEST])
    base = replace(at or LogLine(""), file=file, number=number)
    lines = []
    for part in raw.split("\r"):
        outer = base
        for piece in _APART.split(part):
            speaker = outer
            for message in filter(str.strip, _HEADS.split(piece)):
                speaker, text = _without_prefixes(_CONTROL.sub("", message), speaker)
                if text.strip():
                    lines.append(_with_text(speaker, text))
            outer = replace(outer, node=speaker.node, t=speaker.t)
    return lines


def _without_prefixes(text: str, line: LogLine) -> tuple[LogLine, str]:
    """Take what the prefixes of a text say into the line; give the rest of the text, too."""
    for _ in range(8):
        matches = (matching(text) for matching in _PREFIXES)
        match = next((match for match in matches if match is not None), None)
        if match is None:
            break
        line = _with_prefix(line, {name: value for name, value in match.groupdict().items() if value})
        text = text[match.end() :]
    return line, text


def _with_text(line: LogLine, text: str) -> LogLine:
    rank = line.rank
    named = _NAMED_RANK.search(text)
    if rank is None and named is not None:
        rank = int("".join(group for group in named.groups() if group is not None))
    return replace(line, text=text.rstrip(), rank=rank)


_NAMED_RANK = re.compile(r"^\[Rank (\d+)\]|\[PG [^\[\]]{0,200}\bRank (\d+)\]|^\[rank (\d+)\]")
"""The rank that a message names as its own."""


def _with_prefix(line: LogLine, groups: Mapping[str, str]) -> LogLine:
    numbers = {name: int(groups[name]) for name in _NUMBERS if groups.get(name, "").isdecimal()}
    t = line.t
    if t is None and "hour" in groups:
        t = _seconds_of_year(groups)
    return replace(
        line,
        node=groups.get("node", line.node),
        t=t,
        rank=numbers.get("rank", line.rank),
        gpu=numbers.get("gpu", line.gpu),
        is_error=line.is_error or groups.get("level", "") in _ERRORS,
    )


_NUMBERS = ("rank", "gpu")


def _seconds_of_year(groups: Mapping[str, str]) -> float:
    """Count the seconds of a year whose months are all long: good for an order only."""
    month = groups.get("month", "1")
    number = int(month) if month.isdecimal() else _MONTHS.index(month) + 1
    days = 31 * number + int(groups.get("day", "1"))
    seconds = (int(groups["hour"]) * 60 + int(groups["minute"])) * 60 + int(groups["second"])
    return 86400 * days + seconds + float("0." + groups.get("fraction", "0"))


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DATE = r"\d{4}[-/](?P<month>\d\d)[-/](?P<day>\d\d)"
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?"
_ZONE = r"(?:Z|[+-]\d\d:?\d\d)?"
_MONTH = r"(?P<month>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_LEVEL = r"(?P<level>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|err|warn|info|notice|crit|alert|emerg)"
_ERRORS = frozenset({"E", "F", "ERROR", "CRITICAL", "FATAL", "err", "crit", "alert", "emerg"})


_PREFIXES = tuple(
    re.compile(pattern).match
    for pattern in (
        r"\[rank(?P<rank>\d+)\]: ?",
        r"\[[a-z_]+\d+\]: ?",
        r"\[[a-z_]+\d+\|\d+\]: ?",
        r"\[\d{1,4}\]:(?=\S)",
        r"\[(?P<rank>\d{1,5})\] (?=[\w.-]+:\d+:\d+ \[)",
        r"std(?:out|err) [FP] ",
        r"\[pod/(?P<node>[^/\]]+)/[^\]]+\] ?",
        r"\[\d+,(?P<rank>\d+)\](?:<std(?:out|err|diag)>)?: ?",
        r"\[(?P<rank>\d+)\]<std(?:out|err)>: ?",
        r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) " + _MONTH + r" +(?P<day>\d\d?) " + _CLOCK + r" \d{4}(?=\[\d)",
        r"\((?:\w+ )?pid=\d+(?:, ip=(?P<node>[\w.:-]+))?\) ?",
        r" *(?P<rank>\d{1,4}): (?!\d)",
        r"(?P<node>[\w.-]+):\d+:\d+ \[(?P<gpu>[^\]]{0,40})\] (?=NCCL|\S+:\d+ |\[?\w)",
        r"\[(?P<level>[EWIF])(?P<month>\d\d?)(?P<day>\d\d) " + _CLOCK + r"(?: [\w.]+:\d+)?\] ?",
        r"(?P<level>[EWIF])(?P<month>\d\d)(?P<day>\d\d) " + _CLOCK + r" +\d+ \S+:\d+\] ?",
        r"\[(?P<level>[EWIF]) \S+?:\d+\] ?",
        # Ray's C++ (util/logging.cc), SGLang (srt/utils.py), vLLM (logger.py), Composer, torch_xla's xla_dist.
        r"\[" + _DATE + " " + _CLOCK + r" (?P<level>[DIWEFC]) \d+ \d+\] ?",
        r"\[(?:\d{4}-)?(?P<month>\d\d)-(?P<day>\d\d) " + _CLOCK + r"(?: [A-Z]{2}\d{1,4}){0,4}\] ?",
        _LEVEL + r" (?P<month>\d\d)-(?P<day>\d\d) " + _CLOCK + r" \[?[\w./-]{1,80}:\d+\] ?",
        r"\[?" + _DATE + "[ T]" + _CLOCK + _ZONE + r"\]?:? ?(?:- )?",
        r"rank(?P<rank>\d+)\[\d+\]\[\w+\]: " + _LEVEL + ": ",
        r"(?P<node>\d{1,3}(?:\.\d{1,3}){3}) \[\d{1,4}\] ",
        r"\((?:raylet|gcs_server|autoscaler)(?:, ip=(?P<node>[\w.:-]+))?\) ?",
        r"\[?(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?"
        + _MONTH
        + r" +(?P<day>\d\d?) (?:\d{4} )?"
        + _CLOCK
        + r"(?: \d{4})?\] ?",
        _MONTH + r" +(?P<day>\d\d?) " + _CLOCK + r" (?P<node>[\w.-]+) (?=[\w/.()-]+(?:\[\d+\])?: )",
        r"kernel: ",
        r"(?:kern|user|daemon|syslog) *:(?:" + _LEVEL + r") *: ",
        r"(?:<\d+>)?\[ *\d+\.\d{4,}\] ",
        r"(?P<node>[A-Za-z][\w.-]*\d)  +\| ",
        r" *(?P<node>(?!node\d*:\d)(?!E[A-Z]\d{4}:)(?!mlx\d|nvidia-nvswitch|nvme\d)"
        r"(?![\w.-]*\.(?:py|cc|cpp|cu|sh|so)\b)(?![\w.]*(?:Error|Exception)\b)(?=[\w.-]*\d)[A-Za-z][\w.-]*): (?=\S|$)",
        r"(?P<node>\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}): (?=\S|$)",
        r"\[?" + _LEVEL + r"\]?(?::[\w.]+)?[:\]]? +(?=\[|\S+Error)",
        r"(?P<level>ERROR|WARNING|INFO|CRITICAL):[\w.]+:",
        r"\[" + _LEVEL + r"\] ",
    )
)

_FILE_RANK = re.compile(r"(?:^|[/_.-])rank[_.=-]?(\d{1,5})(?=\D|$)", re.IGNORECASE)
_FILE_NODE = re.compile(r"(?:^|/)node_\d\d_([^/]+)/")


def from_name(path: str) -> LogLine:
    """Read what a log's own name says: rank_003.log, node_01_h2/…, host-rank3.err."""
    nodes = _FILE_NODE.findall(path)
    line = LogLine("", node="".join(nodes[:1]))
    rank = _FILE_RANK.search(path)
    if rank is None:
        return line
    return replace(line, rank=int(rank[1]))
