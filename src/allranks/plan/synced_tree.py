"""The caller's working tree as --sync ships it: its identity, and where it lies on a node (pure)."""

from __future__ import annotations

from dataclasses import dataclass

CHUNK = 128 << 10  # bytes of the archive in one frame, far below what a frame may hold
WINDOW = 8 * CHUNK  # bytes on their way to one node: pings never wait behind more


@dataclass(frozen=True)
class Tree:
    """`sha256` is the archive's; `below` is the caller's position below `root`, which the ranks take too.

    `bytes` is what the files hold, `packed` the archive; `left_out` are checkpoints too large to be shipped.
    """

    root: str
    below: str
    files: int
    bytes: int
    packed: int = 0
    sha256: str = ""
    left_out: tuple[str, ...] = ()

    def workdir(self, node_dir: str) -> str:
        """The ranks' working directory on a node."""
        return f"{node_dir}/tree/{self.below}".rstrip("/")
