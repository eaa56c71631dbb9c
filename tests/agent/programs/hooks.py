# ruff: noqa
"""What programs do with sys.excepthook, and what the interpreter leaves in sys.last_*."""
import atexit
import sys
import traceback


def own(kind, value, trace):
    print("own hook", kind, value, "".join(traceback.format_tb(trace)), sys.exc_info(), value.__traceback__ is trace)
    print(sys.last_type, sys.last_value, sys.last_traceback is trace, getattr(sys, "last_exc", None), __file__)


def broken(kind, value, trace):
    raise LookupError("the hook fails")


def leaves(kind, value, trace):
    sys.exit(7)


def after():
    print(getattr(sys, "excepthook", None), "".join(traceback.format_tb(sys.last_traceback)), "__file__" in globals())
    print("".join(traceback.format_tb(sys.last_value.__traceback__)), getattr(sys, "last_exc", None))


def fail():
    raise ValueError("to the hook")


atexit.register(after)
if sys.argv[1] == "none":
    del sys.excepthook
elif sys.argv[1] != "default":
    sys.excepthook = globals()[sys.argv[1]]
    if sys.argv[1] == "own":
        print = __import__("functools").partial(print, flush=True)
fail()
