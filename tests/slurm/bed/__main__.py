"""`python -m tests.slurm.bed`: a Slurm cluster to play with, until it is taken down."""

import argparse
import sys
from pathlib import Path

from tests.hosts.bed import BedError
from tests.slurm.bed.slurm import SlurmBed


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.bed", description=__doc__)
    verbs = parser.add_subparsers(dest="command", required=True)
    up = verbs.add_parser("up", help="nodes that stay until `down`")
    up.add_argument("n", type=int)
    up.add_argument("--gpus", type=int, default=2, help="GPUs a node (device files)")
    down = verbs.add_parser("down", help="remove them")
    heal = verbs.add_parser("heal", help="no job, all nodes back")
    for verb in (up, down, heal):
        verb.add_argument("--dir", type=Path, required=True)
    options = parser.parse_args(argv)
    try:
        if options.command == "up":
            bed = SlurmBed.up(options.n, options.dir, gpus=options.gpus, keep=True)
            print(f"nodes      {' '.join(bed.states())} partitions main, short, low, spot, high")
            print(f"to paste   export SLURM_CONF={bed.dir}/slurm.conf PATH=$PATH:/usr/sbin")
            print("then       srun -N2 hostname")
            print(f"down       python -m tests.slurm.bed down --dir {options.dir}")
        else:
            bed = SlurmBed.load(options.dir)
            bed.down() if options.command == "down" else bed.heal()
    except BedError as error:
        print(f"bed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
