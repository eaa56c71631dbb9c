"""What /etc/fstab names is mounted, nothing fell back to read-only, and nodes have the same network mounts.

Only texts are compared: a look at a mount whose server is gone would hang. Sources: fstab(5), ext4(5)
errors=remount-ro, systemd.mount(5) (x-systemd.automount, nofail).
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Set, Tuple

from allranks.findings import Finding
from allranks.text import join_names, plural

from ..compare import Nodes, by_value, differences, lack, others, parts, place, remote, split
from ..host import Host, Record, Request

ID = "mounts"
GROUP = "storage"
LEVEL = "quick"
NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "lustre",
    "ceph",
    "beegfs",
    "gpfs",
    "wekafs",
    "pvfs2",
    "afs",
    "panfs",
    "glusterfs",
    "fuse.glusterfs",
    "fuse.ceph",
    "fuse.juicefs",
    "fuse.gcsfuse",
    "fuse.s3fs",
    "fuse.mount-s3",
    "fuse.blobfuse2",
    "fuse.cvmfs2",
    "fuse.goofys",
)
DISKS = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs")
OF_OTHERS = ("/var/lib/kubelet", "/var/lib/docker", "/var/lib/containers", "/run/", "/snap/", "/net/", "/cvmfs/")
LATER = ("noauto", "x-systemd.automount", "comment=systemd.automount")
MOST = 100


class Line(NamedTuple):
    """A line of fstab or /proc/self/mounts."""

    source: str
    point: str
    kind: str
    options: Tuple[str, ...]


def collect(host: Host) -> Optional[Record]:
    """{"absent": [point], "read_only": [point], "network": {point: path at the server}, "exports": [path]}."""
    mounted = _read(host.text("/proc/self/mounts", 1 << 20) or "")
    if not mounted:
        return None
    by_point = {line.point: line for line in mounted}  # the last one covers the others
    absent = []
    read_only = []
    for line in [] if _in_container(host) else _read(host.text("/etc/fstab") or ""):
        now = by_point.get(line.point)
        if now is None and _is_wanted(line):
            absent.append(line.point)
        elif now is not None and now.kind in DISKS and "ro" in now.options and "ro" not in line.options:
            read_only.append(line.point)
    automatic = {line.point for line in mounted if line.kind == "autofs"}
    network = {line.point: _export(line) for line in by_point.values() if _is_shared(line, automatic)}
    exports = [w[0] for w in (line.split() for line in (host.text("/etc/exports") or "").splitlines()) if w]
    return {
        "absent": absent[:MOST],
        "read_only": read_only[:MOST],
        "network": dict(sorted(network.items())[:MOST]),
        "exports": [e for e in exports if e.startswith("/")][:MOST],
    }


def _read(text: str) -> List[Line]:
    lines = []
    for line in text.splitlines():
        words = line.split()
        if len(words) > 3 and not words[0].startswith("#") and words[1].startswith("/"):
            point = words[1].replace("\\040", " ").rstrip("/") or "/"
            lines.append(Line(words[0], point, words[2], tuple(words[3].split(","))))
    return lines


def _in_container(host: Host) -> bool:
    """Nobody mounts what fstab says there."""
    if host.exists("/.dockerenv") or host.exists("/run/.containerenv") or host.env.get("KUBERNETES_SERVICE_HOST"):
        return True
    return bool(host.env.get("APPTAINER_CONTAINER") or host.text("/run/systemd/container", 64))


def _is_wanted(line: Line) -> bool:
    if any(option.startswith(LATER) for option in line.options):
        return False
    return line.kind in NETWORK or (line.kind in DISKS and "nofail" not in line.options)


def _is_shared(line: Line, automatic: Set[str]) -> bool:
    """Not what appears when somebody asks for it."""
    if line.kind not in NETWORK or line.point.startswith(OF_OTHERS) or line.kind == "fuse.cvmfs2":
        return False
    return not any((line.point + "/").startswith(point.rstrip("/") + "/") for point in automatic)


def _export(line: Line) -> str:
    """Without the server: one export often has several addresses, a different one for each node."""
    return (line.source.rpartition(":")[2] if ":/" in line.source else line.source)[:200]


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """Warnings: absent, read-only, different."""
    collected = parts(facts_by_node, ID)
    absent = {n: tuple(v.get("absent") or ()) for n, v in collected.items()}
    findings = []
    for points, nodes in by_value({n: p for n, p in absent.items() if p}).items():
        message = (
            f"{join_names(points)} of /etc/fstab {plural(len(points), 'is', 'are')} not mounted on {join_names(nodes)}"
        )
        remedy = remote(nodes[0], "sudo", "mount", points[0] if len(points) == 1 else "-a")
        findings.append(Finding(ID, "warn", message, remedy, place(nodes)))
    fallen = {n: tuple(v.get("read_only") or ()) for n, v in collected.items()}
    for points, nodes in by_value({n: p for n, p in fallen.items() if p}).items():
        are = plural(len(points), "is", "are")
        message = f"{join_names(points)} on {join_names(nodes)} {are} read-only, though /etc/fstab says rw"
        look = f"ssh {nodes[0]} 'sudo dmesg -T | tail -n 200'"
        remedy = f"the kernel gave up writing after an error: {look}"
        findings.append(Finding(ID, "warn", message, remedy, place(nodes)))
    return findings + _different(collected, {(n, p) for n, points in absent.items() for p in points})


def _different(collected: Nodes, reported: Set[Tuple[str, str]]) -> List[Finding]:
    """Mount by mount; those that fstab already accused are left out, and the node that is the server."""
    points: Dict[str, str] = {}
    for v in collected.values():
        points.update(v.get("network") or {})
    findings = []
    for point, export in points.items():
        values = {
            n: (v.get("network") or {}).get(point)
            for n, v in collected.items()
            if (n, point) not in reported and not {point, export} & set(v.get("exports") or ())
        }
        for nodes, message in _sentences(point, values):
            remedy = f"mount it on all, or leave it out of the run; look: {remote(nodes[0], 'findmnt', point)}"
            findings.append(Finding(ID, "warn", message, remedy, place(nodes)))
    return findings[:MOST]


def _sentences(point: str, values: Record) -> List[Tuple[List[str], str]]:
    parted = split(values)
    if parted is None:
        return []
    if not parted.fine:
        return [(d.nodes, d.message) for d in differences(f"mount {point}", values)]
    sentences = []
    for value, nodes in parted.odd.items():
        if value is None:
            message = lack(nodes, parted.fine, f"mount {point}")
        elif parted.norm is None:
            message = f"{join_names(nodes)} {plural(len(nodes), 'mounts', 'mount')} {value} at {point}"
            message += others(parted.fine, "do not", "does not")
        else:
            message = f"{join_names(nodes)} {plural(len(nodes), 'mounts', 'mount')} {value} at {point}"
            message += others(parted.fine, f"mount {parted.norm}", f"mounts {parted.norm}")
        sentences.append((nodes, message))
    return sentences
