"""The CPUs that each rank of a node runs on, by --bind: those near its GPU. Memory follows, as the kernel gives a page
on the node of the CPU that first writes to it (admin-guide/mm/numa_memory_policy.rst).

The rules, and the CPUs that they give, are those of torchrun's --numa-binding (torch/numa/binding.py), but numactl is
not needed. `numa` is its node, `cores` its exclusive. Without GPUs, ranks are spread over the NUMA nodes in order.
`root` is "/" but in tests.
"""

from __future__ import annotations

import os
from typing import Callable, Dict, List, Mapping, Sequence, Set, Tuple

from allranks.protocol.messages import BoundMessage
from allranks.protocol.node_names import BIND, CPUS
from allranks.protocol.orders import RankOrder
from allranks.text import format_ranges, read_ranges

from .files import names_in, read_text
from .gpufacts import addresses
from .rank_start import environment_of

Cpus = Set[int]


def bind_ranks(orders: Sequence[RankOrder], base: Mapping[str, str]) -> Tuple[Sequence[RankOrder], BoundMessage]:
    """Give the processes of a node the CPUs of the ranks that they are, or that they start: runner_launched.py takes
    those of one. They run anywhere where the machine does not tell."""
    environment = environment_of(orders[0], dict(base))
    rule = environment[BIND]
    ranks = [rank for order in orders for rank in order.ranks]
    try:
        bound = bind(rule, ranks, environment)
    except (ValueError, OSError) as error:
        bound = BoundMessage(rule, why=str(error)[:200])
    if not bound.cpus:
        return orders, bound
    own = ["|".join(bound.cpus.get(rank, "") for rank in order.ranks) for order in orders]
    return [order._replace(env={**order.env, CPUS: cpus}) for order, cpus in zip(orders, own)], bound  # noqa: B905 - Python 3.8


def bind(rule: str, ranks: List[int], environ: Mapping[str, str], root: str = "/") -> BoundMessage:
    """Choose the CPUs of the ranks of this node, in the order of their local ranks; raise ValueError, OSError."""
    allowed = os.sched_getaffinity(0)
    online = _cpus(os.path.join(root, "sys/devices/system/cpu/online"))
    topology = Topology(root, allowed)
    gpus = addresses(environ, root)
    nodes = [topology.node_of(address) for address in gpus] or topology.spread(len(ranks))
    chosen: Dict[int, str] = {}
    why = ""
    for local_rank, rank in enumerate(ranks):
        slot = local_rank % len(nodes)  # several ranks may share a GPU
        cpus = topology.choose(rule, nodes, slot)
        if not cpus:
            cpus = topology.nodes.get(nodes[slot], set())
            why = why or "NUMA node %d has fewer cores to use than ranks" % nodes[slot]
        if cpus:
            chosen[rank] = format_ranges(cpus)
        else:
            why = "this process may use no CPU of NUMA node %d" % nodes[slot]
    limit = format_ranges(allowed) if online - allowed else ""
    return BoundMessage(rule, chosen, len(gpus), limit, why)


class Topology:
    """NUMA nodes, and the CPUs of each that this process may use: a cpuset or Slurm may have chosen among them."""

    def __init__(self, root: str, allowed: Cpus) -> None:
        self._root = root
        directory = os.path.join(root, "sys/devices/system/node")
        names = [name for name in names_in(directory) if name.startswith("node") and name[4:].isdecimal()]
        self.nodes = {int(name[4:]): _cpus(os.path.join(directory, name, "cpulist")) & allowed for name in names}
        if not self.nodes:  # a kernel without NUMA
            self.nodes = {0: allowed}

    def node_of(self, address: str) -> int:
        """Give the NUMA node of a PCI device; a machine with one may say -1."""
        text = read_text(os.path.join(self._root, "sys/bus/pci/devices", address, "numa_node"))
        return max(int(text or "-1"), 0)

    def spread(self, count: int) -> List[int]:
        """Give each of so many ranks a NUMA node, neighbours the same; memory may stand on nodes without a CPU."""
        nodes = sorted(node for node, cpus in self.nodes.items() if cpus) or [0]
        return [nodes[index * len(nodes) // count] for index in range(count)]

    def choose(self, rule: str, nodes: List[int], slot: int) -> Cpus:
        """Give the CPUs by a rule; `nodes` are those of all GPUs, `slot` is the rank's. Empty: there are too few."""
        node = nodes[slot]
        cpus = self.nodes.get(node, set())
        if rule == "socket":
            sockets = {self._socket(cpu) for cpu in sorted(cpus)[:1]}
            return {cpu for of_node in self.nodes.values() for cpu in of_node if self._socket(min(of_node)) in sockets}
        neighbours = [other for other, its in enumerate(nodes) if its == node]
        place = neighbours.index(slot)
        if rule == "cores":
            return _share(_groups(cpus, self._core), place, len(neighbours))
        if rule == "core-complex" and cpus:
            complexes = sorted(_groups(cpus, self._complex), key=lambda group: -len(group))
            return complexes[place % len(complexes)]
        return cpus

    def _socket(self, cpu: int) -> str:
        return read_text(self._of_cpu(cpu, "topology/physical_package_id"))

    def _core(self, cpu: int) -> Cpus:
        return _cpus(self._of_cpu(cpu, "topology/thread_siblings_list"))

    def _complex(self, cpu: int) -> Cpus:
        """Give the CPUs that share the largest cache."""
        shared: Dict[int, Cpus] = {}
        for name in names_in(self._of_cpu(cpu, "cache")):
            directory = self._of_cpu(cpu, "cache/" + name)
            level = read_text(directory + "/level")
            if level and read_text(directory + "/type") in ("Unified", "Data"):
                shared[int(level)] = _cpus(directory + "/shared_cpu_list")
        return shared[max(shared)] if shared else {cpu}

    def _of_cpu(self, cpu: int, name: str) -> str:
        return os.path.join(self._root, "sys/devices/system/cpu/cpu%d" % cpu, name)


def _cpus(path: str) -> Cpus:
    return read_ranges(read_text(path))


def _groups(cpus: Cpus, alike: Callable[[int], Cpus]) -> List[Cpus]:
    """Put together what shares a core or a cache, in the order of the lowest CPU of it, allowed or not."""
    groups: Dict[int, Cpus] = {}
    for cpu in cpus:
        groups.setdefault(min(alike(cpu) or {cpu}), set()).add(cpu)
    return [groups[lowest] for lowest in sorted(groups)]


def _share(cores: List[Cpus], place: int, of: int) -> Cpus:
    """Give one of `of` equal parts; the first parts take what is left over."""
    each, more = divmod(len(cores), of)
    first = place * each + min(place, more)
    return set().union(*cores[first : first + each + (place < more)]) if each else set()
