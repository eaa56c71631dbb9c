"""allranks as one file, `allranks.pyz`: for images that have Python and torch and nothing else (reads its own sources).

It holds the sources of allranks and of Click in one piece, compressed by bz2: 695 KiB, where gzip needs 905. It
unpacks itself into a private directory first, as the agent is made from files, and removes that at the end.

`python -m allranks.engines.zipapp [PATH]` writes it. `allranks.pyz --version` prints this command, too.
"""

from __future__ import annotations

import bz2
import io
import json
import sys
import zipfile
from functools import cache
from importlib.metadata import distribution, version
from pathlib import Path

import click

import allranks
from allranks.gang.agent_archive import HOME
from allranks.unpacked import HELD, PREFIX

COMMAND = "python -m allranks.engines.zipapp"
CLICK = Path(click.__file__).parent
# Windows, tests; progress bars, pagers and editors, which Click imports only to show one.
CLICK_UNUSED = ("_winconsole.py", "testing.py", "_termui_impl.py")
EPOCH = (1980, 1, 1, 0, 0, 0)
MAIN = '''"""Unpacks this archive and runs the allranks in it."""
import io, json, os, shutil, sys, tempfile, zipfile

if sys.version_info < (3, 10):
    sys.exit("allranks.pyz needs Python 3.10 or newer, this is %s" % sys.version.split()[0])
if sys.argv[1:] in (["--version"], ["-V"]):
    print(@VERSION@)
    sys.exit()
try:
    import bz2
except ImportError:
    sys.exit("allranks.pyz needs Python's module bz2, which this Python was built without. Install allranks with pip")
place = None
for base in (os.environ.get("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm", os.getcwd()):
    try:
        place = place or (base and tempfile.mkdtemp(prefix="@PREFIX@", dir=base))
    except OSError:
        continue
if not place:
    sys.exit("allranks.pyz: no place to unpack to. Set TMPDIR to a directory that can be written")
owner = os.getpid()
try:
    with zipfile.ZipFile(sys.argv[0]) as archive:
        sizes = json.loads(archive.read("sizes.json"))
        contents = io.BytesIO(bz2.decompress(archive.read("contents.bz2")))
    for name, size in sizes.items():
        path = os.path.join(place, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(contents.read(size))
    sys.path[0:1] = [place]
    from allranks.cli.main import main

    main(owns_process=True)
except KeyboardInterrupt:
    sys.stderr.write("allranks: interrupted\\n")
    sys.exit(130)
finally:
    if os.getpid() == owner and not os.path.exists(os.path.join(place, "@HELD@")):
        shutil.rmtree(place, ignore_errors=True)
'''.replace("@PREFIX@", PREFIX).replace("@HELD@", HELD)


@cache
def build() -> bytes:
    """Build the archive, the same for the same sources: so that a ConfigMap (1 MiB) holds it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", EPOCH), MAIN.replace("@VERSION@", repr(_version())))
        files = dict(sorted(packed_files().items()))
        sizes = json.dumps({name: len(content) for name, content in files.items()}, separators=(",", ":"))
        archive.writestr(zipfile.ZipInfo("sizes.json", EPOCH), sizes, zipfile.ZIP_DEFLATED)
        archive.writestr(zipfile.ZipInfo("contents.bz2", EPOCH), bz2.compress(b"".join(files.values())))
    return buffer.getvalue()


def _version() -> str:
    return f"allranks {allranks.__version__} (one file with Click {version('click')}, made by `{COMMAND}`)"


def packed_files() -> dict[str, bytes]:
    """Return what the archive unpacks, by its place: allranks, and Click with its licence."""
    names = {path.relative_to(HOME).as_posix(): path for path in HOME.rglob("*.py")}
    contents = {f"allranks/{name}": path.read_bytes() for name, path in names.items()}
    for path in CLICK.glob("*.py"):
        if path.name not in CLICK_UNUSED:
            contents[f"click/{path.name}"] = path.read_bytes()
    # The licence asks to go wherever Click goes. By RECORD an archive that is made from this one finds it.
    for file in distribution("click").files or ():
        if file.name in ("METADATA", "RECORD") or file.name.startswith("LICENSE"):
            contents[file.as_posix()] = file.read_binary()
    return contents


def main() -> None:
    """Write the archive to the path that is given, else to allranks.pyz."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "allranks.pyz")
    path.write_bytes(build())
    print(f"wrote {path} ({path.stat().st_size // 1024} KiB): {_version()}")


if __name__ == "__main__":
    main()
