"""A rank that joins the process group and says when it had: initialise.py DIRECTORY."""

import sys
import time
from pathlib import Path

begun = time.time()

import torch.distributed as dist  # noqa: E402

imported = time.time()
dist.init_process_group("gloo")
now = time.time()
(Path(sys.argv[1]) / f"initialised-{dist.get_rank()}").write_text(
    f"{now!r} {dist.get_world_size()} {begun!r} {imported!r}"
)
dist.barrier()
dist.destroy_process_group()
