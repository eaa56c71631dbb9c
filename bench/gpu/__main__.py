"""Runs the parts and keeps the report after each: `python -m bench.gpu [--out DIR] [--limit SECONDS] [NAME …]`."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from bench.gpu.launching import visible
from bench.gpu.parts import PARTS, machine
from bench.gpu.plan import Part, Row, keep, row_of

WITHOUT_GPU = 6.0  # times a part's limit: there the flow is tried, beside other work, and no time is lent
OUT = Path(__file__).resolve().parents[1] / "out"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(part.name for part in PARTS))
    parser.add_argument("--out", type=Path, default=OUT, help="directory of gpu.json and gpu.txt")
    parser.add_argument("--limit", type=float, help="seconds after which no part is begun [default: 420, and none "
                        "without a GPU]")  # fmt: skip
    parser.add_argument("--at-once", type=int, default=6, help="parts beside each other, of those that may")
    parser.add_argument("--keep", action="store_true", help="keep what the runs left as runs.tar.gz beside the report")
    options = parser.parse_args()
    wanted = [part for part in PARTS if not options.names or part.name in options.names]
    more = 1.0 if visible() else WITHOUT_GPU
    limit = options.limit or (420.0 if visible() else float("inf"))
    end = time.monotonic() + limit
    about = machine()
    print(about, flush=True)
    rows: list[Row] = []

    def note(row: Row) -> None:
        rows.append(row)
        keep(rows, options.out, about)
        print(row, flush=True)

    with tempfile.TemporaryDirectory() as place:

        def run(part: Part) -> Row:
            if time.monotonic() > end:
                return Row(part.name, "skipped", 0.0, f"the limit of {limit:.0f} s was over", {})
            return row_of(part, Path(place) / part.name.replace(" ", "-").replace(",", ""), more * part.limit)

        with ThreadPoolExecutor(options.at_once) as pool:
            for future in as_completed([pool.submit(run, part) for part in wanted if not part.alone]):
                note(future.result())
        for part in wanted:
            if part.alone:
                note(run(part))
        if options.keep:
            shutil.make_archive(str(options.out / "runs"), "gztar", place)
    print(f"report: {options.out / 'gpu.txt'}, gpu.json")
    return int(any(row.state in ("WRONG", "failed") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
