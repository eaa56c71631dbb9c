"""`python -m allranks.collectives` in every rank."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from .options import parse
from .place import contract

USAGE, FAILED = 2, 3


def main(words: Sequence[str] | None = None) -> None:
    """Ends the process: 0 all passed, 2 wrong usage, 3 something failed, 5 something hung."""
    words = sys.argv[1:] if words is None else words
    try:
        code = _main(words)
    except ValueError as error:
        print(f"allranks.collectives: {error}", file=sys.stderr)
        code = USAGE
    # At once: destructors of a broken process group may wait for ever.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _main(words: Sequence[str]) -> int:
    try:
        rank = int(os.environ.get("RANK", "0"))
    except ValueError:
        raise ValueError(f"RANK={os.environ['RANK']!r} is no number") from None
    try:
        options = parse(words, rank)  # --help needs no ranks
        os.environ.update(contract(os.environ))
        options = parse(words, int(os.environ["RANK"]))
    except SystemExit as stop:
        return int(stop.code or 0)
    from .start import start  # torch takes seconds: usage errors come first

    return start(options)


if __name__ == "__main__":
    main()
