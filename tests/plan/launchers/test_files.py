"""What `allranks render` writes for torchrun, accelerate and deepspeed, and what `run` starts: compared whole.

`python -m tests.plan.launchers.test_files` writes the files of tests/golden/render and launchers again, to be read.
"""

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from allranks.cluster.hostfile import parse_host_argument
from allranks.cluster.nodes import make_cluster
from allranks.errors import UsageError
from allranks.plan.environment import NodeLaunch, Place
from allranks.plan.launchers import LAUNCHERS
from allranks.plan.plan import make_plan
from allranks.plan.ranks import Attempt
from allranks.plan.render import RENDERERS, RenderRequest
from allranks.protocol.plan_facts import read_facts
from allranks.settings import RunSpec

HERE = Path(__file__).parents[2] / "golden"
CONFIG = """# ours
compute_environment: LOCAL_MACHINE
deepspeed_config:
  deepspeed_config_file: zero2.json
  zero3_init_flag: false
distributed_type: DEEPSPEED
machine_rank: 0
main_process_ip: 10.15.38.17
main_process_port: 29501
num_machines: 2
num_processes: 16
"""
SIZES = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
PLAIN = ("train.py", "--epochs", "3", "--name", "a b")
# name: (renderer, command, the user's files)
RENDERED: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "torchrun": ("torchrun", PLAIN, {}),
    "torchrun_theirs": ("torchrun", ("torchrun", "--nnodes=4", "--tee", "3", "-m", "pkg.train", "--lr", "1"), {}),
    "accelerate": ("accelerate", PLAIN, {}),
    "accelerate_theirs": (
        "accelerate", ("accelerate", "launch", "--config_file", "a.yaml", "--mixed_precision", "bf16", *PLAIN),
        {"a.yaml": CONFIG},
    ),
    "deepspeed": ("deepspeed", PLAIN, {}),
    "deepspeed_theirs": (
        "deepspeed", ("deepspeed", "--num_gpus", "4", "train.py", "--deepspeed_config=conf/ds.json", "--lr", "1"),
        {"conf/ds.json": json.dumps({**SIZES, "bf16": {"enabled": True}})},
    ),
}  # fmt: skip
STARTED: dict[str, tuple[str, tuple[str, ...]]] = {
    "torchrun": ("torchrun", ("torchrun", "--nnodes", "4", "--tee=3", "--rdzv_backend=c10d", *PLAIN)),
    "accelerate": (
        "accelerate",
        ("accelerate", "launch", "--cpu", "--num_processes=8", "-m", "pkg.train", "--lr", "1"),
    ),
    "deepspeed": ("deepspeed", ("python", "-u", *PLAIN)),
    "colossalai": ("colossalai", ("colossalai", "run", "--nproc_per_node", "4", "--host", "a,b", *PLAIN)),
    "command": ("command", ("accelerate", "launch", "--cpu", *PLAIN)),
}


def a_plan(spec: RunSpec, nodes: int) -> Any:
    hosts = make_cluster(
        parse_host_argument(f"g[01-{nodes:02}]"), source="--hosts", first=None, is_local=lambda h: False
    )
    return make_plan(spec, hosts, {})


def rendered(name: str, nodes: int) -> dict[str, str]:
    what, command, texts = RENDERED[name]
    env = {"OMP_NUM_THREADS": "4", "WANDB_API_KEY": "secret"}
    spec = RunSpec.of(command=command, launcher=what, nproc=8, env=env, prelude="source /opt/env/bin/activate")
    return RENDERERS[what].render(RenderRequest(spec, a_plan(spec, nodes), "/shared/my project", texts))


def started(name: str, nodes: int) -> dict[str, str]:
    """argv, own environment and files of the first and the last node."""
    launcher, command = STARTED[name]
    spec = RunSpec.of(command=command, launcher=launcher, nproc=4)
    plan, found = a_plan(spec, nodes), {}
    for node in (plan.nodes[0], plan.nodes[-1]):
        place = Place("/tmp/n", "/work", "/tmp/n/outputs", False, "uid/n", "run-1")
        facts = {"interpreter": {"path": "/opt/env/bin/python", "torch": "2.13.0"}, "gpus": {"count": 0}}
        processes = LAUNCHERS[launcher](
            NodeLaunch(spec, plan.world_size, node, place, Attempt(0, "10.0.0.1", 26001), read_facts(facts))
        )
        shown = [{"rank": p.rank, "argv": p.argv, "env": p.env, "files": p.files} for p in processes]
        found[f"{node.node.name}.json"] = json.dumps(shown, indent=1) + "\n"
    return found


CASES = [("render", name, rendered) for name in RENDERED] + [("launchers", name, started) for name in STARTED]


def folder(kind: str, name: str, nodes: int) -> Path:
    return HERE / kind / f"{name}_{nodes}"


@pytest.mark.parametrize("nodes", [2, 8])
@pytest.mark.parametrize(("kind", "name", "make"), CASES, ids=[f"{k}-{n}" for k, n, _ in CASES])
def test_whole(kind: str, name: str, make: Any, nodes: int) -> None:
    kept = {p.name: p.read_text() for p in folder(kind, name, nodes).iterdir()}
    assert make(name, nodes) == kept
    assert make(name, nodes) == make(name, nodes)
    assert "secret" not in str(kept), "the shell is asked for them"


@pytest.mark.parametrize("name", RENDERED)
def test_scripts_are_shell(name: str) -> None:
    scripts = [text for text in rendered(name, 2).values() if text.startswith("#!")]
    assert scripts
    for text in scripts:
        done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_accelerate_gets_each_nodes_own_number_of_ranks() -> None:
    """As `run` gives it: accelerate divides the number by the machines."""
    spec = RunSpec.of(command=PLAIN, launcher="accelerate")
    nodes = parse_host_argument("g[01-02]")
    unequal = [dataclasses.replace(node, slots=slots) for node, slots in zip(nodes, (2, 6), strict=True)]
    plan = make_plan(spec, make_cluster(unequal, source="--hosts", first=None, is_local=lambda host: False), {})
    files = RENDERERS["accelerate"].render(RenderRequest(spec, plan, "/w"))
    configs = [str(text) for name, text in files.items() if name.endswith(".yaml")]
    assert ["num_processes: 4" in configs[0], "num_processes: 12" in configs[1]] == [True, True]


TWENTY = '{"train_batch_size": 20}'
TWENTY_OF_NONE = '{"train_batch_size": 20, "train_micro_batch_size_per_gpu": 0}'


@pytest.mark.parametrize(
    ("what", "command", "texts", "said"),
    [
        ("accelerate", "accelerate launch --config_file a.yaml t.py", {}, "a.yaml does not exist here"),
        ("deepspeed", "t.py --deepspeed_config d.json", {}, "d.json does not exist here"),
        ("deepspeed", "t.py --deepspeed d.json", {"d.json": "{"}, "d.json: Expecting"),
        ("deepspeed", "t.py --deepspeed d.json", {"d.json": TWENTY}, "a multiple of 16"),
        ("deepspeed", "t.py --deepspeed d.json", {"d.json": TWENTY_OF_NONE}, "a multiple of 16"),
        ("deepspeed", "t.py --deepspeed d.json", {"d.json": "[" * 100_000}, "cannot read d.json"),
        ("deepspeed", "t.py --deepspeed a/d.json --deepspeed_config b/d.json", {"a/d.json": "{}", "b/d.json": "{}"},
         "a/d.json and b/d.json would be one file, d.json"),
    ],
)  # fmt: skip
def test_refused(what: str, command: str, texts: dict[str, str], said: str) -> None:
    spec = RunSpec.of(command=tuple(command.split()), launcher=what, nproc=8)
    with pytest.raises(UsageError, match=said):
        RENDERERS[what].render(RenderRequest(spec, a_plan(spec, 2), "/w", texts))


def main() -> None:
    """Writes all files."""
    for kind, name, make in CASES:
        for nodes in (2, 8):
            place = folder(kind, name, nodes)
            place.mkdir(parents=True, exist_ok=True)
            for old in place.iterdir():
                old.unlink()
            for file, text in make(name, nodes).items():
                (place / file).write_text(text)


if __name__ == "__main__":
    main()
