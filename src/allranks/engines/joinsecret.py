"""The secret of a join: given, else one of this user's own, in a file that the first node makes (IO).

No join is without one. Where all nodes are this machine, the file lies in the user's runtime directory. Else it lies
beside the user's settings: where nodes share their home directories, as on most clusters, they share the secret.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import shlex
import socket
import stat
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import NamedTuple

from allranks.agent import node_directory
from allranks.agent.files import text_of_errno
from allranks.errors import UsageError
from allranks.plan.joining import SECRET
from allranks.protocol.secure import LEAST_SECRET

# One secret for all: the command alone, pasted on each node, would give each its own.
NEW_SECRET = (
    f"hint: run `openssl rand -hex 32` once, and set what it prints as {SECRET} (or in --secret-file) on all nodes"
)
NAME = "join-secret"
BYTES = 32  # of a secret that is made here
LIMIT = 1 << 16  # bytes of a file that are read


class JoinSecret(NamedTuple):
    """`made_at`: the file of this user that it is from; empty where it was given."""

    value: bytes
    made_at: str = ""


def secret_of(
    path: str | None, environ: MutableMapping[str, str], host: str, port: int, alone: bool = False
) -> JoinSecret:
    """Return the secret that was given, else this user's own; raise UsageError. `alone`: no other node may join."""
    given = take_secret(path, environ)
    if given:
        return JoinSecret(given)
    if alone:
        return JoinSecret(secrets.token_bytes(BYTES))
    file = own_file(environ, is_this_machine(host, port))
    return JoinSecret(own_secret(file), str(file))


def take_secret(path: str | None, environ: MutableMapping[str, str]) -> bytes:
    """Take the shared secret out of the environment that ranks will inherit, or read it; empty where there is none."""
    text_of_secret = environ.pop(SECRET, "").strip()
    if path is not None:
        try:
            text_of_secret = _private_text(Path(path), follow=True)
        except OSError as error:
            raise UsageError(f"--secret-file {path}: {text_of_errno(error)}") from None
        except NotPrivate as error:
            raise UsageError(f"--secret-file {path}: {error}\nhint: {error.remedy}") from None
    secret = text_of_secret.encode()
    if secret and len(secret) < LEAST_SECRET:
        raise UsageError(
            f"the join secret has {len(secret)} bytes, which can be guessed. Expected {LEAST_SECRET} or more\n"
            f"{NEW_SECRET}"
        )
    if path is not None and not secret:
        raise UsageError(f"--secret-file {path}: it is empty")
    return secret


def is_this_machine(host: str, port: int) -> bool:
    """Tell whether all addresses of a name are loopback addresses; raise UsageError where it has none."""
    try:
        addresses = {str(item[4][0]) for item in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise UsageError(f"--master-addr {host}: {error.strerror}") from None
    return all(ipaddress.ip_address(address.split("%")[0]).is_loopback for address in addresses)


def own_secret_differs(secret: JoinSecret, first: str) -> str:
    """Say what to do where node 0, at `first`, has another secret than the one that was made here."""
    path = shlex.quote(secret.made_at)
    return (
        f"This node took its user's own, in {secret.made_at}, which node 0 does not share\n"
        f"hint: scp {shlex.quote(first)}:{path} {path}, or set one {SECRET} on all nodes"
    )


def own_file(environ: Mapping[str, str], one_host: bool) -> Path:
    """Return where this user's secret is: for the nodes of this machine, or of several; raise UsageError."""
    home = Path(environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")) / "allranks"
    places = [home]
    if one_host:
        session = Path(environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
        below = [Path(base) / f"allranks-{os.getuid()}" for base in node_directory.bases(None)]
        places = [session, *below] if session.is_dir() else below
    why = []
    for place in places:
        try:
            place.mkdir(mode=0o700, parents=place == home, exist_ok=True)
            node_directory.check_private(str(place), entered=place == home)
            return place / NAME
        except node_directory.NoNodeDir as error:
            why.append(str(error))
        except OSError as error:
            why.append(f"{place}: {error.strerror}")
    raise UsageError(f"no join secret, and none can be kept here ({'; '.join(why)})\n{NEW_SECRET}")


def own_secret(file: Path) -> bytes:
    """Return the secret in a file of this user's, which is made where there is none; raise UsageError."""
    try:
        if not os.path.lexists(file):
            _make(file)
        secret = _private_text(file, follow=False).encode()
    except (OSError, NotPrivate) as error:
        why = text_of_errno(error) if isinstance(error, OSError) else str(error)
        raise UsageError(f"the join secret in {file} is not taken: {why}\nhint: rm {file}") from None
    if len(secret) < LEAST_SECRET:
        raise UsageError(f"the join secret in {file} has {len(secret)} bytes\nhint: rm {file}")
    return secret


def _make(file: Path) -> None:
    """Make a file with a new secret, whole or not at all; the one of another process that was first stays."""
    part = file.with_name(f".{NAME}.{secrets.token_hex(8)}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w") as out:
            out.write(secrets.token_hex(BYTES) + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(part, file)  # atomic on NFS too
    finally:
        part.unlink()


class NotPrivate(Exception):
    """A file that others could have read or written; `remedy` is what mends it."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


def _private_text(path: Path, follow: bool) -> str:
    """Read a file that no other user may read; raise OSError, NotPrivate. Kubernetes mounts secrets as links.

    As ssh reads a key: a group may read a file that belongs to root, else this user could not. What root has mounted
    read-only, as Kubernetes mounts a Secret, has the mode that root chose.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    with open(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise NotPrivate("it is not a regular file", "write the secret into a file")
        if status.st_uid not in (os.getuid(), 0):
            raise NotPrivate(f"it belongs to user {status.st_uid}, who may change it", "copy it to a file of your own")
        is_mounted = status.st_uid == 0 and os.fstatvfs(file.fileno()).f_flag & os.ST_RDONLY
        others = 0o077 if status.st_uid == os.getuid() else 0o027
        if status.st_mode & others and not is_mounted:
            remedy = f"chmod 600 {shlex.quote(str(path))}"
            if status.st_uid != os.getuid():
                remedy = "have root close it with `chmod 640`"
            raise NotPrivate(f"others may read or change it (mode {status.st_mode & 0o777:o})", remedy)
        return file.read(LIMIT).decode(errors="replace").strip()
