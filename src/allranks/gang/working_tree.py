"""The caller's working tree, listed and packed once for all nodes (reads files, asks git).

In a git repository: what git tracks and what it does not ignore, as it lies there now, uncommitted changes
included. Elsewhere: everything below the caller's directory but what no program reads from there.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import shlex
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from allranks.errors import UsageError
from allranks.plan.launchers.training_command import read_training
from allranks.protocol.codec import decode
from allranks.protocol.jsontext import read_json
from allranks.protocol.run_facts import WorkingTree
from allranks.runs.directory import CHECK_NAME
from allranks.settings import RunSpec
from allranks.text import format_size

MOST_BYTES = 256 << 20
MOST_FILES = 100_000
SHOWN = 5
ARCHIVE = "tree.tar.gz"  # in a run directory whose controller another machine starts
TREE = "ALLRANKS_TREE"  # what it holds, for that controller
LEFT_OUT = frozenset({".git", "__pycache__", ".venv", "node_modules"})  # outside of git
CHECKPOINTS = (".pt", ".pth", ".ckpt", ".safetensors", ".bin")
_EVIDENCE = "/evidence/preflight.json"
LARGE = 16 << 20  # bytes from which a checkpoint is left out, outside of git


@dataclass(frozen=True)
class Listing:
    """What would be shipped: names relative to the tree's root, in the archive's order."""

    tree: WorkingTree
    names: tuple[str, ...]


class Archive:
    """The packed tree, in a file without a name that lives as long as this object."""

    def __init__(self, tree: WorkingTree, file: IO[bytes]) -> None:
        self.tree = tree
        self._file = file

    def read(self, offset: int, count: int) -> bytes:
        """Bytes of the archive."""
        return os.pread(self._file.fileno(), count, offset)

    def from_its_beginning(self) -> IO[bytes]:
        """Return the file, for a machine that sends the tree on: see `received`."""
        self._file.seek(0)
        return self._file


# -- listing -------------------------------------------------------------------------------------------


def list_tree(spec: RunSpec, cwd: str) -> Listing:
    """List the files of the caller's tree; raise UsageError where it cannot be shipped."""
    cwd = os.path.realpath(cwd)
    left_out: dict[str, int] = {}
    folders = (cwd, *map(str, Path(cwd).parents))
    if any(os.path.lexists(os.path.join(folder, ".git")) for folder in folders):
        root = os.path.realpath(os.fsdecode(_git(cwd, "rev-parse", "--show-toplevel").rstrip(b"\n")))
        paths = _tracked(root)
    else:
        root = cwd
        paths = _walked(root, left_out)
    names = sorted(_without_runs(set(paths)), key=os.fsencode)
    kept, total = _measured(root, names)
    below = _position(spec, root, cwd)
    _check_command(spec, root, below, kept)
    large = tuple(f"{_shown(name)} ({format_size(left_out[name])})" for name in sorted(left_out))
    tree = WorkingTree(root, len(kept), total, left_out=large, limit=LARGE, below=below)
    return Listing(tree, tuple(kept))


def _git(directory: str, *words: str) -> bytes:
    environment = {k: v for k, v in os.environ.items() if k not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")}
    try:
        listing = subprocess.run(
            ["git", "-C", directory, *words],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env={**environment, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise UsageError(f"--sync: {directory} is in a git repository and git is not installed here") from None
    if listing.returncode:
        reason = listing.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise UsageError(f"--sync: git does not list {directory} ({reason})")
    return listing.stdout


def _tracked(root: str, below: str = "") -> Iterator[str]:
    """Tracked, and untracked but not ignored; of submodules and repositories inside the same."""
    top = os.path.join(root, below)
    for item in _git(top, "ls-files", "-z", "-co", "--exclude-standard").split(b"\0"):
        name = os.path.join(below, os.fsdecode(item.rstrip(b"/")))
        path = os.path.join(root, name)
        if not item or "__pycache__" in name.split("/"):
            continue
        if not os.path.isdir(path) or os.path.islink(path):
            yield name
        elif os.path.lexists(os.path.join(path, ".git")):
            yield from _tracked(root, name)


def _walked(root: str, left_out: dict[str, int]) -> Iterator[str]:
    count = 0
    for folder, folders, files in os.walk(root):
        links = [n for n in folders if os.path.islink(os.path.join(folder, n))]
        folders[:] = [n for n in folders if n not in LEFT_OUT and n not in links]
        if "pyvenv.cfg" in files and folder != root:
            folders[:] = []
            continue
        for name in [n for n in files + links if n not in LEFT_OUT]:
            path = os.path.join(folder, name)
            shown = os.path.relpath(path, root)
            size = 0
            if name.endswith(CHECKPOINTS):
                with contextlib.suppress(OSError):  # removed since its directory was read
                    size = os.lstat(path).st_size
            if size > LARGE:
                left_out[shown] = size
            else:
                yield shown
        count += len(files)
        if count > MOST_FILES:
            raise _too_many(root)


def _too_many(root: str) -> UsageError:
    return UsageError(
        f"--sync: {root} has more than {MOST_FILES} files. Is this the project? Start from its "
        "directory, make it a git repository, or list data in .gitignore"
    )


def _without_runs(names: set[str]) -> set[str]:
    folders = {os.path.dirname(n) for n in names if os.path.basename(n) == "run.json"}
    runs = {f for f in folders if f and os.path.join(f, "events.jsonl") in names}
    checks = {n[: -len(_EVIDENCE)] for n in names if n.endswith(_EVIDENCE)}
    runs |= {f for f in checks if CHECK_NAME.fullmatch(os.path.basename(f))}
    if runs:
        return {n for n in names if not any(p in runs for p in map(str, Path(n).parents))}
    return names


def _measured(root: str, names: Iterable[str]) -> tuple[list[str], int]:
    """Those that are there and are files or links; their bytes. Refuses what is too large."""
    sizes: dict[str, int] = {}
    direct: dict[str, bool] = {}  # by folder: what lies behind a link is the link's affair
    for name in names:
        folder = os.path.dirname(os.path.join(root, name))
        if folder not in direct:
            direct[folder] = os.path.realpath(folder) == folder
        try:
            status = os.lstat(os.path.join(root, name))
        except OSError:
            continue  # deleted, and git does not know it yet
        is_link = stat.S_ISLNK(status.st_mode)
        if direct[folder] and (is_link or stat.S_ISREG(status.st_mode)):
            sizes[name] = 0 if is_link else status.st_size
    if len(sizes) > MOST_FILES:
        raise _too_many(root)
    if sum(sizes.values()) > MOST_BYTES:
        raise _too_large(root, sizes)
    return list(sizes), sum(sizes.values())


def _too_large(root: str, sizes: dict[str, int]) -> UsageError:
    largest = sorted(sizes, key=lambda n: (-sizes[n], n))[:SHOWN]
    shown = ", ".join(f"{_shown(n)} ({format_size(sizes[n])})" for n in largest)
    return UsageError(
        f"--sync: {root} has {format_size(sum(sizes.values()))} in {len(sizes)} files, more than the "
        f"{format_size(MOST_BYTES)} that are shipped. List data in .gitignore. "
        f"The largest: {shown}"
    )


def _shown(name: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def _is_inside(path: str, root: str) -> bool:
    return (path + "/").startswith(root.rstrip("/") + "/")


def _position(spec: RunSpec, root: str, cwd: str) -> str:
    """Return the working directory below the root: the caller's, or --workdir inside the tree."""
    wanted = os.path.realpath(os.path.join(cwd, os.path.expanduser(spec.launch.workdir or "")))
    if not _is_inside(wanted, root):
        raise UsageError(
            f"--workdir {spec.launch.workdir} is outside of the tree that --sync ships ({root}). "
            "Leave out one of the two"
        )
    if not os.path.isdir(wanted):
        raise UsageError(
            f"--workdir {spec.launch.workdir}: {wanted} is not a directory here. --sync ships the tree from here"
        )
    below = os.path.relpath(wanted, root)
    if below == ".":
        return ""
    return below


def _check_command(spec: RunSpec, root: str, below: str, names: Sequence[str]) -> None:
    """Refuse a script that is not shipped.

    An absolute path inside the tree would run what lies there on the nodes. A script that is absent here can only
    come from a prelude.
    """
    if not spec.launch.command:
        return
    script = "".join(read_training(spec).program[:1])
    if os.path.isabs(script) and _is_inside(os.path.realpath(script), root):
        raise UsageError(
            f"--sync ships {root}, but the command names {script}. That path is another file on the nodes, or missing. "
            "Name it relative to the working directory"
        )
    workdir = os.path.normpath(os.path.join(root, below))
    is_relative_script = script.endswith(".py") and not os.path.isabs(script)
    path = os.path.normpath(os.path.join(workdir, script))
    if is_relative_script and not _is_inside(path, root):
        raise UsageError(
            f"--sync ships {root}, and {script} is outside of it. Start from the directory that has both\n"
            f"hint: cd {shlex.quote(os.path.commonpath((root, path)))}"
        )
    if is_relative_script and os.path.isfile(path) and os.path.relpath(path, root) not in names:
        raise UsageError(f"--sync: git ignores {path}, so that it is not shipped\nhint: git add -f {shlex.quote(path)}")
    if is_relative_script and not spec.launch.prelude and not os.path.exists(os.path.join(workdir, script)):
        raise UsageError(
            f"--sync: {workdir} has no {script} to ship. Check the path of the script, or start from its directory"
        )


# -- packing -------------------------------------------------------------------------------------------


def pack_tree(spec: RunSpec, cwd: str) -> Archive:
    """List and pack the caller's tree; the same files give the same bytes. Raise UsageError."""
    return pack(list_tree(spec, cwd))


def received(tree: str, directory: str) -> Archive:
    """Return what another machine has packed and put into this run directory, which it leaves; `tree` is its JSON."""
    path = os.path.join(directory, ARCHIVE)
    file = open(path, "rb")  # noqa: SIM115  it lives with the Archive
    os.unlink(path)
    return Archive(decode(WorkingTree, read_json(tree)), file)


def pack(listing: Listing) -> Archive:
    """Pack a listing into a temporary file."""
    try:
        file: IO[bytes] = tempfile.TemporaryFile(prefix="allranks-")  # noqa: SIM115  it lives with the Archive
        with gzip.GzipFile("", "wb", 6, file, 0) as packed:
            size = _fill(packed, listing)
        packed_size = file.tell()
        file.seek(0)
        digest = hashlib.sha256()
        while data := file.read(1 << 20):
            digest.update(data)
    except OSError as error:
        name = error.filename or tempfile.gettempdir()
        raise UsageError(f"--sync: cannot pack {name} ({error.strerror or error})") from None
    return Archive(listing.tree._replace(bytes=size, packed=packed_size, sha256=digest.hexdigest()), file)


def _fill(packed: gzip.GzipFile, listing: Listing) -> int:
    tree = listing.tree
    with tarfile.open(
        fileobj=packed, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
    ) as tar:
        if tree.below:
            tar.addfile(_entry(tree.below, tarfile.DIRTYPE, 0o700))
        return sum(_add(tar, tree.root, name) for name in listing.names)


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    """Nothing of the caller's machine but name, kind and whether it is executable."""
    entry = tarfile.TarInfo(_text(name))
    entry.type = kind
    entry.mode = mode
    return entry


def _text(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "surrogateescape")


def _add(tar: tarfile.TarFile, root: str, name: str) -> int:
    path = os.path.join(root, name)
    if os.path.islink(path):
        entry = _entry(name, tarfile.SYMTYPE, 0o777)
        entry.linkname = _text(os.readlink(path))
        tar.addfile(entry)
        return 0
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        entry = _entry(name, tarfile.REGTYPE, 0o700 if status.st_mode & 0o100 else 0o600)
        entry.size = status.st_size
        try:
            tar.addfile(entry, file)
        except OSError as error:
            raise OSError(error.errno, error.strerror or "it changes while it is being read", path) from None
    return entry.size
