"""Frames survive any cut of the stream; what is none is refused."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.campaign import examples

from allranks.protocol.frames import (
    MAX_OFFSET,
    MAX_OUTPUT,
    Decoder,
    FrameError,
    OutputFrame,
    Stream,
    pack_json,
    pack_output,
)

MESSAGES = st.dictionaries(st.text(max_size=8), st.integers(-(10**30), 10**30) | st.text(max_size=20), max_size=4).map(
    lambda d: {**d, "type": "x"}
)
OUTPUTS = st.builds(
    OutputFrame,
    st.builds(Stream, st.integers(0, 3), st.integers(0, 2**32 - 1), st.integers(0, 65535)),
    st.integers(0, MAX_OFFSET),
    st.binary(max_size=300),
)


@given(st.lists(MESSAGES | OUTPUTS, max_size=8), st.lists(st.integers(1, 50), min_size=1, max_size=20))
@settings(max_examples=examples(50))
def test_any_cut_gives_the_same_frames(frames, cuts):
    data = b"".join(pack_output(*f) if isinstance(f, OutputFrame) else pack_json(f) for f in frames)
    decoder, found, at, turn = Decoder(), [], 0, 0
    while at < len(data):
        step = cuts[turn % len(cuts)]
        found += decoder.feed(data[at : at + step])
        at, turn = at + step, turn + 1
    assert found == frames


def test_unknown_type_names_both_versions():
    with pytest.raises(FrameError, match="protocol 1"):
        Decoder().feed(struct.pack(">IB", 5, ord("Z")) + b"abcd")


@pytest.mark.parametrize("head", [struct.pack(">IB", 0, ord("J")), struct.pack(">IB", MAX_OUTPUT * 2, ord("O")),
                                  struct.pack(">IB", 2**31, ord("J"))])  # fmt: skip
def test_sizes_are_bounded(head):
    with pytest.raises(FrameError, match="limit"):
        Decoder().feed(head)


@pytest.mark.parametrize("offset", [MAX_OFFSET + 1, 2**63, 2**64 - 1])
def test_no_offset_is_beyond_what_a_file_holds(offset):
    """pwrite() of the controller takes less than 2**63."""
    with pytest.raises(FrameError, match="limit"):
        Decoder().feed(pack_output(Stream(0, 0, 0), offset, b"x"))


@pytest.mark.parametrize("body", [b"[1]", b'{"a": 1}', b"\xff\xfe", b'{"type": 3}', b"[" * 5000,
                                  b'{"type": "x", "n": 1e400}', b'{"type": "x", "n": %s}' % (b"9" * 5000)])  # fmt: skip
def test_control_frames_are_objects_with_a_type(body):
    with pytest.raises(FrameError):
        Decoder().feed(struct.pack(">IB", len(body) + 1, ord("J")) + body)
