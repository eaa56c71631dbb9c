"""The batch script, whole; and that Slurm's own sbatch takes it where one is here (tests/slurm)."""

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest
import tomllib
from tests.hosts.waiting import BOUND

from allranks.cluster import Cluster, Node
from allranks.errors import UsageError
from allranks.plan.plan import make_plan
from allranks.plan.render import RENDERERS, RenderRequest
from allranks.plan.render.slurm import batch_script
from allranks.settings import RunSpec
from allranks.settings.layers import resolve

GOLDEN = Path(__file__).parents[2] / "golden"
SPECS = {
    "plain": RunSpec.of(command=("train.py",), nodes=4),
    "full": RunSpec.of(
        command=("train.py", "--epochs", "3", "--note", "it's"), name="demo", nodes=16, nproc=8, partition="gpu,long",
        sbatch=("--gres=gpu:8 --time=1-00:00:00", "--comment='two words'"), python="/opt/env/bin/python",
        workdir="/shared/my project", runs_dir="/shared/runs", env={"OMP_NUM_THREADS": "8", "MY_TOKEN": "sesame"},
        forward=("WANDB_API_KEY",), prelude="module load cuda\nsource env.sh", stop_grace=120.0, retries=3,
        pg_timeout=1800.0, network="10.0.0.0/16",
    ),
}  # fmt: skip


def request(name: str) -> RenderRequest:
    spec = SPECS[name]
    nodes = tuple(Node(i, f"node{i}", f"node{i}") for i in range(spec.target.nodes or 1))
    plan = make_plan(spec, Cluster(nodes, "--nodes"), {})
    return RenderRequest(spec, plan, "/home/me/work", allranks=("/opt/allranks/bin/python", "-m", "allranks"))


def golden(name: str, text: str) -> None:
    """Compare a text with its golden file."""
    path = GOLDEN / name
    if os.environ.get("ALLRANKS_GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs; ALLRANKS_GOLDEN=write writes it again"


@pytest.mark.parametrize("name", SPECS)
def test_golden(name: str) -> None:
    files = RENDERERS["slurm"].render(request(name))
    assert files == RENDERERS["slurm"].render(request(name))
    golden(f"slurm/{name}.sh", files["job.sh"])
    assert "sesame" not in files["job.sh"]


def test_golden_of_a_submitted_run() -> None:
    golden("slurm/submitted.sh", batch_script(request("plain"), "/home/me/work/runs/run-20261121-120000"))


ROLES = """
[roles.rollout]
command = "vllm serve 'my model' --port {rollout.port.http} # $HOME"
nodes = 1
env = { MODE = "it's" }
[roles.trainer]
command = "train.py {rollout.address}"
nodes = 3
after = ["rollout"]
"""


def test_the_script_of_a_run_with_roles_has_them_in_it(tmp_path: Path) -> None:
    """bash gives them to allranks as they are, and they are read again."""
    roles = resolve({}, {}, tomllib.loads(ROLES), config_source="roles.toml").spec.launch.roles
    spec = SPECS["plain"].changed(command=(), nodes=None).with_roles(roles)
    text = batch_script(dataclasses.replace(request("plain"), spec=spec))
    assert "#SBATCH --nodes=4\n" in text and "#SBATCH --job-name=train.py\n" in text
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\ncat\n")
    program.chmod(0o755)
    script = text.replace("/opt/allranks/bin/python", str(program)).replace("/home/me/work", str(tmp_path))
    done = subprocess.run(["/bin/bash", "-s"], input=script, capture_output=True, text=True, timeout=BOUND)
    assert resolve({}, {}, tomllib.loads(done.stdout), config_source="roles.toml").spec.launch.roles == roles, done


def test_the_script_of_a_run_with_ray_has_its_command_again() -> None:
    options = {"ray": True, "command": ("python", "ppo.py", "--lr", "1"), "nodes": 4}
    spec = resolve(options, {}, {}, config_source="").spec
    text = batch_script(dataclasses.replace(request("plain"), spec=spec))
    assert "#SBATCH --nodes=4\n" in text
    assert text.endswith("  --ray \\\n  -- \\\n  python \\\n  ppo.py \\\n  --lr \\\n  1\n"), text


@pytest.mark.parametrize("end", ["\n", "\r", "\x1b]0;x\x07", "\u2028"])
def test_a_name_of_several_lines_adds_no_line_to_the_script(end: str, tmp_path: Path) -> None:
    """sbatch reads #SBATCH lines as they stand, and bash runs what follows a line's end."""
    program = (f"a{end}touch {tmp_path}/x{end}.py",)
    spec = RunSpec.of(command=("a.py", *program), workdir=f"/w{end}touch {tmp_path}/x", nodes=2)
    text = batch_script(dataclasses.replace(request("plain"), spec=spec))
    head = text.split("# Made by allranks")[0].splitlines()
    assert head[0] == "#!/bin/bash" and all(line.startswith("#SBATCH ") and line.isprintable() for line in head[1:])
    subprocess.run(["bash", "-c", text], cwd=tmp_path, capture_output=True, timeout=BOUND)
    assert not (tmp_path / "x").exists()
    partition, quality = spec.changed(partition=f"gpu{end}x"), spec.changed(sbatch=(f"--qos='a{end}b'",))
    for more in (spec.changed(command=program), partition, quality):
        with pytest.raises(UsageError, match="#SBATCH"):
            batch_script(dataclasses.replace(request("plain"), spec=more))
