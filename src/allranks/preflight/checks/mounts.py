"""What /etc/fstab names is mounted, and nothing of it fell back to read-only.

Only texts are compared: a look at a mount whose server does not answer would hang. Sources: fstab(5), ext4(5)
errors=remount-ro, systemd.mount(5) (x-systemd.automount, nofail).
"""

from __future__ import annotations

from typing import List, Optional

from allranks.protocol.records import NamedTuple
from allranks.text import join_names, plural

from ..compare import Findings, Nodes, alike, collected, remote, warn
from ..host import Host, Mount, read_mounts, text_in
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
LATER = ("noauto", "x-systemd.automount", "comment=systemd.automount")
MOST = 100


class Mounts(NamedTuple):
    """Of fstab what is absent, and what fell back to read-only."""

    absent: List[str]
    read_only: List[str]


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
    return Mounts(absent[:MOST], read_only[:MOST])


def _in_container(host: Host) -> bool:
    """Tell whether this is a container, where what fstab says is not mounted."""
    if host.exists("/.dockerenv") or host.exists("/run/.containerenv") or host.env.get("KUBERNETES_SERVICE_HOST"):
        return True
    return bool(host.env.get("APPTAINER_CONTAINER") or host.text("/run/systemd/container", 64))


def _is_wanted(line: Mount) -> bool:
    if any(option.startswith(LATER) for option in line.options):
        return False
    return line.kind in NETWORK or (line.kind in DISKS and "nofail" not in line.options)


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warnings: absent, read-only."""
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
