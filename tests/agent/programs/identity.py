# ruff: noqa
"""The program's own docstring."""
import os
import signal
import sys
import threading

import __main__

name = "kept"
print(__name__, __file__, __doc__, __package__, __spec__, __cached__, __builtins__)
print(type(__loader__), __loader__.name, __loader__.path, __loader__.get_source("__main__")[:9])
print([key for key in globals() if key.startswith("__")], [key for key in globals() if not key.startswith("__")])
print(__main__ is sys.modules["__main__"], vars(__main__) is globals(), __main__.name, repr(__main__))
print(sys.argv, sys.path, getattr(sys, "orig_argv", None), sys.flags, sys.warnoptions, sys._xoptions)
print(sorted(os.environ.items()))
print([signal.getsignal(number) for number in sorted(signal.valid_signals())])
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.set_wakeup_fd(-1))
print(sys.excepthook is sys.__excepthook__, hasattr(sys, "last_type"), sys.exc_info(), sys.getrecursionlimit())
print(threading.current_thread(), threading.active_count(), sys.gettrace(), sys.getprofile())
print(os.open("/dev/null", os.O_RDONLY), os.getcwd(), list(sys.path_hooks), sys.stdin, sys.stderr)
print(sorted(set(sys.modules) - {"__future__", "_imp", "_signal", "faulthandler"}))


def annotated(value: name.__class__) -> None:  # the runner's own __future__ imports do not reach the program
    pass


print(annotated.__annotations__)
