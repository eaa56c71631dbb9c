"""Fault verbs of one link: what happens between two hosts and to no other.

As in netfaults, nothing is remembered but the bridge process of a delayed link, which its own host ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.hosts.bed.commands import BedError, Unavailable, batch, in_netns
from tests.hosts.bed.host import HostBase, network_fault
from tests.hosts.bed.netfaults import _cmdline
from tests.hosts.waiting import wait_until

WIRE = Path(__file__).with_name("wire.py")


class LinkFaults(HostBase):
    @network_fault
    def rate_to(self, peer: HostBase, speed: str) -> None:
        """A slow path between this host and `peer`, both ways: "50mbit"; all else is as fast as ever."""
        peer.note_network_fault()
        for one, other in ((self, peer), (peer, self)):
            lines = (
                "qdisc replace dev eth0 root handle 1: htb r2q 1",
                f"class replace dev eth0 parent 1: classid 1:20 htb rate {speed} burst 32kb cburst 32kb quantum 1514",
                f"qdisc replace dev eth0 parent 1:20 bfifo limit {LIMIT}",
                f"filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst {other.address}/32 flowid 1:20",
            )
            in_netns(one.netns, "tc", "-batch", "-", stdin="\n".join(lines) + "\n")

    @network_fault
    def delay_to(self, peer: HostBase, ms: float) -> None:
        """Frames between this host and `peer` take `ms` longer, each way: they go by a wire of their own."""
        if not os.path.exists("/dev/net/tun"):
            raise Unavailable("delay_to needs /dev/net/tun (a TAP device), and this machine has none")
        peer.note_network_fault()
        self.undelay_link()
        ends = (f"w{self.index}-{peer.index}", f"w{peer.index}-{self.index}")
        argv = [sys.executable, str(WIRE), self.netns, ends[0], peer.netns, ends[1], str(ms)]
        with open(self.dir / "wire.log", "ab") as log:
            wire = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        (self.dir / "wire.pid").write_text(str(wire.pid))

        def ready() -> bool:
            if wire.poll() is not None:
                raise BedError(f"wire: {(self.dir / 'wire.log').read_text()}")
            return _has(self, ends[0]) and _has(peer, ends[1])

        wait_until(ready, what=f"the wire {ends[0]}")
        for one, end, other in ((self, ends[0], peer), (peer, ends[1], self)):
            in_netns(one.netns, "sysctl", "-qw", f"net.ipv6.conf.{end}.disable_ipv6=1", check=False)
            batch(f"link set {end} mtu 1500 up", netns=one.netns)
            batch(f"route replace {other.address}/32 dev {end} src {one.address}", netns=one.netns)

    def links(self) -> list[dict[str, object]]:
        """NetworkFaults has it."""
        raise NotImplementedError

    def undelay_link(self) -> None:
        """Ends the wire that this host began; its ends and the routes over them go with it."""
        file = self.dir / "wire.pid"
        if not file.exists():
            return
        pid = int(file.read_text())
        file.unlink()
        if str(WIRE).encode() in _cmdline(pid):
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not _cmdline(pid), what="the wire gone")
        mine = f"w{self.index}-"
        wait_until(lambda: not any(str(n["ifname"]).startswith(mine) for n in self.links()), what="its end gone")


LIMIT = 1 << 18  # bytes that wait on a slow path


def _has(host: HostBase, interface: str) -> bool:
    return bool(in_netns(host.netns, "ip", "-br", "link", "show", interface, check=False).strip())
