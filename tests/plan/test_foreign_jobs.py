"""Batch scripts and manifests of others, given as the program."""

import shlex
from pathlib import Path

import pytest
from tests.shell import Shell

from allranks.plan.foreign_jobs import read_batch_script, read_manifest

SLURM = """\
#!/bin/bash
#SBATCH --job-name=llm
#SBATCH -N 4
#SBATCH --ntasks-per-node=1 -p gpu
#SBATCH --gres=gpu:8  # a node
#SBATCH --time 1:00:00
head=$(scontrol show hostnames | head -1)
srun --cpu-bind=none torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 --rdzv_endpoint $head:29500 \\
  train.py --lr 1 --out $OUT
"""
HINT = (
    "allranks run --slurm --nodes 4 --partition gpu --sbatch=--gres=gpu:8 --sbatch=--time=1:00:00 "
    "torchrun --nproc_per_node 8 train.py --lr 1 --out"
)


@pytest.mark.parametrize("words", [["--slurm"], ["--slurm", "--launcher", "command"]])
def test_a_batch_script_is_not_taken_for_a_program(words: list[str], shell: Shell) -> None:
    """Its `#SBATCH -N 4` was ignored: the job had one node."""
    Path("job.slurm").write_text(SLURM)
    answer = shell("run", *words, "--dry-run", "job.slurm")
    assert answer.code == 2
    assert "job.slurm is a batch script of Slurm. allranks does not submit it" in answer.err
    assert f"hint: {HINT}" in answer.err


def test_the_hint_of_a_batch_script_is_understood(shell: Shell) -> None:
    Path("train.py").write_text("")
    answer = shell("run", "--dry-run", *shlex.split(HINT)[2:])
    assert answer.code == 0, answer.err
    assert {"#SBATCH --nodes=4", "#SBATCH --partition=gpu"} <= set(answer.out.splitlines())


def test_hosts_that_are_named_stay(shell: Shell) -> None:
    Path("job.slurm").write_text(SLURM)
    answer = shell("run", "--local", "2", "--dry-run", "bash", "job.slurm")
    assert "hint: allranks run --local 2 torchrun --nproc_per_node 8 train.py --lr 1" in answer.err


def test_a_batch_script_that_starts_nothing_on_nodes_runs_once_a_node(shell: Shell) -> None:
    Path("job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=4\npython prepare.py\n")
    answer = shell("run", "--local", "2", "--launcher", "command", "--dry-run", "bash", "job.sh")
    assert answer.code == 0
    assert "note: job.sh runs on each node, and its lines #SBATCH are not read: --nodes=4" in answer.err


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("#PBS -l select=4\nmpirun -np 4 python t.py\n", "allranks run --hosts $PBS_NODEFILE t.py, inside the job"),
        ("#BSUB -n 4\njsrun -n 4 python t.py\n", "allranks run --hosts $LSB_DJOB_HOSTFILE t.py, inside the job"),
        ("#SBATCH -N2 --ntasks-per-node 8\nsrun python t.py\n", "allranks run --slurm --nodes 2 --nproc 8 t.py"),
    ],
)
def test_other_schedulers(text: str, line: str) -> None:
    script = read_batch_script(text)
    assert script is not None
    assert script.run_line(inside=False) == line


PYTORCHJOB = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Master: &role
      replicas: 1
      template:
        spec:
          containers:
          - image: my/img:1
            command: [torchrun, --nproc_per_node, "8", train.py, --lr, "3"]
            resources: {limits: {nvidia.com/gpu: 8}}
    Worker:
      <<: *role
      replicas: 3
"""
MPIJOB = """\
apiVersion: v1
kind: ConfigMap
---
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
spec:
  mpiReplicaSpecs:
    Launcher:
      template:
        spec:
          containers: [{image: i, command: [mpirun, -np, "16", python, train.py]}]
    Worker:
      replicas: 2
      template:
        spec:
          containers: [{image: i, resources: {limits: {amd.com/gpu: 8}}}]
"""
JOBSET = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
spec:
  replicatedJobs:
  - template:
      spec:
        parallelism: 4
        template:
          spec:
            containers: [{image: i, command: [bash, -xc, "torchrun --rdzv_id=1 --nnodes=4 train.py --a"]}]
"""
SKYPILOT = """\
num_nodes: 2
resources: {accelerators: "H100:8", image_id: "docker:i"}
run: |
  torchrun --nnodes $SKYPILOT_NUM_NODES --nproc_per_node 8 train.py
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            PYTORCHJOB,
            "allranks run --k8s --nodes 4 --gpus 8 --image my/img:1 torchrun --nproc_per_node 8 train.py --lr 3",
        ),
        (MPIJOB, "allranks run --k8s --nodes 2 --gpus amd.com/gpu:8 --image i train.py"),
        (JOBSET, "allranks run --k8s --nodes 4 --image i torchrun train.py --a"),
        (SKYPILOT, "allranks run --sky --nodes 2 --gpus H100:8 --image i torchrun --nproc_per_node 8 train.py"),
    ],
)
def test_a_manifest_is_recognised(text: str, line: str, shell: Shell) -> None:
    Path("job.yaml").write_text(text)
    answer = shell("run", "--local", "2", "--dry-run", "job.yaml")
    assert answer.code == 2
    assert "is not read as a job. Its command is " in answer.err
    assert f"hint: {line}, or `allranks render " in answer.err


@pytest.mark.parametrize(
    "text", ["a: [", "- 1", "base_model: x\nrun: 3\n", "kind: Job\n", "run: x\n", "", "a: &a [*a]"]
)
def test_another_yaml_file_is_none(text: str) -> None:
    assert read_manifest(text) is None
