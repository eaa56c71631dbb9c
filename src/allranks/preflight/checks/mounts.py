"""What /etc/fstab names is mounted, nothing fell back to read-only, and nodes have the same network mounts.

Only texts are compared: a look at a mount whose server does not answer would hang. Sources: fstab(5), ext4(5)
errors=remount-ro, systemd.mount(5) (x-systemd.automount, nofail).
"""

from __future__ import annotations

from typing import Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from allranks.protocol.records import NamedTuple
from allranks.text import join_names, plural

from ..compare import Findings, Nodes, advise, alike, collected, differences, lack, others, remote, warn, who
from ..host import Host, Mount, lines_of, read_mounts, text_in
from ..typed_facts import Request

ID = "mounts"
GROUP = "storage"
LEVEL = "quick"
# fmt: off
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "beegfs", "gpfs", "wekafs", "pvfs2", "afs", "panfs",
           "glusterfs", "fuse.glusterfs", "fuse.ceph", "fuse.juicefs", "fuse.gcsfuse", "fuse.s3fs", "fuse.mount-s3",
           "fuse.blobfuse2", "fuse.cvmfs2", "fuse.goofys")
# fmt: on
DISKS = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs")
OF_OTHERS = ("/var/lib/kubelet", "/var/lib/docker", "/var/lib/containers", "/run/", "/snap/", "/net/", "/cvmfs/")
LATER = ("noauto", "x-systemd.automount", "comment=systemd.automount")
MOST = 100


class Mounts(NamedTuple):
    """Of fstab what is absent and what fell back to read-only; network mounts with their path at the server; what this
    node itself exports."""

    absent: List[str]
    read_only: List[str]
    network: Mapping[str, str] = {}
    exports: Sequence[str] = ()


def collect(host: Host) -> Optional[Mounts]:
    """None where /proc shows no mount."""
    mounted = read_mounts(text_in(host, "/proc/self/mounts", 1 << 20))
    if not mounted:
        return None
    by_point = {mount.point: mount for mount in mounted}  # the last one covers the others
    fstab = [] if _in_container(host) else read_mounts(text_in(host, "/etc/fstab"))
    absent = [line.point for line in fstab if line.point not in by_point and _is_wanted(line)]
    read_only = []
    for line in fstab:
        now = by_point.get(line.point)
        if now is not None and now.kind in DISKS and "ro" in now.options and "ro" not in line.options:
            read_only.append(line.point)
    automatic = {mount.point for mount in mounted if mount.kind == "autofs"}
    network = {mount.point: _export(mount) for mount in by_point.values() if _is_shared(mount, automatic)}
    exports = [line.split()[0] for line in lines_of(host, "/etc/exports") if line.startswith("/")]
    return Mounts(absent[:MOST], read_only[:MOST], dict(sorted(network.items())[:MOST]), exports[:MOST])


def _in_container(host: Host) -> bool:
    """Tell whether this is a container, where what fstab says is not mounted."""
    if host.exists("/.dockerenv") or host.exists("/run/.containerenv") or host.env.get("KUBERNETES_SERVICE_HOST"):
        return True
    return bool(host.env.get("APPTAINER_CONTAINER") or host.text("/run/systemd/container", 64))


def _is_wanted(line: Mount) -> bool:
    if any(option.startswith(LATER) for option in line.options):
        return False
    return line.kind in NETWORK or (line.kind in DISKS and "nofail" not in line.options)


def _is_shared(mount: Mount, automatic: Set[str]) -> bool:
    """Tell whether a mount should be on all nodes: of a network, and there before it is asked for."""
    if mount.kind not in NETWORK or mount.point.startswith(OF_OTHERS) or mount.kind == "fuse.cvmfs2":
        return False
    return not any((mount.point + "/").startswith(point.rstrip("/") + "/") for point in automatic)


def _export(mount: Mount) -> str:
    """Without the server: one export often has several addresses, a different one for each node."""
    return (mount.source.rpartition(":")[2] if ":/" in mount.source else mount.source)[:200]


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warnings: absent, read-only, different."""
    collection = collected(facts_by_node, ID, Mounts)
    for points, nodes in alike(collection, lambda one: tuple(one.absent)).items():
        are = plural(len(points), "is", "are")
        message = f"{join_names(points)} of /etc/fstab {are} not mounted on {join_names(nodes)}"
        yield warn(ID, nodes, message, remote(nodes[0], "sudo mount", plural(len(points), points[0], "-a")))
    for points, nodes in alike(collection, lambda one: tuple(one.read_only)).items():
        are = plural(len(points), "is", "are")
        message = f"{join_names(points)} on {join_names(nodes)} {are} read-only, though /etc/fstab says rw"
        remedy = f"the kernel gave up writing after an error: ssh {nodes[0]} 'sudo dmesg -T | tail -n 200'"
        yield warn(ID, nodes, message, remedy)
    yield from list(_different(collection))[:MOST]


def _different(collection: Mapping[str, Mounts]) -> Findings:
    """Mount by mount; those that fstab already accused are left out, and the node that is the server."""
    exports = {point: export for one in collection.values() for point, export in one.network.items()}
    for point, export in exports.items():
        values = {}
        for node, one in collection.items():
            if point not in one.absent and point not in one.exports and export not in one.exports:
                values[node] = one.network.get(point)
        for nodes, message in _sentences(point, values):
            remedy = advise("mount it on all, or leave it out of the run", nodes[0], "findmnt", point)
            yield warn(ID, nodes, message, remedy)


def _sentences(point: str, values: Mapping[str, Optional[str]]) -> Iterator[Tuple[List[str], str]]:
    for odd in differences(f"mount {point}", values):
        message = odd.message
        if odd.fine and odd.value is None:
            message = lack(odd.nodes, odd.fine, f"mount {point}")
        elif odd.fine:
            rest = others(odd.fine, f"mount {odd.norm}" if odd.norm else "do not")
            message = f"{who(odd.nodes, 'mounts', 'mount')} {odd.value} at {point}{rest}"
        yield odd.nodes, message
