"""GPUs of this node as CUDA or HIP would count them, from files alone (no nvidia-smi: it takes seconds).

`root` is "/" but in tests.
"""

from __future__ import annotations

import os
import re
from typing import Dict, List, Mapping

from allranks.protocol.facts import Gpus

from .files import names_in, read_text

_NVIDIA = r"nvidia\d+\Z"


def gpus(environ: Mapping[str, str], root: str = "/") -> Gpus:
    """Count the GPUs that ranks would see."""
    nvidia = _nvidia_devices(root)
    if nvidia:
        return _nvidia(nvidia, environ, root)
    amd = _amd_devices(root)
    if amd:
        return _amd(amd, environ)
    return Gpus(0, "no /dev/nvidia* and no /dev/kfd", None, (), False)


def _nvidia_devices(root: str) -> List[str]:
    names = [n for n in names_in(os.path.join(root, "dev")) if re.match(_NVIDIA, n)]
    return sorted((n[len("nvidia") :] for n in names), key=int)


def _nvidia(devices: List[str], environ: Mapping[str, str], root: str) -> Gpus:
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    mig = _has_mig(os.path.join(root, "proc/driver/nvidia/capabilities"))
    if wanted is None:
        chosen = [str(i) for i in range(len(devices))]
        return Gpus(len(chosen), "/dev/nvidia*", "nvidia", tuple(chosen), mig)
    chosen = visible(wanted, len(devices))
    source = "CUDA_VISIBLE_DEVICES=%s" % wanted
    return Gpus(len(chosen), source, "nvidia", tuple(chosen), mig or "MIG-" in wanted)


def _has_mig(capabilities: str) -> bool:
    """Tell whether a GPU is divided: its directory then has one for each instance (gpuN/mig/giM)."""
    for gpu in names_in(capabilities):
        instances = names_in(os.path.join(capabilities, gpu, "mig")) if gpu.startswith("gpu") else []
        if any(name.startswith("gi") for name in instances):
            return True
    return False


def visible(value: str, count: int) -> List[str]:
    """Return the devices that a *_VISIBLE_DEVICES value leaves: the list ends at the first entry that is not one
    (CUDA C++ Programming Guide, "CUDA Environment Variables"; HIP reads it the same way)."""
    devices: List[str] = []
    for word in value.split(","):
        word = word.strip()
        if not re.match(r"(GPU|MIG)-", word) and not (word.isdecimal() and int(word) < count):
            break
        devices.append(word)
    return devices


def _amd_devices(root: str) -> List[str]:
    """KFD topology nodes with compute units whose render node this user's namespace has."""
    if not os.path.exists(os.path.join(root, "dev/kfd")):
        return []
    devices: List[str] = []
    nodes = os.path.join(root, "sys/class/kfd/kfd/topology/nodes")
    for name in names_in(nodes):
        values = _properties(os.path.join(nodes, name, "properties"))
        if int(values.get("simd_count", "0")) <= 0:
            continue
        minor = values.get("drm_render_minor")
        if minor is None or os.path.exists(os.path.join(root, "dev/dri/renderD" + minor)):
            devices.append(name)
    return sorted(devices, key=lambda name: int(name) if name.isdecimal() else 0)


def _properties(path: str) -> Dict[str, str]:
    pairs = [line.split(None, 1) for line in read_text(path).splitlines()]
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def _amd(devices: List[str], environ: Mapping[str, str]) -> Gpus:
    """ROCR_VISIBLE_DEVICES first, then HIP's (which CUDA_VISIBLE_DEVICES stands in for) on what is left."""
    chosen = [str(i) for i in range(len(devices))]
    source = "/dev/kfd"
    for names in (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")):
        name = next((n for n in names if n in environ), None)
        if name is not None:
            chosen = visible(environ[name], len(chosen))
            source = "%s=%s" % (name, environ[name])
    return Gpus(len(chosen), source, "amd", tuple(chosen), False)
