"""Audits loaders of this folder with one import of torch: `python -m tests.data.play WORLD LOCAL BATCHES,… NAME…`.

BATCHES `all` is `data audit`: whole epochs, and a single rank's pass beside them. A number is `run --audit-data`:
the first batches of each rank, and nothing else. JSON on standard output: by BATCHES, by name.
"""

import json
import sys
import tempfile
from pathlib import Path

from tests.data import loaders

from allranks.data import audit, virtual
from allranks.data.auditing import conclude, read_rows, virtual_layout


def in_run(make, world, local, batches):
    with tempfile.TemporaryDirectory() as folder:
        failure = virtual.run(virtual.Play("", world, local, 2, folder, str(batches)), lambda _: None, make)
        assert failure is None, failure.error
        rows = [row for rank in range(world) for row in read_rows(Path(folder) / f"rank_{rank}.jsonl", rank)]
        return conclude(rows, virtual_layout(world, local))


def main() -> None:
    world, local, how_many, names = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4:]
    audits = {batches: {name: audited(name, world, local, batches) for name in names} for batches in how_many}
    json.dump(audits, sys.stdout)


def audited(name, world, local, batches):
    make = getattr(loaders, name)
    size = 1 if name == "single_rank" else world
    if batches == "all":
        return audit(make, world_size=size, gpus_per_node=local).to_json()
    return in_run(make, size, local, int(batches)).to_json()


if __name__ == "__main__":
    main()
