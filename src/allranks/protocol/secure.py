"""An authenticated byte channel over any stream: handshake and records (no IO here).

Both sides prove that they know the secret before anything else is read; every record then carries a code
made with keys of this connection alone, so nothing can be changed, left out, repeated or taken from another
connection. What is sent is hidden where both sides can encrypt: what they can is part of the proofs.

    dialler  → HELLO + nonce (32) + 1 or 0: it can encrypt              who may be any program
    listener → HELLO + nonce (32) + hash of its certificate, or zeros (32) + proof (32)   knows the secret
    dialler  → proof (32)                                               knows it too
    then TLS with that certificate, if there is one (agent/tls.py)
    then records either way: length (4, big endian, of the payload), code (16), payload
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from typing import TYPE_CHECKING, List, Optional

from .jsontext import DecodeError, JsonObject, read_object, write_json

if TYPE_CHECKING:
    from typing import Protocol

    class CanEncrypt(Protocol):
        """What one side can encrypt with: `agent.tls` has it."""

        certificate: bytes

        def tunnel(self, certificate: bytes) -> SealedConnection:
            """Begin on a connection, with the certificate agreed on."""
            ...

    class SealedConnection(Protocol):
        """The encryption of one connection."""

        is_ready: bool

        def shake(self, data: bytes) -> bytes:
            """Take bytes of its handshake and return the answer; raise SecureError, OSError."""
            ...

        def seal(self, data: bytes) -> bytes:
            """Encrypt."""
            ...

        def open(self, data: bytes) -> bytes:
            """Decrypt what is complete; raise SecureError."""
            ...


NAME = b"ALLRANKS-JOIN "
HELLO = NAME + b"2\n"
NONCE = PROOF = CERTIFICATE = 32
CLEAR = bytes(CERTIFICATE)  # in the place of a certificate's hash: nothing is encrypted
CAN, CAN_NOT = b"1", b"0"  # encrypt
CODE = 16
MAX_RECORD = (8 << 20) + 16  # a control frame and its type
LEAST_SECRET = 16  # bytes; a shorter one can be guessed from a recorded handshake
GREETING = len(HELLO) + NONCE + 1
ANSWER = len(HELLO) + NONCE + CERTIFICATE + PROOF


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

    def __init__(self, secret: bytes, listens: bool, encryption: Optional[CanEncrypt] = None) -> None:
        if len(secret) < LEAST_SECRET:
            raise ValueError("a secret of %d bytes" % len(secret))
        self._secret = hashlib.sha256(b"allranks join 1\0" + secret).digest()
        self._listens = listens
        self._encryption = encryption
        self._nonce = os.urandom(NONCE)
        self._peer = b""
        self._dialler_can = CAN if encryption else CAN_NOT
        self._certificate = CLEAR
        self._tunnel: Optional[SealedConnection] = None
        self._buffer = b""
        self._proved = False

    def begin(self) -> bytes:
        """Return the dialler's first bytes; nothing for the listener, who waits."""
        if self._listens:
            return b""
        return HELLO + self._nonce + self._dialler_can

    @property
    def done(self) -> bool:
        """Both have proved themselves; `channel` may be called."""
        return self._proved and (self._tunnel is None or self._tunnel.is_ready)

    def feed(self, data: bytes) -> bytes:
        """Add bytes; return the answer to send; raise SecureError, and OSError where TLS fails."""
        self._buffer += data
        if self._proved:
            return self._begin_tls()
        if self._listens and not self._peer:
            return self._greet()
        if self._listens:
            return self._check_proof()
        return self._prove()

    def _greet(self) -> bytes:
        self._check_hello()
        if len(self._buffer) < GREETING:
            return b""
        self._peer = self._buffer[len(HELLO) : GREETING - 1]
        self._dialler_can = self._buffer[GREETING - 1 : GREETING]
        self._buffer = self._buffer[GREETING:]
        if self._encryption is not None and self._dialler_can == CAN:
            self._certificate = self._encryption.certificate
        return HELLO + self._nonce + self._certificate + self._proof(b"listener") + self._check_proof()

    def _check_proof(self) -> bytes:
        if len(self._buffer) < PROOF:
            return b""
        self._compare(self._buffer[:PROOF], b"dialler")
        self._buffer = self._buffer[PROOF:]
        return self._begin_tls()

    def _prove(self) -> bytes:
        self._check_hello()
        if len(self._buffer) < ANSWER:
            return b""
        answer = self._buffer[len(HELLO) : ANSWER]
        self._buffer = self._buffer[ANSWER:]
        self._peer = answer[:NONCE]
        self._certificate = answer[NONCE:-PROOF]
        self._compare(answer[-PROOF:], b"listener")
        return self._proof(b"dialler") + self._begin_tls()

    def _begin_tls(self) -> bytes:
        """Go on from the proofs, with what has come behind them."""
        self._proved = True
        if self._certificate == CLEAR or (self._tunnel is not None and self._tunnel.is_ready):
            return b""
        if self._encryption is None:
            raise SecureError("it encrypts, and this side cannot")
        self._tunnel = self._tunnel or self._encryption.tunnel(self._certificate)
        early = self._buffer
        self._buffer = b""
        return self._tunnel.shake(early)

    def _check_hello(self) -> None:
        start = self._buffer[: len(HELLO)]
        if HELLO.startswith(start):
            return
        if start.startswith(NAME):
            raise SecureError("it speaks another version of the join protocol")
        raise ForeignError("another program answers there: it does not speak allranks' join protocol")

    def _agreed(self) -> bytes:
        """Give what is of this connection alone, and what it is encrypted with."""
        nonces = (self._peer, self._nonce) if self._listens else (self._nonce, self._peer)
        return b"".join((*nonces, self._dialler_can, self._certificate))

    def _proof(self, who: bytes) -> bytes:
        return _mac(self._secret, who, self._agreed())

    def _compare(self, proof: bytes, who: bytes) -> None:
        if not hmac.compare_digest(proof, self._proof(who)):
            raise SecureError("it has another secret")

    def channel(self) -> "Records":
        """Make the records of this connection, with the bytes that came early."""
        if not self.done:
            raise SecureError("the handshake is not over")
        up = _mac(self._secret, b"up", self._agreed())
        down = _mac(self._secret, b"down", self._agreed())
        records = Records(down, up, self._tunnel) if self._listens else Records(up, down, self._tunnel)
        records.early = self._buffer
        self._buffer = b""
        return records


def _check_length(length: int) -> None:
    if length > MAX_RECORD:
        raise SecureError("a record of %d bytes is over the limit of %d" % (length, MAX_RECORD))


class Records:
    """Packs and unpacks records; each direction counts its own."""

    def __init__(self, sending_key: bytes, reading_key: bytes, tunnel: Optional[SealedConnection] = None) -> None:
        self._sending_key = sending_key
        self._reading_key = reading_key
        self._sent = 0
        self._read = 0
        self._buffer = bytearray()
        self._tunnel = tunnel
        self.early = b""

    @property
    def is_encrypted(self) -> bool:
        """Tell whether they are hidden on their way."""
        return self._tunnel is not None

    def pack(self, payload: bytes) -> bytes:
        """One record of at most MAX_RECORD bytes."""
        _check_length(len(payload))
        head = struct.pack(">I", len(payload))
        code = _mac(self._sending_key, struct.pack(">Q", self._sent), head, payload)[:CODE]
        self._sent += 1
        record = head + code + payload
        return record if self._tunnel is None else self._tunnel.seal(record)

    def feed(self, data: bytes) -> List[bytes]:
        """Add bytes; return complete payloads; raise SecureError, after which the connection is of no use."""
        data = self.early + data
        self.early = b""
        self._buffer += data if self._tunnel is None else self._tunnel.open(data)
        payloads = []
        start = 0
        while len(self._buffer) - start >= 4 + CODE:
            length = struct.unpack_from(">I", self._buffer, start)[0]
            _check_length(length)
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
