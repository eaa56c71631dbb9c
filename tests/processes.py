"""What /proc says of a process, which may end at any moment."""

from pathlib import Path


def command_of(pid: int) -> bytes:
    """Its words, each ended by a zero byte; empty if it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def stat_of(pid: int | str) -> list[str]:
    """The fields of proc(5)'s stat from the state on (field 3). Raises OSError if it is gone."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def parent_of(pid: int) -> int:
    """Its parent. Raises OSError if it is gone."""
    return int(stat_of(pid)[1])
