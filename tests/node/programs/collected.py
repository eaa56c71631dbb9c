"""Objects of __main__ end in the same order and see the same globals."""
import atexit
import sys
import weakref


class Loud:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        out.write("end of %s %s %s\n" % (self.name, sys is None, sorted(globals() or ())))
        out.flush()


class Cycle(Loud):
    def __init__(self, name):
        super().__init__(name)
        self.me = self


out = open(1, "w", closefd=False)
first, second = Loud("first"), Loud("second")
cycle, _third = Cycle("cycle"), Loud("third")
weakref.finalize(first, lambda: out.write("finalized\n"))
atexit.register(lambda: out.write("atexit\n"))
if len(sys.argv) > 1:
    local = Loud("local")
    raise ValueError("with things alive")
