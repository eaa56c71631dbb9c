# ruff: noqa
import warnings


def warn_here(level):
    warnings.warn("helper %d" % level, UserWarning, stacklevel=level)
