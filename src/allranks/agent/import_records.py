"""What a program has imported, kept on the node for its next run: agent/forking.py says when it serves.

A record lies in `allranks/imports` of the user's cache directory (0700, files 0600) under a name that stands for the
command: interpreter, script or module, arguments, working directory. It has what the ranks imported, and with what:

    environment   every variable of the ranks but those of a session or a run, as salted digests
    interpreter   its file, size and time
    packages      the names of all that is installed in each directory that a module came from
    own           the script and every imported module that is not an installed one, as digests of the files

Where one of them is another now, the record does not serve, and the run makes a new one. All of this is done in a task
of the agent: a shared file system may be slow.
"""

from __future__ import annotations

import os
import stat
from hashlib import sha256
from typing import Dict, List, Mapping, Optional

from allranks.protocol.codec import DecodeError, decode, encode, read_json, write_json
from allranks.protocol.node_names import OUTPUT_DIR, OWN_NAMES, REPORT_SOCKET, RUN
from allranks.protocol.orders import RankOrder
from allranks.protocol.processes import ImportRecord
from allranks.protocol.records import NamedTuple

from .files import create_file, digest_of, names_in, read_file, remove_file, write_all
from .template import stamp_of

SCHEMA = 2  # of what a record has, and where in it
LIMIT = 4 << 20  # bytes of a record; 2,000 modules take 200 KB
MOST_RECORDS = 64
MOST_OWN = 256 << 20  # bytes of the user's files
# What a session, a scheduler or a run has of its own: a new one each time, and no import depends on it unseen.
SESSION_PREFIXES = ("SSH_", "XDG_", "DBUS_", "SLURM_", "ALLRANKS_", "TORCHELASTIC_", "PMI_", "PMIX_", "KUBERNETES_")
SESSION_NAMES = (
    "_", "SHLVL", "OLDPWD", "PWD", "TERM", "COLUMNS", "LINES", "HOSTNAME", "MAIL", "INVOCATION_ID", "JOURNAL_STREAM",
    "KRB5CCNAME", "TMUX", "TMUX_PANE", "STY", "WINDOWID", "TMPDIR", "PYTEST_CURRENT_TEST",
)  # fmt: skip
METADATA = (".dist-info", ".egg-info", ".egg-link", ".pth")


class StoredImports(NamedTuple):
    """A record as its file has it."""

    schema: int
    salt: str
    environment: Mapping[str, str]
    interpreter: str
    packages: Mapping[str, str]
    own: Mapping[str, str]
    imports: ImportRecord


class RunPaths:
    """Where a run's own directories lie: its paths stand in arguments and variables, and are others in each run."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        named = {
            "{output_dir}": environment.get(OUTPUT_DIR, ""),
            "{node_dir}": os.path.dirname(environment.get(REPORT_SOCKET, "")),
            "{run}": environment.get(RUN, ""),
        }
        self._named = {name: place for name, place in named.items() if place}

    def without(self, text: str) -> str:
        """Put names in the place of the run's own directories."""
        for name, place in self._named.items():
            text = text.replace(place, name)
        return text

    def within(self, text: str) -> str:
        """Put the run's own directories in the place of their names."""
        for name, place in self._named.items():
            text = text.replace(name, place)
        return text


def path_of(rank: RankOrder, environment: Mapping[str, str]) -> Optional[str]:
    """Where the record of a command lies; None where the user has no home directory."""
    home = environment.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):
        home = os.path.join(environment.get("HOME", ""), ".cache")
    if not os.path.isabs(home):
        return None
    places = RunPaths(environment)
    words = [places.without(word) for word in (*rank.argv, rank.workdir)]
    name = sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:40]
    return os.path.join(home, "allranks", "imports", name + ".json")


# -- reading ---------------------------------------------------------------------------------------------


def find_record(rank: RankOrder, environment: Mapping[str, str]) -> ImportRecord:
    """Find what a former run of this command has imported: nothing where there was none; raise DecodeError where what
    it has left does not serve."""
    path = path_of(rank, environment)
    if path is None:
        return ImportRecord()
    try:
        stored = read_record(path)
    except FileNotFoundError:
        return ImportRecord()
    except (OSError, DecodeError) as error:
        raise DecodeError("the record of a former run cannot be read: %s" % error) from None
    return compare(stored, rank, environment)


def read_record(path: str) -> StoredImports:
    """Read a record that this user alone may write; raise OSError, DecodeError."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise DecodeError("%s is not a file that you alone may write" % path)
    stored = decode(StoredImports, read_json(read_file(path, LIMIT + 1), LIMIT))
    if stored.schema != SCHEMA:
        raise DecodeError("$.schema: expected %d, got %d" % (SCHEMA, stored.schema))
    return stored


def compare(stored: StoredImports, rank: RankOrder, environment: Mapping[str, str]) -> ImportRecord:
    """Give the imports with the stamps of the user's files now; raise DecodeError that says what is another now."""
    if interpreter_of(rank) != stored.interpreter:
        raise DecodeError("the interpreter is another than in the run that is on record")
    now = environment_digests(environment, stored.salt)
    for name in sorted({*now, *stored.environment}):
        if now.get(name) != stored.environment.get(name):
            raise DecodeError("the variable %s is another than in the run that is on record" % name)
    for directory, listing in stored.packages.items():
        if packages_in(directory) != listing:
            raise DecodeError("the packages in %s are others than in the run that is on record" % directory)
    places = RunPaths(environment)
    stamps = {}
    for name, expected in stored.own.items():
        file = places.within(name)
        try:
            stamps[file] = stamp_of(file)
            digest = digest_of(file)
        except OSError:
            digest = ""
        if digest != expected:
            raise DecodeError("%s has changed since the run that is on record" % file)
    return stored.imports._replace(own=stamps)


# -- writing ---------------------------------------------------------------------------------------------


def keep_record(rank: RankOrder, environment: Mapping[str, str], imports: ImportRecord, against: str) -> str:
    """Keep what this run has imported, and return where; empty where it has no place or changes. Raise OSError."""
    path = path_of(rank, environment)
    if path is None or sum(os.stat(file).st_size for file in imports.own) > MOST_OWN:
        return ""
    places = RunPaths(environment)
    salt = os.urandom(16).hex()
    directories = {site_of(file) for file in imports.modules.values()} - {""}
    digests = {places.without(file): digest_of(file) for file in imports.own}
    for file, stamp in imports.own.items():
        if stamp_of(file) != stamp:
            return ""  # it is edited at this moment
    stored = StoredImports(
        schema=SCHEMA,
        salt=salt,
        environment=environment_digests(environment, salt),
        interpreter=interpreter_of(rank),
        packages={directory: packages_in(directory) for directory in directories},
        own=digests,
        imports=imports._replace(own={}, against=against),
    )
    _write(path, write_json(encode(stored)))
    return path


def _write(path: str, data: bytes) -> None:
    directory = os.path.dirname(path)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    temporary = "%s.%d" % (path, os.getpid())
    fd = create_file(temporary)
    try:
        write_all(fd, data)
        os.rename(temporary, path)
    except OSError:
        remove_file(temporary)
        raise
    finally:
        os.close(fd)
    records = [os.path.join(directory, name) for name in names_in(directory)]
    for old in sorted(records, key=_age)[:-MOST_RECORDS]:
        remove_file(old)


def _age(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


# -- what is compared ------------------------------------------------------------------------------------


def environment_digests(environment: Mapping[str, str], salt: str) -> Dict[str, str]:
    """Return salted digests of the variables that an import may depend on: values may be secrets."""
    places = RunPaths(environment)
    digests = {}
    for name, value in environment.items():
        if name.startswith(SESSION_PREFIXES) or name in SESSION_NAMES or name in OWN_NAMES:
            continue
        text = "%s\0%s" % (salt, places.without(value))
        digests[name] = sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return digests


def interpreter_of(rank: RankOrder) -> str:
    """Return what tells an interpreter from another, or from the same after an update."""
    path = os.path.realpath(rank.argv[0])
    try:
        status = os.stat(path)
    except OSError:
        return path
    return "%s %d %d" % (path, status.st_size, status.st_mtime_ns)


def site_of(file: str) -> str:
    """Return the directory of packages that a module's file lies in; empty for the standard library."""
    for name in ("/site-packages/", "/dist-packages/"):
        head, separator, _ = file.partition(name)
        if separator:
            return head + name[:-1]
    return ""


def packages_in(directory: str) -> str:
    """Return a digest of the names of what is installed in a directory: they have the versions."""
    names: List[str] = sorted(name for name in names_in(directory) if name.endswith(METADATA))
    return sha256("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest()
