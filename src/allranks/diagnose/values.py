"""Values that a fix needs and a log has: paths, hosts, modules, jobs, pods, images (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from allranks.plan.interfaces import HOST_LOCAL

_OF_CONTAINERS = rf"(?:{'|'.join(HOST_LOCAL)})"
_NAME = r"[A-Za-z0-9][\w.-]{0,120}"
_PATH = r"/[\w.@+~/-]{2,400}"
# The first pattern that finds a value gives it. Each is tried on the line that tells first, then on the other lines.
PATTERNS: Mapping[str, tuple[str, ...]] = {
    "path": (
        r"(?:Is a directory|No such file or directory|Permission denied|Stale file handle|not found|Read-only file "
        r"system)"
        r":? ['\"](?P<v>[^'\"\n]{2,400})['\"]",
        rf"['\"](?P<v>{_PATH})['\"]",
        rf"(?:cd|chdir to|bash|sh|directory|file|path|open|stat|mkdir):? ['\"`]?(?P<v>{_PATH})",
        rf"\[(?P<v>{_PATH})\]: ",
        rf"(?<![\w/.:<])(?P<v>{_PATH}): ",
        rf"(?:at|to|in|from) ['\"`(]?(?P<v>{_PATH})",
    ),
    "host": (
        rf"[Cc]ould not resolve host(?:name)?:? (?P<v>{_NAME})",
        rf"(?:connect/validate to host|network addresses? of \(?|connect to \(?\[?|to host) ?(?P<v>{_NAME})[:,]",
        rf"host=['\"](?P<v>{_NAME})['\"]",
        rf"https?://(?P<v>{_NAME})",
        rf"(?:[Uu]nknown host|resolve (?:the )?(?:host(?:name)?|address|name)) ['\"]?(?P<v>{_NAME})",
        rf"ssh: [\w ]{{1,40}} (?P<v>{_NAME}): ",
    ),
    "master": (
        rf"any network address of \(?(?P<v>{_NAME}),",
        r"connect to \(?\[?(?:::ffff:)?(?P<v>[\w.-]{1,120})\]?(?:[:,] ?\d)",
        rf"(?:host|[Mm]aster(?: node)?|endpoint) ['\"]?(?P<v>{_NAME}):\d",
        rf"(?:--rdzv[-_]endpoint|MASTER_ADDR|--master[-_]addr)[= ]['\"]?(?P<v>{_NAME})",
    ),
    "port": (r"(?:--master[-_]port|MASTER_PORT)[= ](?P<v>\d{2,5})", r"connect to [\w.\[\]:-]{1,120}:(?P<v>\d{2,5})\b"),
    "node": (
        rf"fatal: \[(?P<v>{_NAME})\]: UNREACHABLE",
        rf"(?:^|\s)(?P<v>{_NAME}): (?:Host key verification failed|Permission denied|ssh exited)",
        rf"\bon (?P<v>{_NAME}), is localhost",
        rf"Permission denied .{{0,80}}@(?P<v>{_NAME})",
        r"\bnode \(ID: \w{8,64}, IP: (?P<v>[\d.]{7,15})\)",
        rf"(?:host key for|Server) ['\"](?P<v>{_NAME})['\"]",
        rf"(?:session to host|daemon on node|[Cc]onnecting to host) (?P<v>{_NAME})",
        rf"^(?P<v>{_NAME}) \| UNREACHABLE!",
    ),
    "module": (
        r"No module named ['\"]?(?P<v>[A-Za-z_]\w{0,80})",
        r"pip3? install (?:-U )?(?P<v>[A-Za-z][\w.-]{0,80})",
        r"(?:PackageNotFoundError|DistributionNotFound): (?:No package metadata was found for |The ')?"
        r"(?P<v>[A-Za-z][\w.-]{0,80})",
    ),
    "job": (
        r"(?:StepId=|JobId=|JobID=|\bJOB |\bSTEP |[Jj]ob )(?P<v>\d{2,12})",
        r"SLURM_JOB_?ID[= ](?P<v>\d{2,12})",
    ),
    "pod": (rf"\bpods?[/ ]\"?(?P<v>{_NAME})", rf"^Name: +(?P<v>{_NAME})$"),
    "image": (
        r"[Ff]ailed to pull (?:and unpack )?image \"(?P<v>[^\"\s]{2,200})\"",
        r"(?:[Bb]ack-off pulling|[Pp]ulling) image \"(?P<v>[^\"\s]{2,200})\"",
        r"[Ii]mage: +(?P<v>[\w./:@-]{2,200})$",
    ),
    "container": (rf"[Cc]ontainer (?:name )?\"?/?(?P<v>{_NAME})\"?",),
    "variable": (r"KeyError: '(?P<v>[A-Z][A-Z0-9_]{2,60})'", r"environment variable (?P<v>[A-Z][A-Z0-9_]{2,60})"),
    "driver": (r"driver version (?P<v>\d{3}\.\d{1,4}(?:\.\d{1,4})?)",),
    # NCCL lists what it takes (net_socket.cc): the one beside those of containers leads to other nodes.
    "link": (
        rf"Using \[\d+\](?P<v>(?!{_OF_CONTAINERS})[\w.-]{{1,40}}):\S{{3,80}} .{{0,400}}?\[\d+\]{_OF_CONTAINERS}",
        rf"Using \[\d+\]{_OF_CONTAINERS}.{{0,400}}? \[\d+\](?P<v>(?!{_OF_CONTAINERS})[\w.-]{{1,40}}):",
    ),
    "mtu": (r"\bmtu[= ](?P<v>\d{3,5})",),
}  # fmt: skip
_NO_VALUE = frozenset(
    {"the", "a", "to", "of", "is", "in", "has", "was", "python", "name", "path", "file", "/dev/null"}
) | frozenset({"ssh", "scp", "rsync", "bash", "pdsh"})


@cache
def compiled(name: str) -> tuple[re.Pattern[str], ...]:
    """Compile the patterns of a value when it is needed; empty where none is known."""
    return tuple(map(re.compile, PATTERNS.get(name, ())))


def find_value(name: str, texts: Iterable[str]) -> str | None:
    """Find a value in the texts: by the first pattern that fits one of them."""
    lines = list(texts)
    for pattern in compiled(name):
        for match in (match for text in lines for match in pattern.finditer(text)):
            value = match["v"].rstrip(".,:;")
            if value and value.lower() not in _NO_VALUE:
                return value
    return None
