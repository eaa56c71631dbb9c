"""Asks an agent for the stacks of its ranks, as a controller would: v_stacks.py SOCKET RANK… prints the answer.

Runs on the node, with allranks' sources on PYTHONPATH.
"""

import json
import selectors
import socket
import sys

from allranks.agent.link import Link
from allranks.protocol.orders import HelloOrder, StacksOrder, pack_order

sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
link = Link(sock)
sock.setblocking(True)
sock.sendall(pack_order(HelloOrder(lease=60.0)))
sock.sendall(pack_order(StacksOrder(tuple(int(word) for word in sys.argv[2:]))))
sock.setblocking(False)
with selectors.DefaultSelector() as selector:
    selector.register(sock, selectors.EVENT_READ)
    while True:
        selector.select()
        for frame in link.receive():
            if isinstance(frame, dict) and frame["type"] == "stacks":
                print(json.dumps(frame["ranks"]))
                raise SystemExit
