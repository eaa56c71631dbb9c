"""The files of a run's outputs on this node, for `allranks fetch`: their list, and what is asked for of each."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Iterator, List, Optional

from allranks.protocol.frames import CHUNK, RANK_LOG, Stream, pack_output
from allranks.protocol.header import FetchHeader
from allranks.protocol.messages import ListedMessage, OutputFile, SentMessage, pack_message

from .files import LEFT_FLAGS, write_all

MOST_FILES = 200_000
BATCH = 1000  # files in one message


def answer(header: FetchHeader) -> None:
    """Write the list of files to standard output, or what the header asks for of some of them.

    A slow reader holds this process back; it ends with its connection.
    """
    if header.wanted is None:
        _list(header.root)
        return
    top = os.path.realpath(header.root)
    for index, wanted in enumerate(header.wanted):
        try:
            sent = _send(top, index, wanted.path, wanted.offset)
        except OSError as error:
            sent = SentMessage(index, error=error.strerror or "it cannot be read")
        write_all(1, pack_message(sent))


def _list(root: str) -> None:
    batch: List[OutputFile] = []
    count = 0
    skipped = 0
    for file in _files(root):
        if file is None or count >= MOST_FILES:
            skipped += 1
            continue
        count += 1
        batch.append(file)
        if len(batch) == BATCH:
            write_all(1, pack_message(ListedMessage(tuple(batch))))
            batch = []
    error = "" if os.path.isdir(root) else "%s is not a directory, or cannot be read" % root
    write_all(1, pack_message(ListedMessage(tuple(batch), True, skipped, error, not os.path.lexists(root))))


def _files(root: str) -> Iterator[Optional[OutputFile]]:
    """Yield each regular file below a directory; None for links, pipes and names that are not text.

    Links are not followed.
    """
    for directory, folders, names in os.walk(root):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(directory, name))]
        for name in sorted(names) + links:
            path = os.path.join(directory, name)
            try:
                status = os.lstat(path)
                relative = os.path.relpath(path, root)
                relative.encode()
            except (OSError, UnicodeError):
                yield None
                continue
            if stat.S_ISREG(status.st_mode):
                yield OutputFile(relative, status.st_size)
            else:
                yield None


def _send(top: str, index: int, path: str, offset: int) -> SentMessage:
    wanted = os.path.join(top, path)
    if os.path.realpath(wanted) != wanted or not wanted.startswith(top + "/"):
        return SentMessage(index, error="it is behind a link, or outside of the outputs")
    descriptor = os.open(wanted, os.O_RDONLY | LEFT_FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return SentMessage(index, error="it is not a regular file")
        whole = hashlib.sha256()
        at = 0
        while True:
            data = os.read(descriptor, CHUNK)
            if not data:
                return SentMessage(index, at, whole.hexdigest())
            whole.update(data)
            fresh = data[max(0, offset - at) :]
            if fresh:
                write_all(1, pack_output(Stream(RANK_LOG, index, 0), at + len(data) - len(fresh), fresh))
            at += len(data)
    finally:
        os.close(descriptor)
