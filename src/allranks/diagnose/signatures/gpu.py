"""GPUs: what the driver, CUDA, ROCm and the kernel say of the device itself."""

from __future__ import annotations

from .row import RAISED, Row, Sign, table

ROOT = Sign.ROOT
WEAK = Sign.WEAK
SYMPTOM = Sign.SYMPTOM
NO_NVLS = (
    "Run `nvidia-smi -q | grep -A3 -i fabric; systemctl status nvidia-fabricmanager`, whose version must equal the "
    "driver's. NCCL_NVLS_ENABLE=0 runs without NVLink SHARP meanwhile, and so proves that it is the NVSwitches"
)
ROWS = (
    Row("xid", "gpu-hardware-error", ROOT, "NVIDIA Xid catalogue, allranks/xid.py", ("Xid",),
        r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<code>\d+)", rule="kernel-xid"),
    Row("sxid", "nvlink-error", ROOT, "NVIDIA fabric manager guide, NVSwitch SXids", ("SXid",),
        r"SXid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<code>\d+), (?P<severity>Fatal|Non-fatal|Severity|Data)",
        rule="kernel-xid"),
    *table(
        "NVIDIA driver, nvidia-smi, CUDA cudaErrorDeviceLost", ROOT, "gpu-fell-off-bus",
        [("off-the-bus", "fallen off the bus|GPU is lost|GPU_IS_LOST",
          r"fallen off the bus|GPU is lost|GPU_IS_LOST", 0.95,
          "the card vanished from the PCIe bus: a fault of the card, its power or its slot"),
        ("vanished-card", "device handle for",
         r"Unable to determine the device handle for (?:GPU|gpu) ?(?P<pci>[\w:.]{1,20})(?![\w:.])"
         r".*(?:lost|Unknown Error|not found)", 0.8)],
    ),
    *table(
        "CUDA cudaErrorECCUncorrectable, NVIDIA driver, HIP hipErrorECCNotCorrectable", ROOT, "ecc-error",
        [("ecc", "ECC", r"(?i)uncorrectable ECC error|cudaErrorECCUncorrectable|double.bit ECC|ECC error encountered|"
                        r"hipErrorECCNotCorrectable|CUDA_ERROR_ECC_UNCORRECTABLE|uncorrectable ECC (?:mem)", 0.95),
        ("row-remap", "emap", r"(?i)row[- ]remap\w* (?:fail|pending)|Remapping Failure Occurred *: Yes", 0.85)],
        scope=RAISED,
    ),
    *table(
        "ROCR-Runtime runtime.cpp HwExceptionHandler, VMFaultHandler", ROOT, "ecc-error",
        [("rocm-ecc", "HW Exception by GPU|ECC failure", r"HW Exception by GPU node-\d+ .*reason ?: ?ECC"
         r"|Memory access fault by GPU.*Reason: [DS]RAM ECC failure", 0.9)],
    ),
    *table(
        "CUDA cudaErrorNvlinkUncorrectable, NVIDIA fabric manager, nvidia-smi nvlink", ROOT, "nvlink-error",
        [("nvlink", "NVLink|NvLink|nvlink", r"(?i)uncorrectable NVLink error|NVLink (?:fatal|training) (?:error|fail)"
         r"|NVLink: (?:fatal|RLW|Fatal) |link \d{1,3} .{0,60}nvlink.{0,60}(?:fatal|inactive)|NVLink error", 0.9),
        ("nvswitch", "NVSwitch", r"(?i)detected NVSwitch (?:non-)?fatal error|NVSwitch .*(?:fatal error|has failed)",
         0.9)],
    ),
    *table(
        "NVIDIA fabric manager: it checks the driver's version when it starts", ROOT, "fabric-manager",
        [("fabric-version", "match with driver", r"(?i)fabric ?manager.* don't match with driver version", 0.95)],
        fix="Run `dpkg -l | grep -e fabricmanager -e nvidia-driver; cat /proc/driver/nvidia/version` on {node}. "
            "Install nvidia-fabricmanager in the driver's version ({driver}), or the driver in its version, and run "
            "`systemctl restart nvidia-fabricmanager`",
    ),
    *table(
        "NVIDIA fabric manager guide, CUDA cudaErrorSystemNotReady (802), NCCL transport/nvls.cc", ROOT,
         "fabric-manager",
        [("system-not-ready", "system not yet initialized|SYSTEM_NOT_READY|SystemNotReady",
         r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady", 0.9,
         "a driver service that the machine needs, on NVSwitch machines the fabric manager, is not ready"),
        ("fabric-manager", "abric|nv-fabricmanager",
         r"(?i)(?:nvidia-?|nv-?)?fabric ?manager(?:\.service)?\b.{0,60}(?:fail|not running|mismatch|don't match|"
         r"inactive|dead|not started|not found)|fabric state .*(?:fail|not)|waiting for fabric manager", 0.85)],
    ),
    *table(
        "NCCL transport/nvls.cc: what it asks of the NVSwitches", ROOT, "fabric-manager",
        [("nvls-multicast", "Multicast|multicast", r"NVLink SHARP \(NVLS\) Multicast memory|multicast.*CUDA error 401"
         r"|Failed to (?:bind|allocate|create).*[Mm]ulticast", 0.75,
         "NCCL: usually an error of the fabric manager or the NVSwitches")],
        fix=NO_NVLS,
    ),
    *table(
        "NCCL transport/nvls.cc: what it asks of the NVSwitches", SYMPTOM, "fabric-manager",
        [("nvls-failure", "transport/nvls.cc",
          r"transport/nvls\.cc:\d+ NCCL WARN Cuda failure (?!.*out of memory)", 0.4,
          "the NVSwitches refuse what NVLink SHARP needs", "driver-version-mismatch")],
        fix=NO_NVLS,
    ),
    *table(
        "NVIDIA IMEX guide, NCCL mnnvl.cc", ROOT, "fabric-manager",
        [("imex", "IMEX|imex|MNNVL (cliqueSize", r"MNNVL \(cliqueSize \d+\) is available but not|"
         r"(?i:imex.{0,40}(?:fail|error|not|denied))", 0.6)],
    ),
    *table(
        "torch CUDACachingAllocator.cpp, CUDA cudaErrorMemoryAllocation, cuBLAS, cuDNN, XLA, spconv, CTranslate2, "
        "ROCR-Runtime, clr rocdevice.cpp callbackQueue",
        ROOT, "cuda-out-of-memory",
        [("cuda-out-of-memory", "MemoryAllocation|hipErrorOutOfMemory|out of memory|OutOfMemoryError",
         r"(?:CUDA|HIP|XPU|NPU|MPS|GPU|cuda)\S* out of memory|CUDA [Ee]rror: out of memory"
         r"|torch\.(?:cuda\.)?OutOfMemoryError|Cuda failure.*out of memory|cudaErrorMemoryAllocation|"
         r"CUDA driver error: out of memory|CUDA runtime error.*out of memory|\.cu:\d+.*out of memory"
         r"|HIP error: out of memory|hipErrorOutOfMemory|(?:cuda|CUDA) failed with error (?:\d+ )?out of memory"),
        ("cuda-oom-code", "OUT_OF_MEMORY|ALLOC_FAILED|RESOURCE_EXHAUSTED", r"CUDA_ERROR_OUT_OF_MEMORY"
         r"|CU(?:BLAS|DNN|SPARSE|SOLVER)_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: (?:Out of memory|.*allocat)", 0.8),
        ("cublas-handle", "_STATUS_NOT_INITIALIZED", r"CU(?:BLAS|DNN)_STATUS_NOT_INITIALIZED", 0.6,
         "the library found no memory for its handle, in most cases. A bad index in an earlier kernel does the same",
         "cuda-kernel-fault"),
        ("rocm-resources", "HSA_STATUS_ERROR_OUT_OF_RESOURCES", r"HSA_STATUS_ERROR_OUT_OF_RESOURCES", 0.7)],
        scope=RAISED,
    ),
    *table(
        "vLLM v1/worker/gpu_worker.py, utils/mem_utils.py: what is free at the start", ROOT, "cuda-out-of-memory",
        [("memory-held", "desired GPU memory|is unbalanced|Error in memory profiling",
          r"Error in memory profiling|The memory capacity is unbalanced|"
                                                             r"less than desired GPU memory utilization", 0.92,
         "less is free than its share of the device's memory")],
        scope=RAISED, fix="`{smi}` on {node} shows who else holds memory: end it. Or lower --gpu-memory-utilization",
    ),
    *table(
        "vLLM v1/core/kv_cache_utils.py, SGLang model_runner.py", ROOT, "cuda-out-of-memory",
        [("kv-cache", "cache blocks|KV cache|KV-cache|to increase --mem-fraction", r"Please try to increase "
         r"--mem-fraction|"
                                                                          r"KV cache is needed, which is larger|"
                                                                          r"No available memory for the cache blocks|"
                                                                          r"larger than the maximum "
         r"number of tokens that can be stored in KV cache", 0.75)],
        scope=RAISED, fix="Lower --max-model-len, raise --gpu-memory-utilization (SGLang: --mem-fraction-static), or "
                          "use more devices (--tensor-parallel-size)",
    ),
    *table(
        "CUDA cudaErrorIllegalAddress, cudaErrorAssert, cudaErrorLaunchFailure, ROCm hsa runtime",
        ROOT, "cuda-kernel-fault",
        [("device-assert", "cudaErrorAssert|KERNEL_ASSERT|device-side assert|Assertion",
         r"device-side assert triggered|\.cu[h]?:\d+: .*Assertion .*failed"
         r"|Indexing\.cu.*Assertion|CUDA_KERNEL_ASSERT|cudaErrorAssert"),
        ("illegal-access", "illegal memory access|IllegalAddress|ILLEGAL_ADDRESS",
         r"illegal memory access was encountered|cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("launch-failure", "hardware stack|launch failure|misaligned address|illegal instruction "
                           "was|LAUNCH_FAILED|LaunchFailure|address space|program counter|launch timed out",
         r"unspecified launch failure|misaligned address|an illegal instruction was encountered|"
         r"CUDA_ERROR_LAUNCH_FAILED|cudaErrorLaunchFailure|hardware stack error|invalid address space|"
         r"global/shared address space|invalid program counter|the launch timed out and was terminated", 0.8)],
        scope=RAISED,
    ),
    *table(
        "CUDA cudaErrorIllegalAddress, cudaErrorAssert, cudaErrorLaunchFailure, ROCm hsa runtime",
        ROOT, "cuda-kernel-fault",
        [("rocm-fault", "Memory access fault|HSA_STATUS",
         r"Memory access fault by GPU|HSA_STATUS_ERROR_(?:EXCEPTION|MEMORY|ILLEGAL_INSTRUCTION)", 0.85),
        ("rocm-memory-in-use", "Memory critical error by agent", r"Memory critical error by agent node-\d+", 0.75,
         "memory was freed that a GPU still used"),
        ("execution-failed", "EXECUTION_FAILED", r"CU(?:BLAS|DNN)_STATUS_EXECUTION_FAILED", 0.5)],
    ),
    *table(
        "CUDA cudaErrorInvalidDevice", ROOT, "invalid-device-ordinal",
        [("device-ordinal", "hipErrorInvalidDevice|nvidia-container-cli|on CUDA device|device_id|"
         "device ordinal|INVALID_DEVICE|Invalid device id",
         r"invalid device ordinal|nvidia-container-cli.{1,3}device error.*unknown device|CUDA_ERROR_INVALID_DEVICE|"
         r"hipErrorInvalidDevice|deserialize object on CUDA device \d+ but|"
         r"device_id \S+ is out of range\. Please use a device index|AssertionError: Invalid device id|"
         r"^Invalid device id", 0.9,
         "it asks for a GPU that the node has not, or does not show to it")],
        scope=RAISED,
    ),
    *table(
        "Lightning fabric/utilities/device_parser.py", ROOT, "invalid-device-ordinal",
        [("gpus-requested", "You requested gpu|You requested GPU", r"You requested (?:gpu|GPU)s?: ", 0.92,
         "Lightning's `devices` asks for more than the process is shown")],
        scope=RAISED,
        fix="Ask for as many as a process sees: `devices=1`, or give the job more (`--gres=gpu:2`, `--gpus-per-node`, "
            "CUDA_VISIBLE_DEVICES)",
    ),
    *table(
        "vLLM v1/executor/ray_distributed_executor.py, torch cuda/__init__.py, CUDAFunctions.cpp, CUDA "
        "cudaErrorDevicesUnavailable, NoDevice, NVML", ROOT, "cuda-device-unavailable",
        [("ray-driver", "Ray does not allocate any GPUs", r"Ray does not allocate any GPUs on the driver node", 0.92,
         "the driver runs where Ray has given it no GPU"),
        ("device-busy", "busy or unavailable|device already in use|DEVICE_UNAVAILABLE|DevicesUnavailable",
         r"busy or unavailable|exclusive-thread device already in use|CUDA_ERROR_DEVICE_UNAVAILABLE"
         r"|cudaErrorDevicesUnavailable", 0.85, "the GPU is held by another process, in exclusive mode, or in error"),
        ("mps", "MPS client|MPS server|device connections",
         r"MPS client failed to connect|MPS server (?:is not ready|and the MPS client failed)"
         r"|required to (?:create MPS client|support device connections) have been exhausted", 0.9,
         "the Multi-Process Service, through which processes share the GPU, takes no client"),
        ("no-device", "No visible GPU|nitialize backend|infer device|devices (0)|No CUDA|No supported|OS call|Cuda "
         "is|CUDAAccelerator|CUDA-capable|"
         "no NVIDIA|No devices|NO_DEVICE|GPUs found|No HIP|access blocked|ROCm-capable|hipErrorNoDevice|ROCk|/dev/kfd",
         r"No visible GPU devices|Unable to initialize backend '(?!tpu': INVALID)|Failed to infer device type|number "
         r"of visible devices \(0\)|No (?:CUDA|HIP) GPUs are available|"
         r"no CUDA-capable device|Found no NVIDIA driver|No devices were found"
         r"|CUDA_ERROR_NO_DEVICE|no GPUs found|GPU access blocked|no ROCm-capable device is detected|hipErrorNoDevice"
         r"|ROCk module is NOT loaded|/dev/kfd\b.{0,30}: [Nn]o such file|Tensile host: No devices|"
         r"No supported gpu backend found|"
         r"OS call failed or operation not supported on this OS"
         r"|ValueError: Cuda is not available|CUDAAccelerator. can not run on your system", 0.85)],
        scope=RAISED,
    ),
    *table(
        "verl trainer/ppo/ray_trainer.py, vLLM executor/ray_utils.py", ROOT, "cuda-device-unavailable",
        [("ray-gpus", "lacement group c|total desired GPUs|in the placement group|available node types|scheduled "
         "right now",
         r"Placement group (?:could not be created|creation timed out)|No available node types can fulfill|cannot be "
         r"scheduled right now|less than total desired GPUs|"
         r"GPUs exceeds the total .{0,40}in the placement group",
         0.85, "the cluster of Ray has fewer GPUs than the program wants, so nodes have not joined or hold others")],
        scope=RAISED,
        fix="Run `ray status`: it shows the nodes that have joined and the GPUs that are free. Join the others with "
            "`ray start --address {master}:6379`, end old actors, or ask for no more (trainer.nnodes, "
            "trainer.n_gpus_per_node, --tensor-parallel-size)",
    ),
    *table(
        "CUDA cudaErrorInvalidDevice", ROOT, "invalid-device-ordinal",
        [("too-few-gpus", "GPU are|GPU is|GPU vis|GPU avail|GPUs are|GPUs is|GPUs vis|GPUs avail|than GPUs|"
         "nproc_per_node|device are|device is|device vis|device avail|devices are|devices is|devices vis|devices avail|"
         "visible devices|available GPU|number of GPUs",
         r"(?i)only \d+ (?:GPUs?|devices?) (?:are |is )?(?:available|visible)"
         r"|more (?:processes|ranks) than (?:available )?GPUs|exceeds the number of (?:available )?GPUs|"
         r"less than or equal to the number of visible devices(?! \(0\))|"
         r"nproc_per_node .{0,60}(?:greater|larger|more) than .{0,60}GPU", 0.75)],
    ),
    *table(
        "NCCL init.cc, torch ProcessGroupNCCL.cpp", ROOT, "duplicate-gpu",
        [("duplicate-gpu", "Duplicate GPU|using the same GPU|same GPU",
         r"Duplicate GPU detected(?: : rank \d+ and rank "
         r"\d+)?|[Mm]ultiple [Rr]anks are using the same GPU|are using the same GPU", 0.95)],
        scope=RAISED,
    ),
    *table(
        "CUDA cudaErrorInsufficientDriver, CompatNotSupportedOnDevice, SystemDriverMismatch, NVML",
        ROOT, "driver-version-mismatch",
        [("driver-old", "driver version is insufficient|too old|INSUFFICIENT_DRIVER|in the installed CUDA driver|"
         "CUDA Driver version found",
         r"driver version is insufficient|NVIDIA driver on your system is too old|CUDA_ERROR_INSUFFICIENT_DRIVER|"
         r"(?:CUDA error: |Error 36: |Cuda failure (?:\d+ )?')API call is not supported in the installed CUDA driver|"
         r"CUDA Driver version found is \d+\. Minimum"),
        ("driver-library", "RM_VERSION_MISMATCH|ersion mismatch|API mismatch",
         r"[Dd]river/library version mismatch|API mismatch: the client has|NVML_ERROR_LIB_RM_VERSION_MISMATCH"),
        ("forward-compat", "version of the NVIDIA|version of the kernel|"
         "forward compatibility|display driver|unsupported toolchain|kernel module",
         r"forward compatibility was attempted"
         r"|unsupported display driver ?/ ?cuda driver|PTX was compiled with an unsupported toolchain"
         r"|does not match the version of the (?:kernel|NVIDIA) (?:module|driver)"),
        ("container-driver", "unsatisfied condition|requirement error",
         r"nvidia-container-cli: requirement error: unsatisfied condition: (?:cuda|driver)", 0.9)],
        scope=RAISED,
    ),
    *table(
        "torch cuda/__init__.py, CUDAFunctions.cpp, CUDA cudaErrorDevicesUnavailable, NoDevice, NVML",
        ROOT, "cuda-device-unavailable",
        [("driver-absent", "libnvidia-ml|NVML Shared|invalid runtime name|CDI devices",
         r"couldn't find libnvidia-ml|NVML Shared Library Not Found|invalid runtime name. nvidia|"
         r"unresolvable CDI devices",
         0.8),
        ("driver-silent", "communicate with the NVIDIA driver|Driver Not Loaded|NVML: Unknown|Unexpected error from "
                          "cudaGetDeviceCount|nvidia-container-cli|could not select device driver|RmInitAdapter",
         r"couldn't communicate with the NVIDIA driver|Driver Not Loaded|Failed to initialize NVML: Unknown Error"
         r"|Unexpected error from cudaGetDeviceCount|nvidia-container-cli: (?:initialization|device) error"
         r"|could not select device driver|RmInitAdapter failed", 0.75),
        ("no-cuda-load", "deserialize object on", r"deserialize object on (?:a )?CUDA device", 0.75),
        ("cuda-initialization", "initialization error|not initialized",
         r"CUDA (?:driver )?error: initialization error", 0.5)],
    ),
    *table(
        "CUDA cudaErrorUnknown: the driver has logged what it was", ROOT, "cuda-device-unavailable",
        [("cuda-unknown", "cudaErrorUnknown|unknown error",
         r"(?:CUDA error|Cuda failure).*unknown error|CUDA unknown error|cudaErrorUnknown", 0.45, "",
         "gpu-hardware-error")],
        fix="Run `{kernel_log}; {smi}` on {node}. Where the kernel names an Xid, take the node out or reset the GPU. "
            "Else end what holds it, and load nvidia_uvm again (`modprobe -r nvidia_uvm; modprobe nvidia_uvm`)",
    ),
    *table(
        "ROCR-Runtime runtime.cpp HwExceptionHandler", WEAK, "gpu-hardware-error",
        [("rocm-hang", "HW Exception by GPU", r"HW Exception by GPU node-\d+ .*reason ?: ?GPU Hang", 0.8,
         "the driver reset the GPU, as a kernel never ended or the card failed: dmesg says which")],
    ),
    *table(
        "CUDA cudaErrorContained", ROOT, "gpu-hardware-error",
        [("contained", "or a hardware error|ErrorContained", r"over nvlink or a hardware error|cudaErrorContained", 0.6,
         "the GPU has contained an error of its own or of a peer's memory: dmesg names the Xid", "nvlink-error")],
        scope=RAISED,
    ),
    *table(
        "NCCL include/alloc.h", WEAK, "cuda-out-of-memory",
        [("nccl-alloc", "Failed to CUDA", r"Failed to CUDA (?:malloc|calloc)(?: async)? \d+ bytes", 0.6)],
        scope=RAISED,
    ),
    *table(
        "NVIDIA driver", ROOT, "gpu-hardware-error",
        [("gpu-reset", "GPU requires reset|needs to be reset|requires a reset",
         r"GPU requires reset|GPU (?:likely )?needs to be reset", 0.75)],
    ),
    *table(
        "rocBLAS tensile_host.cpp", ROOT, "environment-mismatch",
        [("rocblas-arch", "rocBLAS error", r"rocBLAS error: Cannot read .*TensileLibrary", 0.85,
         "this build of torch has no code for this GPU")],
        scope=RAISED,
    ),
    *table(
        "ROCR-Runtime runtime.cpp: the versions of amdgpu and of the libraries", ROOT, "driver-version-mismatch",
        [("rocm-userspace", "kernel and userspace", r"Incompatible kernel and userspace", 0.95)],
    ),
    *table(
        "ROCm rocminfo.cc, rocm_smi", ROOT, "permission-denied",
        [("rocm-kfd", "/dev/kfd", r"Unable to open /dev/kfd .*Permission denied|/dev/kfd.*Permission denied", 0.9,
         "the user is not in the groups render and video, or the container was not given /dev/kfd and /dev/dri")],
        scope=RAISED,
    ),
    *table(
        "CUDA cudaErrorNoKernelImageForDevice, torch cuda/__init__.py", ROOT, "environment-mismatch",
        [("no-kernel-image", " kernel image|not compatible with the current PyTorch|invalid device function"
         "|NoBinaryForGpu|kernel image is invalid|ARCH_MISMATCH|shared object initialization|PTX JIT",
         r"(?:no|No HIP) kernel image|hipErrorNoBinaryForGpu|"
         r"is not compatible with the current PyTorch installation|invalid device function|"
         r"device kernel image is invalid|CU(?:BLAS|DNN)_STATUS_ARCH_MISMATCH|PTX JIT compil(?:ation failed|"
         r"er library not found)|(?:CUDA|HIP) error: shared object initialization failed", 0.85,
         "this build of torch or of an extension has no code for this GPU")],
        scope=RAISED,
        fix="Run `python -c 'import torch; print(torch.cuda.get_arch_list())'`. Install a build of torch that lists "
            "this GPU, or build the extension again with {arch} set to it{near_arch}",
    ),
    *table(
        "torch distributed/distributed_c10d.py, cuda/__init__.py", ROOT, "environment-mismatch",
        [("cpu-torch", "Torch not compiled|Distributed package doesn't|"
         "not compiled with CUDA|built in|not linked with support", r"not compiled with CUDA enabled|"
         r"Distributed package doesn't have (?:NCCL|MPI|GLOO|UCC)|Torch "
          r"not compiled with|not linked with support for cuda", 0.9,
         "this build of torch lacks what the program asks for")],
        scope=RAISED,
        fix="Run `python -c 'import torch; print({torch_version})'`. {own_backend}",
    ),
)  # fmt: skip
