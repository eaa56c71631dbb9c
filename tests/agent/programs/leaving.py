# ruff: noqa
"""Prints to both streams, then leaves by what the argument evaluates to."""
import atexit
import sys

atexit.register(print, "first registered")
atexit.register(print, "second registered")
atexit.register(lambda: print("__file__" in globals(), __name__))
sys.stdout.write("to stdout, ")
sys.stderr.write("to stderr\n")
print("and more")
sys.exit(eval(sys.argv[1]))
