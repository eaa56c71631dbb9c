"""The world that a failure is in: its accelerator, its fabric, and what started it. Fixes are chosen by it (pure).

NVIDIA's GPUs, InfiniBand or plain sockets, and ssh have no entry: what is said everywhere is said to them.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping


class World(enum.Enum):
    """A column of the table of causes; its value is the heading above it."""

    AMD = "GPUs of AMD"
    ASCEND = "Ascend NPUs"
    XPU = "GPUs of Intel"
    TPU = "TPUs"
    GAUDI = "Gaudi"
    EFA = "EFA"
    TCPX = "GPUDirect-TCPX"
    ROCE = "RoCE"
    RAY = "Ray"
    SLURM = "Slurm"
    KUBERNETES = "Kubernetes"


Worlds = frozenset[World]
NOWHERE: Worlds = frozenset()
ACCELERATORS = (World.GAUDI, World.ASCEND, World.XPU, World.TPU, World.AMD)

# What only the one says. torch's own texts under ROCm say HIP.
_MARKS = {
    World.AMD: r"amdgpu|/dev/kfd|amd-smi|rocm-smi|\+rocm|/opt/rocm|ROCm-capable|rocBLAS|MIOpen|RCCL|\brccl\b|librccl|"
               r"HIP error|(?i:hipblas|hipify)|HIP out of memory|HIP GPUs|HIP failure|\bhip[A-Z]\w{3}|HSA_STATUS|"
               r"by GPU node-|\bgfx(?:9|1[0-2])[0-9a-f]{2}\b",
    World.GAUDI: r"habana|\bhcl_|hl-smi|synStatus|synapse|Gaudi|\bHPU\b(?! available)|PT_DEVMEM",
    World.ASCEND: r"ascend_kernel|torch_npu|\baclnn\w|\bE[1-9EHIZ]9999\b|"
                  r"\baclrt\w|\bdcmi\b|npu-smi|hccn_tool|\bHCCL\b|\bhccl_|"
                  r"\bAscend\b|ASCEND_|NPU out of memory|NPU function|"
                  r"\bE[IJ]00[01]\d\b|vllm[-_]ascend|/Ascend/|\bNPUs?\b|\bnpu:\d",
    World.XPU: r"(?:UR|ZE)_RESULT_|PI_ERROR_|oneCCL|\bCCL_|ccl::|XPU out of memory|xpu-smi|level_zero|LevelZero|sycl|"
               r"\bXPUs?\b|\bxpu:\d|device type xpu|Level[- ]Zero",
    World.TPU: r"torch_xla|libtpu|(?<!using: 0 )\bTPU\b(?! available)|_HBM\d|tpu_|XLA:TPU|xla_mesh|mesh_service|"
               r"grpc://[\w.-]{1,60}:8470",
    World.EFA: r"NET/OFI|provider efa|\bEFA\b|amazon/efa|libfabric\.so|\befa_\d|\bFI_EFA|AWS Libfabric|aws-ofi-nccl|"
               r"fi_getinfo",
    World.TCPX: r"tcpx|TCPX|FastSocket|FasTrak|fastrak",
    # A GID that holds an IPv4 address is one of RoCE (net_ib.cc prints the GIDs of both sides).
    World.ROCE: r"/RoCE\b|\bRoCE\b|\broce\w*p\d|\brocep|[lL]ocalGid ::ffff:\d",
    World.RAY: r"\braylet\b|ray\.exceptions|\bray::|RayTask|RayTrainWorker|RayActor|RayWorker|/_private/worker\.py|"
               r"Ray does not|The actor is dead because|Worker exit type: |\bray\.(?:get|init|remote)\b|/tmp/ray/|"
               r"\bplacement group\b|\bray (?:start|job|status|symmetric-run)\b|/ray/dashboard/|"
               r"has been marked dead because",
    World.SLURM: r"slurmstepd|handled by (?:Slurm|SLURM)|\bsrun: |\bsbatch: |\bslurm_|SLURM_|StepId=|\bslurmd\b",
    World.KUBERNETES: r"\bkubelet\b|svc\.cluster\.local|kubernetes|kubectl|OOMKilled|BackOff|FailedScheduling|"
                      r"nvidia\.com/gpu",
}  # fmt: skip
_OF_WORLD = {world: re.compile(marks) for world, marks in _MARKS.items()}
_OF_NVIDIA = re.compile(r"NVRM|NVIDIA|nvidia-|libcuda|CUDA error|CUDA out of memory|Cuda failure|cudaError")
# torch built for ROCm says CUDA in some places.
_OF_HIP = re.compile(r"(?i)hipblas|/hip/hip|hipify|librccl|miopen")
_OF_OTHER_OFI = re.compile(r"\bcxi\b|Provider is (?!efa)\w|provider psm")


def read_worlds(texts: Iterable[str]) -> Worlds:
    """Tell in which worlds texts were written; of accelerators and of fabrics at most one each."""
    text = "\n".join(texts)
    found = {world for world, marks in _OF_WORLD.items() if marks.search(text)}
    if _OF_NVIDIA.search(text):
        found -= {World.XPU, World.TPU}
        if not _OF_HIP.search(text):
            found.discard(World.AMD)
    if World.EFA in found and _OF_OTHER_OFI.search(text):
        found.discard(World.EFA)
    for alike in (ACCELERATORS, (World.EFA, World.TCPX, World.ROCE)):
        here = [world for world in alike if world in found]
        found -= set(here[1:])
    return frozenset(found)


# By the names that nodes give of what started them.
SCHEDULERS = {"slurm": World.SLURM, "kubernetes": World.KUBERNETES}


# Names of tools and settings in a cause's text, where one accelerator has another one than NVIDIA's.
# amd-smi: ROCm/amdsmi docs/how-to/amdsmi-cli-tool.md, HIP docs/how-to/debugging.rst. npu-smi, hccn_tool: CANN's command
# references, torch_npu's environment variables. xpu-smi: intel/xpumanager docs/smi_user_guide.md, oneCCL's environment
# variables. hl-smi: Gaudi's System Management Interface Tool. tpu-info: AI-Hypercomputer/cloud-accelerator-diagnostics.
_TOOLS: Mapping[str, tuple[str, Mapping[World, str]]] = {
    "smi": ("nvidia-smi", {
        World.AMD: "amd-smi process", World.ASCEND: "npu-smi info", World.XPU: "xpu-smi ps", World.TPU: "tpu-info",
        World.GAUDI: "hl-smi",
    }),
    "list": ("nvidia-smi -L", {
        World.AMD: "amd-smi list", World.ASCEND: "npu-smi info -l", World.XPU: "xpu-smi discovery",
        World.TPU: "tpu-info", World.GAUDI: "hl-smi -L",
    }),
    "visible": ("CUDA_VISIBLE_DEVICES", {
        World.AMD: "HIP_VISIBLE_DEVICES", World.ASCEND: "ASCEND_RT_VISIBLE_DEVICES", World.XPU: "ZE_AFFINITY_MASK",
        World.TPU: "TPU_VISIBLE_CHIPS", World.GAUDI: "HABANA_VISIBLE_MODULES",
    }),
    "ifname": ("NCCL_SOCKET_IFNAME", {
        World.ASCEND: "HCCL_SOCKET_IFNAME", World.XPU: "FI_TCP_IFACE", World.TPU: "TP_SOCKET_IFNAME",
        World.GAUDI: "HCCL_SOCKET_IFNAME",
    }),
    "family": (" NCCL_SOCKET_FAMILY=AF_INET", {
        World.ASCEND: " HCCL_SOCKET_FAMILY=AF_INET", World.XPU: "", World.TPU: "", World.GAUDI: "",
    }),
    "arch": ("TORCH_CUDA_ARCH_LIST", {World.AMD: "PYTORCH_ROCM_ARCH"}),
    "gpu_arch": ("nvidia-smi --query-gpu=compute_cap --format=csv", {
        World.AMD: "rocminfo | grep gfx", World.ASCEND: "npu-smi info", World.XPU: "xpu-smi discovery",
        World.TPU: "tpu-info", World.GAUDI: "hl-smi",
    }),
    # https://rocm.docs.amd.com: a Radeon without code of its own runs that of its family's first.
    "near_arch": ("", {
        World.AMD: ". A Radeon may run the code of a near one: HSA_OVERRIDE_GFX_VERSION=10.3.0 (gfx103x) or 11.0.0 "
                   "(gfx11xx)",
    }),
    "vendor_script": ("", {
        World.ASCEND: ". First run `source /usr/local/Ascend/ascend-toolkit/set_env.sh` (CANN) in each shell that "
                      "starts ranks",
        World.XPU: ". First run `source /opt/intel/oneapi/setvars.sh` in each shell that starts ranks",
    }),
    "own_backend": (
        "Install the build with it (for CUDA `python -m pip install torch --index-url "
        "https://download.pytorch.org/whl/cu126`), or use the backend gloo", {
        World.AMD: "Install the build for ROCm (`python -m pip install torch --index-url "
                   "https://download.pytorch.org/whl/rocm6.4`)",
        World.ASCEND: "Import torch_npu before the process group, and use the backend hccl (ms-swift and "
                      "LLaMA-Factory: `--ddp_backend hccl`)",
        World.XPU: "Use the backend xccl of torch, or ccl with oneccl_bindings_for_pytorch",
        World.GAUDI: "Import habana_frameworks.torch.distributed.hccl, and use the backend hccl",
        World.TPU: "Import torch_xla.distributed.xla_backend, and use the backend xla",
    }),
    "set_device": ("torch.cuda.set_device", {
        World.ASCEND: "torch.npu.set_device", World.XPU: "torch.xpu.set_device", World.GAUDI: "torch.hpu.set_device",
    }),
    "library": ("NCCL", {World.ASCEND: "HCCL", World.XPU: "oneCCL", World.TPU: "XLA", World.GAUDI: "HCCL"}),
    "recorder": (". TORCH_NCCL_TRACE_BUFFER_SIZE=2000 keeps what each rank did last", {
        World.ASCEND: ". `grep -rn ERROR ~/ascend/log` shows what each rank's plog says", World.XPU: "", World.TPU: "",
        World.GAUDI: "",
    }),
    "kernel_log": ("dmesg -T | grep -i xid", {
        World.AMD: "dmesg -T | grep amdgpu", World.ASCEND: "dmesg -T | grep -i -e npu -e davinci",
        World.XPU: "dmesg -T | grep -e i915 -e xe", World.TPU: "dmesg -T | grep -i accel",
        World.GAUDI: "dmesg -T | grep habanalabs",
    }),
    "reset": ("Run `nvidia-smi --gpu-reset -i {gpu}` or reboot", {
        World.AMD: "Run `amd-smi reset --gpureset --gpu {gpu}` or reboot",
        World.ASCEND: "Run `npu-smi set -t reset -i {gpu} -c 0` or reboot",
        World.XPU: "Run `xpu-smi config -d {gpu} --reset` or reboot", World.TPU: "Make the TPU VM again",
        World.GAUDI: "Reboot it",
    }),
    "ecc": ("nvidia-smi -q -d ECC,ROW_REMAPPER", {
        World.AMD: "amd-smi metric --ecc", World.ASCEND: "npu-smi info -t ecc -i {gpu}",
        World.XPU: "xpu-smi health -d {gpu}", World.TPU: "tpu-info", World.GAUDI: "hl-smi -q -d ECC",
    }),
    "allocator": (", and against fragmentation PYTORCH_ALLOC_CONF=expandable_segments:True", {
        World.ASCEND: ", and against fragmentation PYTORCH_NPU_ALLOC_CONF=expandable_segments:True", World.XPU: "",
        World.TPU: "", World.GAUDI: "",
    }),
    "blocking": ("Run once with `--env CUDA_LAUNCH_BLOCKING=1`, whose traceback shows the kernel, or under "
                 "`compute-sanitizer python …`", {
        World.AMD: "Run once with `--env AMD_SERIALIZE_KERNEL=3`, whose traceback shows the kernel, or under "
                   "`rocgdb --args python …`",
        World.ASCEND: "Run once with `--env ASCEND_LAUNCH_BLOCKING=1`, whose traceback shows the kernel",
        World.XPU: "Run once with `--env ZE_SERIALIZE=2`, whose traceback shows the kernel",
        World.TPU: "Run once with `--env PT_XLA_DEBUG_LEVEL=2`, which shows where graphs are compiled and run",
        World.GAUDI: "Run once with `--env PT_HPU_LAZY_MODE=0`, whose traceback shows the kernel",
    }),
    "torch_version": ("torch.version.cuda, torch.cuda.is_available()", {
        World.AMD: "torch.version.hip, torch.cuda.is_available()",
        World.ASCEND: "torch.__version__, torch.npu.is_available()",
        World.XPU: "torch.version.xpu, torch.xpu.is_available()", World.TPU: "torch.__version__",
        World.GAUDI: "torch.__version__, torch.hpu.is_available()",
    }),
}  # fmt: skip


def tools(worlds: Worlds) -> dict[str, str]:
    """Give the names of tools and settings in a world; they may hold `{gpu}`."""
    return {name: next((of[w] for w in ACCELERATORS if w in worlds and w in of), usual)
            for name, (usual, of) in _TOOLS.items()}  # fmt: skip
