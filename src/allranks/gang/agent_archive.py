"""What is sent to a node: a zip of `allranks.agent` and the wanted checks, the runner, and the lines that start it all.

The zip holds sources for every Python ≥ 3.8, and in one entry the controller's own byte code, which an interpreter of
the same version takes instead of compiling: 60 ms a node.
"""

from __future__ import annotations

import asyncio
import importlib.util
import io
import marshal
import shlex
import threading
import zipfile
import zlib
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path

import allranks
from allranks.agent import archive_loader
from allranks.protocol.header import FetchHeader, Header, SweepHeader, pack_header
from allranks.protocol.node_names import RUN_TAG

from .plugins import source_of

HOME = Path(allranks.__file__).parent
MARKER = b"ALLRANKS-BOOT 1\n"
NO_PYTHON = b"ALLRANKS-NO-PYTHON "
PYC_HEADER = importlib.util.MAGIC_NUMBER + (0b01).to_bytes(4, "little") + bytes(8)  # hash-based, unchecked (PEP 552)
OF_CONTROLLERS = ("attempts", "interface_names", "run_facts")  # modules of protocol/ that no node loads
PYTHONS = ("python3", *(f"python3.{minor}" for minor in range(14, 7, -1)))

# No single quote in here: it travels inside the shell script below.
# Collecting garbage among modules that are just loaded finds none, and takes a tenth of a node's start.
BOOT = """
import gc, os, sys
gc.disable()
def read(n):
    d = os.read(0, n)
    if not d:
        os._exit(1)
    return d
os.write(1, b"\\nALLRANKS-BOOT 1\\n")
n = int.from_bytes(b"".join(read(1) for _ in range(4)), "big")
try:
    f = os.memfd_create("allranks")
except (AttributeError, OSError):
    import tempfile
    f, t = tempfile.mkstemp()
    os.unlink(t)
while n:
    d = read(min(n, 65536))
    n -= len(d)
    while d:
        d = d[os.write(f, d):]
sys.path.insert(0, "/proc/self/fd/%d" % f)
from allranks.agent.boot import enter
enter()
"""

# No single quote in here either. dash drops variables whose names it does not like from the environment, and with
# them the functions that bash has exported; the environment that the shell was started with still has them.
FIRST_LOOK = """
import sys
if sys.version_info < (3, 8):
    sys.exit(1)
try:
    with open("/proc/%s/environ" % sys.argv[1], "rb") as f:
        d = f.read()
except OSError:
    d = b""
e = [v for v in d.split(b"\\0") if v.startswith(b"BASH_FUNC_")]
print(b"\\0".join(e).hex() if sum(map(len, e)) < 60000 else "")
"""

# The shell ignores the two signals that a scheduler may send to every process; boot.py takes them over.
SCRIPT = """{
trap '' USR1 USR2
%(tag)s
b='%(boot)s'
l='%(look)s'
for p in %(pythons)s
do
if f=$("$p" -I -S -c "$l" $$ </dev/null 2>/dev/null)
then
[ -z "$f" ] || export ALLRANKS_FUNCTIONS="$f"
exec "$p" -I -S -c "$b"
fi
done
echo
echo 'ALLRANKS-NO-PYTHON %(tried)s'
exit 97
}
"""


def boot_script(agent_python: str | None, training_python: str | None, run_tag: str = "") -> bytes:
    """Make the sh script for standard input: it looks for a Python ≥ 3.8 and starts the boot line in it.

    With a run tag in its environment, where there is one: the kernel shows what a process began with.
    """
    names = list(PYTHONS)
    if agent_python:
        names = [agent_python]
    elif training_python:
        names.append(training_python)
    tried = ", ".join(names).replace("'", "")
    pythons = " ".join(shlex.quote(name) for name in names)
    tag = f"export {RUN_TAG}={shlex.quote(run_tag)}" if run_tag else ""
    values = {"boot": BOOT, "look": FIRST_LOOK, "pythons": pythons, "tried": tried, "tag": tag}
    return (SCRIPT % values).encode()


@cache
def node_zip(checks: tuple[str, ...] = ()) -> bytes:
    """`allranks.agent` and the named checks as a zip, sources and byte code."""
    modules = _modules(checks)
    loader = HOME / "agent" / "archive_loader.py"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("allranks/__init__.py", loader.read_bytes())
        bundle.writestr("allranks/__init__.pyc", PYC_HEADER + _byte_code("allranks", loader))
        for name, path in modules.items():
            bundle.writestr(name.replace(".", "/") + ".py", path.read_bytes())
        bundle.writestr(archive_loader.ENTRY, _byte_codes(modules), zipfile.ZIP_STORED)
    return buffer.getvalue()


def _modules(checks: tuple[str, ...]) -> dict[str, Path]:
    modules = {}
    for path in sorted((HOME / "agent").glob("*.py")):
        if not path.name.startswith("runner") and path.stem != "archive_loader":
            modules[f"allranks.agent.{path.stem}"] = path
    for path in sorted((HOME / "protocol").glob("*.py")):
        if path.stem not in OF_CONTROLLERS:
            modules[f"allranks.protocol.{path.stem}"] = path
    modules["allranks.findings"] = HOME / "findings.py"
    modules["allranks.text"] = HOME / "text.py"
    modules["allranks.xid"] = HOME / "xid.py"
    modules["allranks.kernel_lines"] = HOME / "kernel_lines.py"
    shared = ("typed_facts", "host", "check", "compare", "launcher_config", "rdma", "smi")
    for stem in ("__init__", *shared, "checks/__init__"):
        modules["allranks.preflight." + stem.replace("/", ".")] = HOME / "preflight" / f"{stem}.py"
    for name in checks:
        modules[f"allranks.preflight.checks.{name}"] = source_of(name) or HOME / "preflight" / "checks" / f"{name}.py"
    return modules


@cache
def fabric_zip() -> bytes:
    """Make an archive of the collective tests that any Python runs: sources of what they need, and a main."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("__main__.py", "from allranks.fabric.__main__ import main\n\nmain()\n")
        bundle.writestr("allranks/__init__.py", "")
        names = ("exitcodes", "findings", "program", "text")
        protocol = ("__init__", "codec", "interface_names", "jsontext", "records")
        modules = [HOME / f"{name}.py" for name in (*names, *(f"protocol/{name}" for name in protocol))]
        for path in sorted([*(HOME / "fabric").rglob("*.py"), *modules]):
            bundle.writestr(f"allranks/{path.relative_to(HOME)}", path.read_bytes())
    return buffer.getvalue()


def _byte_codes(modules: dict[str, Path]) -> bytes:
    table = {}
    for name, path in modules.items():
        module = name.removesuffix(".__init__")
        table[module] = (module != name, zlib.compress(_byte_code(module, path)))
    return marshal.dumps(table)


def _byte_code(module: str, path: Path) -> bytes:
    return marshal.dumps(SourceFileLoader(module, str(path)).get_code(module))


@cache
def beside_the_runner(tests: bool, audit: bool = False) -> dict[str, bytes]:
    """Files of their own in the node directory, by name: they run under the training interpreter."""
    files = {path.name: path.read_bytes() for path in sorted((HOME / "agent").glob("runner*.py"))}
    if audit:
        files["probe.py"] = (HOME / "data" / "probe.py").read_bytes()
    if tests:
        files["fabric.zip"] = fabric_zip()
    return files


_preparing = threading.Lock()  # many nodes wait for the archive that one of them makes


async def prepared_parts(header: Header) -> list[bytes]:
    """Give `payload_parts` without holding the loop: to make the archive took 3.8 s on a machine of load 17."""

    def prepare() -> list[bytes]:
        with _preparing:
            return payload_parts(header)

    return await asyncio.to_thread(prepare)


def payload_parts(header: Header) -> list[bytes]:
    """Everything after the marker: zip, header (which names the files), the files, each with its length before it.

    All but the header are the same objects for every node, so that many nodes take no more memory than one. Raise
    OSError where a file cannot be read.
    """
    if isinstance(header, (SweepHeader, FetchHeader)):
        archive = node_zip()
        files = beside_the_runner(tests=False)
    else:
        archive = node_zip(header.checks)
        files = beside_the_runner(header.tests, header.audit)
    return [len(archive).to_bytes(4, "big"), archive, *pack_header(header, files)]


def payload(header: Header) -> bytes:
    """Join the parts of `payload_parts`."""
    return b"".join(payload_parts(header))
