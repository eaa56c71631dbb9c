"""The tests of the suite sync, in the order in which they run: what is simple comes first."""

from __future__ import annotations

from ..lab import Test
from .blocks import BLOCKS
from .groups import GROUPS
from .objects import OBJECTS
from .payloads import PAYLOADS
from .points import POINTS
from .sharded import SHARDED
from .simple import SIMPLE

TESTS: tuple[Test, ...] = (*SIMPLE, *BLOCKS, *POINTS, *OBJECTS, *PAYLOADS, *GROUPS, *SHARDED)
QUICK = ("barrier", "all_reduce", "all_gather", "gather_object", "large_payloads", "many_gathers")
