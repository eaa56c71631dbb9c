"""Holds every frame back for a while: `relay.py TAP NETNS PORT MS`. (`tc netem` is not in every kernel.)

One end is a TAP in the machine's namespace, the other a packet socket on PORT in NETNS. Frames keep their
virtio header, so offloaded checksums and segments pass as they are.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
OFFLOADS = 0x01 | 0x02 | 0x04 | 0x08  # checksum, TSO4, TSO6, TSO with ECN
ETH_P_ALL, SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 3, 263, 15, 23
CLONE_NEWNET = 0x40000000
LARGEST = 128 * 1024
Held = deque[tuple[float, bytes]]


def open_tap(name: str) -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(tap, TUNSETOFFLOAD, OFFLOADS)
    return tap


def open_port(netns: str, port: str) -> int:
    """The process then stays in `netns`: who clears that namespace ends the relay too."""
    with open(f"/run/netns/{netns}") as handle:
        if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {netns}")
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    end.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    end.bind((port, ETH_P_ALL))
    end.setblocking(False)
    return end.detach()


def take(source: int, held: Held, delay: float) -> None:
    """All that is there now, each with the time at which it may go on."""
    for _ in range(256):
        try:
            frame = os.read(source, LARGEST)
        except BlockingIOError:
            return
        except OSError:  # the interface is down for the moment
            return
        held.append((time.monotonic() + delay, frame))


def hand_on(target: int, held: Held) -> None:
    now = time.monotonic()
    while held and held[0][0] <= now:
        _, frame = held.popleft()
        try:
            os.write(target, frame)
        except OSError:  # full or down: a frame is lost, as on any wire
            continue


def relay(tap: int, port: int, delay: float, clock: Callable[[], float] = time.monotonic) -> None:
    outward: Held = deque()
    inward: Held = deque()
    poll = select.poll()
    poll.register(tap, select.POLLIN)
    poll.register(port, select.POLLIN)
    while True:
        due = min((held[0][0] for held in (outward, inward) if held), default=clock() + 1.0)
        poll.poll(max(0.0, due - clock()) * 1000)
        take(port, outward, delay)
        take(tap, inward, delay)
        hand_on(tap, outward)
        hand_on(port, inward)


if __name__ == "__main__":
    name, netns, port, ms = sys.argv[1:]
    tap = open_tap(name)
    relay(tap, open_port(netns, port), float(ms) / 1000)
