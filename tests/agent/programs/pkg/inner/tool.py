# ruff: noqa
"""A module to be run with -m."""
import multiprocessing
import sys

from .. import VALUE
from . import __name__ as parent
from .part import Part


class Here:
    pass


def work(thing):
    return type(thing).__module__, type(thing).__qualname__, __name__


if __name__ == "__main__":
    print(VALUE, parent, Part, __name__, __package__, __spec__.name, __file__, __doc__, __cached__ is not None)
    print(sys.argv, sys.path[0], getattr(sys, "orig_argv", None), type(__loader__), sys.modules["__main__"])
    print([key for key in globals() if key.startswith("__")], vars(sys.modules["__main__"]) is globals())
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [Here(), Part()]))
    sys.stdout.flush()
    raise ValueError("in a module")
