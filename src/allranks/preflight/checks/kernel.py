"""The nodes run the same kernel, distribution and C library.

Compiled extensions need at least the C library they were built with. Drivers and RDMA modules are built
for one kernel. `uname -r`, `cat /etc/os-release` and `ldd --version` show them. Sources: os-release(5), getconf(1)
GNU_LIBC_VERSION.
"""

from __future__ import annotations

from typing import Dict, Optional

from ..compare import Differs, Findings, Nodes, collected
from ..host import Host, key_values, text_in
from ..typed_facts import Request

ID = "kernel"
GROUP = "host"
LEVEL = "quick"
IMAGE = "use one image for all nodes, or one container image (--wrap). Look: {look}"
LIBC = "use one image, as compiled extensions may not load on the older one. Look: {look}"
DIFFER = (
    Differs("kernel", "kernel", "boot the same kernel on all. Look: {look}", "uname -r"),
    Differs("os", "operating system", IMAGE, "cat /etc/os-release"),
    Differs("libc", "C library", LIBC, "ldd --version"),
)


def collect(host: Host) -> Optional[Dict[str, str]]:
    """{"kernel": "6.8.0-45-generic", "os": "ubuntu 22.04", "libc": "glibc 2.35"}, what is known of it."""
    system = key_values(host.text("/etc/os-release") or text_in(host, "/usr/lib/os-release"))
    words = (system.get("ID"), system.get("VERSION_ID") or system.get("BUILD_ID"))
    libc = host.run(["getconf", "GNU_LIBC_VERSION"], 2.0)
    versions = {
        "kernel": text_in(host, "/proc/sys/kernel/osrelease", 256),
        "os": " ".join(filter(None, words)),
        "libc": libc.out.strip() if libc.ok else "",
    }
    return {name: version[:100] for name, version in versions.items() if version} or None


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warn of what differs."""
    nodes = collected(facts_by_node, ID, Dict[str, str])
    for compared in DIFFER:
        yield from compared.judge(ID, nodes)
