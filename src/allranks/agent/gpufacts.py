"""GPUs of this node as CUDA or HIP would count them, from files alone (no nvidia-smi: it takes seconds).

`root` is "/" but in tests.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Dict, List, Mapping, Tuple

from allranks.protocol.facts import Gpus
from allranks.protocol.records import NamedTuple

from .files import names_in, read_text

_NVIDIA = r"nvidia\d+\Z"
KFD_NODES = "sys/class/kfd/kfd/topology/nodes"
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def gpus(environ: Mapping[str, str], root: str = "/") -> Gpus:
    """Count the GPUs that ranks would see."""
    nvidia = [name for name in names_in(os.path.join(root, "dev")) if re.match(_NVIDIA, name)]
    count = len(nvidia or _amd_devices(root))
    if not count:
        return Gpus(0, "no /dev/nvidia* and no /dev/kfd")
    source = "/dev/nvidia*" if nvidia else "/dev/kfd"
    for name in _choosing(environ, is_nvidia=bool(nvidia)):
        count = len(visible(environ[name], count))
        source = "%s=%s" % (name, environ[name])
    if not nvidia:
        return Gpus(count, source, "amd")
    mig = "MIG-" in environ.get("CUDA_VISIBLE_DEVICES", "")
    return Gpus(count, source, "nvidia", mig or _has_mig(os.path.join(root, "proc/driver/nvidia/capabilities")))


def addresses(environ: Mapping[str, str], root: str = "/") -> List[str]:
    """Give the PCI addresses of the GPUs that ranks would see, in the order of their numbers.

    Raise ValueError for a part of a GPU (MIG), which has none."""
    nvidia = _nvidia_addresses(root)
    devices = nvidia or _amd_addresses(root)
    for name in _choosing(environ, is_nvidia=bool(nvidia)):
        chosen = [_named(word, devices) for word in visible(environ[name], len(devices))]
        devices = {address: devices[address] for address in chosen if address}
    return list(devices)


def _choosing(environ: Mapping[str, str], is_nvidia: bool) -> List[str]:
    """Name the variables that choose devices; of AMD's, CUDA's stands in for HIP's, and counts what ROCR's leaves."""
    last = "CUDA_VISIBLE_DEVICES"
    if not is_nvidia and "HIP_VISIBLE_DEVICES" in environ:
        last = "HIP_VISIBLE_DEVICES"
    names = [last] if is_nvidia else ["ROCR_VISIBLE_DEVICES", last]
    return [name for name in names if name in environ]


class SeenGpus(NamedTuple):
    """The addresses of the GPUs that a rank sees, and its number among the ranks of its node."""

    local_rank: int
    addresses: Tuple[str, ...]


def own_gpus(seen: Mapping[int, SeenGpus]) -> Dict[str, List[int]]:
    """Give the ranks that compute on each GPU, by its address: the only one that they see, else that of their number.

    Where more ranks see the same GPUs than these are, which one takes which is unknown."""
    ranks: Dict[str, List[int]] = {}
    alike = Counter(one.addresses for one in seen.values())
    for rank, one in sorted(seen.items()):
        count = len(one.addresses)
        if count == 1:
            ranks.setdefault(one.addresses[0], []).append(rank)
        elif one.local_rank < count and alike[one.addresses] <= count:
            ranks.setdefault(one.addresses[one.local_rank], []).append(rank)
    return ranks


def _named(word: str, devices: Mapping[str, str]) -> str:
    """Give the address of the GPU with this number or the beginning of this UUID."""
    if word.isdecimal():
        return list(devices)[int(word)]
    if word.startswith("MIG-"):
        raise ValueError("ranks see a part of a GPU, %s" % word)
    return next((address for address, uuid in devices.items() if uuid.startswith(word)), "")


def _nvidia_addresses(root: str) -> Dict[str, str]:
    """UUIDs by address, in the order of addresses, as CUDA counts GPUs of one kind. A job may have but some devices."""
    devices = {}
    directory = os.path.join(root, "proc/driver/nvidia/gpus")
    for address in sorted(names_in(directory)):
        lines = read_text(os.path.join(directory, address, "information")).splitlines()
        words = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        device = os.path.join(root, "dev/nvidia" + words.get("Device Minor", "?"))
        if os.access(device, os.R_OK | os.W_OK):  # the kernel asks the control group here too
            devices[address] = words.get("GPU UUID", "")
    return devices


def _amd_addresses(root: str) -> Dict[str, str]:
    """UUIDs by address, of the devices that KFD gives, in its order."""
    devices = {}
    for values in _amd_devices(root):
        place = int(values.get("location_id", "0"))  # bus, device and function, as PCI has them
        address = "%04x:%02x:%02x.%x" % (int(values.get("domain", "0")), place >> 8, place >> 3 & 31, place & 7)
        devices[address] = "GPU-%x" % int(values.get("unique_id", "0"))
    return devices


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


def _amd_devices(root: str) -> List[Dict[str, str]]:
    """Properties of KFD topology nodes with compute units whose render node this user's namespace has."""
    devices: List[Dict[str, str]] = []
    if not os.path.exists(os.path.join(root, "dev/kfd")):
        return devices
    nodes = os.path.join(root, KFD_NODES)
    for name in sorted(names_in(nodes), key=lambda name: int(name) if name.isdecimal() else 0):
        lines = read_text(os.path.join(nodes, name, "properties")).splitlines()
        values = {key: value.strip() for key, _, value in (line.partition(" ") for line in lines)}
        minor = values.get("drm_render_minor")
        is_there = minor is None or os.path.exists(os.path.join(root, "dev/dri/renderD" + minor))
        if is_there and int(values.get("simd_count", "0")) > 0:
            devices.append(values)
    return devices
