"""Encryption of connections that have proved the secret: what the wire shows, and who stands between the two sides."""

import functools

import pytest

from allranks.agent.tls import Encryption
from allranks.engines.dialled import own_encryption
from allranks.protocol.secure import ANSWER, CAN, CAN_NOT, CERTIFICATE, PROOF, Handshake, Records, SecureError

SECRET = b"correct horse battery"
WORDS = b"not for others"


@functools.cache
def listening() -> Encryption:
    """Give a listener's part, with a certificate of openssl's."""
    encryption, why = own_encryption()
    assert encryption is not None, why
    return encryption


def sides(listener=True, dialler=True) -> tuple[Handshake, Handshake]:
    """Give both sides' handshakes, and whether each can encrypt."""
    return (
        Handshake(SECRET, True, listening() if listener else None),
        Handshake(SECRET, False, Encryption() if dialler else None),
    )


def shake(listener: Handshake, dialler: Handshake, piece: int = 1 << 20) -> tuple[Records, Records]:
    """Carry bytes between them, in pieces, until both are done."""
    to_listener, to_dialler = dialler.begin(), b""
    while not (listener.done and dialler.done):
        to_dialler += listener.feed(to_listener[:piece])
        to_listener = to_listener[piece:] + dialler.feed(to_dialler[:piece])
        to_dialler = to_dialler[piece:]
    return listener.channel(), dialler.channel()


@pytest.mark.parametrize("piece", [1 << 20, 7])
def test_both_sides_read_what_the_wire_does_not_show(piece):
    up, down = shake(*sides(), piece)
    for sender, receiver in ((up, down), (down, up)):
        wire = sender.pack(WORDS) + sender.pack(WORDS * 40_000)
        assert WORDS not in wire
        found = [payload for at in range(0, len(wire), 4096) for payload in receiver.feed(wire[at : at + 4096])]
        assert found == [WORDS, WORDS * 40_000]
    assert up.is_encrypted and down.is_encrypted


@pytest.mark.parametrize(("listener", "dialler"), [(False, True), (True, False), (False, False)])
def test_where_one_side_cannot_nothing_is_encrypted(listener, dialler):
    up, down = shake(*sides(listener, dialler))
    assert not up.is_encrypted and not down.is_encrypted
    wire = down.pack(WORDS)
    assert WORDS in wire and up.feed(wire) == [WORDS]


def test_nobody_between_the_two_switches_it_off():
    listener, dialler = sides()
    begin = dialler.begin()
    assert begin.endswith(CAN)
    answer = listener.feed(begin[:-1] + CAN_NOT)
    with pytest.raises(SecureError, match="another secret"):
        dialler.feed(answer)


def test_nobody_between_the_two_has_another_certificate():
    listener, dialler = sides()
    answer = listener.feed(dialler.begin())
    theirs = own_encryption()[0].certificate
    with pytest.raises(SecureError, match="another secret"):
        dialler.feed(answer[: -CERTIFICATE - PROOF] + theirs + answer[-PROOF:])
    listener, dialler = sides()
    proof = dialler.feed(listener.feed(dialler.begin()))
    false = own_encryption()[0].tunnel(listening().certificate)
    with pytest.raises(SecureError, match="not the one that was agreed on"):
        dialler.feed(false.shake(proof[PROOF:]))


def test_a_changed_byte_ends_the_connection():
    up, down = shake(*sides())
    wire = bytearray(down.pack(WORDS))
    wire[-1] ^= 1
    with pytest.raises(SecureError, match="changed on the way"):
        up.feed(bytes(wire))


def test_a_certificate_lies_in_no_file_afterwards(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    encryption, why = own_encryption()
    assert encryption is not None and not why and list(tmp_path.iterdir()) == []
    assert len(encryption.certificate) == CERTIFICATE == ANSWER - len(Handshake(SECRET, False).begin()) - PROOF + 1


def test_without_openssl_it_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert own_encryption() == (None, "openssl is not installed here")
