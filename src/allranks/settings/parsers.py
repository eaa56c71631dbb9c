"""How the value of a setting is read (pure): a parser for each kind of value.

A parser takes a value from the command line, the environment or TOML and returns what RunSpec holds. It raises
ValueError whose text says what to set. Parsers accept their own results, so a saved spec goes through them again.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..cluster.hostlist import MAX_HOSTS
from ..cluster.names import check_host, show
from ..errors import UsageError
from ..protocol.jsontext import Json
from ..text import EXPECTED_DURATION, EXPECTED_SIZE, format_duration, format_size_option, parse_duration, parse_size
from .failrules import read_rule

Read = Callable[[Json], Json]
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL = re.compile(r".{1,63}")
_DIGITS = re.compile(r"[0-9]{1,18}")
_REACH = re.compile(r"ssh|dial(?::(?P<low>[0-9]{1,5})(?:-(?P<high>[0-9]{1,5}))?)?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


@dataclass(frozen=True)
class Parser:
    """One kind of value. `write` words a default; `is_path` values may be named like a script."""

    read: Read
    metavar: str
    choices: tuple[str, ...] = ()
    is_path: bool = False
    repeats: bool = False
    write: Callable[[Json], str] = str

    @property
    def is_flag(self) -> bool:
        """Tell whether the option has no value."""
        return self.read is read_flag


def whole_number(low: int, high: int, auto: Sequence[str] = ()) -> Parser:
    """Make a parser of a whole number; one of the words in `auto` stands for None."""
    expected = f"a whole number from {low} to {high}"
    if auto:
        expected += f' or "{auto[0]}"'

    def read(value: Json) -> int | None:
        if auto and (value is None or value in auto):
            return None
        number = int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else value
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
            raise ValueError(expected)
        return number

    return Parser(read, "N")


def duration(low: float, above: bool = False) -> Parser:
    """Make a parser of a duration of at least `low` seconds, or above it."""
    bound = "more than" if above else "at least"

    def read(value: Json) -> float:
        seconds = parse_duration(value)
        if seconds < low or (above and seconds == low):
            raise ValueError(f"{EXPECTED_DURATION}, {bound} {low:g}s")
        return seconds

    return Parser(read, "DURATION", write=lambda value: format_duration(parse_duration(value)))


def byte_count(low: int) -> Parser:
    """Make a parser of a size of at least `low` bytes."""

    def read(value: Json) -> int:
        count = parse_size(value)
        if count < low:
            raise ValueError(f"{EXPECTED_SIZE}, at least {low}")
        return count

    return Parser(read, "SIZE", write=lambda value: format_size_option(parse_size(value)))


def text(expected: str, metavar: str = "TEXT", lines: bool = False) -> Parser:
    """Make a parser of a text that is not empty; without control characters unless `lines`, and never with NUL."""

    def read(value: Json) -> str:
        if not isinstance(value, str) or not value.strip():
            raise ValueError(expected)
        if "\0" in value or (not lines and _CONTROL.search(value)):
            raise ValueError(f"{expected}, without control characters")
        return value

    return Parser(read, metavar)


def path(expected: str, metavar: str = "PATH") -> Parser:
    """Make a parser of a text that no program can take as an option."""
    any_text = text(expected)

    def read(value: Json) -> str:
        if isinstance(value, str) and value.startswith("-"):
            raise ValueError(f"{expected}, not starting with '-'")
        return str(any_text.read(value))

    return Parser(read, metavar, is_path=True)


def matching(
    pattern: str,
    expected: str,
    metavar: str,
    holds: Callable[[re.Match[str]], bool] | None = None,
    numbers: bool = False,
) -> Parser:
    """Make a parser of a text that the pattern matches as a whole, and whose match `holds`.

    With `numbers` a whole number is read as the text of its digits.
    """
    compiled = re.compile(pattern)

    def read(value: Json) -> str:
        word = str(value) if numbers and isinstance(value, int) and not isinstance(value, bool) else value
        match = compiled.fullmatch(word) if isinstance(word, str) else None
        if match is None or (holds is not None and not holds(match)):
            raise ValueError(expected)
        return match[0]

    return Parser(read, metavar)


def choice(*choices: str) -> Parser:
    """One of these words."""

    def read(value: Json) -> Json:
        if value not in choices:
            raise ValueError("one of " + ", ".join(choices) if len(choices) > 1 else choices[0])
        return value

    return Parser(read, "|".join(choices), choices)


# The rules of --bind, and torchrun's words for them (torch/numa/binding.py, AffinityMode).
_BIND = choice("none", "numa", "cores", "socket", "core-complex")
_BIND_OF_TORCHRUN = {"node": "numa", "exclusive": "cores"}
BIND = Parser(lambda value: _BIND.read(_BIND_OF_TORCHRUN.get(str(value), value)), _BIND.metavar, _BIND.choices)


def several(each: Parser, expected: str, commas: bool = False) -> Parser:
    """Make a parser of a list, each element read by `each`; it returns a tuple.

    The option may be repeated; with `commas` each value may hold several."""

    def read(value: Json) -> Json:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ValueError(expected)
        items = list(value)
        if commas:
            items = [word for item in items for word in str(item).split(",") if word]
        try:
            return tuple(each.read(item) for item in items)
        except ValueError as error:
            why = str(error)
            raise ValueError(expected if why in expected else f"{expected} ({why})") from None

    return Parser(read, each.metavar, each.choices, each.is_path, repeats=True)


def read_flag(value: Json) -> bool:
    """Read a bool, or 1/true/yes/on and 0/false/no/off as text."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE + _FALSE:
        return value.lower() in _TRUE
    raise ValueError("true or false")


def _listed(value: Json) -> Json:
    """Write an array of texts with commas between them; any other value stays."""
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return ",".join(map(str, value))
    return value


def _read_hosts(value: Json) -> Json:
    """Read a file's path, a comma list, or a TOML array of hosts."""
    return path('the path of a hostfile or a list such as "node[01-04]"').read(_listed(value))


def _read_host(value: Json) -> Json:
    """Read a name or an address that every node can look up: what ssh alone knows may have any length."""
    try:
        host = check_host(value if isinstance(value, str) else "")
    except UsageError as error:
        raise ValueError(f"a host name or an address ({error})") from None
    if ":" not in host and not all(_LABEL.fullmatch(label) for label in host.removesuffix(".").split(".")):
        raise ValueError("a host name whose parts have 1 to 63 characters, or an address")
    return host


def _read_networks(value: Json) -> Json:
    """Read CIDR networks with commas between them, or a TOML array of them; return them normalised."""
    expected = "networks such as 10.0.0.0/16, with commas between them"
    texts = str(_listed(value)).split(",")
    try:
        if all("/" in text for text in texts):
            return ",".join(str(ipaddress.ip_network(text.strip(), strict=False)) for text in texts)
    except ValueError:
        pass
    raise ValueError(expected)


def split_address(value: str) -> tuple[str, int]:
    """Divide `[ADDRESS:]PORT`, as LISTEN has read it; without an address it is that of this machine alone."""
    address, _, port = value.rpartition(":")
    return address.strip("[]") or "127.0.0.1", int(port)


def _can_listen(match: re.Match[str]) -> bool:
    try:
        ipaddress.ip_address((match["address"] or "127.0.0.1").strip("[]"))
    except ValueError:
        return False
    return int(match["port"]) <= 65535


def _has_ports(match: re.Match[str]) -> bool:
    ports = [int(port) for port in match.groups() if port is not None]
    return ports == sorted(ports) and all(0 < port < 65536 for port in ports)


def dial_ports(reach: str) -> Sequence[int]:
    """Give the ports for nodes that dial back, 0 for any; none where ssh stays.

    >>> [list(dial_ports(reach)) for reach in ("ssh", "dial", "dial:29700", "dial:29700-29702")]
    [[], [0], [29700], [29700, 29701, 29702]]
    """
    match = _REACH.fullmatch(reach)
    if match is None or reach == "ssh":
        return ()
    low = int(match["low"] or 0)
    return range(low, int(match["high"] or low) + 1)


def _read_notices(value: Json) -> Json:
    if "://" in str(value):
        raise ValueError(
            "a name. Others can read a URL here\n"
            'hint: write [notify] with slack = "URL" into ~/.config/allranks/config.toml, then --notify slack'
        )
    return _NOTICE_NAMES.read(value)


def _read_pattern(value: Json) -> Json:
    try:
        re.compile(value if isinstance(value, str) and value else "(")
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"a regular expression of Python ({error})") from None
    return value


def _read_fail_rule(value: Json) -> Json:
    rule = read_rule(str(text("a rule").read(value)))
    if rule.pattern:
        _read_pattern(rule.pattern)
    return value


def _read_role_command(value: Json) -> Json:
    """Read a line as a shell would, without running one, or a list of words."""
    expected = 'a line such as "python serve.py --port 8000", or a list of words'
    if not isinstance(value, str):
        words = several(WORD, expected).read(value)
    else:
        try:
            words = tuple(shlex.split(str(_ROLE_TEXT.read(value))))
        except ValueError as error:
            raise ValueError(f"{expected} ({error})") from None
    if not words:
        raise ValueError(expected)
    return words


def _read_role_gpus(value: Json) -> Json:
    """Read numbers of GPUs, such as 0-3,6; return them one by one."""
    expected = 'numbers of GPUs such as "0-3" or "0,2", or "none"'
    if value == "none":
        return value
    numbers: list[int] = []
    for part in str(value).split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None or int(match["last"] or match["first"]) < int(match["first"]):
            raise ValueError(expected)
        numbers += range(int(match["first"]), int(match["last"] or match["first"]) + 1)
    return ",".join(str(number) for number in dict.fromkeys(numbers))


def _read_ready(value: Json) -> Json:
    """Read a ready test: `port:N`, a URL, `output:PATTERN`. Placeholders stand for what they will be."""
    expected = 'a test such as "port:8000", "http://{address}:8000/health" or "output:PATTERN"'
    test = value if isinstance(value, str) else ""
    kind, _, rest = test.partition(":")
    if kind == "output":
        PATTERN.read(rest)
        return test
    filled = re.sub(r"\{[^{}\s]{1,80}\}", "1", test)
    match = _READY.fullmatch(filled)
    if match is None or not 0 < int(match["port"] or match["of_url"] or 80) <= 65535:
        raise ValueError(expected)
    return test


def _read_variables(value: Json) -> Json:
    """Read a table of variables; numbers are taken as text. `variables` judges the names."""
    if not isinstance(value, dict):
        raise ValueError('a table such as { NAME = "value" }')
    texts: dict[str, str] = {}
    for name, item in value.items():
        if isinstance(item, bool) or not isinstance(item, (str, int, float)) or "\0" in str(item):
            raise ValueError(f"{show(name)} to a text without NUL, or to a number")
        texts[str(name)] = str(item)
    return texts


_RANGE = re.compile(r"(?P<first>[0-9]{1,3})(?:-(?P<last>[0-9]{1,3}))?")
_READY = re.compile(r"port:(?P<port>[0-9]{1,5})|https?://[^\s/:]{1,253}(?::(?P<of_url>[0-9]{1,5}))?(?:/[^\s]{0,1000})?")
_ROLE_TEXT = text("a command", lines=True)
FLAG = Parser(read_flag, "", write=lambda value: "on" if value else "off")
WORD = matching(r"(?s)[^\0]*", "a text without NUL", "WORD")
HOSTS = Parser(_read_hosts, "FILE|LIST", is_path=True)
HOST = Parser(_read_host, "HOST")
NETWORKS = Parser(_read_networks, "CIDR")
GPUS = matching(
    r"(?:[A-Za-z0-9][A-Za-z0-9./_-]{0,99}:)?[1-9][0-9]{0,3}",
    "a number of GPUs such as 8, or with a name: amd.com/gpu:8, H100:8",
    "[NAME:]N",
    numbers=True,
)
PATTERN = Parser(_read_pattern, "REGEX")
FAIL_RULE = Parser(_read_fail_rule, "RULE")
_NOTICE_NAMES = several(
    matching(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", "", "NAME"),
    "names of entries of [notify], or of variables that hold a URL",
    commas=True,
)
LISTEN = matching(
    r"(?:(?P<address>[0-9.]{7,15}|\[[0-9A-Fa-f:.]{2,45}\]):)?(?P<port>[0-9]{1,5})",
    "a port such as 9400, or with an address of this machine: 10.0.0.5:9400, [fd00::5]:9400",
    "[ADDRESS:]PORT",
    _can_listen,
    numbers=True,
)
REACH = matching(
    _REACH.pattern,
    "ssh, dial, or dial with ports of this machine such as dial:29700 or dial:29700-29799",
    "ssh|dial[:PORT]",
    _has_ports,
)
NODE_COUNT = whole_number(1, MAX_HOSTS)
ID = matching(r"[a-z0-9][a-z0-9_-]{0,63}", "", "ID")
RUN_NAME = matching(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", "at most 40 letters, digits, '.', '_', '-', a letter or digit first", "NAME"
)
CLUSTER_NAME = matching(
    r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", "the name of a cluster: letters, digits, '_', '-', no sign first", "NAME"
)
ROLE_NAME = matching(
    r"[a-z][a-z0-9_-]{0,31}", "the name of a role: small letters, digits, '_', '-', a letter first", "NAME"
)
ROLE_COMMAND = Parser(_read_role_command, "COMMAND")
ROLE_LINE = matching(
    r"(?s)[a-z][a-z0-9_-]{0,31}:[1-9][0-9]{0,5}\s+\S.*",
    "NAME:NODES and a command, such as rollout:1 'python serve.py'",
    "NAME:NODES COMMAND",
)
ROLE_GPUS = Parser(_read_role_gpus, "GPUS")
READY = Parser(_read_ready, "TEST")
VARIABLES_TABLE = Parser(_read_variables, "TABLE")
NOTICES = Parser(_read_notices, "NAME", repeats=True)
SSH_OPTION = matching(r"[A-Za-z][A-Za-z0-9]*(?:[ \t]*=|[ \t])[^\x00-\x08\x0a-\x1f\x7f]+", "", "KEY=VALUE")
NAMESPACE = matching(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", "a namespace: small letters, digits and '-'", "NAME")
IMAGE = matching(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,499}", "an image such as registry/name:tag", "IMAGE")
CONTAINER = matching(
    r"[A-Za-z0-9/.][A-Za-z0-9._:/@#+-]{0,499}", "an image such as registry/name:tag, or the path of one", "IMAGE"
)
PARTITION = matching(r"[A-Za-z0-9_][A-Za-z0-9_.,:+-]{0,254}", "a partition of Slurm's, or several with commas", "NAME")
