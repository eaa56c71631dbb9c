# ruff: noqa
import sys

print(__file__, __spec__.name, __package__, sys.path[0], sys.argv, type(__loader__).__name__)
raise ValueError("in a directory or archive")
