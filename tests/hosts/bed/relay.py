"""Holds every frame back for a while between two ends: `relay.py MS END END`. (`tc netem` is not in every kernel.)

An end is `tap:NETNS:NAME`, a TAP that lives as long as this, or `port:NETNS:NAME`, a packet socket on an interface.
Without NETNS it is in the machine's namespace. Frames keep their virtio header: offloaded checksums and segments pass.
"""

import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections import deque

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


def open_end(kind: str, netns: str, name: str) -> int:
    """The process then stays in `netns`: who clears that namespace ends the relay too."""
    if netns:
        with open(f"/run/netns/{netns}") as handle:
            if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"setns {netns}")
    return open_tap(name) if kind == "tap" else open_port(name)


def open_port(port: str) -> int:
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


def relay(one: int, other: int, delay: float) -> None:
    ways: tuple[tuple[int, int, Held], ...] = ((one, other, deque()), (other, one, deque()))
    poll = select.poll()
    poll.register(one, select.POLLIN)
    poll.register(other, select.POLLIN)
    while True:
        now = time.monotonic()
        due = min((held[0][0] for _, _, held in ways if held), default=now + 1.0)
        poll.poll(max(0.0, due - now) * 1000)
        for source, _, held in ways:
            take(source, held, delay)
        for _, target, held in ways:
            hand_on(target, held)


if __name__ == "__main__":
    ms, *ends = sys.argv[1:]
    one, other = (open_end(*end.split(":")) for end in ends)
    relay(one, other, float(ms) / 1000)
