# ruff: noqa
from pkg.absent import nothing  # noqa: F401
