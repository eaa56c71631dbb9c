"""The GPUs' driver and its CUDA are the same version on every node.

imbue's host-health-checks and GCP's configcheck compare them too. Other versions side by side usually work; NCCL
then chooses by what each driver can, and a program may find another libcuda on one node.
"""

from __future__ import annotations

import re
from typing import Dict, List, Optional

from allranks.findings import Finding

from .. import smi
from ..compare import Nodes, differences, part, parts, place, remote
from ..host import Host, Request

ID = "gpu_driver"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 190.0
LABEL = "driver-version-mismatch"
CUDA = re.compile(r"CUDA (?:UMD )?Version *: *(\d+\.\d+)")  # "UMD" since driver 610


def collect(host: Host) -> Optional[Dict[str, str]]:
    """{"vendor", "driver", "cuda"}: what could be read of it."""
    answer = smi.query(host, ["driver_version"])
    if answer is not None:
        version = next((smi.value_of(row["driver_version"]) for row in answer.rows), "")
        cuda = CUDA.search(smi.nvidia_smi(host).out)
        return {"vendor": "nvidia", "driver": version[:50], "cuda": cuda.group(1) if cuda else ""}
    gpus = smi.amd_smi(host, "static", "-d")
    if gpus is not None:
        version = next((str(part(gpu, "driver").get("version") or "") for gpu in gpus), "")
    else:
        cards = smi.rocm_smi(host, "--showdriverversion")
        if cards is None:
            return None
        version = str((cards.get("system") or {}).get("Driver version") or "")
    return {"vendor": "amd", "driver": "" if version == "N/A" else version[:50], "cuda": ""}


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """A warning for each odd version; CUDA only where the driver does not explain it."""
    collected = parts(facts_by_node, ID)
    findings: List[Finding] = []
    for key, what in (("driver", "driver"), ("cuda", "CUDA (of the driver)")):
        values = {n: str(v[key]) for n, v in collected.items() if v.get(key)}
        for d in differences(what, values) if not findings else []:
            nvidia = collected[d.nodes[0]].get("vendor") == "nvidia"
            show = ("nvidia-smi",) if nvidia else ("amd-smi", "static", "-d")
            remedy = "install the same driver on every node"
            remedy += f" ({d.norm})" if d.norm and key == "driver" else ""
            remedy += f"; look: {remote(d.nodes[0], *show)}"
            findings.append(Finding(LABEL, "warn", d.message, remedy, place(d.nodes)))
    return findings
