"""The GPUs' driver and its CUDA are the same version on every node.

imbue's host-health-checks and GCP's configcheck compare them too. Other versions side by side usually work. NCCL
then chooses by what each driver can, and a program may find another libcuda on one node.
"""

from __future__ import annotations

import re
from typing import Optional

from allranks.protocol.records import NamedTuple

from .. import smi
from ..compare import Findings, Nodes, advise, collected, differences, having, warn
from ..host import Host, search_in
from ..typed_facts import Request

ID = "gpu_driver"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 190.0
SHOW = {"nvidia": "nvidia-smi", "amd": "amd-smi static -d"}
CUDA = re.compile(r"CUDA (?:UMD )?Version *: *(\d+\.\d+)")  # "UMD" since driver 610


class Driver(NamedTuple):
    """What could be read of it."""

    vendor: str
    driver: str
    cuda: str = ""


def collect(host: Host) -> Optional[Driver]:
    """None without GPUs, or without a tool that tells."""
    answer = smi.query(host, ["driver_version"])
    if answer is not None:
        version = next((smi.value_of(row["driver_version"]) for row in answer.rows), "")
        return Driver("nvidia", version[:50], search_in(CUDA, smi.nvidia_smi(host).out))
    gpus = smi.amd_smi(host, "static", "-d")
    if gpus is not None:
        return Driver("amd", next((smi.text_at(gpu, "driver", "version")[:50] for gpu in gpus), ""))
    return None


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warn of each odd version; of CUDA's only where the driver does not explain it."""
    drivers = collected(facts_by_node, ID, Driver)
    odd = differences("driver", having(drivers, lambda one: one.driver))
    odd = odd or differences("CUDA (of the driver)", having(drivers, lambda one: one.cuda))
    for one in odd:
        advice = "install the same driver on every node"
        if one.norm and one.what == "driver":
            advice += f" ({one.norm})"
        remedy = advise(advice, one.nodes[0], SHOW[drivers[one.nodes[0]].vendor])
        yield warn("driver-version-mismatch", one.nodes, one.message, remedy)
