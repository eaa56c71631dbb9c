"""A rank that writes what a log can be broken by, and files that travel. `expected` is what its log must be."""

import json
import os
import sys

LONG = 1 << 20


def parts(rank: int) -> "list[tuple[int, bytes]]":
    """(descriptor, bytes) in the order of writing."""
    found = [(1 + number % 2, b"%d/%d on %s\n" % (rank, number, b"stderr" if number % 2 else b"stdout"))
             for number in range(200)]  # fmt: skip
    found += [(2, b"\r%3d %%" % percent) for percent in range(101)]
    found += [(1, b"\n"), (1, b"long " + b"x" * LONG + b"\n")]
    found += [(1, bytes(range(256)) * 16), (2, b"\xff\xfe\x00\xc3(\n"), (1, b"\x1b[2J\x1b]0;title\x07\n")]
    found += [(1, "Grüße, 世界\n".encode()), (1, b"no newline at the end of rank %d" % rank)]
    return found


def expected(rank: int) -> bytes:
    return b"".join(data for _, data in parts(rank))


def metrics(rank: int) -> str:
    return "".join(json.dumps({"step": step, "rank": rank, "loss": 1 / (1 + step)}) + "\n" for step in range(500))


def nccl(rank: int) -> str:
    return "".join(f"h:1:{rank} [0] NCCL INFO line {number}\n" for number in range(300))


def main() -> None:
    rank, outputs = int(os.environ["RANK"]), os.environ["ALLRANKS_OUTPUT_DIR"]
    with open(f"{outputs}/rank_{rank:02d}_metrics.jsonl", "w") as file:
        file.write(metrics(rank))
    with open(f"{outputs}/weights-{rank}.pt", "w") as file:
        file.write("stays where it is")
    with open(os.environ["NCCL_DEBUG_FILE"], "w") as file:
        file.write(nccl(rank))
    for descriptor, data in parts(rank):
        while data:
            data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main()
    sys.exit(0)
