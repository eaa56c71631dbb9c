"""The authenticated channel: what both sides accept, and that nothing else is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.campaign import examples

from allranks.protocol.secure import CODE, HELLO, MAX_RECORD, PROOF, Handshake, SecureError

SECRET = b"correct horse battery"


def sides(other: bytes = SECRET):
    return Handshake(SECRET, listens=True), Handshake(other, listens=False)


def pair():
    listener, dialler = sides()
    listener.feed(dialler.feed(listener.feed(dialler.begin())))
    assert listener.done and dialler.done
    return listener.channel(), dialler.channel()


@given(st.lists(st.binary(max_size=300), max_size=6), st.data())
def test_records_arrive_whole_however_they_are_cut(payloads, data):
    up, down = pair()
    stream = b"".join(down.pack(p) for p in payloads)
    found = []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        found += up.feed(stream[:cut])
        stream = stream[cut:]
    assert found == payloads
    assert down.feed(up.pack(b"two")) == [b"two"]


def test_another_secret_is_refused_by_both_sides():
    listener, dialler = sides(b"another secret of its own")
    answer = listener.feed(dialler.begin())
    with pytest.raises(SecureError, match="another secret"):
        dialler.feed(answer)
    with pytest.raises(SecureError, match="another secret"):
        listener.feed(bytes(32))
    assert not listener.done and not dialler.done


def test_a_recorded_handshake_does_not_open_a_second_connection():
    listener, dialler = sides()
    first = dialler.begin()
    proof = dialler.feed(listener.feed(first))
    listener.feed(proof)
    again, _ = sides()
    again.feed(first)
    with pytest.raises(SecureError):
        again.feed(proof)


def test_a_listener_can_not_be_used_to_prove_oneself_to_it():
    """Its own proof, sent back, is none: the two sides' proofs are made differently."""
    listener = Handshake(SECRET, listens=True)
    answer = listener.feed(HELLO + bytes(32) + b"0")
    with pytest.raises(SecureError):
        listener.feed(answer[-PROOF:])


@pytest.mark.parametrize(("taken", "refused"), [(["first"], "first"), ([], "second"), ([], "foreign")])
def test_a_repeated_reordered_or_foreign_record_is_refused(taken, refused):
    up, down = pair()
    records = {"first": down.pack(b"one"), "second": down.pack(b"two"), "foreign": pair()[1].pack(b"one")}
    for name in taken:
        up.feed(records[name])
    with pytest.raises(SecureError):
        up.feed(records[refused])


@settings(max_examples=examples(100))
@given(st.integers(0, 63), st.integers(0, 7), st.binary(min_size=44, max_size=44))
def test_a_flipped_bit_is_never_accepted(place, bit, payload):
    up, down = pair()
    record = bytearray(down.pack(payload))
    record[place % len(record)] ^= 1 << bit
    try:
        found = up.feed(bytes(record))
    except SecureError:
        return
    assert found == []  # the length grew: more is awaited, nothing was delivered


def test_an_oversized_record_is_refused_before_it_has_come():
    up, down = pair()
    with pytest.raises(SecureError, match="over the limit"):
        up.feed((MAX_RECORD + 1).to_bytes(4, "big") + bytes(CODE))
    with pytest.raises(SecureError, match="over the limit"):
        down.pack(bytes(MAX_RECORD + 1))
