"""`run --ray` with real Ray on nodes that Slurm gives: `make test-ray` installs it."""

from pathlib import Path

import pytest
from tests.hosts import raying
from tests.slurm.bed import SlurmBed
from tests.slurm.jobs import SlurmLaunch

pytestmark = pytest.mark.skipif(bool(raying.LACKING), reason=raying.LACKING)
BOUND = 300.0  # seconds: Ray starts eight processes a node


def test_a_submitted_job_has_ray_on_all_its_nodes(slurm: SlurmBed, tmp_path: Path) -> None:
    """The driver shares the first node with Ray's head, in a step of its own."""
    launch = SlurmLaunch(slurm, tmp_path)
    words = [word for option in raying.SMALL for word in ("--ray-start", option)]
    with raying.share_of_its_processes(slurm.hosts):
        options = ("--slurm", "--nodes", "2", "--ray", *words, "--python", raying.PYTHON, "--json")
        launch.begin("run", *options, "--", "python", str(raying.DRIVER), "0")
        result = launch.result(BOUND)
    assert (result["exit"], result["verdict"], result["left"]) == (0, None, {}), launch.stderr
    assert result["roles"]["ray"]["nodes"] == ["h1", "h2"]
    assert raying.left(slurm.hosts) == []
    launch.nothing_left()
