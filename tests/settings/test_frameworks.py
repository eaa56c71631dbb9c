"""Commands of frameworks that start the ranks of their node."""

import shlex

import pytest
from tests.settings.test_wrappers import resolved
from tests.shell import Shell

from allranks.errors import UsageError


@pytest.mark.parametrize(
    ("line", "command", "nproc", "nodes"),
    [
        ("composer -n 2 t.py --lr 3", "t.py --lr 3", 2, None),
        ("composer --nproc=2 --world_size 4 --node_rank 0 --master_addr x -m pkg.t a", "-m pkg.t a", 2, 2),
        ("/opt/bin/composer -v t.py -n 3", "t.py -n 3", None, None),
        ("fabric run --accelerator cpu --devices 2 --num-nodes 2 --node-rank 0 t.py --devices 9", None, 2, 2),
        ("lightning run model --devices=0,1 t.py", "t.py", 2, None),
        ("axolotl train c.yaml --launcher torchrun --lora-r 8", "-m axolotl.cli.train c.yaml --lora-r 8", None, None),
        ("FORCE_TORCHRUN=1 NNODES=2 llamafactory-cli train c.yaml", "-m llamafactory.launcher c.yaml", None, 2),
    ],
)
def test_ranks_run_what_the_framework_would_start(
    line: str, command: str | None, nproc: int | None, nodes: int | None
) -> None:
    spec, notes = resolved(line, hosts="h1,h2")
    assert spec.launch.command == tuple((command or "t.py --devices 9").split())
    assert (spec.launch.launcher, spec.launch.nproc, spec.target.nodes) == ("direct", nproc, nodes)
    assert any("starts ranks itself. Under allranks each rank runs " in note for note in notes)


@pytest.mark.parametrize("line", ["NPROC_PER_NODE=2 swift sft --model m", "USE_V1=1 llamafactory-cli train c.yaml"])
def test_what_starts_torchrun_on_its_node_starts_once_a_node(line: str) -> None:
    spec, _ = resolved(line, hosts="h1,h2")
    assert spec.launch.launcher == "command"
    assert spec.launch.command == tuple(line.split()[1:])


@pytest.mark.parametrize("line", ["llamafactory-cli webui", "swift web-ui", "axolotl preprocess c.yaml", "fabric x"])
def test_their_other_commands_are_programs(line: str) -> None:
    spec, _ = resolved(line, hosts="h1,h2")
    assert (spec.launch.launcher, spec.launch.command) == ("direct", tuple(line.split()))


def test_a_launcher_that_was_asked_for_gets_the_command_as_it_is() -> None:
    assert resolved("composer -n 2 t.py", launcher="command")[0].launch.command[0] == "composer"


@pytest.mark.parametrize("line", ["axolotl train c.yaml -- -n 2", "axolotl train c.yaml --cloud x", "fabric run"])
def test_what_cannot_be_understood_is_refused(line: str) -> None:
    with pytest.raises(UsageError):
        resolved(line)


def test_a_framework_in_another_environment() -> None:
    spec, _ = resolved("uv run llamafactory-cli train c.yaml")
    assert (spec.launch.wrap or "").startswith("uv run /bin/sh -c ")


def test_lightnings_variables_say_how_many_there_are(shell: Shell) -> None:
    line = "fabric run --accelerator cpu --devices 2 t.py"
    ranks = shell("run", "--local", "2", "--dry-run", "--json", *line.split()).document["nodes"][0]["ranks"]
    told = {name: value for name, value in ranks[0]["env"].items() if name.startswith("LT_")}
    assert told == {"LT_CLI_USED": "1", "LT_ACCELERATOR": "cpu", "LT_DEVICES": "2", "LT_NUM_NODES": "2"}


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("vllm serve m --nnodes 2 --node-rank 0", "vllm serve m --nnodes $NNODES --node-rank $NODE_RANK"),
        (
            "python3 -m sglang.launch_server --model-path m --dist-init-addr=1.2.3.4:5",
            "--dist-init-addr $MASTER_ADDR:$MASTER_PORT",
        ),
    ],
)
def test_a_server_is_refused_with_the_line_for_its_parts(line: str, part: str, shell: Shell) -> None:
    answer = shell("run", "--local", "2", "--dry-run", *line.split())
    assert answer.code == 2
    hint = answer.err.partition("hint: ")[2]
    assert part in hint
    assert shell("run", "--local", "2", "--dry-run", *shlex.split(hint)).code == 0


def test_a_nodes_number_is_never_the_same_on_every_node_silently(shell: Shell) -> None:
    words = ["--dry-run", "--launcher", "command", "tool", "--node-rank", "0"]
    refused = shell("run", "--local", "2", *words)
    assert refused.code == 2
    assert "hint: --launcher command bash -c 'tool --node-rank $NODE_RANK'" in refused.err
    assert shell("run", "--local", "1", *words).code == 0
    noted = shell("run", "--local", "2", "--dry-run", "t.py", "--node_rank=0")
    assert noted.code == 0
    assert "note: --node_rank=0 stands behind t.py, and every node gets it" in noted.err
