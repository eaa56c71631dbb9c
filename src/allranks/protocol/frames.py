"""Frames: how controller and agent talk over any byte stream (no IO here).

A frame is 4 bytes length (big endian, of what follows), 1 byte type, payload. Type J is one JSON object
with a "type"; type O is raw output: kind (1 byte), rank (4), attempt (2), offset (8), bytes.
Sizes are bounded; an unknown type is an error that names both versions.
"""

from __future__ import annotations

import struct
from collections import deque
from itertools import islice
from typing import Deque, Iterable, List, Tuple, Union

from .jsontext import JsonObject, read_object, write_json
from .records import NamedTuple

PROTOCOL = 1
MAX_JSON = 8 << 20  # a start message for 1024 ranks with large environments stays below 4 MiB
MAX_OUTPUT = 1 << 20
MAX_OFFSET = 1 << 50  # bytes of a log: no file system of today holds more
CHUNK = 128 << 10  # output bytes put into one frame

# Kinds of output streams; TREE goes the other way, to the node.
RANK_LOG = 0
NODE_LOG = 1
NCCL_LOG = 2
METRICS = 3
STACKS = 4
TREE = 5
# dumps of flight recorders; NCCL's word on the whole job, of a node
FLIGHT = 6
RAS = 7
AUDIT = 8  # what a rank's loaders gave
DUMP = 9  # what torch's watchdog has written of a rank's flight recorder
RAY_LOG = 10  # the ends of Ray's own logs
TRACE = 11  # a profile of a rank: in place of the attempt stands the profile's number
OF_ATTEMPT = (NCCL_LOG, AUDIT, DUMP, RAY_LOG)  # of these each attempt has a file of its own
FOLLOWED = {
    "metrics": METRICS,
    "nccl": NCCL_LOG,
    "stacks": STACKS,
    "flight": FLIGHT,
    "ras": RAS,
    "audit": AUDIT,
    "dump": DUMP,
    "ray": RAY_LOG,
    "trace": TRACE,
}

# Begins a line of a rank's log before what a script's program has written to a file of its own.
COPIED = b"[allranks] the end of "

_HEAD = struct.Struct(">IB")
_OUTPUT = struct.Struct(">BIHQ")


class FrameError(ValueError):
    """The bytes are not a frame of this protocol, and the stream cannot be read further."""


class Stream(NamedTuple):
    """Names one stream of output: its kind, the rank (0 for the node's log) and the attempt."""

    kind: int
    rank: int
    attempt: int


class OutputFrame(NamedTuple):
    """Bytes of one stream, from `offset` on."""

    stream: Stream
    offset: int
    data: bytes


Frame = Union[JsonObject, OutputFrame]


def stream_key(stream: Stream) -> str:
    """Name a stream in a table of sizes: kind/rank/attempt."""
    return "%d/%d/%d" % stream


def pack_json(message: JsonObject) -> bytes:
    """Make a frame of one control message; raise FrameError where it is too long."""
    body = write_json(message)
    if len(body) > MAX_JSON:
        raise FrameError("a control message of %d bytes is over the limit of %d" % (len(body), MAX_JSON))
    return _HEAD.pack(len(body) + 1, ord("J")) + body


def output_head(stream: Stream, offset: int, size: int) -> bytes:
    """Give what stands before `size` bytes of a stream in their frame."""
    head = _HEAD.pack(size + 1 + _OUTPUT.size, ord("O"))
    return head + _OUTPUT.pack(stream.kind, stream.rank, stream.attempt, offset)


def pack_output(stream: Stream, offset: int, data: bytes) -> bytes:
    """Bytes of a stream as a frame."""
    return output_head(stream, offset, len(data)) + data


PIECES = 64  # in one call: Linux takes 1024 (IOV_MAX)


class Outgoing:
    """Bytes that wait to be sent, in pieces without a copy: one archive may be on its way to many nodes."""

    def __init__(self) -> None:
        self._pieces: Deque[memoryview] = deque()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, pieces: Iterable[bytes]) -> None:
        """Queue pieces."""
        self._pieces.extend(map(memoryview, pieces))

    def next(self) -> List[memoryview]:
        """Give what one call may send."""
        return list(islice(self._pieces, PIECES))

    def drop(self, sent: int) -> None:
        """Forget so many bytes: they are sent."""
        while self._pieces and sent >= len(self._pieces[0]):
            sent -= len(self._pieces.popleft())
        if sent:
            self._pieces[0] = self._pieces[0][sent:]

    def clear(self) -> None:
        """Forget all."""
        self._pieces.clear()


class Decoder:
    """Turns bytes, cut anywhere, into frames; raises FrameError on what is none."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: Union[bytes, memoryview]) -> List[Frame]:
        """Add bytes; return the frames that are complete now. `data` may be written over afterwards."""
        if not self._buffer:
            frames, used = _frames_of(memoryview(data))
            self._buffer += data[used:]
            return frames
        self._buffer += data
        with memoryview(self._buffer) as view:
            frames, used = _frames_of(view)
        del self._buffer[:used]
        return frames


def _frames_of(data: memoryview) -> Tuple[List[Frame], int]:
    """Give the frames that are complete, each copied once, and how many bytes they take."""
    frames: List[Frame] = []
    start = 0
    while len(data) - start >= _HEAD.size:
        length, kind = _HEAD.unpack_from(data, start)
        _check_head(length, kind)
        end = start + 4 + length
        if len(data) < end:
            break
        with data[start + _HEAD.size : end] as body:
            frames.append(_decode(kind, body))
        start = end
    return frames, start


def _check_head(length: int, kind: int) -> None:
    if kind == ord("J"):
        limit = MAX_JSON + 1
    elif kind == ord("O"):
        limit = MAX_OUTPUT + 1 + _OUTPUT.size
    else:
        raise FrameError(
            "a frame of unknown type 0x%02x: this side speaks protocol %d, the other side another. "
            "Start both from the same allranks" % (kind, PROTOCOL)
        )
    if not 1 <= length <= limit:
        raise FrameError("a frame of %d bytes is over the limit of %d" % (length, limit))


def _decode(kind: int, body: memoryview) -> Frame:
    if kind == ord("O"):
        if len(body) < _OUTPUT.size:
            raise FrameError("an output frame of %d bytes is too short" % len(body))
        stream_kind, rank, attempt, offset = _OUTPUT.unpack_from(body)
        if offset > MAX_OFFSET:
            raise FrameError("an output frame for byte %d is beyond the limit of %d" % (offset, MAX_OFFSET))
        return OutputFrame(Stream(stream_kind, rank, attempt), offset, bytes(body[_OUTPUT.size :]))
    try:
        message = read_object(bytes(body), MAX_JSON)
    except ValueError as error:
        raise FrameError("a control frame is not JSON: %s" % error) from None
    if not isinstance(message.get("type"), str):
        raise FrameError('a control frame has no "type"')
    return message
