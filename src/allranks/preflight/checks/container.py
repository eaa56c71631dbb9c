"""All nodes are inside containers of one kind, or none is.

Inside and outside differ in what they see: files, libraries, devices, /dev/shm (an IPC namespace of its
own), processes (a PID namespace of its own). Markers: /.dockerenv, /run/.containerenv (podman),
KUBERNETES_SERVICE_HOST, `container=` of process 1 (systemd.io/CONTAINER_INTERFACE), APPTAINER_CONTAINER.
"""

from __future__ import annotations

from typing import Dict, List, Optional

from allranks.findings import Finding

from ..compare import Nodes, differences, parts, place, remote
from ..host import Host, Request

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


def collect(host: Host) -> Optional[Dict[str, str]]:
    """{"kind": "Docker" or OUTSIDE, "pid": "its own" or "the host's", "ipc": …}."""
    namespaces = {"kind": _kind(host)}
    for name, initial in INITIAL.items():
        link = host.link(f"/proc/self/ns/{name}")
        if link:
            namespaces[name] = "the host's" if link == initial else "its own"
    return namespaces if host.exists("/proc/self") or len(namespaces) > 1 else None


def _kind(host: Host) -> str:
    """The innermost one first: apptainer runs inside pods too."""
    if host.env.get("APPTAINER_CONTAINER") or host.env.get("SINGULARITY_CONTAINER"):
        return "Apptainer"
    if host.env.get("KUBERNETES_SERVICE_HOST") or host.exists("/var/run/secrets/kubernetes.io"):
        return "Kubernetes"
    if host.exists("/.dockerenv"):
        return "Docker"
    if host.exists("/run/.containerenv"):
        return "Podman"
    init = host.text("/proc/1/environ") or ""
    words = [w.partition("=")[2] for w in init.split("\0") if w.startswith("container=")]
    word = (words + [host.text("/run/systemd/container", 64) or ""])[0]
    if word:
        return WORDS.get(word, word[:40])
    cgroup = host.text("/proc/1/cgroup") or ""
    return next((kind for mark, kind in CGROUPS if mark in cgroup), OUTSIDE)


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """A warning where nodes are mixed; the namespaces only among nodes of one kind."""
    collected = parts(facts_by_node, ID)
    kinds = {n: v["kind"] if v["kind"] == OUTSIDE else f"in {v['kind']}" for n, v in collected.items()}
    findings = []
    for d in differences("containers", kinds, one="runs", many="run"):
        message = d.message.replace(" containers ", " ", 1) if d.norm is not None else d.message
        remedy = "start all nodes alike, in the same image or on the bare host; look: "
        remedy += remote(d.nodes[0], "cat", "/proc/1/cgroup")
        findings.append(Finding(ID, "warn", message, remedy, place(d.nodes)))
    if findings:
        return findings
    for key, what, option in (("pid", "process", "--pid=host"), ("ipc", "IPC", "--ipc=host")):
        values = {n: v[key] for n, v in collected.items() if v.get(key)}
        for d in differences(f"{what} namespace", values, one="uses", many="use"):
            message = d.message.replace(f"{what} namespace its own", f"its own {what} namespace", 1)
            message = message.replace(f"{what} namespace the host's", f"the host's {what} namespace", 1)
            remedy = f"start all containers alike: with {option}, or none with it"
            findings.append(Finding(ID, "warn", message, remedy, place(d.nodes)))
    return findings
