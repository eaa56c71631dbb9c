"""GPUs: what the driver, CUDA, ROCm and the kernel say of the device itself."""

from __future__ import annotations

from .row import RAISED, ROOT, SYMPTOM, WEAK, Row, table

NO_NVLS = (
    "Run `nvidia-smi -q | grep -A3 -i fabric; systemctl status nvidia-fabricmanager`, whose version must equal the "
    "driver's. NCCL_NVLS_ENABLE=0 runs without NVLink SHARP meanwhile, and so proves that it is the NVSwitches"
)
ROWS = (
    Row("xid", "gpu-hardware-error", ROOT, "NVIDIA Xid catalogue, allranks/xid.py",
        "Xid", r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<code>\d+)", rule="kernel-xid"),
    Row("sxid", "nvlink-error", ROOT, "NVIDIA fabric manager guide, NVSwitch SXids", "SXid",
        r"SXid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<code>\d+), (?P<severity>Fatal|Non-fatal|Severity|Data)",
        rule="kernel-xid"),
    *table("NVIDIA driver, nvidia-smi, CUDA cudaErrorDeviceLost", ROOT, "gpu-fell-off-bus", [
        ("off-the-bus", "fallen off the bus|GPU is lost|GPU_IS_LOST", "fallen off the bus|GPU is lost|GPU_IS_LOST",
         0.95, "the card vanished from the PCIe bus: a fault of the card, its power or its slot"),
        ("vanished-card", "device handle for",
         r"Unable to determine the device handle for (?:GPU|gpu) ?(?P<pci>[\w:.]{1,20})(?![\w:.]).*(?:lost|"
         r"Unknown Error|not found)", 0.8),
    ]),
    *table("CUDA cudaErrorECCUncorrectable, NVIDIA driver, HIP hipErrorECCNotCorrectable", ROOT, "ecc-error", [
        ("ecc", "ECC",
         "(?i)uncorrectable ECC error|cudaErrorECCUncorrectable|double.bit ECC|ECC error encountered|"
         "hipErrorECCNotCorrectable|CUDA_ERROR_ECC_UNCORRECTABLE|uncorrectable ECC (?:mem)", 0.95),
        ("row-remap", "emap", r"(?i)row[- ]remap\w* (?:fail|pending)|Remapping Failure Occurred *: Yes", 0.85),
    ], scope=RAISED),
    Row("rocm-ecc", "ecc-error", ROOT, "ROCR-Runtime runtime.cpp HwExceptionHandler, VMFaultHandler",
        "HW Exception by GPU|ECC failure",
        r"HW Exception by GPU node-\d+ .*reason ?: ?ECC|Memory access fault by GPU.*Reason: [DS]RAM ECC failure"),
    *table("CUDA cudaErrorNvlinkUncorrectable, NVIDIA fabric manager, nvidia-smi nvlink", ROOT, "nvlink-error", [
        ("nvlink", "NVLink|NvLink|nvlink",
         r"(?i)uncorrectable NVLink error|NVLink (?:fatal|training) (?:error|fail)|NVLink: (?:fatal|RLW|Fatal) |"
         r"link \d{1,3} .{0,60}nvlink.{0,60}(?:fatal|inactive)|NVLink error"),
        ("nvswitch", "NVSwitch", "(?i)detected NVSwitch (?:non-)?fatal error|NVSwitch .*(?:fatal error|has failed)"),
    ]),
    Row("fabric-version", "fabric-manager", ROOT,
        "NVIDIA fabric manager: it checks the driver's version when it starts",
        "match with driver", "(?i)fabric ?manager.* don't match with driver version", confidence=0.95,
        fix="Run `dpkg -l | grep -e fabricmanager -e nvidia-driver; cat /proc/driver/nvidia/version` on {node}. "
            "Install nvidia-fabricmanager in the driver's version ({driver}), or the driver in its version, and "
            "run `systemctl restart nvidia-fabricmanager`"),
    *table("NVIDIA fabric manager guide, CUDA cudaErrorSystemNotReady (802), NCCL transport/nvls.cc", ROOT,
           "fabric-manager", [
        ("system-not-ready", "system not yet initialized|SYSTEM_NOT_READY|SystemNotReady",
         "system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady", 0.9,
         "a driver service that the machine needs, on NVSwitch machines the fabric manager, is not ready"),
        ("fabric-manager", "abric|nv-fabricmanager",
         r"(?i)(?:nvidia-?|nv-?)?fabric ?manager(?:\.service)?\b.{0,60}(?:fail|not running|mismatch|don't match|"
         r"inactive|dead|not started|not found)|fabric state .*(?:fail|not)|waiting for fabric manager", 0.85),
    ]),
    Row("nvls-multicast", "fabric-manager", ROOT, "NCCL transport/nvls.cc: what it asks of the NVSwitches",
        "Multicast|multicast",
        r"NVLink SHARP \(NVLS\) Multicast memory|multicast.*CUDA error 401|Failed to (?:bind|allocate|"
        r"create).*[Mm]ulticast", confidence=0.75,
        means="NCCL: usually an error of the fabric manager or the NVSwitches", fix=NO_NVLS),
    Row("nvls-failure", "fabric-manager", SYMPTOM, "NCCL transport/nvls.cc: what it asks of the NVSwitches",
        "transport/nvls.cc", r"transport/nvls\.cc:\d+ NCCL WARN Cuda failure (?!.*out of memory)", confidence=0.4,
        means="the NVSwitches refuse what NVLink SHARP needs", also="driver-version-mismatch", fix=NO_NVLS),
    *table("torch CUDACachingAllocator.cpp, CUDA cudaErrorMemoryAllocation, cuBLAS, cuDNN, XLA, spconv, "
           "CTranslate2, ROCR-Runtime, clr rocdevice.cpp callbackQueue", ROOT, "cuda-out-of-memory", [
        ("cuda-out-of-memory", "MemoryAllocation|hipErrorOutOfMemory|out of memory|OutOfMemoryError",
         r"(?:CUDA|HIP|XPU|NPU|MPS|GPU|cuda)\S* out of memory|CUDA [Ee]rror: out of memory|"
         r"torch\.(?:cuda\.)?OutOfMemoryError|Cuda failure.*out of memory|cudaErrorMemoryAllocation|"
         r"CUDA driver error: out of memory|CUDA runtime error.*out of memory|\.cu:\d+.*out of memory|"
         r"HIP error: out of memory|hipErrorOutOfMemory|(?:cuda|CUDA) failed with error (?:\d+ )?out of memory"),
        ("cuda-oom-code", "OUT_OF_MEMORY|ALLOC_FAILED|RESOURCE_EXHAUSTED",
         "CUDA_ERROR_OUT_OF_MEMORY|CU(?:BLAS|DNN|SPARSE|SOLVER)_STATUS_ALLOC_FAILED|"
         "RESOURCE_EXHAUSTED: (?:Out of memory|.*allocat)", 0.8),
        ("cublas-handle", "_STATUS_NOT_INITIALIZED", "CU(?:BLAS|DNN)_STATUS_NOT_INITIALIZED", 0.6,
         "the library found no memory for its handle, in most cases. A bad index in an earlier kernel does the "
         "same", "cuda-kernel-fault"),
        ("rocm-resources", "HSA_STATUS_ERROR_OUT_OF_RESOURCES", "HSA_STATUS_ERROR_OUT_OF_RESOURCES", 0.7),
    ], scope=RAISED),
    Row("memory-held", "cuda-out-of-memory", ROOT,
        "vLLM v1/worker/gpu_worker.py, utils/mem_utils.py: what is free at the start",
        "desired GPU memory|is unbalanced|Error in memory profiling",
        "Error in memory profiling|The memory capacity is unbalanced|less than desired GPU memory utilization",
        confidence=0.92, means="less is free than its share of the device's memory", scope=RAISED,
        fix="`{smi}` on {node} shows who else holds memory: end it. Or lower --gpu-memory-utilization"),
    Row("kv-cache", "cuda-out-of-memory", ROOT, "vLLM v1/core/kv_cache_utils.py, SGLang model_runner.py",
        "cache blocks|KV cache|KV-cache|to increase --mem-fraction",
        "Please try to increase --mem-fraction|KV cache is needed, which is larger|"
        "No available memory for the cache blocks|"
        "larger than the maximum number of tokens that can be stored in KV cache", confidence=0.75, scope=RAISED,
        fix="Lower --max-model-len, raise --gpu-memory-utilization (SGLang: --mem-fraction-static), or use more "
            "devices (--tensor-parallel-size)"),
    *table("CUDA cudaErrorIllegalAddress, cudaErrorAssert, cudaErrorLaunchFailure, ROCm hsa runtime", ROOT,
           "cuda-kernel-fault", [
        ("device-assert", "cudaErrorAssert|KERNEL_ASSERT|device-side assert|Assertion",
         r"device-side assert triggered|\.cu[h]?:\d+: .*Assertion .*failed|Indexing\.cu.*Assertion|"
         r"CUDA_KERNEL_ASSERT|cudaErrorAssert"),
        ("illegal-access", "illegal memory access|IllegalAddress|ILLEGAL_ADDRESS",
         "illegal memory access was encountered|cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("launch-failure",
         "hardware stack|launch failure|misaligned address|illegal instruction was|LAUNCH_FAILED|LaunchFailure|"
         "address space|program counter|launch timed out",
         "unspecified launch failure|misaligned address|an illegal instruction was encountered|"
         "CUDA_ERROR_LAUNCH_FAILED|cudaErrorLaunchFailure|hardware stack error|invalid address space|"
         "global/shared address space|invalid program counter|the launch timed out and was terminated", 0.8),
    ], scope=RAISED),
    *table("CUDA cudaErrorIllegalAddress, cudaErrorAssert, cudaErrorLaunchFailure, ROCm hsa runtime", ROOT,
           "cuda-kernel-fault", [
        ("rocm-fault", "Memory access fault|HSA_STATUS",
         "Memory access fault by GPU|HSA_STATUS_ERROR_(?:EXCEPTION|MEMORY|ILLEGAL_INSTRUCTION)", 0.85),
        ("execution-failed", "EXECUTION_FAILED", "CU(?:BLAS|DNN)_STATUS_EXECUTION_FAILED", 0.5),
    ]),
    Row("device-ordinal", "invalid-device-ordinal", ROOT, "CUDA cudaErrorInvalidDevice",
        "hipErrorInvalidDevice|nvidia-container-cli|on CUDA device|device_id|device ordinal|INVALID_DEVICE|"
        "Invalid device id",
        r"invalid device ordinal|nvidia-container-cli.{1,3}device error.*unknown device|CUDA_ERROR_INVALID_DEVICE|"
        r"hipErrorInvalidDevice|deserialize object on CUDA device \d+ but|"
        r"device_id \S+ is out of range\. Please use a device index|AssertionError: Invalid device id|"
        r"^Invalid device id", means="it asks for a GPU that the node has not, or does not show to it", scope=RAISED),
    Row("gpus-requested", "invalid-device-ordinal", ROOT, "Lightning fabric/utilities/device_parser.py",
        "You requested gpu|You requested GPU", "You requested (?:gpu|GPU)s?: ", confidence=0.92,
        means="Lightning's `devices` asks for more than the process is shown", scope=RAISED,
        fix="Ask for as many as a process sees: `devices=1`, or give the job more (`--gres=gpu:2`, "
            "`--gpus-per-node`, CUDA_VISIBLE_DEVICES)"),
    *table("vLLM v1/executor/ray_distributed_executor.py, torch cuda/__init__.py, CUDAFunctions.cpp, CUDA "
           "cudaErrorDevicesUnavailable, NoDevice, NVML", ROOT, "cuda-device-unavailable", [
        ("ray-driver", "Ray does not allocate any GPUs", "Ray does not allocate any GPUs on the driver node", 0.92,
         "the driver runs where Ray has given it no GPU"),
        ("device-busy", "busy or unavailable|device already in use|DEVICE_UNAVAILABLE|DevicesUnavailable",
         "busy or unavailable|exclusive-thread device already in use|CUDA_ERROR_DEVICE_UNAVAILABLE|"
         "cudaErrorDevicesUnavailable", 0.85, "the GPU is held by another process, in exclusive mode, or in error"),
        ("no-device",
         "No visible GPU|nitialize backend|infer device|devices (0)|No CUDA|No supported|OS call|Cuda is|"
         "CUDAAccelerator|CUDA-capable|no NVIDIA|No devices|NO_DEVICE|GPUs found|No HIP|access blocked|"
         "ROCm-capable|hipErrorNoDevice|ROCk|/dev/kfd",
         r"No visible GPU devices|Unable to initialize backend '(?!tpu': INVALID)|Failed to infer device type|"
         r"number of visible devices \(0\)|No (?:CUDA|HIP) GPUs are available|no CUDA-capable device|"
         r"Found no NVIDIA driver|No devices were found|CUDA_ERROR_NO_DEVICE|no GPUs found|GPU access blocked|"
         r"no ROCm-capable device is detected|hipErrorNoDevice|ROCk module is NOT loaded|"
         r"/dev/kfd\b.{0,30}: [Nn]o such file|Tensile host: No devices|No supported gpu backend found|"
         r"OS call failed or operation not supported on this OS|ValueError: Cuda is not available|"
         r"CUDAAccelerator. can not run on your system", 0.85),
    ], scope=RAISED),
    Row("ray-gpus", "cuda-device-unavailable", ROOT, "verl trainer/ppo/ray_trainer.py, vLLM executor/ray_utils.py",
        "lacement group c|total desired GPUs|in the placement group|available node types|scheduled right now",
        "Placement group (?:could not be created|creation timed out)|No available node types can fulfill|"
        "cannot be scheduled right now|less than total desired GPUs|"
        "GPUs exceeds the total .{0,40}in the placement group", confidence=0.85,
        means="the cluster of Ray has fewer GPUs than the program wants, so nodes have not joined or hold others",
        scope=RAISED,
        fix="Run `ray status`: it shows the nodes that have joined and the GPUs that are free. Join the others with "
            "`ray start --address {master}:6379`, end old actors, or ask for no more (trainer.nnodes, "
            "trainer.n_gpus_per_node, --tensor-parallel-size)"),
    Row("too-few-gpus", "invalid-device-ordinal", ROOT, "CUDA cudaErrorInvalidDevice",
        "GPU are|GPU is|GPU vis|GPU avail|GPUs are|GPUs is|GPUs vis|GPUs avail|than GPUs|nproc_per_node|device "
        "are|device is|device vis|device avail|devices are|devices is|devices vis|devices avail|visible devices|"
        "available GPU|number of GPUs",
        r"(?i)only \d+ (?:GPUs?|devices?) (?:are |is )?(?:available|visible)|more (?:processes|"
        r"ranks) than (?:available )?GPUs|exceeds the number of (?:available )?GPUs|"
        r"less than or equal to the number of visible devices(?! \(0\))|nproc_per_node .{0,60}(?:greater|larger|"
        r"more) than .{0,60}GPU", confidence=0.75),
    Row("duplicate-gpu", "duplicate-gpu", ROOT, "NCCL init.cc, torch ProcessGroupNCCL.cpp",
        "Duplicate GPU|using the same GPU|same GPU",
        r"Duplicate GPU detected(?: : rank \d+ and rank \d+)?|[Mm]ultiple [Rr]anks are using the same GPU|"
        r"are using the same GPU", confidence=0.95, scope=RAISED),
    *table("CUDA cudaErrorInsufficientDriver, CompatNotSupportedOnDevice, SystemDriverMismatch, NVML", ROOT,
           "driver-version-mismatch", [
        ("driver-old",
         "driver version is insufficient|too old|INSUFFICIENT_DRIVER|in the installed CUDA driver|"
         "CUDA Driver version found",
         r"driver version is insufficient|NVIDIA driver on your system is too old|CUDA_ERROR_INSUFFICIENT_DRIVER|"
         r"(?:CUDA error: |Error 36: |Cuda failure (?:\d+ )?')API call is not supported in the installed CUDA driver|"
         r"CUDA Driver version found is \d+\. Minimum"),
        ("driver-library", "RM_VERSION_MISMATCH|ersion mismatch|API mismatch",
         "[Dd]river/library version mismatch|API mismatch: the client has|NVML_ERROR_LIB_RM_VERSION_MISMATCH"),
        ("forward-compat",
         "version of the NVIDIA|version of the kernel|forward compatibility|display driver|unsupported toolchain|"
         "kernel module",
         "forward compatibility was attempted|unsupported display driver ?/ ?cuda driver|"
         "PTX was compiled with an unsupported toolchain|does not match the version of the (?:kernel|"
         "NVIDIA) (?:module|driver)"),
        ("container-driver", "unsatisfied condition|requirement error",
         "nvidia-container-cli: requirement error: unsatisfied condition: (?:cuda|driver)"),
    ], scope=RAISED),
    *table("torch cuda/__init__.py, CUDAFunctions.cpp, CUDA cudaErrorDevicesUnavailable, NoDevice, NVML", ROOT,
           "cuda-device-unavailable", [
        ("driver-absent", "libnvidia-ml|NVML Shared|invalid runtime name|CDI devices",
         "couldn't find libnvidia-ml|NVML Shared Library Not Found|invalid runtime name. nvidia|"
         "unresolvable CDI devices", 0.8),
        ("driver-silent",
         "communicate with the NVIDIA driver|Driver Not Loaded|NVML: Unknown|Unexpected error from "
         "cudaGetDeviceCount|nvidia-container-cli|could not select device driver|RmInitAdapter",
         "couldn't communicate with the NVIDIA driver|Driver Not Loaded|Failed to initialize NVML: Unknown Error|"
         "Unexpected error from cudaGetDeviceCount|nvidia-container-cli: (?:initialization|device) error|"
         "could not select device driver|RmInitAdapter failed", 0.75),
        ("no-cuda-load", "deserialize object on", "deserialize object on (?:a )?CUDA device", 0.75),
        ("cuda-initialization", "initialization error|not initialized",
         "CUDA (?:driver )?error: initialization error", 0.5),
    ]),
    Row("cuda-unknown", "cuda-device-unavailable", ROOT, "CUDA cudaErrorUnknown: the driver has logged what it was",
        "cudaErrorUnknown|unknown error",
        "(?:CUDA error|Cuda failure).*unknown error|CUDA unknown error|cudaErrorUnknown", confidence=0.45,
        also="gpu-hardware-error",
        fix="Run `{kernel_log}; {smi}` on {node}. Where the kernel names an Xid, take the node out or reset the GPU. "
            "Else end what holds it, and load nvidia_uvm again (`modprobe -r nvidia_uvm; modprobe nvidia_uvm`)"),
    Row("rocm-hang", "gpu-hardware-error", WEAK, "ROCR-Runtime runtime.cpp HwExceptionHandler",
        "HW Exception by GPU", r"HW Exception by GPU node-\d+ .*reason ?: ?GPU Hang", confidence=0.8,
        means="the driver reset the GPU, as a kernel never ended or the card failed: dmesg says which"),
    Row("contained", "gpu-hardware-error", ROOT, "CUDA cudaErrorContained",
        "or a hardware error|ErrorContained", "over nvlink or a hardware error|cudaErrorContained", confidence=0.6,
        means="the GPU has contained an error of its own or of a peer's memory: dmesg names the Xid",
        also="nvlink-error", scope=RAISED),
    Row("nccl-alloc", "cuda-out-of-memory", WEAK, "NCCL include/alloc.h",
        "Failed to CUDA", r"Failed to CUDA (?:malloc|calloc)(?: async)? \d+ bytes", confidence=0.6),
    Row("gpu-reset", "gpu-hardware-error", ROOT, "NVIDIA driver",
        "GPU requires reset|needs to be reset|requires a reset",
        "GPU requires reset|GPU (?:likely )?needs to be reset", confidence=0.75),
    Row("rocblas-arch", "environment-mismatch", ROOT, "rocBLAS tensile_host.cpp",
        "rocBLAS error", "rocBLAS error: Cannot read .*TensileLibrary", confidence=0.85,
        means="this build of torch has no code for this GPU", scope=RAISED),
    Row("rocm-kfd", "permission-denied", ROOT, "ROCm rocminfo.cc, rocm_smi",
        "/dev/kfd", "Unable to open /dev/kfd .*Permission denied|/dev/kfd.*Permission denied",
        means="the user is not in the groups render and video, or the container was not given /dev/kfd and "
              "/dev/dri", scope=RAISED),
    Row("no-kernel-image", "environment-mismatch", ROOT, "CUDA cudaErrorNoKernelImageForDevice, torch cuda/__init__.py",
        " kernel image|not compatible with the current PyTorch|invalid device function|NoBinaryForGpu|"
        "kernel image is invalid|ARCH_MISMATCH|shared object initialization|PTX JIT",
        "(?:no|No HIP) kernel image|hipErrorNoBinaryForGpu|is not compatible with the current PyTorch installation|"
        "invalid device function|device kernel image is invalid|CU(?:BLAS|DNN)_STATUS_ARCH_MISMATCH|"
        "PTX JIT compil(?:ation failed|er library not found)|(?:CUDA|HIP) error: shared object initialization failed",
        confidence=0.85, means="this build of torch or of an extension has no code for this GPU", scope=RAISED,
        fix="Run `python -c 'import torch; print(torch.cuda.get_arch_list())'`. Install a build of torch that lists "
            "this GPU, or build the extension again with {arch} set to it{near_arch}"),
    Row("cpu-torch", "environment-mismatch", ROOT, "torch distributed/distributed_c10d.py, cuda/__init__.py",
        "Torch not compiled|Distributed package doesn't|not compiled with CUDA|built in|not linked with support",
        "not compiled with CUDA enabled|Distributed package doesn't have (?:NCCL|MPI|GLOO|UCC)|"
        "Torch not compiled with|not linked with support for cuda",
        means="this build of torch lacks what the program asks for", scope=RAISED,
        fix="Run `python -c 'import torch; print({torch_version})'`. {own_backend}"),
)  # fmt: skip
