"""`python -m allranks.fabric` in every rank."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence

from allranks.exitcodes import USAGE
from allranks.program import StartError, export_place, find_place

from .ranks.options import parse


def main(words: Sequence[str] | None = None) -> None:
    """Run a suite and end the process: 0 passed, 2 wrong usage, 3 something failed, 5 something hung."""
    if words is None:
        words = sys.argv[1:]
    try:
        code = _run(words)
    except (StartError, ValueError) as error:
        print(f"allranks.fabric: {error}", file=sys.stderr)
        code = USAGE
    # At once: destructors of a broken process group may wait for ever.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(words: Sequence[str]) -> int:
    try:
        parse(words, rank=0)  # --help and wrong words need no ranks
    except SystemExit as stop:
        return int(stop.code or 0)
    export_rank(os.environ)
    options = parse(words, int(os.environ["RANK"]))
    import torch.distributed  # late: it takes seconds, and usage errors come first

    if not torch.distributed.is_available():
        raise ValueError("this torch is built without torch.distributed")
    from .ranks.start import start  # late: it imports what torch.distributed brings

    return start(options)


def export_rank(environ: MutableMapping[str, str]) -> None:
    """Set torchrun's variables from those of srun or mpirun; raise StartError where no launcher names this rank."""
    place = find_place(environ)
    if not place.launcher:
        raise StartError("RANK and WORLD_SIZE not set: start every rank with allranks, torchrun, srun or mpirun")
    if place.launcher == "torch":
        environ.setdefault("LOCAL_WORLD_SIZE", "1")  # a size that is guessed by rank would put ranks on wrong nodes
    if place.launcher == "Slurm" and "SLURM_NODEID" in environ:
        environ.setdefault("GROUP_RANK", environ["SLURM_NODEID"])
    export_place(place, environ)


if __name__ == "__main__":
    main()
