"""`python -m tests.hosts.bed`: hosts to play with, until they are taken down."""

import argparse
import sys
from pathlib import Path

from tests.hosts.bed import network
from tests.hosts.bed.bed import Bed
from tests.hosts.bed.commands import BedError


def _up(options: argparse.Namespace) -> None:
    bed = Bed.up(options.n, options.dir, shm=options.shm, own_tmp=options.own_tmp, keep=True)
    print(f"hosts      {' '.join(f'{h.name}={h.address}' for h in bed.hosts)} head={bed.head_address}")
    print(f"hostfile   {bed.hostfile}   with names: {bed.hostfile_names}")
    print(f"to paste   export PATH={bed.bin_dir()}:$PATH")
    print("then       ssh h1 hostname")
    print(f"faults     python -m tests.hosts.bed do h2 drop_port 29500 --dir {bed.dir}    (and clear_faults)")
    print(f"down       python -m tests.hosts.bed down --dir {bed.dir}")


def _do(options: argparse.Namespace) -> None:
    host = Bed.load(options.dir).host(options.host)
    verb = getattr(host, options.verb, None)
    if options.verb.startswith("_") or not callable(verb):
        raise BedError(f"a host has no verb {options.verb}")
    result = verb(*(int(word) if word.lstrip("-").isdigit() else word for word in options.words))
    if result is not None:
        print(result)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hosts.bed", description=__doc__)
    verbs = parser.add_subparsers(dest="command", required=True)
    up = verbs.add_parser("up", help="hosts that stay until `down`")
    up.add_argument("n", type=int)
    up.add_argument("--shm", default="64m", help="size of /dev/shm on each host")
    up.add_argument("--own-tmp", action="store_true", help="each host has its own /tmp")
    down = verbs.add_parser("down", help="remove them")
    do = verbs.add_parser("do", help="a fault verb: do h2 drop_port 29500")
    do.add_argument("host")
    do.add_argument("verb")
    do.add_argument("words", nargs="*")
    for verb in (up, down, do):
        verb.add_argument("--dir", type=Path, required=True)
    verbs.add_parser("sweep", help="remove beds whose process was killed")
    options = parser.parse_args(argv)
    try:
        if options.command == "up":
            _up(options)
        elif options.command == "down":
            Bed.load(options.dir).down()
        elif options.command == "do":
            _do(options)
        else:
            print("removed", " ".join(network.sweep()) or "nothing")
    except BedError as error:
        print(f"bed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
