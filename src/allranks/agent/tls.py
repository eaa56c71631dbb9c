"""TLS on a connection whose two sides have proved that they know the secret: `protocol.secure` says when it begins.

The listener makes a certificate for itself, whose hash is in the proofs. So no authority is asked, and who stands
between the two can't have another one. Importing `ssl` takes 10 ms, and some interpreters are built without it: this
module is imported where a connection begins.
"""

from __future__ import annotations

import hashlib
import ssl

from allranks.protocol.secure import SecureError

READ = 256 << 10


class Encryption:
    """One side's part; the one that listens gives the files of its certificate, whose sha256 is `certificate`."""

    def __init__(self, certificate_file: str = "", key_file: str = "") -> None:
        self.certificate = b""
        self._listens = bool(certificate_file)
        if self._listens:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(certificate_file, key_file)
            self._context.num_tickets = 0
            with open(certificate_file) as file:
                self.certificate = hashlib.sha256(ssl.PEM_cert_to_DER_cert(file.read())).digest()
        else:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._context.check_hostname = False
            self._context.verify_mode = ssl.CERT_NONE  # `Tunnel` compares its hash
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2

    def tunnel(self, certificate: bytes) -> Tunnel:
        """Begin TLS on a connection on which both sides have agreed on this certificate."""
        return Tunnel(self._context, certificate, self._listens)


class Tunnel:
    """TLS of one connection, without its socket."""

    def __init__(self, context: ssl.SSLContext, certificate: bytes, listens: bool) -> None:
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=listens)
        self._certificate = certificate
        self._listens = listens
        self.is_ready = False

    def shake(self, data: bytes) -> bytes:
        """Take bytes of TLS's handshake and return the answer; raise SecureError, or ssl.SSLError (an OSError)."""
        self._in.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return self._out.read()
        if not self._listens:
            theirs = self._tls.getpeercert(binary_form=True) or b""
            if hashlib.sha256(theirs).digest() != self._certificate:
                raise SecureError("the certificate is not the one that was agreed on")
        self.is_ready = True
        return self._out.read()

    def seal(self, data: bytes) -> bytes:
        """Encrypt."""
        self._tls.write(data)
        return self._out.read()

    def open(self, data: bytes) -> bytes:
        """Decrypt what is complete; raise SecureError."""
        self._in.write(data)
        parts = []
        try:
            while True:
                part = self._tls.read(READ)
                if not part:
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise SecureError("bytes were changed on the way (%s)" % (error.reason or error)) from None
        return b"".join(parts)
