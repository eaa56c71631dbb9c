"""The program that looks for one pattern of the user's in what ranks print (standard library alone).

It runs in a process of its own (`matching`), as a match of Python's `re` may take for ever and holds the interpreter's
lock. The kernel ends this process with SIGPROF where one line takes longer than the limit.

Requests on standard input: rank, two times, number of bytes, those bytes. Answers on standard output: a line for each
request with rank, both times, how many lines matched, and the last number found ("-": none).
"""

import os
import re
import signal
import struct
import sys
from typing import BinaryIO

REQUEST = struct.Struct(">IddI")  # rank, monotonic seconds, unix seconds, bytes
LINE = 4 << 10  # bytes of a line that are looked at
MOST_DIGITS = 18


def main(pattern: str, seconds: float, requests: BinaryIO, answers: BinaryIO) -> None:
    """Until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's affair
    compiled = re.compile(os.fsencode(pattern))
    rests: dict[int, bytes] = {}
    while True:
        head = requests.read(REQUEST.size)
        if len(head) < REQUEST.size:
            return
        rank, at, t, length = REQUEST.unpack(head)
        *lines, rest = re.split(rb"[\r\n]", rests.get(rank, b"") + requests.read(length))
        rests[rank] = rest[:LINE]
        count = 0
        number = b"-"
        for line in lines:
            signal.setitimer(signal.ITIMER_PROF, seconds)
            match = compiled.search(line[:LINE])
            signal.setitimer(signal.ITIMER_PROF, 0)
            if match is None:
                continue
            count += 1
            digits = (match.group(1) if compiled.groups else match.group(0)) or b""
            if digits.isdigit() and len(digits) <= MOST_DIGITS:
                number = digits
        answers.write(b"%d %r %r %d %s\n" % (rank, at, t, count, number))
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.stdin.buffer, sys.stdout.buffer)
