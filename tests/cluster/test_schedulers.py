"""Which node a process is, as schedulers tell it."""

from pathlib import Path

import pytest

from allranks.cluster.schedulers import SCHEDULERS, node_names, whereabouts
from allranks.errors import UsageError

SKY = {"SKYPILOT_NODE_RANK": "2", "SKYPILOT_NUM_NODES": "4", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.3",
       "SKYPILOT_NUM_GPUS_PER_NODE": "8"}  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, {}),
        ({"NODE_RANK": "1", "NNODES": "2", "OMPI_COMM_WORLD_RANK": "7"}, {"node_rank": "1", "nodes": "2"}),
        (SKY, {"node_rank": "2", "nodes": "4", "master_addr": "10.0.0.1", "nproc": "8"}),
        ({**SKY, "SKYPILOT_NUM_GPUS_PER_NODE": "0"}, {"node_rank": "2", "nodes": "4", "master_addr": "10.0.0.1"}),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
         {"node_rank": "1", "nodes": "3"}),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, {"node_rank": "0", "nodes": "2"}),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
          "SLURM_STEP_NODELIST": "gpu[03-04]"}, {"node_rank": "1", "nodes": "2", "master_addr": "gpu03"}),
        ({"SLURM_STEP_NODELIST": "gpu[03-04]"}, {}),
        ({"JOB_COMPLETION_INDEX": "3"}, {"node_rank": "3"}),
    ],
)  # fmt: skip
def test_schedulers(environ, found):
    assert whereabouts(environ) == found


@pytest.mark.parametrize(
    ("environ", "advice"),
    [
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, "ppr:1:node"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, "--ntasks-per-node=1"),
        ({"PMI_RANK": "0", "MPI_LOCALNRANKS": "2"}, "-ppn 1"),
    ],
)
def test_several_processes_on_a_host_are_refused_with_the_way_to_have_one(environ, advice):
    with pytest.raises(UsageError, match=advice):
        whereabouts(environ)


def test_every_scheduler_that_starts_several_says_how_to_start_one():
    assert all(one.once for one in SCHEDULERS if one.local_size)


def test_names_of_nodes():
    assert node_names(SKY, "10.0.0.1", 4) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert node_names({"JOB_COMPLETION_INDEX": "0"}, "train-0.train.ns.svc", 2) == ["train-0", "train-1"]
    assert node_names({"SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "a[1-2]"}, "a1", 2) == ["a1", "a2"]
    assert node_names({}, "h1", 2) == []


def test_open_mpi_hands_the_join_secret_on_wherever_we_write_its_line():
    """Open MPI takes no variable to another host without -x: there the nodes had no secret, and joined no other."""
    root = Path(__file__).parents[2]
    texts = [*root.glob("docs/**/*.md"), root / "README.md", *root.glob("src/allranks/**/*.py")]
    lines = [line for path in texts for line in path.read_text().splitlines() if "ppr:1:node" in line]
    assert len(lines) >= 2
    assert [line for line in lines if "-x ALLRANKS_JOIN_SECRET" not in line] == []
