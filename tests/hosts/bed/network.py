"""Slots: which bridge, names and subnet a bed has, so that several beds run side by side.

The bridge is the lock: the kernel lets one process create a name, and it lives as long as the bed. Its alias
says who owns it, so a bed whose owner was killed is found and removed by the next one.
"""

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.bed.commands import BedError, batch, call
from tests.hosts.waiting import wait_until

PREFIX = "arbed"
SLOTS = 200
KEPT = "kept"


@dataclass(frozen=True)
class Slot:
    number: int

    @property
    def bridge(self) -> str:
        return f"{PREFIX}{self.number}"

    @property
    def void(self) -> str:
        """A namespace without addresses: what is connected to it leads nowhere."""
        return f"{self.bridge}-void"

    @property
    def subnet(self) -> str:
        return f"10.203.{self.number}"

    @property
    def subnet6(self) -> str:
        return f"fdab:{self.number + 1:x}:"

    @property
    def head(self) -> str:
        """The address of the machine itself, where the controller runs."""
        return f"{self.subnet}.254"

    @property
    def head6(self) -> str:
        return f"{self.subnet6}:fe"

    def netns(self, name: str) -> str:
        return f"{self.bridge}-{name}"

    def port(self, index: int) -> str:
        return f"{self.bridge}p{index}"


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _start_time(pid: int) -> str:
    return "".join(_stat(pid)[19:20])


def _bridges() -> dict[str, str]:
    """Name → alias of every bridge that is ours. From sysfs: a dump of `ip` is cut short when others change links."""
    bridges = {}
    for path in Path("/sys/class/net").glob(f"{PREFIX}*/bridge"):
        with suppress(OSError):  # gone meanwhile
            bridges[path.parent.name] = (path.parent / "ifalias").read_text().strip()
    return bridges


@contextmanager
def _lock() -> Iterator[None]:
    """Several sessions may make beds at once."""
    with open("/run/allranks-beds.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _owner() -> str:
    return f"{os.getpid()}:{_start_time(os.getpid())}"


def claim(*, keep: bool) -> Slot:
    """A free slot with its bridge up. `keep`: the bed outlives this process."""
    with _lock():
        return _claim(keep)


def give_back(slot: Slot) -> None:
    """Release the slot, unless it is another's by now."""
    owner = _bridges().get(slot.bridge)
    if owner in (_owner(), KEPT):
        _clear(slot)
        with _lock():  # else another takes the slot between the removal of its bridge and the look whether it is gone
            release(slot)
    elif owner is None:
        with _lock():
            if slot.bridge not in _bridges():
                _clear(slot)


def _claim(keep: bool) -> Slot:
    _sweep()
    taken = _bridges()
    for number in range(SLOTS):
        slot = Slot(number)
        if slot.bridge in taken:
            continue
        try:
            call("ip", "link", "add", slot.bridge, "type", "bridge")
        except BedError as error:
            if "File exists" in str(error):
                continue
            raise
        try:
            _clear(slot)  # of a bed that was not taken down to its end
            _dress(slot, KEPT if keep else _owner())
        except BedError:
            call("ip", "link", "del", slot.bridge, check=False)
            raise
        return slot
    raise BedError(f"all {SLOTS} test beds are taken: ip link show type bridge")


def _dress(slot: Slot, owner: str) -> None:
    _room_for_neighbours()
    batch(
        f"link set {slot.bridge} alias {owner}",
        f"link set {slot.bridge} mtu 1500",  # said once by hand, it no longer follows its ports
        f"addr add {slot.head}/24 dev {slot.bridge}",
        f"addr add {slot.head6}/64 dev {slot.bridge} nodad",
        f"link set {slot.bridge} up",
    )


def _room_for_neighbours() -> None:
    """All namespaces share the kernel's neighbour tables: 32 hosts that try every pair need 1,024 entries, which is
    the default limit, and beyond it packets vanish without a word but in dmesg. Raised, never lowered."""
    for family in ("ipv4", "ipv6"):
        for number, least in ((1, 4096), (2, 8192), (3, 16384)):
            limit = Path(f"/proc/sys/net/{family}/neigh/default/gc_thresh{number}")
            with suppress(OSError, ValueError):
                if int(limit.read_text()) < least:
                    limit.write_text(str(least))


def sweep() -> list[str]:
    """Remove beds whose owner is dead; the names of their bridges."""
    with _lock():  # else another takes a slot between the look at its owner and the removal
        return _sweep()


def _sweep() -> list[str]:
    removed = []
    for name, owner in _bridges().items():
        pid, _, start = owner.partition(":")
        if pid.isdigit() and _start_time(int(pid)) != start:
            release(Slot(int(name.removeprefix(PREFIX))))
            removed.append(name)
    return removed


def namespaces(slot: Slot) -> list[str]:
    try:
        names = os.listdir("/run/netns")
    except FileNotFoundError:
        return []
    return sorted(n for n in names if n.startswith(f"{slot.bridge}-"))


def links(slot: Slot) -> list[str]:
    """The machine's own ends of the bed's links, and its bridge."""
    own = (slot.bridge, f"{slot.bridge}p", f"{slot.bridge}t")
    return [n for n in os.listdir("/sys/class/net") if n == own[0] or n.startswith(own[1:])]


def bridge_index(slot: Slot) -> int:
    """The kernel's number of the slot's bridge, which no other bridge has had; 0 where there is none."""
    try:
        return int(Path(f"/sys/class/net/{slot.bridge}/ifindex").read_text())
    except OSError:
        return 0


def left(slot: Slot, index: int) -> list[str]:
    """What a bed that is down has left, whose bridge had this index; nothing where another bed has its slot by now."""
    with _lock():
        if bridge_index(slot) not in (0, index):
            return []
        return [*links(slot), *namespaces(slot)]


def processes_in(netns: str) -> list[int]:
    return [int(pid) for pid in call("ip", "netns", "pids", netns, check=False).split()]


def kill_in(netns: str) -> None:
    """SIGKILL to all in a network namespace, until none is left.

    A dying process leaves its namespace before it is gone, so we also wait for each one that we met.
    """
    met: set[int] = set()

    def none_left() -> bool:
        pids = [pid for pid in processes_in(netns) if pid != os.getpid()]
        met.update(pids)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    wait_until(none_left, what=f"no process in {netns}")
    wait_until(lambda: all(_is_dead(pid) for pid in met), what=f"the processes of {netns} gone")


def _is_dead(pid: int) -> bool:
    """Gone, or a zombie that waits for its parent."""
    stat = _stat(pid)
    return not stat or stat[0] in "ZX"


def release(slot: Slot) -> None:
    """Nothing of the slot is left: processes, links, namespaces, and last the bridge, which is the lock."""
    _clear(slot)

    def no_bridge() -> bool:
        call("ip", "link", "del", slot.bridge, check=False)
        return not links(slot)

    wait_until(no_bridge, 60.0, f"{slot.bridge} gone")


def _clear(slot: Slot) -> None:
    """Remove processes, ports and namespaces, again and again while the kernel is busy with them."""

    def nothing_left() -> bool:
        spaces = namespaces(slot)
        for netns in spaces:
            kill_in(netns)
        ports = [name for name in links(slot) if name != slot.bridge]
        if spaces or ports:
            batch(*(f"link del {n}" for n in ports), *(f"netns del {n}" for n in spaces), check=False)
        return not spaces and not ports

    wait_until(nothing_left, 60.0, f"links and namespaces of {slot.bridge} gone")
