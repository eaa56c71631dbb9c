"""Audits loaders of this folder with one import of torch: `python -m tests.data.play WORLD LOCAL BATCHES,… NAME…`.

BATCHES `all` is `data audit`: whole epochs, and a single rank's pass beside them. A number is `run --audit-data`:
the first batches of each rank, and nothing else. JSON on standard output: by BATCHES, by name.
"""

import json
import sys
import tempfile
from pathlib import Path

from tests.data import loaders

from allranks.data import virtual
from allranks.data.auditing import conclude, read_rows, virtual_layout
from allranks.data.rows import REFERENCE
from allranks.protocol.codec import encode


def main() -> None:
    world, local, how_many, names = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4:]
    audits = {batches: {name: audited(name, world, local, batches) for name in names} for batches in how_many}
    json.dump(audits, sys.stdout)


def audited(name, world, local, batches):
    size = 1 if name == "single_rank" else world
    with tempfile.TemporaryDirectory() as folder:
        play = virtual.Play(f"{loaders.__name__}:{name}", size, min(local, size), 2, folder, batches)
        failure = virtual.run(play, lambda _: None)
        assert failure is None, failure.error
        ranks = [REFERENCE, *range(size)] if batches == "all" else range(size)
        rows = [row for rank in ranks for row in read_rows(Path(folder) / f"rank_{rank}.jsonl", rank)]
        audit = conclude(rows, virtual_layout(size, local))
    return {"ok": audit.ok, **encode(audit)}


if __name__ == "__main__":
    main()
