# ruff: noqa
"""Warnings are attributed to the same lines, also where the stack level leads out of the program."""
import logging
import warnings

from helper import warn_here


def warn(level):
    warnings.warn("level %d" % level, stacklevel=level)
    warnings.warn("deprecated", DeprecationWarning, stacklevel=level)


warnings.simplefilter("always")
for level in range(1, 5):
    warn(level)
    warnings.warn("top %d" % level, stacklevel=level)
    warn_here(level)
logging.basicConfig(format="%(filename)s:%(lineno)d %(funcName)s %(message)s")
logging.warning("logged")
