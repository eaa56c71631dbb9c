"""The nodes run the same kernel, distribution and C library.

Compiled extensions need at least the C library they were built with; drivers and RDMA modules are built
for one kernel. Sources: os-release(5), getconf(1) GNU_LIBC_VERSION.
"""

from __future__ import annotations

from typing import Optional

from ..compare import Differs
from ..host import Host, Record

ID = "kernel"
GROUP = "host"
LEVEL = "quick"
COMPARES = (
    Differs("kernel", "kernel", "boot the same kernel on all; look: {look}", ("uname", "-r")),
    Differs(
        "os",
        "operating system",
        "use one image for all nodes, or one container image (--wrap); look: {look}",
        ("cat", "/etc/os-release"),
    ),
    Differs(
        "libc",
        "C library",
        "compiled extensions may not load on the older one: use one image; look: {look}",
        ("ldd", "--version"),
    ),
)


def collect(host: Host) -> Optional[Record]:
    """{"kernel": "6.8.0-45-generic", "os": "ubuntu 22.04", "libc": "glibc 2.35"}, what is known of it."""
    versions = {}
    release = host.text("/proc/sys/kernel/osrelease", 256)
    if release:
        versions["kernel"] = release[:100]
    system = _os(host.text("/etc/os-release") or host.text("/usr/lib/os-release") or "")
    if system:
        versions["os"] = system
    ran = host.run(["getconf", "GNU_LIBC_VERSION"], 2.0)
    if ran.ok and ran.out.strip():
        versions["libc"] = ran.out.strip()[:100]
    return versions or None


def _os(text: str) -> str:
    values = {}
    for line in text.splitlines():
        key, sign, value = line.strip().partition("=")
        if sign:
            values[key] = value.strip().strip("\"'")
    words = (values.get("ID", ""), values.get("VERSION_ID") or values.get("BUILD_ID") or "")
    return " ".join(w for w in words if w)[:100]
