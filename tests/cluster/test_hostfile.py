"""Hostfiles in the forms people have, and what is refused with file and line."""

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.outcome import outcome

from allranks.cluster.hostfile import MAX_LINE, MAX_TEXT, parse_host_argument, parse_hostfile
from allranks.cluster.names import bracketed
from allranks.cluster.nodes import Node
from allranks.errors import HostfileError
from allranks.text import count_of


def hostfile(nodes: list[Node]) -> str:
    """Write a hostfile with these nodes."""
    lines = []
    for node in nodes:
        words = [f"{name}={getattr(node, name)}" for name in ("user", "port", "slots") if getattr(node, name)]
        lines.append(" ".join([bracketed(node.host), *words]))
    return "\n".join(lines)


def parts(node: Node) -> tuple[str, str | None, int | None, int | None]:
    return node.host, node.user, node.port, node.slots


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("h1", ("h1", None, None, None)),
        ("10.0.0.7", ("10.0.0.7", None, None, None)),
        ("  h1\t", ("h1", None, None, None)),
        ("h1 # the head", ("h1", None, None, None)),
        ("me@h1", ("h1", "me", None, None)),
        ("h1 user=me.x-y_z", ("h1", "me.x-y_z", None, None)),
        ("h1:2222", ("h1", None, 2222, None)),
        ("[10.203.1.3]:2222", ("10.203.1.3", None, 2222, None)),
        ("[10.203.1.3]", ("10.203.1.3", None, None, None)),
        ("h1:22", ("h1", None, 22, None)),
        ("h1 port=8", ("h1", None, 8, None)),
        ("h1 slots=8", ("h1", None, None, 8)),
        ("h1 slots = 8", ("h1", None, None, 8)),
        ("h1 slots=8 max_slots=8", ("h1", None, None, 8)),
        ("h1 slots=4 max-slots=64", ("h1", None, None, 4)),
        ("me@h1:2222 slots=8", ("h1", "me", 2222, 8)),
        ("::1", ("::1", None, None, None)),
        ("[::1]", ("::1", None, None, None)),
        ("me@[2001:db8::1]:2222 slots=2", ("2001:db8::1", "me", 2222, 2)),
        ("fe80::1%eth0", ("fe80::1%eth0", None, None, None)),
        ("[fe80::1%eth0]:2222", ("fe80::1%eth0", None, 2222, None)),
        ("2001:db8::1:22", ("2001:db8::1:22", None, None, None)),
        ("login-1.example.com.", ("login-1.example.com.", None, None, None)),
    ],
)
def test_one_line(line: str, expected: tuple[str, str | None, int | None, int | None]) -> None:
    (node,) = parse_hostfile(line + "\n", "hostfile")
    assert parts(node) == expected
    assert node.name == expected[0]
    (again,) = parse_host_argument(line.partition("#")[0])
    assert again == node


def test_a_whole_file() -> None:
    text = "\ufeff# cluster\r\n\r\nhead slots=2\r\nme@node[01-02]:2222 slots=8\r\n\t\r\nx1,x2 port=23 # two\r\n"
    nodes = parse_hostfile(text, "hostfile")
    assert [n.name for n in nodes] == ["head", "node01", "node02", "x1", "x2"]
    assert [n.index for n in nodes] == [0, 1, 2, 3, 4]
    assert [n.slots for n in nodes] == [2, 8, 8, None, None]
    assert [n.port for n in nodes] == [None, 2222, 2222, 23, 23]
    assert [n.user for n in nodes] == [None, "me", "me", None, None]
    assert not any(n.is_local for n in nodes)


def test_a_comma_list_with_ranges_and_attributes() -> None:
    nodes = parse_host_argument("head slots=2, me@n[1-2,5], [::1]:2222")
    assert [n.name for n in nodes] == ["head", "n1", "n2", "n5", "::1"]
    assert nodes[0].slots == 2
    assert nodes[1].user == "me"
    assert nodes[4].port == 2222
    with pytest.raises(HostfileError, match=r"^--hosts: "):
        parse_host_argument("h1\nh2")


@pytest.mark.parametrize("port", ["8", "1", "1023"])
def test_a_small_port_offers_slots_and_port(port: str) -> None:
    with pytest.raises(HostfileError) as caught:
        parse_hostfile(f"a\n\nh1:{port}\n", "hostfile")
    assert str(caught.value) == (
        f"hostfile:3: 'h1:{port}': a port below 1024 other than 22 looks like a number of slots. "
        f"Write 'h1 slots={port}' for {count_of(int(port), 'rank')} or 'h1 port={port}' for ssh on port {port}"
    )


def test_what_the_refusal_offers_is_accepted() -> None:
    with pytest.raises(HostfileError) as caught:
        parse_hostfile("[::1]:8", "f")
    offers = re.findall(r"'([^']* (?:slots|port)=8)'", str(caught.value))
    read = [parts(parse_hostfile(offer, "f")[0]) for offer in offers]
    assert read == [("::1", None, None, 8), ("::1", None, 8, None)]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("h1 slot=8", "Did you mean slots="),
        ("h1 slots", "Did you mean slots="),
        ("h1 gpus=8", "known: slots=, max_slots=, port=, user="),
        ("h1 8", "write 'h1 slots=8'"),
        ("h1 h3", "Separate hosts with commas"),
        ("h1 slots=", "no value"),
        ("h1 slots=0", "from 1 to"),
        ("h1 slots=٨", "plain ASCII"),
        ("h1 slots=4 slots=8", "given twice"),
        ("h1 slots=8 max_slots=4", "below slots=8"),
        ("h1:2222 port=2222", "given twice"),
        ("me@h1 user=me", "given twice"),
        ("h1:65536", "from 1 to 65535"),
        ("h1:ssh", "from 1 to 65535"),
        ("1:2:3", "not an IPv6 address"),
        ("[::1", "not an IPv6 address"),
        ("::1%eth0;x", "zone"),
        ("-oProxyCommand=x", "cannot start with '-'"),
        ("me@-h1", "cannot start with '-'"),
        ("@h1", "not a user name"),
        ("a@b@h1", "not a user name"),
        ("h1 user=-x", "cannot start with '-'"),
        ("h1;reboot", "';' cannot be in a host name"),
        ("h%h", "'%' cannot be in a host name"),
        ("h1#2", "'#' cannot be in a host name"),
        (".h1", "'.' cannot be in a host name"),
        ("ssh://h1", "port"),
        ("hôte", "plain ASCII"),
        ("h1\u00a0slots=8", "invisible character"),
        ("h1\x00", "control"),
        ("h1\rh2", "control"),
        ("h1\u2028h2", "control"),
        ("4", "number alone"),
        ("10.0.0.256", "number alone"),
        ("h" * 254, "253 are the most"),
        ("n[1-9999999]", "more than 4096"),
        ("x" * (MAX_LINE + 1), "one host a line"),
    ],
)
def test_refuses_with_file_and_line(line: str, part: str) -> None:
    with pytest.raises(HostfileError) as caught:
        parse_hostfile(f"# one\nok\n{line}\nlast\n", "my hosts")
    message = str(caught.value)
    assert message.startswith("my hosts:3: "), message
    assert part in message
    assert len(message) < 400
    assert message.isprintable()
    with pytest.raises(HostfileError, match=r"^--hosts: "):
        parse_host_argument(f"ok,{line}")


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n  \n", "\ufeff"])
def test_an_empty_file_is_refused(text: str) -> None:
    with pytest.raises(HostfileError, match="f:1: no host"):
        parse_hostfile(text, "f")
    with pytest.raises(HostfileError, match="--hosts: "):
        parse_host_argument(text)


@pytest.mark.parametrize(
    ("first", "second"),
    [("h1", "h1"), ("h1", "H1"), ("h1", "h1:22"), ("h1", "me@h1 slots=4"), ("n[1-4]", "n3"), ("::1", "[0:0::1]"),
     ("h1:2222", "h1 port=2222")],
)  # fmt: skip
def test_duplicates_name_both_lines(first: str, second: str) -> None:
    with pytest.raises(HostfileError, match=r"^f:4: .*line 2"):
        parse_hostfile(f"a\n{first}\n\n{second}\n", "f")
    with pytest.raises(HostfileError, match=r"^--hosts: entry 3: .*entry 2"):
        parse_host_argument(f"a,{first},{second}")


def test_one_host_with_several_ports_gets_unique_names() -> None:
    nodes = parse_hostfile("h1:2201\nh1:2202\nh1\nh2:2201\n[::1]:2201\n[::1]:2202", "f")
    assert [n.name for n in nodes] == ["h1:2201", "h1:2202", "h1", "h2", "[::1]:2201", "[::1]:2202"]
    assert [n.host for n in nodes] == ["h1", "h1", "h1", "h2", "::1", "::1"]


def test_sizes_are_bounded() -> None:
    with pytest.raises(HostfileError, match="A hostfile is smaller"):
        parse_hostfile("#" * (MAX_TEXT + 1), "f")
    with pytest.raises(HostfileError, match=r"f:2: .*4096"):
        parse_hostfile("a[1-4000]\nb[1-4000]\n", "f")
    with pytest.raises(HostfileError, match="4096"):
        parse_host_argument("a[1-4000],b[1-4000]")


_LINES = st.text(alphabet="h1-2[],:@=# \t.%_$\r\x00slotporuex", max_size=25)
_FILES = st.lists(_LINES, max_size=5).map("\n".join) | st.text(max_size=60)


@given(_FILES)
def test_any_text_parses_or_is_refused_with_its_source(text: str) -> None:
    read = {"f": outcome(HostfileError, parse_hostfile, text, "f")}
    read["--hosts"] = outcome(HostfileError, parse_host_argument, text)
    for source, nodes in read.items():
        if isinstance(nodes, HostfileError):
            assert str(nodes).startswith(source + ":")
            continue
        assert nodes
        for node in nodes:
            assert not node.host.startswith("-")
            assert re.fullmatch(r"[A-Za-z0-9._:%-]+", node.host)
        assert parse_hostfile(hostfile(nodes), "again") == nodes


@pytest.mark.parametrize("text", ["h1\nh1\nh2\nh2\n", "h1\nh2\nh1\nh2\n"])
def test_a_host_once_a_slot(text: str) -> None:
    """PBS's file."""
    assert {node.host: node.slots for node in parse_hostfile(text, "f")} == {"h1": 2, "h2": 2}


def test_a_host_once_too_often_is_a_slip_unless_a_scheduler_says_so() -> None:
    text = "h1\nh1\nh2\n"
    with pytest.raises(HostfileError, match="h1' is in line 1 already"):
        parse_hostfile(text, "f")
    assert [node.slots for node in parse_hostfile(text, "f", per_slot=True)] == [2, 1]


@pytest.mark.parametrize(
    ("text", "what", "converted"),
    [
        ("[workers]\nh1 ansible_host=10.0.0.1\nh2\n[all:vars]\nx=1\n", "an inventory of Ansible", "10.0.0.1\nh2\n"),
        ("# mine\nHost h1 h3\n  HostName 10.0.0.1\nHost *\n  User x\n", "a configuration of ssh", "h1\nh3\n"),
        ("127.0.0.1 localhost\n::1 ip6-localhost\n10.0.0.1 h1 h1.ex\n", "a file of addresses and names", "h1\n"),
        ("---\n- h1\n- h2\n", "a list in YAML", "h1\nh2\n"),
        ("workers:\n  - h1\n  - h2\n", "a list in YAML", "h1\nh2\n"),
        ("all:\n  hosts:\n    h1:\n", "an inventory of Ansible in YAML", None),
        ("name,ip\nh1,10.0.0.1\n", "a table in CSV", "h1\n"),
    ],
)
def test_lists_of_other_tools_are_named_with_the_line_that_converts_them(
    text: str, what: str, converted: str | None, tmp_path: Path
) -> None:
    (tmp_path / "a file").write_text(text)
    with pytest.raises(HostfileError, match=what) as refused:
        parse_hostfile(text, "a file")
    line = str(refused.value).partition("hint: ")[2]
    if converted is not None:
        subprocess.run(["/bin/sh", "-c", line], cwd=tmp_path, check=True)
        assert (tmp_path / "hosts.txt").read_text() == converted


@pytest.mark.parametrize(
    "text", ["host slots=8\n", "user\n", "10.0.0.1 slots=8\n", "name[1-2],h3\n", "[fe80::1]:2222\n"]
)
def test_hosts_with_odd_names_are_no_list_of_another_tool(text: str) -> None:
    assert parse_hostfile(text, "f")
