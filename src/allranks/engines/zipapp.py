"""allranks as one file, `allranks.pyz`: for images that have Python and torch and nothing else (reads its own sources).

It holds the sources of allranks and of Click in one compressed piece, which halves them. It unpacks itself
into a private directory first, as the agent is made from files, and removes that at the end.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from functools import cache
from pathlib import Path

import click

from allranks.gang.agent_archive import HOME
from allranks.unpacked import HELD, PREFIX

CLICK = Path(click.__file__).parent
# Windows, tests; progress bars, pagers and editors, which Click imports only to show one.
CLICK_UNUSED = ("_winconsole.py", "testing.py", "_termui_impl.py")
EPOCH = (1980, 1, 1, 0, 0, 0)
MAIN = '''"""Unpacks this archive and runs the allranks in it."""
import io, os, shutil, sys, tarfile, tempfile, zipfile

if sys.version_info < (3, 10):
    sys.exit("allranks.pyz needs Python 3.10 or newer, this is %s" % sys.version.split()[0])
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
    with zipfile.ZipFile(sys.argv[0]) as archive, tarfile.open(
        fileobj=io.BytesIO(archive.read("allranks.tar.gz"))
    ) as files:
        files.extractall(place, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    sys.path[0:1] = [place]
    from allranks.cli.main import main

    main()
except KeyboardInterrupt:
    sys.stderr.write("allranks: interrupted\\n")
    sys.exit(130)
finally:
    if os.getpid() == owner and not os.path.exists(os.path.join(place, "@HELD@")):
        shutil.rmtree(place, ignore_errors=True)
'''.replace("@PREFIX@", PREFIX).replace("@HELD@", HELD)


@cache
def build() -> bytes:
    """Build the archive, the same for the same sources: below 900 KiB, so that a ConfigMap (1 MiB) holds it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", EPOCH), MAIN)
        archive.writestr(zipfile.ZipInfo("allranks.tar.gz", EPOCH), _packed(_files()))
    return buffer.getvalue()


def _packed(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o600
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), 9, mtime=0)


def _files() -> dict[str, bytes]:
    """Every file by its name in the archive."""
    names = {path.relative_to(HOME).as_posix(): path for path in HOME.rglob("*.py")}
    contents = {f"allranks/{name}": path.read_bytes() for name, path in names.items()}
    for path in CLICK.glob("*.py"):
        if path.name not in CLICK_UNUSED:
            contents[f"click/{path.name}"] = path.read_bytes()
    return contents
