"""Fault verbs of the network: cable, firewall, loss, rate, delay, MTU, interfaces that lead nowhere.

Nothing is remembered here: `clear_network_faults` looks at what is there, so any process can undo.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.hosts.bed.commands import Unavailable, batch, call, in_netns
from tests.hosts.bed.host import HostBase, network_fault
from tests.hosts.waiting import wait_until
from tests.processes import command_of

RELAY = Path(__file__).with_name("relay.py")
TABLE = "table inet faults { chain input { type filter hook input priority 0; }; }\n"
LIMIT = 1 << 18  # bytes that wait on a slow path
RULE = 'add rule inet faults input iifname != "lo"'
WIRE = (
    "table netdev wire {\n"
    "  chain inward { type filter hook ingress device eth0 priority 0; }\n"
    "  chain outward { type filter hook egress device eth0 priority 0; }\n"
    "}\n"
)


class NetworkFaults(HostBase):
    # The cable

    @property
    def outer(self) -> str:
        """The machine's end of the host's cable: its port, or the relay's TAP while there is a delay."""
        tap = f"{self.slot.bridge}t{self.index}"
        return tap if Path(f"/sys/class/net/{tap}").exists() else self.port

    @network_fault
    def link_down(self) -> None:
        """The cable is pulled at the switch: neither end sees it, packets vanish both ways."""
        call("ip", "link", "set", self.outer, "down")

    def link_up(self) -> None:
        call("ip", "link", "set", self.outer, "up")

    # The firewall; the host's own connections to itself pass, as with real ones

    @network_fault
    def filter_packets(self, rule: str) -> None:
        in_netns(self.netns, "nft", "-f", "-", stdin=f"{TABLE}{RULE} {rule}\n")

    @network_fault
    def drop_port(self, port: int, proto: str = "tcp") -> None:
        """Filtered: who connects to this port of the host waits and hears nothing."""
        self.filter_packets(f"{proto} dport {port} drop")

    @network_fault
    def reject_port(self, port: int) -> None:
        """Refused at once, as if nothing listened there."""
        self.filter_packets(f"tcp dport {port} reject with tcp reset")

    @network_fault
    def drop_high_ports(self, except_: Iterable[int] = ()) -> None:
        """Only low ports (ssh) and `except_` take new connections: what many sites have."""
        ports = ", ".join(str(p) for p in except_)
        unless = f"tcp dport != {{ {ports} }} " if ports else ""
        self.filter_packets(f"tcp dport 1024-65535 {unless}tcp flags & (syn|ack) == syn drop")

    @network_fault
    def drop_from(self, peer: HostBase | str) -> None:
        """One way: this host hears nothing of `peer`, which still hears this host."""
        for family, address in _addresses(peer):
            self.filter_packets(f"{family} saddr {address} drop")

    # The wire

    @network_fault
    def loss(self, percent: float, peer: HostBase | str | None = None) -> None:
        """Packets lost at random, in each direction (only from and to `peer`, if given); ARP passes."""
        drop = f"meta protocol != arp numgen random mod 10000 < {round(percent * 100)} drop"
        if percent >= 100:
            drop = "meta protocol != arp drop"
        lines = []
        if peer is None:
            lines = [f"add rule netdev wire {chain} {drop}" for chain in ("inward", "outward")]
        for family, address in _addresses(peer) if peer is not None else []:
            lines.append(f"add rule netdev wire inward {family} saddr {address} {drop}")
            lines.append(f"add rule netdev wire outward {family} daddr {address} {drop}")
        in_netns(self.netns, "nft", "-f", "-", stdin=WIRE + "\n".join(lines) + "\n")

    @network_fault
    def rate(self, speed: str | None) -> None:
        """A slow cable, both ways: "10mbit"; None: as fast as it goes."""
        self._rate_out(speed)
        self._rate_in(speed)

    def _rate_out(self, speed: str | None) -> None:
        in_netns(self.netns, "tc", "qdisc", "del", "dev", "eth0", "root", check=False)
        if speed:
            in_netns(self.netns, "tc", "qdisc", "add", "dev", "eth0", *_bucket(speed))

    def _rate_in(self, speed: str | None) -> None:
        call("tc", "qdisc", "del", "dev", self.outer, "root", check=False)
        if speed:
            call("tc", "qdisc", "add", "dev", self.outer, *_bucket(speed))

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
    def path_mtu(self, size: int) -> None:
        """The switch port carries less than the host believes: large frames vanish both ways.

        Segmentation offload goes to one packet, else large frames would pass as something the card splits.
        """
        in_netns(self.netns, "ip", "link", "set", "eth0", "gso_max_segs", "1")
        call("ip", "link", "set", self.outer, "mtu", str(size))

    @network_fault
    def delay(self, ms: float) -> None:
        """Each frame takes `ms` longer, each way (so a round trip twice that).

        The port leaves the bridge for a namespace without addresses; a relay holds each frame back and hands
        it to a TAP in the bridge. Say `rate` after `delay`, not before.
        """
        if not os.path.exists("/dev/net/tun"):
            raise Unavailable("delay needs /dev/net/tun (a TAP device), and this machine has none")
        self._undelay()
        tap = f"{self.slot.bridge}t{self.index}"
        self._make_void()
        batch(f"link set {self.port} netns {self.slot.void}")
        batch(f"link set {self.port} up", netns=self.slot.void)
        self._begin_relay("relay", ms, f"tap::{tap}", f"port:{self.slot.void}:{self.port}")
        wait_until(Path(f"/sys/class/net/{tap}").exists, what=f"the relay's {tap} (see {self.dir}/relay.log)")
        batch(f"link set {tap} mtu 1500 master {self.slot.bridge} up")

    @network_fault
    def delay_to(self, peer: HostBase, ms: float) -> None:
        """Frames between this host and `peer` take `ms` longer, each way: they go by a wire of their own."""
        if not os.path.exists("/dev/net/tun"):
            raise Unavailable("delay_to needs /dev/net/tun (a TAP device), and this machine has none")
        peer.note_network_fault()
        self.undelay_link()
        ways = ((self, f"w{self.index}-{peer.index}", peer), (peer, f"w{peer.index}-{self.index}", self))
        self._begin_relay("wire", ms, *(f"tap:{one.netns}:{end}" for one, end, _ in ways))
        for one, end, other in ways:
            wait_until(lambda one=one, end=end: _has(one, end), what=f"the wire {end} (see {self.dir}/wire.log)")
            in_netns(one.netns, "sysctl", "-qw", f"net.ipv6.conf.{end}.disable_ipv6=1", check=False)
            batch(f"link set {end} mtu 1500 up", netns=one.netns)
            batch(f"route replace {other.address}/32 dev {end} src {one.address}", netns=one.netns)

    def _begin_relay(self, name: str, ms: float, *ends: str) -> None:
        """Hold frames back between two ends, until `_end_relay`."""
        with open(self.dir / f"{name}.log", "ab") as log:
            relay = subprocess.Popen(
                [sys.executable, str(RELAY), str(ms), *ends],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (self.dir / f"{name}.pid").write_text(str(relay.pid))

    def _end_relay(self, name: str) -> bool:
        """Tell whether there was one."""
        file = self.dir / f"{name}.pid"
        if not file.exists():
            return False
        pid = int(file.read_text())
        file.unlink()
        if str(RELAY).encode() in _cmdline(pid):
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not _cmdline(pid), what=f"the {name} gone")
        return True

    def undelay_link(self) -> None:
        """Ends the wire that this host began; its ends and the routes over them go with it."""
        if self._end_relay("wire"):
            mine = f"w{self.index}-"
            wait_until(lambda: not any(str(n["ifname"]).startswith(mine) for n in self.links()), what="its end gone")

    def _undelay(self) -> None:
        if not self._end_relay("relay"):
            return
        wait_until(lambda: self.outer == self.port, what="the relay's TAP gone")
        if self.is_on:
            batch(f"link set {self.port} netns {os.getpid()}", netns=self.slot.void)
            batch(f"link set {self.port} master {self.slot.bridge} up")

    # Interfaces

    @network_fault
    def add_interface(self, name: str, cidr: str, *, first: bool = False) -> None:
        """A second interface, up and running, that leads nowhere. `first`: listed before eth0.

        (By name, as in /sys/class/net, what comes first is the name's doing: "aa0".)
        """
        self._make_void()
        used = {int(str(link["ifindex"])) for link in self.links()}
        index = f"index {min(set(range(2, 10)) - used) if first else max(used) + 1}"
        far = f"x{self.index}-{name}"[:15]
        batch(
            f"link add {name} {index} type veth peer name {far} netns {self.slot.void}",
            f"addr add {cidr} dev {name}",
            f"link set {name} up",
            netns=self.netns,
        )
        batch(f"link set {far} up", netns=self.slot.void)

        def running() -> bool:
            return any(link["ifname"] == name and link["operstate"] == "UP" for link in self.links())

        wait_until(running, what=f"{name} running")

    def links(self) -> list[dict[str, object]]:
        """What `ip link` shows on the host, in its order."""
        found: list[dict[str, object]] = json.loads(in_netns(self.netns, "ip", "-j", "link"))
        return found

    def _make_void(self) -> None:
        if not os.path.exists(f"/run/netns/{self.slot.void}"):
            call("ip", "netns", "add", self.slot.void)
            in_netns(self.slot.void, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1", check=False)

    def clear_network_faults(self) -> None:
        """Undo what the verbs above did, if any was called."""
        if not self._faulty.exists():
            return
        self._undelay()
        self.link_up()
        call("tc", "qdisc", "del", "dev", self.port, "root", check=False)
        in_netns(self.netns, "nft", "flush", "ruleset")
        in_netns(self.netns, "tc", "qdisc", "del", "dev", "eth0", "root", check=False)
        extra = [str(link["ifname"]) for link in self.links() if link["ifname"] not in ("lo", "eth0")]
        batch("link set eth0 mtu 1500 gso_max_segs 65535 up", netns=self.netns)
        batch(*(f"link del {name}" for name in extra), netns=self.netns, check=False)  # some go by themselves
        batch(f"link set {self.port} mtu 1500")
        self._faulty.unlink()


def _addresses(peer: HostBase | str) -> list[tuple[str, str]]:
    if isinstance(peer, HostBase):
        return [("ip", peer.address), ("ip6", peer.address6)]
    return [("ip6" if ":" in peer else "ip", peer)]


def _has(host: HostBase, interface: str) -> bool:
    return bool(in_netns(host.netns, "ip", "-br", "link", "show", interface, check=False).strip())


def _bucket(speed: str) -> list[str]:
    return ["root", "tbf", "rate", speed, "burst", "32kb", "latency", "400ms"]


def _cmdline(pid: int) -> bytes:
    """Empty when the process is gone or a zombie (which is reaped if it is our child)."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return command_of(pid)
