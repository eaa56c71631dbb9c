"""What the nodes are, from the facts that a run or a check saw of them: systems, versions, GPUs, network (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from allranks.protocol.codec import decode_each, decode_parts
from allranks.text import count_of, format_size, group, join_names

Rows = list[tuple[str, str]]
Facts = Mapping[str, object]  # of a node, by the check's name: JSON that other machines had a part in

LONGEST = 300
SHOWN = 12  # interfaces, devices
SCHEDULERS = {"Slurm": "SLURM_", "Kubernetes": "KUBERNETES_", "SkyPilot": "SKYPILOT_", "LSF": "LSB_"}


@dataclass(frozen=True)
class MachineAddress:
    """An address of an interface."""

    address: str
    scope: str = ""


@dataclass(frozen=True)
class MachineInterface:
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


def facts_of(preflight: Mapping[str, object]) -> dict[str, Facts]:
    """Give the facts of all nodes in evidence/preflight.json."""
    return {node: facts for node, facts in _fields(preflight, "nodes").items() if isinstance(facts, Mapping)}


def _fields(facts: Facts, path: str) -> Facts:
    """Give the object at a path such as `nccl.conf`; an empty one where something else stands there."""
    value: object = facts
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _number(values: Facts, name: str) -> int | None:
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _texts(values: Facts, between: str = ", ", **forms: str) -> str:
    """Write texts and numbers as the forms say; what is absent is left out."""
    shown = []
    for name, form in forms.items():
        value = values.get(name)
        if isinstance(value, (str, int, float)) and not isinstance(value, bool) and value:
            shown.append(form.format(value))
    return between.join(shown)


def _joined(*texts: str) -> str:
    return ", ".join(text for text in texts if text)


def _interfaces(facts: Facts) -> list[MachineInterface]:
    """List the interfaces that are up, without loopback."""
    return [one for one in decode_each(MachineInterface, facts.get("interfaces")) if one.up and not one.loopback]


def machine_groups(nodes: Mapping[str, Facts]) -> list[tuple[str, Rows]]:
    """Give (node names, rows) for nodes that are alike; what only one node has (addresses) is not in the rows."""
    groups = group(nodes, lambda node: tuple(machine(nodes[node])))
    return [(join_names(names), list(rows)) for rows, names in groups.items()]


def machine(facts: Facts) -> Rows:
    """Describe one node; what is unknown is left out."""
    cpus = _number(facts, "cpu")
    count = "" if cpus is None else count_of(cpus, "CPU")
    memory = _bytes(facts, "mem", "total")
    torch = _texts(_fields(facts, "interpreter"), torch="{}")
    build = _texts(_fields(facts, "torch_build"), platform="{}", nccl="NCCL {}")
    rows = [
        ("system", _texts(_fields(facts, "kernel"), os="{}", kernel="{}", libc="{}")),
        ("machine", _joined(_texts(_fields(facts, "machine"), model="{}"), count, memory and f"{memory} memory")),
        ("container", _texts(_fields(facts, "container"), kind="{}")),
        ("Python", _texts(_fields(facts, "interpreter"), version="{}", path="{}")),
        ("torch", _joined(torch, build)),
        ("GPUs", _gpus(facts)),
        ("driver", _texts(_fields(facts, "gpu_driver"), vendor="{}", driver="{}", cuda="CUDA {}")),
        ("/dev/shm", _bytes(facts, "shm", "bytes")),
        ("network", _listed(_interface(one, facts) for one in _interfaces(facts))),
        ("RDMA ports", _rdma(facts)),
        ("NCCL settings", _settings(facts)),
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
        listed = [one for interface in _interfaces(facts) for one in decode_each(MachineAddress, interface.addresses)]
        hostname = facts.get("hostname")
        name = hostname if isinstance(hostname, str) else ""
        rows.append((node, name, _listed(one.address for one in listed if one.scope != "link")))
    return rows


def _bytes(facts: Facts, group: str, name: str) -> str:
    size = _number(_fields(facts, group), name)
    return "" if size is None else format_size(size)


def _gpus(facts: Facts) -> str:
    """Write how many there are, and their models; where there is none, who says so."""
    gpus = _fields(facts, "gpus")
    count = _number(gpus, "count")
    if count is None:
        return ""
    return _joined(str(count), *_fields(facts, "gpu_model.models"), "" if count else _texts(gpus, source="{}"))


def _interface(interface: MachineInterface, facts: Facts) -> str:
    """Write an interface with its rate where that is known: `eth0 10 Gbit/s mtu 1500`."""
    nic = decode_parts(Nic, _fields(facts, "nic").get(interface.name))
    words = [interface.name, interface.kind or ""]
    if nic.speed is not None and nic.speed > 0:
        words.append(f"{nic.speed / 1000:g} Gbit/s")
    mtu = nic.mtu or interface.mtu
    if mtu is not None:
        words.append(f"mtu {mtu}")
    return " ".join(word for word in words if word)


def _rdma(facts: Facts) -> str:
    """Write `mlx5_0/1 ACTIVE 400 Gb/sec (4X NDR) InfiniBand`, else the devices alone."""
    ports = _fields(facts, "ib_ports")
    if ports:
        texts = []
        for name, port in ports.items():
            figures = port if isinstance(port, Mapping) else {}
            texts.append(f"{name} " + _texts(figures, " ", state="{}", rate="{}", layer="{}"))
        return _listed(texts)
    devices = _fields(facts, "nccl").get("rdma")
    names = []
    for device in devices if isinstance(devices, list) else ():
        label = device.get("name") if isinstance(device, Mapping) else device
        if isinstance(label, str):
            names.append(label)
    return _listed(names) or "none"


def _settings(facts: Facts) -> str:
    settings = [*sorted(_fields(facts, "nccl.environ").items()), *sorted(_fields(facts, "nccl.conf").items())]
    return " ".join(f"{name}={value}" for name, value in settings)


def _listed(values: Iterable[str]) -> str:
    listed = list(values)
    more = f", … {len(listed)} in all" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more
