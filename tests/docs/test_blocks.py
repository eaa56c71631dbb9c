"""Blocks and options of the pages that no console runs: they are read by what would read them."""

import json
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

import click
import pytest
import yaml
from tests.docs.blocks import PLACES, ROOT, Block, Page, pages, read
from tests.docs.places import copy_directory
from tests.shell import Shell
from tests.test_seeds import PAGE as SEEDS
from tests.test_seeds import a_command_is_taken

from allranks.cli.declare import DeclaredCommand
from allranks.cli.main import VERBS, load
from allranks.settings.layers import resolve

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

LANGUAGES = {"", "bash", "console", "json", "pycon", "python", "text", "toml", "yaml", "{toctree}"}
# Options in prose that are of other programs, by the program that has them.
FOREIGN_OPTIONS = {
    "accelerate": "--config_file --cpu --use_fsdp --machine_rank --main_process_ip --main_process_port --max_restarts"
    " --mixed_precision --multi_gpu --num_machines --num_processes --same_network --use_deepspeed --rdzv_backend",
    "colossalai": "--host --include --exclude --extra_launch_args --master_addr --master_port --ssh-port"
    " --nproc_per_node --num_nodes",
    "deepspeed": "--deepspeed --deepspeed_config --elastic_training --exclude --include --launcher --local_rank"
    " --master_addr --master_port --module --no_local_rank --no_ssh --num_gpus --num_nodes --ds_config"
    " --node_rank --hostfile",
    "docker": "--device --ipc --runtime --shm-size --ulimit",
    "py-spy": "--native",
    "sbatch, srun": "--account --array --container --container-image --cpus-per-task --distribution --export"
    " --gpus-per-task --gres --kill-on-bad-exit --ntasks-per-node --overlap --requeue --signal --time --wait",
    "sky": "--secret",
    "torchrun": "--log-dir --max-restarts --monitor-interval --no-python --numa-binding --rdzv-backend --rdzv-conf"
    " --rdzv-endpoint --rdzv-id --redirects --role --standalone --tee --node_rank",
    "allranks.fabric, a module of its own": "--out",
    "any option": "--option",
}
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]+")
_CODE = re.compile(r"`([^`\n]+)`")


def blocks_of(language: str) -> list[object]:
    """Give all blocks of a language as parameters."""
    return [pytest.param(b, id=b.place) for page in pages() for b in page.blocks if b.language == language]


def test_every_command_block_is_run_or_says_why_not() -> None:
    faults = []
    for page in pages():
        for block in page.blocks:
            if block.language not in LANGUAGES:
                faults.append(f"{block.place}: unknown language {block.language!r}")
            if block.language != "console" and block.text.startswith("$ "):
                faults.append(f"{block.place}: commands with prompts belong into a console block")
            if "run" in block.marks and block.marks["run"] not in PLACES:
                faults.append(f"{block.place}: unknown place {block.marks['run']!r}, expected one of {PLACES}")
            if "run" in block.marks and block.reason_not_run is not None:
                faults.append(f"{block.place}: both run and not run")
            if block.reason_not_run == "":
                faults.append(f"{block.place}: a block that is not run needs a reason")
            if block.language == "console" and not block.commands():
                faults.append(f"{block.place}: no command")
        named = {block.marks["run"] for block in page.consoles if "run" in block.marks}
        if {"hosts", "slurm"} <= named:
            faults.append(f"{page.name}: a page has one place, and blocks of it name {sorted(named)}")
    assert faults == []
    assert sum(block.reason_not_run is None for page in pages() for block in page.consoles) > 40


@pytest.mark.parametrize("block", blocks_of("toml"))
def test_toml_is_taken_as_settings(block: Block) -> None:
    document = tomllib.loads(block.text)
    if block.file is None or block.file == "allranks.toml":
        resolved = resolve({}, {}, document, config_source=block.place)
        assert resolved.spec is not None
    elif block.file == "config.toml":  # a user's own, with clusters and notifications
        for name in document.get("cluster", {"": {}}):
            options = {"cluster": name or None}
            resolved = resolve(options, {}, {}, config_source="", user_config=document, user_source=block.place)
            assert resolved.spec.target.cluster == (name or None)


@pytest.mark.parametrize("block", blocks_of("yaml"))
def test_yaml_parses(block: Block) -> None:
    assert all(document for document in yaml.safe_load_all(block.text))


@pytest.mark.parametrize("block", blocks_of("json"))
def test_json_parses(block: Block) -> None:
    assert json.loads(block.text)


@pytest.mark.parametrize("block", blocks_of("python"))
def test_python_compiles(block: Block) -> None:
    assert compile(block.text, block.place, "exec")


@pytest.mark.parametrize("block", blocks_of("bash"))
def test_bash_parses_and_its_commands_are_taken(block: Block, shell: Shell) -> None:
    read = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    if block.page != SEEDS:  # tests/test_seeds.py
        commands_are_taken(block.text.splitlines(), shell)


NOT_RUN = [
    pytest.param(block, id=block.place)
    for page in pages()
    for block in page.consoles
    if block.reason_not_run is not None and page.path.name != "write-a-check.md"  # its check is in another package
]


@pytest.mark.parametrize("block", NOT_RUN)
def test_commands_that_are_not_run_are_taken(
    block: Block, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's own settings have a cluster `lab`, as on the page about clusters."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    own_settings = tmp_path / "config" / "allranks" / "config.toml"
    own_settings.parent.mkdir(parents=True)
    own_settings.write_text('[cluster.lab]\nhosts = "h1,h2"\n')
    page = read(block.page)
    for other in page.blocks:
        if other.file is not None:
            (tmp_path / other.file).write_text(other.text)
    for path in page.files_of:
        if path.is_dir():
            copy_directory(path, tmp_path)
    for name in ("stuck.py", "broken.py"):  # tutorials make them
        (tmp_path / name).touch()
    refused = {command.text for command in block.commands() if command.shown[:1] and "allranks: " in command.shown[0]}
    commands_are_taken([command.text for command in block.commands() if command.text not in refused], shell)


def commands_are_taken(lines: list[str], shell: Shell) -> None:
    """Give each line that is one command of allranks, without nodes."""
    for line in lines:
        command = line.removeprefix("exec ")
        if command.startswith("allranks ") and "…" not in command:
            words = shlex.split(command, comments=True)
            if not {">", "|", "&&", ";"} & set(words):
                a_command_is_taken(shlex.join(words), shell)


@cache
def own_options() -> frozenset[str]:
    """Give each option of each command."""
    found = {"--version", "--help"}
    commands = [load(verb) for verb in VERBS]
    while commands:
        command = commands.pop()
        if isinstance(command, click.Group):
            commands += command.commands.values()
        for parameter in command.params:
            found.update(parameter.opts, parameter.secondary_opts)
        if isinstance(command, DeclaredCommand):
            switches = " ".join(row.switches for row in command.declared.rows)
            found.update(word.partition("=")[0] for word in switches.split())
    return frozenset(option for option in found if option.startswith("--"))


def options_of_examples() -> set[str]:
    """Give each option of the programs in examples/, which their page explains."""
    programs = (ROOT / "examples").glob("*.py")
    return {option for path in programs for option in re.findall(r'"(--[a-z-]+)"', path.read_text(encoding="utf-8"))}


def options_in_prose(page: Page) -> set[str]:
    """Give the options that a page names: in code between backquotes, where no other program stands before them."""
    text = page.path.read_text(encoding="utf-8")
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    named: set[str] = set()
    for code in _CODE.findall(text):
        if code.startswith(("--", "allranks ")):
            own = re.split(r" (?:-- |torchrun|accelerate|deepspeed|colossalai|srun|\S+\.py)", code)[0]
            named.update(_OPTION.findall(re.sub(r"[\"'][^\"']*[\"']", "", own)))
    return named


def test_options_that_pages_name_exist() -> None:
    foreign = {option for options in FOREIGN_OPTIONS.values() for option in options.split()}
    known = own_options() | foreign | options_of_examples()
    missing = [f"{page.name}: {option}" for page in pages() for option in sorted(options_in_prose(page) - known)]
    assert missing == []
    named = set().union(*map(options_in_prose, pages()))
    assert len(named) > 100
    assert sorted(foreign - named) == []  # the table keeps no option that no page names
