# ruff: noqa
"""Objects of __main__ end in the same order and see the same globals."""
import atexit
import os
import sys
import weakref


class Loud:
    def __init__(self, name):
        self.name = name

    def __del__(self, say=os.write, names=globals()):
        present = sorted(name for name, value in names.items() if value is not None)
        say(1, ("end of %s, still %s\n" % (self.name, present)).encode())


class Cycle(Loud):
    def __init__(self, name):
        super().__init__(name)
        self.me = self


first, second = Loud("first"), Loud("second")
cycle, _third = Cycle("cycle"), Loud("third")
weakref.finalize(first, os.write, 1, b"finalized\n")
atexit.register(os.write, 1, b"atexit\n")
if len(sys.argv) > 1:
    local = Loud("local")
    raise ValueError("with things alive")
