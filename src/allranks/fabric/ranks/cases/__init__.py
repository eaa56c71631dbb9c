"""The tests of the suite sync, by name, in the order in which they run: what is simple comes first."""

from __future__ import annotations

from ..lab import Test
from . import objects, sharded, tensors
from . import subgroups as groups

TESTS: dict[str, Test] = {
    test.__name__: test
    for test in (*tensors.TESTS, *objects.TESTS, tensors.large_payloads, *groups.TESTS, *sharded.TESTS)
}
QUICK = ("barrier", "all_reduce", "all_gather", "gather_object", "large_payloads", "many_gathers")
