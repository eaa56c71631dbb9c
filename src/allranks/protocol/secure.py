"""An authenticated byte channel over any stream: handshake and records (no IO here).

Both sides prove that they know the secret before anything else is read; every record then carries a code
made with keys of this connection alone, so nothing can be changed, left out, repeated or taken from another
connection. What is sent is not hidden: use a network you trust with your logs, or a tunnel.

    dialler  → HELLO + nonce (32)                 who may be any program
    listener → HELLO + nonce (32) + proof (32)    knows the secret
    dialler  → proof (32)                         knows it too
    then records either way: length (4, big endian, of the payload), code (16), payload
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from typing import List

from .jsontext import DecodeError, JsonObject, read_object, write_json

NAME = b"ALLRANKS-JOIN "
HELLO = NAME + b"1\n"
NONCE = PROOF = 32
CODE = 16
MAX_RECORD = (8 << 20) + 16  # a control frame and its type
LEAST_SECRET = 16  # bytes; a shorter one can be guessed from a recorded handshake
GREETING = len(HELLO) + NONCE
ANSWER = GREETING + PROOF


class SecureError(ValueError):
    """The other side does not know the secret, speaks another protocol, or bytes were changed on the way."""


class ForeignError(SecureError):
    """The other side is another program."""


def pack_control(message: JsonObject) -> bytes:
    """Make a record's payload of a control message."""
    return b"C" + write_json(message)


def read_control(record: bytes) -> JsonObject:
    """Read the message of a control record, an object with a "type" that is text; raise SecureError."""
    try:
        message = read_object(record[1:], MAX_RECORD)
    except DecodeError:
        message = {}
    if record[:1] != b"C" or not isinstance(message.get("type"), str):
        raise SecureError("a control record that is not a message")
    return message


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


class Handshake:
    """One side's part; `feed` takes bytes until `channel` is there, and gives what is to be sent."""

    def __init__(self, secret: bytes, listens: bool, nonce: bytes = b"") -> None:
        if len(secret) < LEAST_SECRET:
            raise ValueError("a secret of %d bytes" % len(secret))
        self._secret = hashlib.sha256(b"allranks join 1\0" + secret).digest()
        self._listens = listens
        self._nonce = nonce or os.urandom(NONCE)
        self._peer = b""
        self._buffer = b""
        self._done = False

    def begin(self) -> bytes:
        """Return the dialler's first bytes; nothing for the listener, who waits."""
        if self._listens:
            return b""
        return HELLO + self._nonce

    @property
    def done(self) -> bool:
        """Both have proved themselves; `channel` may be called."""
        return self._done

    def feed(self, data: bytes) -> bytes:
        """Add bytes; return the answer to send; raise SecureError."""
        self._buffer += data
        if self._done:
            return b""
        if self._listens and not self._peer:
            return self._greet()
        if self._listens:
            return self._check_proof()
        return self._prove()

    def _greet(self) -> bytes:
        self._check_hello()
        if len(self._buffer) < GREETING:
            return b""
        self._peer = self._buffer[len(HELLO) : GREETING]
        self._buffer = self._buffer[GREETING:]
        return HELLO + self._nonce + self._proof(b"listener") + self._check_proof()

    def _check_proof(self) -> bytes:
        if len(self._buffer) >= PROOF:
            self._compare(self._buffer[:PROOF], b"dialler")
            self._buffer = self._buffer[PROOF:]
            self._done = True
        return b""

    def _prove(self) -> bytes:
        self._check_hello()
        if len(self._buffer) < ANSWER:
            return b""
        self._peer = self._buffer[len(HELLO) : GREETING]
        self._compare(self._buffer[GREETING:ANSWER], b"listener")
        self._buffer = self._buffer[ANSWER:]
        self._done = True
        return self._proof(b"dialler")

    def _check_hello(self) -> None:
        start = self._buffer[: len(HELLO)]
        if HELLO.startswith(start):
            return
        if start.startswith(NAME):
            raise SecureError("it speaks another version of the join protocol")
        raise ForeignError("another program answers there: it does not speak allranks' join protocol")

    def _nonces(self) -> bytes:
        if self._listens:
            return self._peer + self._nonce
        return self._nonce + self._peer

    def _proof(self, who: bytes) -> bytes:
        return _mac(self._secret, who, self._nonces())

    def _compare(self, proof: bytes, who: bytes) -> None:
        if not hmac.compare_digest(proof, self._proof(who)):
            raise SecureError("it has another secret")

    def channel(self) -> "Records":
        """Make the records of this connection, with the bytes that came early."""
        if not self._done:
            raise SecureError("the handshake is not over")
        up = _mac(self._secret, b"up", self._nonces())
        down = _mac(self._secret, b"down", self._nonces())
        records = Records(down, up) if self._listens else Records(up, down)
        records.early = self._buffer
        self._buffer = b""
        return records


class Records:
    """Packs and unpacks records; each direction counts its own."""

    def __init__(self, sending_key: bytes, reading_key: bytes) -> None:
        self._sending_key = sending_key
        self._reading_key = reading_key
        self._sent = 0
        self._read = 0
        self._buffer = bytearray()
        self.early = b""

    def pack(self, payload: bytes) -> bytes:
        """One record of at most MAX_RECORD bytes."""
        if len(payload) > MAX_RECORD:
            raise SecureError("a record of %d bytes is over the limit of %d" % (len(payload), MAX_RECORD))
        head = struct.pack(">I", len(payload))
        code = _mac(self._sending_key, struct.pack(">Q", self._sent), head, payload)[:CODE]
        self._sent += 1
        return head + code + payload

    def feed(self, data: bytes) -> List[bytes]:
        """Add bytes; return complete payloads; raise SecureError, after which the connection is of no use."""
        self._buffer += self.early + data
        self.early = b""
        payloads = []
        start = 0
        while len(self._buffer) - start >= 4 + CODE:
            length = struct.unpack_from(">I", self._buffer, start)[0]
            if length > MAX_RECORD:
                raise SecureError("a record of %d bytes is over the limit of %d" % (length, MAX_RECORD))
            end = start + 4 + CODE + length
            if len(self._buffer) < end:
                break
            payloads.append(self._open(bytes(self._buffer[start:end])))
            start = end
        del self._buffer[:start]
        return payloads

    def _open(self, record: bytes) -> bytes:
        head = record[:4]
        code = record[4 : 4 + CODE]
        payload = record[4 + CODE :]
        expected = _mac(self._reading_key, struct.pack(">Q", self._read), head, payload)[:CODE]
        if not hmac.compare_digest(code, expected):
            raise SecureError("a record was changed on the way, repeated, or comes from another connection")
        self._read += 1
        return payload
