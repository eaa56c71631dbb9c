"""All nodes are inside containers of one kind, or none is.

Inside and outside differ in what they see: files, libraries, devices, /dev/shm (an IPC namespace of its
own), processes (a PID namespace of its own). Markers: /.dockerenv, /run/.containerenv (podman),
KUBERNETES_SERVICE_HOST, `container=` of process 1 (systemd.io/CONTAINER_INTERFACE), APPTAINER_CONTAINER.
"""

from __future__ import annotations

from typing import Optional

from allranks.protocol.records import NamedTuple

from ..compare import Findings, Nodes, advise, collected, differences, having, values_of, warn_each
from ..host import Host, text_in
from ..typed_facts import Request

ID = "container"
GROUP = "host"
LEVEL = "quick"
INITIAL = {"pid": "pid:[4026531836]", "ipc": "ipc:[4026531839]"}  # include/linux/proc_ns.h: PROC_*_INIT_INO
CGROUPS = (
    ("kubepods", "Kubernetes"),
    ("/docker", "Docker"),
    ("libpod", "Podman"),
    ("/lxc", "LXC"),
    ("/nspawn", "systemd-nspawn"),
)
WORDS = {"docker": "Docker", "podman": "Podman", "oci": "Podman", "lxc": "LXC", "systemd-nspawn": "systemd-nspawn"}
OUTSIDE = "outside any container"


class ContainerFacts(NamedTuple):
    """`Docker` or OUTSIDE; whose the namespaces are, `its own` or `the host's` (empty: not known)."""

    kind: str
    pid: str = ""
    ipc: str = ""


def collect(host: Host) -> Optional[ContainerFacts]:
    """None where /proc shows nothing."""
    owners = {}
    for name, initial in INITIAL.items():
        link = host.link(f"/proc/self/ns/{name}")
        if link:
            owners[name] = "the host's" if link == initial else "its own"
    if not owners and not host.exists("/proc/self"):
        return None
    return ContainerFacts(_kind(host), **owners)


def _kind(host: Host) -> str:
    """Tell which container this is, the innermost one first: apptainer runs inside pods too."""
    if host.env.get("APPTAINER_CONTAINER") or host.env.get("SINGULARITY_CONTAINER"):
        return "Apptainer"
    if host.env.get("KUBERNETES_SERVICE_HOST") or host.exists("/var/run/secrets/kubernetes.io"):
        return "Kubernetes"
    if host.exists("/.dockerenv"):
        return "Docker"
    if host.exists("/run/.containerenv"):
        return "Podman"
    init = text_in(host, "/proc/1/environ")
    words = (w.partition("=")[2] for w in init.split("\0") if w.startswith("container="))
    word = next(words, "") or text_in(host, "/run/systemd/container", 64)
    if word:
        return WORDS.get(word, word[:40])
    cgroup = text_in(host, "/proc/1/cgroup")
    return next((kind for mark, kind in CGROUPS if mark in cgroup), OUTSIDE)


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warn where nodes are mixed; compare the namespaces only among nodes of one kind."""
    nodes = collected(facts_by_node, ID, ContainerFacts)
    kinds = values_of(nodes, lambda one: one.kind if one.kind == OUTSIDE else f"in {one.kind}")
    odds = differences("containers", kinds, one="runs", many="run", phrase="{value}")
    advice = "start all nodes alike, in the same image or on the bare host"
    yield from warn_each(ID, odds, lambda odd: advise(advice, odd.nodes[0], "cat /proc/1/cgroup"))
    if odds:
        return
    yield from _namespace("process namespace", "--pid=host", having(nodes, lambda one: one.pid))
    yield from _namespace("IPC namespace", "--ipc=host", having(nodes, lambda one: one.ipc))


def _namespace(what: str, option: str, owners: "dict[str, str]") -> Findings:
    odds = differences(what, owners, one="uses", many="use", phrase="{value} {what}")
    return warn_each(ID, odds, lambda odd: f"start all containers alike: with {option}, or none with it")
