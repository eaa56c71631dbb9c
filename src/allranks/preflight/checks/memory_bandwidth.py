"""Every node copies memory about as fast as the others.

One thread, 64 MB, the best of many copies, as STREAM counts its best too. A missing memory module, a
throttled or misconfigured processor shows here. Nodes of one machine share it: the best of them counts.
"""

from __future__ import annotations

from allranks.protocol.records import NamedTuple

from ..compare import Findings, Nodes, collected, having, remote, slow_machines, warn
from ..host import Host, ask
from ..typed_facts import Facts, Request

ID = "memory_bandwidth"
GROUP = "host"
LEVEL = "full"
SECONDS = 30.0
ALONE = True
ODD = 0.7
PROGRAM = """
import json, sys, time
clock = getattr(time, "perf_counter", time.time)
n = 64 << 20
a, b = bytearray(n), bytearray(n)
v, w = memoryview(a), memoryview(b)
best, begun = None, clock()
while best is None or clock() - begun < 3.0:
    t = clock()
    v[:] = w
    t = clock() - t
    best = t if best is None or t < best else best
sys.stdout.write("\\nALLRANKS-ANSWER %s\\n" % json.dumps({"gb_s": round(n / best / 1e9, 2)}))
"""


class CopySpeed(NamedTuple):
    """Gigabytes copied in a second; each byte is read and written."""

    gb_s: float = 0.0


def collect(host: Host) -> CopySpeed:
    """Measure the speed."""
    return ask(host, CopySpeed, PROGRAM, 20.0, anywhere=True)


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warn of a node that is well below the median and not busy with other work."""
    speeds = having(collected(facts_by_node, ID, CopySpeed), lambda one: one.gb_s)
    for node, figures in slow_machines(facts_by_node, speeds, ODD, "{:.1f} GB/s"):
        if not _is_busy(facts_by_node[node]):
            show = remote(node, "sudo dmidecode -t memory")
            remedy = f"look for missing memory modules and throttling: {show}"
            yield warn(ID, node, f"{node} copies memory at {figures}", remedy)


def _is_busy(facts: Facts) -> bool:
    """Other work on half of the processors may well take half of the bandwidth."""
    return facts.cpus > 0 and facts.load > facts.cpus / 2
