"""Commands that begin with another launcher: what is read out of them, and what is started."""

import re
import shlex
from pathlib import Path

import pytest
from tests.shell import Shell, command_of

from allranks.cluster import Node
from allranks.cluster.nodes import virtual_cluster
from allranks.errors import ConfigError, UsageError
from allranks.plan.environment import NodeLaunch, Place, rank_environment
from allranks.plan.launchers import LAUNCHERS
from allranks.plan.launchers.config_keys import launcher_settings, needed_modules
from allranks.plan.launchers.deepspeed import hostfile
from allranks.plan.launchers.training_command import out_of_reach, read_training
from allranks.plan.plan import make_plan, ranks_of
from allranks.plan.ranks import Attempt, NodePlan
from allranks.protocol.plan_facts import read_facts
from allranks.settings import RunSpec
from allranks.settings.layers import resolve
from allranks.settings.runspec import LAUNCHERS as NAMES
from allranks.settings.tools import read_tool

DOCS = Path(__file__).resolve().parents[3] / "docs" / "how-to"


@pytest.mark.parametrize(
    ("launcher", "command", "modules"),
    [
        ("direct", "t.py", []),
        ("direct", "python -c 1", []),
        ("direct", "-m pkg.train", ["pkg"]),
        ("torchrun", "t.py", ["torch"]),
        ("accelerate", "t.py", ["accelerate"]),
        ("accelerate", "accelerate launch -m pkg.sub.train", ["accelerate", "pkg"]),
        ("deepspeed", "deepspeed t.py", ["deepspeed"]),
        ("colossalai", "colossalai run t.py", ["colossalai"]),
        ("command", "accelerate launch t.py", []),
        ("command", "python -m accelerate.commands.launch t.py", ["accelerate"]),
    ],
)
def test_what_must_be_installed(launcher: str, command: str, modules: list[str]) -> None:
    assert needed_modules(RunSpec.of(command=tuple(shlex.split(command)), launcher=launcher)) == modules


@pytest.mark.parametrize(
    ("launcher", "command", "ranks"),
    [
        ("torchrun", "torchrun --nnodes 2 --nproc-per-node 4 --node-rank 0 t.py", 4),
        ("torchrun", "python -m torch.distributed.run --nproc_per_node=4 t.py", 4),
        ("torchrun", "torchrun --nproc-per-node gpu t.py", 1),
        ("torchrun", "torchrun t.py --nproc-per-node 4", 1),
        ("accelerate", "accelerate launch --num_machines 2 --num_processes 8 t.py", 4),
        ("accelerate", "accelerate launch --num_processes 8 t.py", 1),  # of how many machines is not said
        ("deepspeed", "deepspeed --num_gpus 4 t.py", 4),
        ("colossalai", "colossalai run --nproc_per_node 4 t.py", 4),
        ("command", "torchrun --nproc-per-node 4 t.py", 4),
        ("direct", "t.py --nproc-per-node 4", 1),
    ],
)
def test_the_command_says_how_many_ranks_a_node_has(launcher: str, command: str, ranks: int) -> None:
    """A command that is pasted as it was brings its ranks; --nproc and slots stand above it, GPUs below it."""
    spec = RunSpec.of(command=tuple(shlex.split(command)), launcher=launcher)
    node = Node(0, "h1", "h1")
    facts = read_facts({})
    assert ranks_of(spec, node, facts)[0] == ranks
    assert ranks_of(spec.changed(nproc=3), node, facts)[0] == 3
    assert ranks_of(spec, Node(0, "h1", "h1", slots=2), facts)[0] == 2


@pytest.mark.parametrize("launcher", [None, "direct", "deepspeed"])
def test_deepspeed_does_not_change_the_number_of_nodes_by_itself(launcher: str | None) -> None:
    words = ("deepspeed", "--min_elastic_nodes", "1", "--elastic_training", "t.py")
    options = {"command": words, **({"launcher": launcher} if launcher else {})}
    with pytest.raises(UsageError, match=r"hint: leave it out\. --nodes MIN:MAX starts again with the nodes"):
        resolve(options, {}, {}, config_source="allranks.toml")


def test_tests_need_torch() -> None:
    assert needed_modules(RunSpec.of(test="sync")) == ["torch"]


@pytest.mark.parametrize(
    "option", ["--include h1:0,1", "-e h2", "--exclude=h2", "--launcher openmpi", "--launcher_args -v"]
)
def test_deepspeeds_own_choice_of_nodes_is_refused(option: str) -> None:
    """It was dropped without a word."""
    line = f"deepspeed {option} t.py"
    with pytest.raises(UsageError, match=f"deepspeed {option} (chooses|says).*\nhint: leave it out"):
        resolve({"command": line.split()}, {}, {}, config_source="allranks.toml")
    resolve({"command": line.split(), "launcher": "command"}, {}, {}, config_source="allranks.toml")


@pytest.mark.parametrize(("line", "ranks"), [("--num_processes 4", 2), ("--num_machines 1 --num_processes 6", 3)])
def test_processes_of_accelerate_are_those_of_all_machines(line: str, ranks: int) -> None:
    spec = RunSpec.of(command=("accelerate", "launch", *line.split(), "t.py"), launcher="accelerate", local=2)
    assert make_plan(spec, virtual_cluster(2), {}).world_size == 2 * ranks


def test_every_launcher_can_be_asked_for() -> None:
    assert sorted(LAUNCHERS) == sorted(NAMES)


@pytest.mark.parametrize(
    ("line", "options", "program"),
    [
        ("torchrun --nnodes=2 --nproc-per-node 8 t.py --lr 3", {"nnodes": "2", "nproc_per_node": "8"}, "t.py --lr 3"),
        ("torchrun --standalone -m pkg.train -m x", {"standalone": None, "m": None}, "-m pkg.train -m x"),
        ("python3 -m torch.distributed.run --tee 3 t.py", {"tee": "3"}, "t.py"),
        ("python -m torch.distributed.launch --use_env t.py", {"use_env": None}, "t.py"),
        ("accelerate launch --multi_gpu --config_file a t.py", {"multi_gpu": None, "config_file": "a"}, "t.py"),
        ("accelerate launch t.py --cpu", {}, "t.py --cpu"),
        ("accelerate-launch t.py", {}, "t.py"),
        ("/opt/env/bin/accelerate launch --module pkg.t a", {"module": None}, "-m pkg.t a"),
        ("accelerate launch --num_processes=4 -- t.py --x", {"num_processes": "4"}, "t.py --x"),
        ("deepspeed --num_gpus 4 --no_local_rank t.py --d x", {"num_gpus": "4", "no_local_rank": None}, "t.py --d x"),
        ("deepspeed -H hosts --module pkg", {"H": "hosts", "module": None}, "-m pkg"),
        ("colossalai run --nproc_per_node 2 t.py --lr 1", {"nproc_per_node": "2"}, "t.py --lr 1"),
        ("colossalai run --nproc_per_node 2 -m pkg.t --lr 1", {"nproc_per_node": "2"}, "-m pkg.t --lr 1"),
    ],
)
def test_a_tool_is_read(line: str, options: dict[str, str | None], program: str) -> None:
    tool = read_tool(shlex.split(line))
    assert tool is not None
    assert tool.name in line.replace("torch.distributed", "torchrun")
    assert {o.name: o.value for o in tool.options} == options
    assert list(tool.program) == program.split()


NO_TOOLS = "train.py", "python train.py", "accelerate config", "torchrunner x.py", "python -m accelerate"


@pytest.mark.parametrize("line", [*NO_TOOLS, "colossalai check"])
def test_what_is_no_tool(line: str) -> None:
    assert read_tool(line.split()) is None


def test_the_interpreter_beside_a_tool() -> None:
    words = read_training(RunSpec.of(command=("/opt/env/bin/torchrun", "t.py"), launcher="torchrun"))
    assert (words.python, words.kind, words.program) == ("/opt/env/bin/python", "python-script", ("t.py",))


def resolved(command: str, **options: object) -> tuple[str, tuple[str, ...]]:
    found = resolve({"command": command.split(), "local": 2, **options}, {}, {}, config_source="allranks.toml")
    return found.spec.launch.launcher, found.notes


def test_the_command_names_the_launcher() -> None:
    launcher, notes = resolved("accelerate launch t.py")
    assert launcher == "accelerate"
    assert notes == ("accelerate launch starts once a node and gets the nodes as its options (--launcher accelerate)",)
    assert resolved("train.py") == ("direct", ())
    assert resolved("accelerate launch t.py", launcher="command") == ("command", ())
    assert resolved("accelerate launch t.py", launcher="accelerate") == ("accelerate", ())


def test_two_launchers_are_refused() -> None:
    with pytest.raises(UsageError, match="--launcher deepspeed, but the command starts with accelerate launch"):
        resolved("accelerate launch t.py", launcher="deepspeed")
    with pytest.raises(UsageError, match="torchrun has no program"):
        resolved("torchrun --nnodes 2")
    with pytest.raises(ConfigError, match="one of direct, torchrun, accelerate"):
        resolve({"command": ["t.py"]}, {}, {"launcher": "mpirun"}, config_source="allranks.toml")


@pytest.mark.parametrize(
    ("counts", "lines"),
    [([4, 4], ["4", "4"]), ([8, 8, 8], ["8", "8", "8"]), ([2, 4, 6, 1], None)],
)
def test_a_hostfile_gives_every_node_its_ranks(counts: list[int], lines: list[str] | None) -> None:
    """deepspeed numbers ranks by the slots of the lines before: a node needs no more than sums to be right."""
    world, first = sum(counts), 0
    for index, count in enumerate(counts):
        node = NodePlan(Node(index, "n", "n"), count, first, len(counts), index)
        slots = [int(line.split("slots=")[1]) for line in hostfile(world, node).splitlines()]
        assert len(slots) == len(counts) and min(slots) > 0
        assert (sum(slots[:index]), slots[index], sum(slots)) == (first, count, world)
        assert lines is None or [str(s) for s in slots] == lines
        first += count


def test_the_configurations_that_a_command_names() -> None:
    command = "accelerate launch --config_file a.yaml t.py --deepspeed ds.json --ds_config=z.json --data x.json"
    found = launcher_settings(RunSpec.of(command=tuple(command.split()), launcher="accelerate"))
    assert (found["name"], found["accelerate"], found["deepspeed"]) == ("accelerate", "a.yaml", ["ds.json", "z.json"])
    assert not found["holds"]
    assert launcher_settings(RunSpec.of(command=("t.py",), launcher="accelerate"))["accelerate"] == ""
    assert launcher_settings(RunSpec.of(command=("t.py",)))["accelerate"] is None
    assert launcher_settings(RunSpec.of(command=tuple(command.split()), launcher="command"))["holds"]


@pytest.mark.parametrize(
    ("launcher", "command", "reached"),
    [
        ("direct", "t.py", True),
        ("direct", "python -m pkg.train", True),
        ("direct", "python -c 1", False),
        ("direct", "./train.sh", False),
        ("torchrun", "t.py", True),
        ("accelerate", "accelerate launch t.py", True),
        ("accelerate", "accelerate launch --no_python ./train.sh", False),
        ("command", "torchrun t.py", True),
        ("command", "t.py", False),
        ("command", "bash train.sh", False),
    ],
)
def test_settings_that_do_not_reach_the_ranks(launcher: str, command: str, reached: bool) -> None:
    """What takes effect in the runner is said not to, where the ranks have none."""
    spec = RunSpec.of(command=tuple(shlex.split(command)), launcher=launcher)
    assert out_of_reach(spec) == []
    notes = out_of_reach(spec.changed(pg_timeout=90.0, audit_data=4))
    assert [note.partition(" ")[0] for note in notes] == ([] if reached else ["--pg-timeout", "--audit-data"])
    assert reached or "ALLRANKS_PG_TIMEOUT" in notes[0]


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_guide_lists_every_launcher(name: str) -> None:
    guide = (DOCS / "guide.md").read_text().partition("| `--launcher` | starts |")[2].partition("\n\n")[0]
    assert re.search(rf"^\| {name}\b", guide, re.MULTILINE)
    page = (DOCS.parent / "explanation" / "launchers.md").read_text()
    heads = page.partition("## What is set where\n")[2].partition("\n")[0]
    assert f"| {name} |" in heads


def test_a_setting_out_of_reach_is_noted_beside_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--local", "1", "--nproc", "1", "--launcher", "command", "--pg-timeout", "90", "--dry-run", "--json")
    answer = Shell(capsys, monkeypatch)("run", *options, "--", "./own", "x")
    assert answer.code == 0
    assert command_of(answer.document)[-2:] == ["./own", "x"]
    assert "note: --pg-timeout 1m30s does not reach the ranks below own" in answer.err


def launch_of(spec: RunSpec, ranks: int, facts: dict[str, object]) -> NodeLaunch:
    place = Place("/tmp/n", "/work", "/tmp/n/outputs", False, "uid/n", "run-1")
    node = NodePlan(Node(0, "h1", "h1"), ranks, 0, 1)
    return NodeLaunch(spec, ranks, node, place, Attempt(0, "h1", 29500), read_facts(facts))


@pytest.mark.parametrize(
    ("config", "has_mode", "on_cpu"),
    [
        (None, True, False),
        ({"distributed_type": "MULTI_GPU"}, False, False),
        ({"distributed_type": "NO", "use_cpu": "true"}, True, True),
        ({"distributed_type": "MULTI_CPU", "use_cpu": True}, True, True),
        ({"distributed_type": "DEEPSPEED"}, False, False),
        ({"error": "cannot be read"}, True, False),
    ],
)
def test_accelerate_starts_a_nodes_ranks_whatever_its_configuration_says(
    config: dict[str, object] | None, has_mode: bool, on_cpu: bool
) -> None:
    spec = RunSpec.of(command=("t.py",), launcher="accelerate", nproc=2)
    launch = launch_of(spec, 2, {"gpus": {"count": 2}, "accelerate_config": config})
    (process,) = LAUNCHERS["accelerate"](launch)
    assert ("--multi_gpu" in process.argv) is has_mode
    assert ("ACCELERATE_USE_CPU" in process.env) is on_cpu


@pytest.mark.parametrize("given", [{}, {"TORCH_NCCL_ENABLE_TIMING": "0"}])
def test_collectives_are_timed_where_that_is_asked_for(given: dict[str, str]) -> None:
    """And where the user has set torch's own variable, that stays."""
    for asked in (False, True):
        launch = launch_of(RunSpec.of(command=("t.py",), straggler_timing=asked, env=given), 1, {})
        (process,) = LAUNCHERS["direct"](launch)
        expected = given.get("TORCH_NCCL_ENABLE_TIMING", "1" if asked else None)
        assert rank_environment(launch, process).get("TORCH_NCCL_ENABLE_TIMING") == expected
