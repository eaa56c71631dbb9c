"""As many open descriptors as a controller of hundreds of nodes has."""

import contextlib
import os
import resource
from collections.abc import Iterator

import pytest

MANY = 1100  # select(2) takes none above 1023


@contextlib.contextmanager
def many_open() -> Iterator[None]:
    """Every descriptor that is opened inside has a number above MANY."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * MANY:
        pytest.skip(f"the limit of open files is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * MANY), hard))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    while opened[-1] < MANY:
        opened.append(os.dup(opened[0]))
    try:
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
