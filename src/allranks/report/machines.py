"""What the nodes are, from the facts that a run or a check saw of them: systems, versions, GPUs, network (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from allranks.protocol.codec import decode_each, decode_parts
from allranks.text import count_of, format_size, join_names

Rows = list[tuple[str, str]]
Text = str | int | float | None

LONGEST = 300
SHOWN = 12  # interfaces, devices
SCHEDULERS = {"Slurm": "SLURM_", "Kubernetes": "KUBERNETES_", "SkyPilot": "SKYPILOT_", "LSF": "LSB_"}


@dataclass(frozen=True)
class Kernel:
    """The operating system."""

    os: Text = None
    kernel: Text = None
    libc: Text = None


@dataclass(frozen=True)
class Interpreter:
    """The training interpreter."""

    version: Text = None
    path: Text = None
    torch: Text = None


@dataclass(frozen=True)
class TorchBuild:
    """What torch was built for."""

    platform: Text = None
    nccl: Text = None


@dataclass(frozen=True)
class Driver:
    """The GPUs' driver."""

    vendor: Text = None
    driver: Text = None
    cuda: Text = None


@dataclass(frozen=True)
class Gpus:
    """How many GPUs there are, and who says so."""

    count: int | None = None
    source: Text = None


@dataclass(frozen=True)
class GpuModels:
    """The GPUs by model."""

    models: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Hardware:
    """The machine."""

    model: Text = None


@dataclass(frozen=True)
class Container:
    """What the node runs in."""

    kind: Text = None


@dataclass(frozen=True)
class Memory:
    """Bytes of memory, or of a file system in memory."""

    total: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Address:
    """An address of an interface."""

    address: str
    scope: str = ""


@dataclass(frozen=True)
class Interface:
    """A network interface."""

    name: str
    kind: str | None = None
    up: bool = False
    loopback: bool = False
    mtu: int | None = None
    addresses: object = ()


@dataclass(frozen=True)
class Nic:
    """What the kernel knows of an interface; `speed` in Mbit/s."""

    speed: int | None = None
    mtu: int | None = None


@dataclass(frozen=True)
class RdmaPort:
    """A port of an RDMA device."""

    state: Text = None
    rate: Text = None
    layer: Text = None


@dataclass(frozen=True)
class RdmaDevice:
    """An RDMA device without a look at its ports."""

    name: str


@dataclass(frozen=True)
class Nccl:
    """NCCL's settings, and the devices that it sees."""

    environ_: Mapping[str, object] = field(default_factory=dict)
    conf: Mapping[str, object] = field(default_factory=dict)
    rdma: tuple[str | RdmaDevice, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What a node said of itself, as far as it is shown."""

    kernel: Kernel = Kernel()
    interpreter: Interpreter = Interpreter()
    torch_build: TorchBuild = TorchBuild()
    gpu_driver: Driver = Driver()
    gpus: Gpus = Gpus()
    gpu_model: GpuModels = GpuModels()
    machine: Hardware = Hardware()
    cpu: int | None = None
    mem: Memory = Memory()
    shm: Memory = Memory()
    container: Container = Container()
    interfaces: object = ()
    nic: Mapping[str, object] = field(default_factory=dict)
    ib_ports: Mapping[str, object] = field(default_factory=dict)
    nccl: Nccl = Nccl()
    hostname: str = ""

    @property
    def interfaces_up(self) -> list[Interface]:
        """List the interfaces that are up, without loopback."""
        return [one for one in decode_each(Interface, self.interfaces) if one.up and not one.loopback]


def facts_of(preflight: Mapping[str, object]) -> dict[str, Facts]:
    """Read the facts of all nodes in evidence/preflight.json."""
    nodes = preflight.get("nodes")
    if not isinstance(nodes, Mapping):
        return {}
    return {str(node): decode_parts(Facts, facts) for node, facts in nodes.items()}


def machine_groups(nodes: Mapping[str, Facts]) -> list[tuple[str, Rows]]:
    """Give (node names, rows) for nodes that are alike; what only one node has (addresses) is not in the rows."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for node, facts in nodes.items():
        groups.setdefault(tuple(machine(facts)), []).append(node)
    return [(join_names(names) if len(names) > 1 else names[0], list(rows)) for rows, names in groups.items()]


def machine(facts: Facts) -> Rows:
    """Describe one node; what is unknown is left out."""
    interpreter = facts.interpreter
    build = facts.torch_build
    driver = facts.gpu_driver
    cpus = "" if facts.cpu is None else count_of(facts.cpu, "CPU")
    memory = _bytes(facts.mem.total)
    rows = [
        ("system", _joined(facts.kernel.os, facts.kernel.kernel, facts.kernel.libc)),
        ("machine", _joined(facts.machine.model, cpus, memory and f"{memory} memory")),
        ("container", _joined(facts.container.kind)),
        ("Python", _joined(interpreter.version, interpreter.path)),
        ("torch", _joined(interpreter.torch, build.platform, build.nccl and f"NCCL {build.nccl}")),
        ("GPUs", _gpus(facts)),
        ("driver", _joined(driver.vendor, driver.driver, driver.cuda and f"CUDA {driver.cuda}")),
        ("/dev/shm", _bytes(facts.shm.bytes)),
        ("network", _listed(_interface(one, facts) for one in facts.interfaces_up)),
        ("RDMA ports", _rdma(facts)),
        ("NCCL settings", _settings(facts.nccl)),
    ]
    return [(name, text[:LONGEST]) for name, text in rows if text]


def scheduler(source: str, spec: Mapping[str, object], preflight: Mapping[str, object]) -> str:
    """Say where the nodes came from, as far as the run says."""
    request = preflight.get("request")
    environ = request.get("environ") if isinstance(request, Mapping) else None
    names = [str(name) for name in environ] if isinstance(environ, Mapping) else []
    for kind, prefix in SCHEDULERS.items():
        if spec.get(kind.lower()) or any(name.startswith(prefix) for name in names):
            return f"{kind} ({source})" if source else kind
    return f"none ({source})" if source else "not known"


def addresses(nodes: Mapping[str, Facts]) -> list[tuple[str, str, str]]:
    """Give (node, the host's own name, its global addresses)."""
    rows = []
    for node, facts in nodes.items():
        listed = [one for interface in facts.interfaces_up for one in decode_each(Address, interface.addresses)]
        rows.append((node, facts.hostname, _listed(one.address for one in listed if one.scope != "link")))
    return rows


def _joined(*values: Text) -> str:
    return ", ".join(str(value) for value in values if value)


def _bytes(size: int | None) -> str:
    return "" if size is None or size < 0 else format_size(size)


def _gpus(facts: Facts) -> str:
    count = facts.gpus.count
    if count is None:
        return ""
    return _joined(str(count), *facts.gpu_model.models, None if count else facts.gpus.source)


def _interface(interface: Interface, facts: Facts) -> str:
    """Write an interface with its rate where that is known: `eth0 10 Gbit/s mtu 1500`."""
    nic = decode_parts(Nic, facts.nic.get(interface.name))
    words = [interface.name, interface.kind or ""]
    if nic.speed is not None and nic.speed > 0:
        words.append(f"{nic.speed / 1000:g} Gbit/s")
    mtu = nic.mtu or interface.mtu
    if mtu is not None:
        words.append(f"mtu {mtu}")
    return " ".join(word for word in words if word)


def _rdma(facts: Facts) -> str:
    """Write `mlx5_0/1 ACTIVE 400 Gb/sec (4X NDR) InfiniBand`, else the devices alone."""
    if not facts.ib_ports:
        return _listed(one if isinstance(one, str) else one.name for one in facts.nccl.rdma) or "none"
    texts = []
    for name, value in facts.ib_ports.items():
        port = decode_parts(RdmaPort, value)
        texts.append(f"{name} " + " ".join(str(part or "") for part in (port.state, port.rate, port.layer)))
    return _listed(texts)


def _settings(nccl: Nccl) -> str:
    settings = [*sorted(nccl.environ_.items()), *sorted(nccl.conf.items())]
    return " ".join(f"{name}={value}" for name, value in settings)


def _listed(values: Iterable[str]) -> str:
    listed = list(values)
    more = f", … {len(listed)} in all" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more
