"""A cleaner of /tmp, as systemd-tmpfiles is: it takes every file of a directory on which it gets the lock."""

import fcntl
import os
from contextlib import suppress


def main() -> None:
    """Clean once."""
    for directory, below, names in os.walk("/tmp"):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            below.clear()  # tmpfiles.d(5): nothing below a locked directory is taken
            continue
        finally:
            os.close(descriptor)
        for name in names:
            with suppress(OSError):
                os.unlink(os.path.join(directory, name))


if __name__ == "__main__":
    main()
