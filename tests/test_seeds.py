"""docs/seeds.md: each command in it is one that allranks takes, and each test that it names is there, of real parts."""

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from tests.shell import Shell

from allranks import exitcodes

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "seeds.md"
FEWEST_ROWS = 100  # of all five set-ups
REAL = ("tests/hosts/", "tests/slurm/", "tests/local/", "tests/examples/")  # real processes, and nothing stands in
TEST_OF_ROW = re.compile(r"`(?P<path>[\w/]+\.py)::(?P<name>\w+)`(?: \((?P<reason>.+)\))?")
DRY = {"run", "check", "test", "exec"}  # these print what they would do


def rows() -> list[tuple[str, str, str]]:
    """What a set-up does, the command, the test."""
    table = [line.strip().strip("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    cells = [tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)) for line in table]
    return [(what, command, test) for what, command, test in cells if test.startswith("`")]


def commands() -> list[str]:
    """Every command of the page, in tables and in blocks."""
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("allranks ")]
    return list(dict.fromkeys([*lines, *(command.strip("`") for _, command, _ in rows())]))


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_row_names_a_test_that_exists() -> None:
    listed = rows()
    assert len(listed) >= FEWEST_ROWS
    for what, _, test in listed:
        named = TEST_OF_ROW.fullmatch(test)
        assert named is not None, (what, test)
        assert (ROOT / named["path"]).is_file(), (what, test)
        assert named["name"] in names_in(named["path"]), (what, test)


def test_every_row_is_shown_by_real_parts_or_says_why_not() -> None:
    """A unit test, recorded output and a stand-in show a row only where the row says so."""
    for what, _, test in rows():
        named = TEST_OF_ROW.fullmatch(test)
        assert named is not None, (what, test)
        is_real = named["path"].startswith(REAL)
        assert is_real != bool(named["reason"]), f"{what}: {test}. Name a test of {' '.join(REAL)}, or the reason"


@pytest.mark.parametrize("command", commands())
def test_a_command_is_taken(command: str, shell: Shell) -> None:
    a_command_is_taken(command, shell)


def a_command_is_taken(command: str, shell: Shell) -> None:
    """Give a command as far as it goes without nodes: `--dry-run`, `render`, the help behind the options of others."""
    hosts = "".join(f"node{number:02}\n" for number in range(1, 9))
    for name in ("hosts.txt", "node_ip_list.txt"):
        Path(name).write_text(hosts, encoding="utf-8")
    Path("ds.json").write_text('{"train_micro_batch_size_per_gpu": 1}', encoding="utf-8")
    program, *words = shlex.split(command)
    assert program == "allranks"
    verb = words[0]
    answer = shell(verb, *offline(verb, words[1:]))
    assert answer.code in (exitcodes.DONE, exitcodes.CHECK_FAILED), (command, answer)


def offline(verb: str, words: list[str]) -> list[str]:
    """The words of a command so that nothing is asked of a node, a cluster or a run."""
    if verb in DRY and "--run" not in words:
        return ["--dry-run", *words]
    if verb == "render" or words[:1] == ["plan"]:
        return words
    if verb in ("join", "exec"):  # the program's words come last
        return ["--help", *words]
    return [*words, "--help"]
