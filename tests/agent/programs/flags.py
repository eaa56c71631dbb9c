# ruff: noqa
import sys

assert len(sys.argv) < 9, "asserts run"
leak = open(__file__)
leak = None
print(sys.flags, sys.path[:2], __debug__, sys.stdout.write_through, sys.dont_write_bytecode)
print(str(b"bytes") if sys.flags.bytes_warning < 2 else "")
