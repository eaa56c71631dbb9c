"""Loads the modules of the archive that a node gets, each once; it is that archive's `allranks/__init__.py`.

zipimport would open the archive twice for each module, inflate it twice and decode it twice: since Python 3.10 it loads
a module to say where its file is, and then to run it. The byte code of the controller's Python stands in one entry of
the archive. An interpreter of another version has zipimport compile the sources.
"""

from __future__ import annotations

import marshal
import sys
import zlib

# What importlib gives out under other names: to import that takes 2 ms.
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER

TYPE_CHECKING = False  # `typing` is 5 ms
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Dict, Optional, Tuple
    from zipimport import zipimporter

ENTRY = "byte_code_" + MAGIC_NUMBER.hex()  # in the archive: the table of ByteCode, marshalled


class ByteCode:
    """Finder and loader of modules. `table` has of each whether it is a package, and its marshalled code, deflated."""

    def __init__(self, archive: zipimporter, table: Dict[str, Tuple[bool, bytes]]) -> None:
        self._archive = archive
        self._table = table

    def find_spec(self, name: str, path: object = None, target: object = None) -> Optional[ModuleSpec]:
        """Find a module by its full name, for the import system."""
        if name not in self._table:
            return None
        is_package = self._table[name][0]
        return ModuleSpec(name, self, is_package=is_package)  # type: ignore[arg-type]  # a Loader by its methods

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        """Leave that to the import system."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's code."""
        exec(marshal.loads(zlib.decompress(self._table[module.__name__][1])), module.__dict__)

    def get_source(self, name: str) -> str:
        """Read a module's source, for the lines of a traceback."""
        file = name.replace(".", "/") + ("/__init__.py" if self._table[name][0] else ".py")
        return self._archive.get_data(file).decode()


def install(archive: zipimporter) -> None:
    """Have the modules of an archive come from its byte code, where that is for this Python."""
    try:
        table = archive.get_data(ENTRY)
    except OSError:
        return
    sys.meta_path.insert(0, ByteCode(archive, marshal.loads(table)))


if __name__ == "allranks":
    install(globals()["__loader__"])
