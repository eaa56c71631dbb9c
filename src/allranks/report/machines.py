"""What the nodes are, from the facts that a run or a check saw of them: systems, versions, GPUs, network (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from allranks.preflight.checks.gpu_model import Models
from allranks.preflight.checks.ib_ports import PortState
from allranks.preflight.checks.machine import Machine
from allranks.preflight.checks.nic import InterfaceSpeed
from allranks.preflight.checks.torch_build import Build
from allranks.protocol.codec import decode_parts, spread
from allranks.protocol.facts import InterfaceFacts, SharedMemory
from allranks.protocol.plan_facts import NodeFacts
from allranks.runs.documents import PreflightDocument, RunDocument
from allranks.text import count_of, format_size, group, join_names, list_first, name_with

Rows = list[tuple[str, str]]

LONGEST = 300
SHOWN = 12  # interfaces, devices
SYSTEM = ("os", "kernel", "libc")
UNKNOWN = InterfaceSpeed(0)
SCHEDULERS = {
    "Slurm": "SLURM_",
    "Kubernetes": "KUBERNETES_",
    "SkyPilot": "SKYPILOT_",
    "LSF": "LSB_",
    "PBS": "PBS_",
    "Flux": "FLUX_",
}


@spread("plan")
class MachineFacts(NamedTuple):
    """A node: what a plan reads of it, and what checks have collected."""

    plan: NodeFacts = NodeFacts()
    hostname: str = ""
    cpu: int | None = None
    shm: SharedMemory = SharedMemory()
    machine: Machine = Machine()
    torch_build: Build = Build("")
    gpu_model: Models = Models("", {})
    nic: Mapping[str, InterfaceSpeed] = {}
    ib_ports: Mapping[str, PortState] = {}

    @property
    def linked(self) -> list[InterfaceFacts]:
        """The interfaces that are up, without loopback."""
        return [interface for interface in self.plan.interfaces if interface.up and not interface.loopback]


def facts_of(preflight: PreflightDocument) -> dict[str, MachineFacts]:
    """Give the facts of all nodes in evidence/preflight.json."""
    return {node: decode_parts(MachineFacts, facts) for node, facts in preflight.nodes.items()}


def _joined(*texts: str | None) -> str:
    return ", ".join(text for text in texts if text)


def machine_groups(nodes: Mapping[str, MachineFacts]) -> list[tuple[str, Rows]]:
    """Give (node names, rows) for nodes that are alike; what only one node has (addresses) is not in the rows."""
    groups = group(nodes, lambda node: tuple(machine(nodes[node])))
    return [(join_names(names), list(rows)) for rows, names in groups.items()]


def machine(facts: MachineFacts) -> Rows:
    """Describe one node; what is unknown is left out."""
    build = facts.torch_build
    gpus = facts.gpu_model
    settings = [*sorted(facts.plan.nccl.environ_.items()), *sorted(facts.plan.nccl.conf.items())]
    count = "" if facts.cpu is None else count_of(facts.cpu, "CPU")
    memory = "" if facts.plan.mem.total is None else f"{format_size(facts.plan.mem.total)} memory"
    rows = [
        ("system", _joined(*map(facts.machine.system.get, SYSTEM))),
        ("machine", _joined(facts.machine.model, count, memory)),
        ("Python", _joined(facts.plan.interpreter.version, facts.plan.interpreter.path)),
        ("torch", _joined(facts.plan.interpreter.torch, build.platform, build.nccl and f"NCCL {build.nccl}")),
        ("GPUs", _gpus(facts)),
        ("driver", _joined(gpus.vendor, gpus.driver)),
        ("/dev/shm", "" if facts.shm.bytes < 0 else format_size(facts.shm.bytes)),
        ("network", _listed(_interface(one.name, facts.nic.get(one.name, UNKNOWN)) for one in facts.linked)),
        ("RDMA ports", _rdma(facts)),
        ("NCCL settings", " ".join(f"{name}={value}" for name, value in settings)),
    ]
    return [(name, text[:LONGEST]) for name, text in rows if text]


def scheduler(run: RunDocument, preflight: PreflightDocument) -> str:
    """Say where the nodes came from, as far as the run says."""
    for kind, prefix in SCHEDULERS.items():
        if run.spec.get(kind.lower()) or any(name.startswith(prefix) for name in preflight.schedulers):
            return name_with(kind, run.source)
    return f"none ({run.source})" if run.source else "not known"


def addresses(nodes: Mapping[str, MachineFacts]) -> list[tuple[str, str, str]]:
    """Give (node, the host's own name, its global addresses)."""
    rows = []
    for node, facts in nodes.items():
        listed = [address for interface in facts.linked for address in interface.addresses]
        rows.append((node, facts.hostname, _listed(one.address for one in listed if one.scope != "link")))
    return rows


def _gpus(facts: MachineFacts) -> str:
    gpus = facts.plan.gpus
    if gpus is None or gpus.count_ is None:
        return ""
    return _joined(str(gpus.count_), *facts.gpu_model.models, "" if gpus.count_ else gpus.source)


def _interface(name: str, nic: InterfaceSpeed) -> str:
    """Write an interface with its rate where that is known: `eth0 10 Gbit/s mtu 1500`."""
    words = [name]
    if nic.speed > 0:
        words.append(f"{nic.speed / 1000:g} Gbit/s")
    if nic.mtu > 0:
        words.append(f"mtu {nic.mtu}")
    return " ".join(words)


def _rdma(facts: MachineFacts) -> str:
    """Write `mlx5_0/1 ACTIVE 400 Gb/sec (4X NDR) InfiniBand`, else the devices alone."""
    ports = [
        " ".join([name, *filter(None, (port.state, port.rate, port.layer))]) for name, port in facts.ib_ports.items()
    ]
    return _listed(ports or facts.plan.nccl.rdma) or "none"


def _listed(values: Iterable[str]) -> str:
    return list_first(list(values), SHOWN)
