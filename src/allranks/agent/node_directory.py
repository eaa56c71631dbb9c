"""The node directory: allranks-UID/RUN/NODE below the first usable base, private to its user."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from typing import List, Optional, Sequence

from allranks.protocol.node_names import OUTPUTS, SPOOL, TREE, NodeFiles

from . import receiver
from .files import LEFT_FLAGS, create_file, names_in, read_bytes, remove_file, remove_tree

SOCKET_LIMIT = 107  # bytes of a Unix socket's path
LONGEST_NAME = len(NodeFiles("").reports)
PROBE = 65536  # bytes that must find room
DEFAULT_BASES = ("/tmp", "/var/tmp", "/dev/shm")


class NoNodeDir(Exception):
    """No base was usable; the text says why for each."""


def bases(wanted: Optional[str]) -> List[str]:
    """Where to try, in order: what the user asked for alone, or the usual places."""
    if wanted:
        return [wanted]
    return [base for base in (os.environ.get("TMPDIR"), *DEFAULT_BASES) if base]


def make(wanted: Optional[str], run: str, node: str) -> str:
    """Make the directory (0700, owner checked, no symbolic links) and return its path; raise NoNodeDir."""
    why: List[str] = []
    for base in bases(wanted):
        try:
            return _make_below(base, run, node)
        except OSError as error:
            why.append("%s: %s" % (base, error.strerror))
        except NoNodeDir as error:
            why.append("%s: %s" % (base, error))
    raise NoNodeDir("no usable node directory: " + "; ".join(why))


def find(wanted: Optional[str], run: str, node: str) -> Optional[str]:
    """Return the directory that a run already has on this node, or None."""
    for base in bases(wanted):
        path = _path(base, run, node)
        try:
            check_private(os.path.dirname(os.path.dirname(path)))
            check_private(path)
        except (OSError, NoNodeDir):
            continue
        return path
    return None


def kept_outputs(path: str) -> Optional[str]:
    """Where the program left more than metrics (those travel): the outputs directory, the shipped tree, or both."""
    kept = _kept(path)
    if len(kept) == 1:
        return os.path.join(path, kept[0])
    if kept:
        return path
    return None


def has_outputs_alone(path: str) -> bool:
    """Tell whether all that lies there is what `remove` keeps."""
    kept = _kept(path)
    return bool(kept) and all(name in (*kept, receiver.MANIFEST) for name in names_in(path))


def _kept(path: str) -> List[str]:
    kept: List[str] = []
    outputs = names_in(NodeFiles(path).outputs)
    if any(not (name.startswith("rank_") and name.endswith("_metrics.jsonl")) for name in outputs):
        kept.append(OUTPUTS)
    if receiver.has_results(path):
        kept.append(TREE)
    return kept


def remove(path: str) -> None:
    """Remove the directory, but keep what `kept_outputs` names, and that a second time too."""
    kept = _kept(path)
    if TREE in kept:
        kept.append(receiver.MANIFEST)
    for link in read_bytes(NodeFiles(path).links, 4096).decode("utf-8", "replace").splitlines():
        if os.path.islink(link) and os.readlink(link).startswith(path + "/"):
            remove_file(link)
    for name in set(os.listdir(path)).difference(kept):
        place = os.path.join(path, name)
        if os.path.isdir(place) and not os.path.islink(place):
            remove_tree(place)
        else:
            remove_file(place)
    _remove_empty((path, os.path.dirname(path), os.path.dirname(os.path.dirname(path))))


def _path(base: str, run: str, node: str) -> str:
    return os.path.join(os.path.abspath(base), "allranks-%d" % os.getuid(), run, node)


def _make_below(base: str, run: str, node: str) -> str:
    path = _path(base, run, node)
    if len(path.encode()) + LONGEST_NAME > SOCKET_LIMIT:
        raise NoNodeDir("the path is too long for a Unix socket")
    parents = (os.path.dirname(os.path.dirname(path)), os.path.dirname(path))
    try:
        for directory in parents:
            try:
                os.mkdir(directory, 0o700)
            except FileExistsError:
                pass
            check_private(directory)
        _fill(path)
    except (OSError, NoNodeDir):
        _remove_empty(parents[::-1])
        raise
    return path


def _fill(path: str) -> None:
    """Make the directory and write a probe: a full disk is seen while another base can still be taken."""
    os.mkdir(path, 0o700)
    try:
        for name in DIRECTORIES:
            os.mkdir(os.path.join(path, name), 0o700)
        probe = os.path.join(path, "probe")
        fd = create_file(probe)
        try:
            if os.write(fd, bytes(PROBE)) < PROBE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(fd)
        os.unlink(probe)
    except OSError:
        remove_tree(path)
        raise


def _remove_empty(directories: Sequence[str]) -> None:
    for directory in directories:
        try:
            os.rmdir(directory)
        except OSError:
            return


# -- while a run lives ------------------------------------------------------------------------------------

LARGEST_KEPT = 8 << 20  # bytes of a file that is written again
RENEWED = 3600.0  # seconds between renewals of times; cleaners wait for days
DIRECTORIES = (SPOOL, OUTPUTS)


def hold(path: str) -> Optional[int]:
    """Lock the directory for as long as the descriptor is open; None where it cannot be locked.

    What cleans /tmp by age leaves a locked directory alone (tmpfiles.d(5), "Age").
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | LEFT_FLAGS)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # a file system without locks, or a cleaner is at it
        os.close(fd)
        return None
    return fd


class Upkeep:
    """Keeps what cleaners would take from the directory of a run that lives."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._next_renewal = time.monotonic() + RENEWED
        programs = [name for name in names_in(path) if name.endswith((".py", ".zip"))]
        self._files = {name: read_bytes(os.path.join(path, name), LARGEST_KEPT) for name in programs}

    def look(self, now: float) -> None:
        """Once an hour set the times of all that lies there to now, for cleaners that know no locks."""
        if now < self._next_renewal:
            return
        self._next_renewal = now + RENEWED
        for name in ("", *names_in(self._path)):
            try:
                os.utime(os.path.join(self._path, name), follow_symlinks=False)
            except OSError:
                pass

    def restore(self) -> List[str]:
        """Write again what is missing of the files that ranks are started with, and of the directories; give the names.

        Raise OSError where that cannot be done."""
        missing = [name for name in DIRECTORIES if not os.path.isdir(os.path.join(self._path, name))]
        for name in missing:
            os.makedirs(os.path.join(self._path, name), 0o700)
        for name, content in self._files.items():
            if os.path.lexists(os.path.join(self._path, name)):
                continue
            with open(create_file(os.path.join(self._path, name)), "wb") as file:
                file.write(content)
            missing.append(name)
        return missing


# -- whose it is ------------------------------------------------------------------------------------------


def check_private(directory: str, entered: bool = False) -> None:
    """Raise NoNodeDir, OSError for a directory that is not this user's own; `entered`: others may enter and list it."""
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode):
        raise NoNodeDir("%s is not a directory (a symbolic link is refused)" % directory)
    if status.st_uid != os.getuid():
        raise NoNodeDir("%s belongs to user %d" % (directory, status.st_uid))
    if status.st_mode & (0o022 if entered else 0o077):
        raise NoNodeDir("%s may be entered by others (mode %o)" % (directory, status.st_mode & 0o777))
