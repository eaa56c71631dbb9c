# ruff: noqa
# Files beside the program come before the standard library's.
import queue
import socket

print(queue.__file__, queue.MINE, socket.__file__, socket.MINE)
