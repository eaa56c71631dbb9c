"""The nodes run the same kernel, distribution and C library.

Compiled extensions need at least the C library they were built with; drivers and RDMA modules are built
for one kernel. Sources: os-release(5), getconf(1) GNU_LIBC_VERSION.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from allranks.findings import Finding

from ..compare import Nodes, differences, part, place, remote
from ..host import Host

ID = "kernel"
GROUP = "host"
LEVEL = "quick"
SAID = {
    "kernel": ("kernel", "boot the same kernel on all; look: {}", ("uname", "-r")),
    "os": (
        "operating system",
        "use one image for all nodes, or one container image (--wrap); look: {}",
        ("cat", "/etc/os-release"),
    ),
    "libc": (
        "C library",
        "compiled extensions may not load on the older one: use one image; look: {}",
        ("ldd", "--version"),
    ),
}


def collect(host: Host) -> Optional[Dict[str, Any]]:
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


def judge(request: Mapping[str, Any], facts_by_node: Nodes) -> List[Finding]:
    """Warnings under the check's own name."""
    findings = []
    for key, (what, remedy, look) in SAID.items():
        values = {n: part(f, ID)[key] for n, f in facts_by_node.items() if part(f, ID).get(key)}
        for d in differences(what, values):
            line = remedy.format(remote(d.nodes[0], *look))
            findings.append(Finding(ID, "warn", d.message, line, place(d.nodes)))
    return findings
