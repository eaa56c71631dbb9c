"""What the nodes are, from the facts that a run or a check saw of them: systems, versions, GPUs, network (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.text import join_names

Facts = Mapping[str, Any]
Rows = list[tuple[str, str]]

LONGEST = 300
SHOWN = 12  # interfaces, devices


def machine_groups(nodes: Mapping[str, Facts]) -> list[tuple[str, Rows]]:
    """(node names, rows) for nodes that are alike; what is each node's own (addresses) is not in the rows."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for node, facts in nodes.items():
        if isinstance(facts, Mapping):
            groups.setdefault(tuple(machine(facts)), []).append(str(node))
    return [(join_names(found) if len(found) > 1 else found[0], list(rows)) for rows, found in groups.items()]


def machine(facts: Facts) -> Rows:
    """One node; what is not known is left out."""
    kernel, python, nccl = (_part(facts, name) for name in ("kernel", "interpreter", "nccl"))
    build, driver = _part(facts, "torch_build"), _part(facts, "gpu_driver")
    rows = [
        ("system", _said(kernel.get("os"), kernel.get("kernel"), kernel.get("libc"))),
        ("machine", _said(_part(facts, "machine").get("model"), _count(facts.get("cpu"), "CPU"), _memory(facts))),
        ("container", _said(_part(facts, "container").get("kind"))),
        ("Python", _said(python.get("version"), python.get("path"))),
        ("torch", _said(python.get("torch"), build.get("platform"), build.get("nccl") and f"NCCL {build['nccl']}")),
        ("GPUs", _gpus(facts)),
        ("driver", _said(driver.get("vendor"), driver.get("driver"), driver.get("cuda") and f"CUDA {driver['cuda']}")),
        ("/dev/shm", _bytes(_part(facts, "shm").get("bytes"))),
        ("network", network(facts)),
        ("RDMA ports", _ports(facts)),
        ("NCCL settings", _settings(nccl)),
    ]
    return [(name, text[:LONGEST]) for name, text in rows if text]


def network(facts: Facts) -> str:
    """Interfaces that are up, with the rate where it is known: `eth0 10 Gbit/s mtu 1500`."""
    nics = _part(facts, "nic")
    found = []
    for item in _maps(facts.get("interfaces")):
        if item.get("loopback") or not item.get("up"):
            continue
        name = str(item.get("name"))
        nic = _part(nics, name)
        speed, mtu = nic.get("speed"), nic.get("mtu") or item.get("mtu")
        rate = f" {speed / 1000:g} Gbit/s" if isinstance(speed, (int, float)) and speed > 0 else ""
        kind = f" {item['kind']}" if isinstance(item.get("kind"), str) else ""
        found.append(f"{name}{kind}{rate}" + (f" mtu {mtu}" if isinstance(mtu, int) else ""))
    return _listed(found)


def scheduler(run: Mapping[str, Any], preflight: Mapping[str, Any]) -> str:
    """Where the nodes came from, as far as the run says."""
    source = str(run.get("source") or "")
    environ = _part(_part(preflight, "request"), "environ")
    spec = _part(run, "spec")
    for kind, sign in (("Slurm", "SLURM_"), ("Kubernetes", "KUBERNETES_"), ("SkyPilot", "SKYPILOT_"), ("LSF", "LSB_")):
        if any(str(name).startswith(sign) for name in environ) or spec.get(kind.lower()):
            return f"{kind} ({source})" if source else kind
    return f"none ({source})" if source else "not known"


def addresses(nodes: Mapping[str, Facts]) -> list[tuple[str, str, str]]:
    """(node, the host's own name, its global addresses)."""
    found = []
    for node in nodes:
        facts = _part(nodes, node)
        up = [i for i in _maps(facts.get("interfaces")) if i.get("up") and not i.get("loopback")]
        listed = [str(a.get("address")) for i in up for a in _maps(i.get("addresses")) if a.get("scope") != "link"]
        found.append((str(node), str(facts.get("hostname") or ""), _listed(listed)))
    return found


def _part(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def _maps(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, (list, tuple)) else []


def _said(*values: object) -> str:
    return ", ".join(str(v) for v in values if v not in (None, "", 0))


def _count(value: object, one: str) -> str:
    return f"{value} {one}{'' if value == 1 else 's'}" if isinstance(value, int) else ""


def _bytes(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        return ""
    return f"{value / (1 << 30):.1f} GiB" if value >= 1 << 30 else f"{value / (1 << 20):.0f} MiB"


def _memory(facts: Facts) -> str:
    total = _bytes(_part(facts, "mem").get("total"))
    return f"{total} memory" if total else ""


def _gpus(facts: Facts) -> str:
    gpus, models = _part(facts, "gpus"), _part(_part(facts, "gpu_model"), "models")
    count = gpus.get("count")
    if not isinstance(count, int):
        return ""
    return _said(str(count), *map(str, models), None if count else gpus.get("source"))


def _ports(facts: Facts) -> str:
    """`mlx5_0/1 ACTIVE 400 Gb/sec (4X NDR) InfiniBand`, else the devices alone."""
    ports = _part(facts, "ib_ports")
    said = [" ".join(str(_part(ports, name).get(k) or "") for k in ("state", "rate", "layer")) for name in ports]
    return _listed([f"{name} {text}" for name, text in zip(ports, said, strict=True)]) or _listed(
        _part(facts, "nccl").get("rdma")) or "none"  # fmt: skip


def _settings(nccl: Mapping[str, Any]) -> str:
    parts = [f"{k}={v}" for key in ("environ", "conf") for k, v in sorted(_part(nccl, key).items())]
    return " ".join(parts)


def _listed(values: object) -> str:
    found = [str(v.get("name") if isinstance(v, Mapping) else v) for v in values] if isinstance(values, list) else []
    more = f", … {len(found)} in all" if len(found) > SHOWN else ""
    return ", ".join(found[:SHOWN]) + more
