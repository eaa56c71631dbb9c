"""Takes a TCP port as torch would, writes the file that is named, and keeps the port: squatter.py PORT FILE."""

import socket
import sys

sock = socket.socket(socket.AF_INET6)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
sock.bind(("::", int(sys.argv[1])))
sock.listen()
with open(sys.argv[2], "w") as file:
    file.write("taken")
sys.stdin.read()
