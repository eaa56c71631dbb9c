"""Accelerators of others than NVIDIA and AMD: Ascend and HCCL, Intel and oneCCL, TPUs and XLA, Gaudi."""

from __future__ import annotations

from dataclasses import replace

from .row import RAISED, ROOT, SYMPTOM, Row, table

_HCCL = "CANN hcomm src/common/err_msg, HCCL's codes"
_RUNTIME = "torch_npu csrc/core/npu/NPUErrorCodes.h, NPUException.cpp, acl/error_codes/rt_error_codes.h"
_CODE = r"(?:error code(?: is)?|[Rr]et[Cc]ode|errno)[ :=]{1,2}"
_UR = r"(?:UR|ZE)_RESULT_ERROR_"
_SYN = r"synStatus[= ](?:synStatus )?"
_XLA = r"(?:XlaRuntimeError: |JaxRuntimeError: |StatusOr access: |^RuntimeError: )"
_STATUSES = "absl/status/status.h, which XLA's messages begin with"
RANKTABLE = "Correct what the message names in the rank table or in the variable, alike on all nodes"
LINKS = (
    "Run `hccn_tool -i 0 -link -g; hccn_tool -i 0 -ip -g` for each NPU on {node}. Bring the port up: cable, switch, "
    "and `hccn_tool -i 0 -cfg recovery` for its address"
)
GRAPH = (
    "Compare the variables of all nodes (`env | grep -i -e HABANA -e HCCL -e HLS -e GAUDI`). DeepSpeed gives remote "
    "nodes only those of ~/.deepspeed_env: write the missing ones there, a line each. LOG_LEVEL_ALL=3 shows more"
)
TPU_MEMORY = (
    "Use a smaller batch or shorter inputs a core, bfloat16, activation checkpointing "
    "(torch_xla.utils.checkpoint), or FSDP over more cores. Pad inputs to few shapes, as each shape is a program in HBM"
)
ROWS = tuple(replace(row, scope=RAISED) for row in (
    # -- Ascend ------------------------------------------------------------------------------------------------
    *table(_HCCL, ROOT, "bad-launch-arguments", [
        ("hccl-variable", "EI0001|EI0016", r"\bEI00(?:01|16)\b", 0.8, "HCCL refuses a variable or a value"),
        ("hccl-ranktable", "EI0004|EI0014|EI0017", r"\bEI00(?:04|14|17)\b", 0.8,
         "the rank table does not fit the devices"),
    ], fix=RANKTABLE),
    Row("hccl-arguments", "collective-mismatch", ROOT, _HCCL, "EI0005", r"\bEI0005\b", confidence=0.75,
        means="ranks call a collective with different arguments", also="collective-shape-mismatch"),
    Row("hccl-memory", "cuda-out-of-memory", ROOT, _HCCL, "EI0011|EI0007|EL0004", r"\bE(?:I00(?:11|07)|L0004)\b",
        confidence=0.75, means="the NPU's memory ran out"),
    Row("hccl-versions", "nccl-version-mismatch", ROOT, _HCCL,
        "EI0008", r"\bEI0008\b", confidence=0.95, means="nodes have different versions of HCCL"),
    Row("hccl-bind", "port-in-use", ROOT, _HCCL, "EI0019|EJ0003|and specific port",
        r"\bE(?:I0019|J0003)\b(?:.*IP address (?P<peer>[\d.]+) and port (?P<port>\d+))?|"
        r"listen on ip\[[\d.]+\] and specific port\[(?P<port2>\d+)\] fail", confidence=0.92,
        means="HCCL's own port, 60000 to 60031 on the host or 16666 on the NPU, is held by another process",
        also="orphan-process"),
    Row("hccl-process", "orphan-process", ROOT, _HCCL, "EJ0001", r"\bEJ0001\b", confidence=0.85,
        means="an earlier training process still runs on the NPUs",
        fix="Run `npu-smi info` on {node}, which lists the processes on each NPU. End those of earlier runs, wait 10 "
            "s and start again"),
    Row("hccl-port-down", "node-network-down", ROOT, _HCCL, "EJ0002", r"\bEJ0002\b", confidence=0.85,
        means="the NPU's network port is down", fix=LINKS),
    Row("hccl-cqe", "nccl-ib-error", ROOT, _HCCL, "EI0013|error cqe",
        r"\bEI0013\b(?:.*Peer information: server (?P<peer>[\w.-]+))?|error cqe", confidence=0.7,
        means="a transfer between NPUs failed: its link, or its peer ended before", also="peer-died"),
    *table(_HCCL, SYMPTOM, "straggler", [
        ("hccl-notify", "EI0002", r"\bEI0002\b(?:.*remote rank: ?\[?(?P<late>\d+))?", 0.48,
         "the rank that it names did not come to the collective within HCCL_EXEC_TIMEOUT: late, or it had failed "
         "before", "peer-died"),
        ("npu-stream", "EE1002|507046", r"\bEE1002\b|error code(?: is)? 507046", 0.4,
         "a stream on the NPU did not end in time, in most cases a collective that another rank did not join",
         "peer-died"),
    ]),
    *table(_HCCL, SYMPTOM, "rendezvous-timeout", [
        ("hccl-root", "EI0015", r"\bEI0015\b", 0.6,
         "not all ranks came to HCCL's rendezvous in HCCL_CONNECT_TIMEOUT", "wrong-interface"),
        ("hccl-socket", "EI0006|socket establish timeout", r"\bEI0006\b|wait socket establish timeout", 0.48,
         "a link between two NPUs was not made in HCCL_CONNECT_TIMEOUT: the other rank came late, or its link is "
         "down", "nccl-ib-error"),
    ]),
    Row("hccl-transport", "peer-died", SYMPTOM, _HCCL,
        "EI0009|EI0012|507057", r"\berror code: ?507057|\bEI00(?:09|12)\b(?:.*dst_rank\[(?P<late>\d+)\])?",
        confidence=0.45, means="HCCL could not reach the other rank, and that one's own log must say why",
        also="nccl-ib-error"),
    Row("npu-ordinal", "invalid-device-ordinal", ROOT, "acl/error_codes/rt_error_codes.h: 107001",
        "107001", r"aclrtSetDevice\b.*error code is 107001", confidence=0.92),
    Row("npu-open", "cuda-device-unavailable", ROOT, "torch_npu csrc/core/npu/sys_ctrl/npu_sys_ctrl.cpp, DCMI",
        "aclInit|aclrtSetDevice|dcmi|ascend_hal device|drvGetDevNum",
        r"(?:aclInit|aclrtSetDevice)\b.*error code is 50[07]\d{3}|dcmi mod\w+ initialize failed|"
        r"get ascend_hal device count|drvGetDevNum failed", confidence=0.85,
        means="the NPU's driver does not open the device for this process"),
    Row("npu-ecc", "ecc-error", ROOT, "torch_npu csrc/core/npu/NPUException.cpp, acl/error_codes/rt_error_codes.h",
        "HBM MULTI BIT ECC|UCE ERROR|50705|ECC_ERROR",
        "HBM MULTI BIT ECC ERROR|UCE ERROR|error code(?: is)? 50705[34]|HBM_MULTI_BIT_ECC_ERROR"),
    Row("npu-core", "cuda-kernel-fault", ROOT, _RUNTIME, "5070|vector core exception|aicore exception",
        rf"{_CODE}5070(?:1[4-8]|3[4-6]|4[2-5])\b|(?:vector core|aicore) exception", confidence=0.75,
        means="a kernel on the NPU failed: a bad address, index or shape"),
    Row("npu-kernels", "environment-mismatch", ROOT,
        "CANN opp: kernels that are built for each chip, a package of their own",
        "any binary|dynamic kernel config|opp not found",
        r"opp not found|Op \w+ does not has any binary|Parse dynamic kernel config fail", confidence=0.85,
        means="CANN has no kernel of that operator for this chip"),
    Row("npu-memory", "cuda-out-of-memory", ROOT, _RUNTIME,
        "207001|207005|207018|200000", rf"{_CODE}(?:2070(?:01|05|18)|200000)\b", confidence=0.85),
    Row("npu-unavailable", "cuda-device-unavailable", ROOT, _RUNTIME,
        "207004|507033|507899|507901|500004|507010", rf"{_CODE}(?:207004|507(?:033|899|901|010)|500004)\b",
        confidence=0.75, means="the NPU or its driver does not answer"),
    Row("npu-release", "environment-mismatch", ROOT,
        "CANN's aclnn return codes, acl/error_codes/rt_error_codes.h: 507008, 507009, 507027, 207000",
        "5610|5611|50700|507027|20700|20000",
        rf"{_CODE}(?:561003|561103|5611(?:0[4-9]|1\d)|507(?:008|009|027)|207000|20000[16])\b", confidence=0.65,
        means="CANN has no kernel for this operator and chip, or is of another release than torch_npu and the "
              "driver"),
    Row("npu-arguments", "program-exception", ROOT, "CANN's aclnn return codes: 161001, 161002",
        "16100|107000", rf"{_CODE}(?:16100[12]|107000)\b", confidence=0.6,
        means="CANN refuses the shapes, types or values of that call"),
    Row("npu-reason", "environment-mismatch", ROOT, "CANN runtime: reasons below EE9999",
        "reason=", r"reason=\[?[^\[\]]{0,100}(?:not support|capture mode)", confidence=0.7,
        means="this release of CANN does not take that call here",
        fix="Run it without captured graphs (--enforce-eager of vLLM), or with the CANN and torch_npu that the "
            "program asks for: `python -m pip list | grep -i -e torch -e npu`"),
    Row("npu-operator", "environment-mismatch", SYMPTOM,
        "CANN's codes of operators: no kernel, tiling or type for that call",
        "EZ|E89999|E80", r"\bE(?:Z\d{4}|89999|80\d{3}): ", confidence=0.46,
        means="an operator of CANN failed: its release lacks it for this chip or type, or the program calls it "
              "wrongly", also="program-exception"),
    Row("hccl-function", "unknown", SYMPTOM,
        "torch_npu csrc/distributed/ProcessGroupHCCL.cpp: the code of HCCL says why",
        "function error|HCCL error in|ERR0", r"(?:HCCL|NPU|OPS) function error|HCCL error in:|\bERR0[12]\d{3}\b",
        confidence=0.3, means="a call of HCCL failed, and its plog says why"),
    # -- Intel -------------------------------------------------------------------------------------------------
    Row("xpu-lost", "gpu-hardware-error", ROOT, "Level Zero ze_api.h, Unified Runtime ur_api.h, SYCL's plug-ins",
        "DEVICE_LOST|DEVICE_REQUIRES_RESET|70000001",
        r"(?:UR|ZE)_RESULT_ERROR_DEVICE_(?:LOST|REQUIRES_RESET)|\b0x70000001\b", confidence=0.75,
        means="the GPU was reset or lost: dmesg says whether a kernel hung or the card failed",
        also="cuda-kernel-fault"),
    Row("xpu-memory", "cuda-out-of-memory", ROOT, "Level Zero ze_api.h, Unified Runtime ur_api.h, SYCL's plug-ins",
        "OUT_OF_DEVICE_MEMORY|OUT_OF_RESOURCES|70000003",
        r"(?:UR|ZE)_RESULT_ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES)|PI_ERROR_OUT_OF_RESOURCES|\b0x70000003\b",
        confidence=0.75),
    Row("xpu-host-memory", "host-out-of-memory", ROOT, "Level Zero ze_api.h, Unified Runtime ur_api.h, SYCL's plug-ins",
        "OUT_OF_HOST_MEMORY", "(?:UR|ZE)_RESULT_ERROR_OUT_OF_HOST_MEMORY", confidence=0.75),
    Row("xpu-none", "cuda-device-unavailable", ROOT, "Level Zero ze_api.h, Unified Runtime ur_api.h, SYCL's plug-ins",
        "ERROR_UNINITIALIZED|ERROR_DEVICE_NOT_|DEVICE_IN_LOW_POWER|No XPU devices|No device of requested type|"
        "ze_fd_manager",
        r"(?:ZE_RESULT|UR_RESULT|PI)_ERROR_(?:UNINITIALIZED|DEVICE_NOT_(?:FOUND|AVAILABLE)|DEVICE_IN_LOW_POWER_STATE)|"
        r"No XPU devices are available|ze_fd_manager\.\w{1,4}:\d+ .*open(?:dir)? failed|"
        r"No device of requested type available", confidence=0.85),
    Row("xpu-build", "environment-mismatch", ROOT,
        "Level Zero ze_api.h, Unified Runtime ur_api.h, SYCL's plug-ins",
        "ze_data was not|FUNCTION_ADDRESS|ERROR_UNSUPPORTED_|BUILD_|_LINK_FAILURE|_BINARY|DEPENDENCY_UNAVAILABLE|"
        "COMPILE_PROGRAM",
        rf"{_UR}(?:UNSUPPORTED_(?:VERSION|FEATURE)|INVALID_(?:NATIVE_)?BINARY|(?:MODULE|PROGRAM)_(?:BUILD|"
        rf"LINK)_FAILURE|DEPENDENCY_UNAVAILABLE)|PI_ERROR_(?:FUNCTION_ADDRESS_IS_NOT_AVAILABLE|"
        rf"BUILD_PROGRAM_FAILURE|COMPILE_PROGRAM_FAILURE|INVALID_BINARY)|ze_data was not initialized",
        confidence=0.75,
        means="the GPU's driver cannot build or load that kernel: another release than the library wants"),
    Row("xpu-permission", "permission-denied", ROOT, "Level Zero ze_api.h, Unified Runtime ur_api.h, SYCL's plug-ins",
        "INSUFFICIENT_PERMISSIONS", rf"{_UR}INSUFFICIENT_PERMISSIONS", confidence=0.85,
        fix="Put the user into the groups render and video, and give the container `--device /dev/dri`: `ls -l "
            "/dev/dri; id` on {node}"),
    Row("oneccl-transport", "nccl-ib-error", ROOT, "oneCCL src/atl/atl_base_transport.cpp, atl_ofi.cpp",
        "failed to initialize ATL|fabric provider|suitable provider|atl_ofi",
        r"failed to initialize ATL|atl_ofi\w*\.\w+:\d+ .*fi_getinfo error|(?:can't find|"
        r"could not find) (?:any )?suitable (?:fabric )?provider|no fabric provider", confidence=0.75,
        means="oneCCL found no transport or provider that works here", also="wrong-interface"),
    Row("oneccl-store", "master-unreachable", SYMPTOM, "oneCCL src/atl/util/pm: the store at which its ranks meet",
        "to kvs failed|pmi_resizable", r"connect to kvs failed|pmi_resizable\w*\.\w+:\d+ error", confidence=0.46,
        also="wrong-interface"),
    Row("oneccl-launcher", "bad-launch-arguments", ROOT,
        "oneCCL src/common/global/global.cpp: ranks that no mpirun has started", "local_idx/count|CCL_LOCAL_",
        "could not get local_idx/count|CCL_LOCAL_(?:RANK|SIZE) is not set", confidence=0.8,
        means="oneCCL asks mpirun for the ranks of the node, and another launcher has started them",
        fix="Set CCL_PROCESS_LAUNCHER=none, and for each rank CCL_LOCAL_RANK=$LOCAL_RANK and "
            "CCL_LOCAL_SIZE=$LOCAL_WORLD_SIZE. Or start the ranks with mpirun"),
    Row("oneccl-mpi", "environment-mismatch", ROOT, "oneCCL src/atl/mpi/atl_mpi_ctx.cpp, Intel MPI",
        "I_MPI_ROOT", "neither I_MPI_ROOT nor ONEAPI_ROOT is set",
        fix="Run `source /opt/intel/oneapi/setvars.sh` on every node before the start, or set I_MPI_ROOT or "
            "CCL_ATL_TRANSPORT=ofi"),
    Row("oneccl-error", "unknown", SYMPTOM, "Level Zero, Unified Runtime and oneCCL: what no other row knows",
        "CCL_ERROR|Native API failed|oneCCL: ", r"\|CCL_ERROR\|(?! *$)|Native API failed|\boneCCL: .{0,80}EXCEPTION",
        confidence=0.3),
    # -- TPUs --------------------------------------------------------------------------------------------------
    Row("tpu-memory", "cuda-out-of-memory", ROOT, "XLA tpu allocator, xla/service: HBM",
        "Attempting to|memory space hbm|HBM capacity",
        r"Attempting to (?:allocate|reserve) [\d.]+[KMG]?.{0,80}(?:not possible|HBM)|"
        r"Ran out of memory in memory space hbm|Exceeded (?:the )?HBM capacity", confidence=0.93,
        means="the TPU's HBM ran out", fix=TPU_MEMORY),
    Row("tpu-held", "cuda-device-unavailable", ROOT, "libtpu: one process owns the chips of a host",
        "/dev/vfio/|/dev/accel|TPU is already in use|libtpu|TPU initialization failed|No TPU devices|global TPU "
        "topology",
        r"TPU is already in use by process with pid (?P<pid>\d+)|libtpu_lockfile|TPU initialization failed|"
        r"/dev/(?:vfio/|accel)\d+.*resource busy|libtpu\.so (?:is )?already in use|"
        r"Failed to get global TPU topology|No TPU devices (?:were )?found", confidence=0.88,
        means="another process holds the chips, or not all workers of the slice have started the program"),
    Row("xla-rendezvous", "rendezvous-timeout", SYMPTOM, "torch_xla xla_client/mesh_service.cc",
        "to meet rendezvous", "Failed to meet rendezvous '[^']*'", confidence=0.48,
        means="a worker did not come to this point: it had ended before, or took another path", also="peer-died"),
    Row("xla-heartbeat", "peer-died", SYMPTOM, "XLA tsl/distributed_runtime/coordination",
        "unhealthy", r"tasks? (?:are|is) unhealthy \(stopped sending heartbeats\)", confidence=0.55),
    Row("xla-device", "bad-launch-arguments", ROOT, "torch_xla runtime: no device was named",
        "Missing XLA configuration", "Missing XLA configuration", confidence=0.95,
        fix="Run `export PJRT_DEVICE=TPU` on all workers before the start"),
    Row("mosaic-version", "environment-mismatch", ROOT, "XLA's Mosaic: libtpu reads kernels up to a version",
        "Mosaic module", "Failed to deserialize the Mosaic module: .*Unsupported version", confidence=0.95,
        means="torch_xla or jax is newer than libtpu"),
    Row("xla-unimplemented", "environment-mismatch", ROOT, _STATUSES, "UNIMPLEMENTED:", rf"{_XLA}UNIMPLEMENTED:",
        confidence=0.7, means="this release of XLA or libtpu cannot do that"),
    Row("xla-late", "rendezvous-timeout", SYMPTOM, _STATUSES, "DEADLINE_EXCEEDED:|CoordinationService/RegisterTask",
        rf"{_XLA}DEADLINE_EXCEEDED:(?! Barrier timed out)|^RPC: \S*CoordinationService/RegisterTask", confidence=0.45,
        means="the coordinator or another worker did not answer in time: absent, late, or behind a firewall",
        also="port-blocked"),
    Row("xla-unavailable", "peer-died", SYMPTOM, _STATUSES, "UNAVAILABLE:|ABORTED:|JAX distributed service",
        rf"JAX distributed service detected fatal errors|{_XLA}(?:UNAVAILABLE|ABORTED):", confidence=0.45,
        means="another worker or the coordinator does not answer: its own log must say why", also="rendezvous-timeout"),
    Row("xla-internal", "unknown", SYMPTOM, _STATUSES,
        "INTERNAL: |RET_CHECK failure", rf"{_XLA}INTERNAL: |RET_CHECK failure", confidence=0.3,
        means="XLA met what it does not expect, and does not say why"),
    # -- EFA and other fabrics of libfabric ------------------------------------------------------------------------
    Row("ofi-memory", "memlock-limit", ROOT, "libfabric fi_errno.h: 12 ENOMEM of what is pinned",
        "fi_", r"\bfi_[a-z_]+(?:\(\))?.{0,100}(?:ret(?:urned)?[= ]-?12\b|\(-12\)|Cannot allocate memory)",
        confidence=0.8, means="memory could not be locked for the fabric"),
    Row("ofi-none", "nccl-ib-error", ROOT,
        "libfabric fi_errno.h: 61 ENODATA, util/info.c, AWS EFA device plugin, aws-ofi-nccl nccl_ofi_net.c",
        "fi_getinfo|No valid EFA devices|NET/OFI",
        r"fi_getinfo\b.{0,60}(?:-61\b|No data available)|No valid EFA devices found|NET/OFI (?!Using|"
        r"Selected)(?:Plugin )?.{0,60}(?:initialization failed|No eligible providers|Failed to initialize|"
        r"find any optimal provider)", confidence=0.85,
        means="libfabric found no provider or device that it can open here",
        fix="Run `fi_info -p efa; ls -l /dev/infiniband; ls /sys/class/infiniband` on {node}, and in its "
            "container. Give the container the EFA devices alone (vpc.amazonaws.com/efa), not all of "
            "/dev/infiniband. An instance without EFA takes FI_PROVIDER=tcp"),
    # -- any -------------------------------------------------------------------------------------------------
    Row("device-backend", "environment-mismatch", ROOT,
        "torch c10d ProcessGroup.hpp, FallbackKernel.cpp: no backend of the group is for that device",
        "No backend type associated|currently implemented for the",
        r"No backend type associated with device type \w+|'c10d::\w+' is not currently implemented for the \w+ device",
        means="the process group has no backend for that device", fix="{own_backend}"),
    Row("other-device", "duplicate-gpu", ROOT,
        "torch fsdp/_flat_param.py: a rank's tensors lie on another device than its own",
        "on the compute device", r"Expects tensor to be on the compute device \w+:\d+, was on \w+:(?P<gpu>\d+)",
        confidence=0.7, means="the rank's device is not the one that it was given",
        fix="Call `{set_device}(int(os.environ['LOCAL_RANK']))` before the model is made. Where Ray starts the "
            "ranks, let it set {visible}: unset RAY_EXPERIMENTAL_NOSET_{visible}"),
    Row("miopen-build", "environment-mismatch", ROOT, "MIOpen miopen.h miopenStatus_t, hipoc_program.cpp",
        "Code object build failed|comgr status|miopenStatus",
        "Code object build failed|comgr status = |miopenStatus(?:NotImplemented|UnsupportedOp|VersionMismatch)",
        confidence=0.8, means="this ROCm has no code for this GPU, or cannot build it"),
    Row("miopen-internal", "unknown", SYMPTOM, "MIOpen miopen.h miopenStatus_t",
        "miopenStatus", "miopenStatus(?:InternalError|UnknownError|NotInitialized)", confidence=0.3,
        means="MIOpen says no more",
        fix="Run it again with MIOPEN_ENABLE_LOGGING=1 MIOPEN_LOG_LEVEL=5. Remove ~/.config/miopen and "
            "~/.cache/miopen, or give each node its own with MIOPEN_USER_DB_PATH. Compare `rocminfo | grep gfx` "
            "with the GPUs of this ROCm"),
    Row("gpu-code-file", "environment-mismatch", ROOT,
        "CUDA cudaErrorFileNotFound, HIP hipErrorFileNotFound: the kernels of a library",
        "rror: file not found|ErrorFileNotFound",
        "(?:CUDA|HIP) error: file not found|(?:cuda|hip)ErrorFileNotFound", confidence=0.8,
        means="a library's file of kernels is not where it looks: two installations are mixed"),
    # -- AMD -------------------------------------------------------------------------------------------------
    Row("rocm-isa", "environment-mismatch", ROOT, "ROCR-Runtime inc/hsa.h, hipBLAS hipblas.h, MIOpen miopen.h",
        "INVALID_ISA|INVALID_CODE_OBJECT|_ARCH_MISMATCH|HIPBLAS_STATUS_NOT_SUPPORTED|HSA_STATUS_ERROR_INCOMPATIBLE",
        r"HSA_STATUS_ERROR_(?:INVALID_ISA(?:_NAME)?|INVALID_CODE_OBJECT|INCOMPATIBLE_\w+)|"
        r"HIPBLAS_STATUS_(?:ARCH_MISMATCH|NOT_SUPPORTED)", confidence=0.75,
        means="this build of a library has no code for this GPU"),
    # -- Gaudi -------------------------------------------------------------------------------------------------
    *table("Gaudi's HCL: the ports between cards and nodes", ROOT, "nccl-ib-error", [
        ("gaudi-ports", "HCL: Ports|NIC port|nic port",
         r"(?:(?i:nic ports?)(?: \S+)?|HCL: Ports) (?:are|is) (?i:down)", 0.85),
        ("gaudi-ib", "Habana IB device|hcl_ibverbs", r"failed to find matching Habana IB device|hcl_ibverbs_t::init\b",
         0.85, "habanalabs_ib is not loaded, or the container does not see its devices"),
    ]),
    Row("gaudi-graph-collective", "bad-launch-arguments", ROOT, "Gaudi's PyTorch bridge: HPU graphs over several cards",
        "nonSFG", "collective nonSFG is not supported", confidence=0.95,
        means="HPU graphs take collectives in lazy mode alone",
        fix="Set PT_HPU_ENABLE_LAZY_COLLECTIVES=true before habana_frameworks is imported, on all nodes"),
    Row("gaudi-memory", "cuda-out-of-memory", ROOT, "Gaudi's PyTorch bridge, PT_DEVMEM", "PT_DEVMEM|synStatus",
        rf"PT_DEVMEM.*(?:llocation failed|[Oo]ut of memory|FATAL)|{_SYN}(?:4|14|27)\b", confidence=0.88),
    Row("gaudi-acquire", "cuda-device-unavailable", ROOT, "SynapseAI syn_api_types.h, Gaudi's PyTorch bridge",
        "evice acquire failed|synDeviceAcquire|synStatus",
        rf"{_SYN}(?:8|16|17|20)\b|[Dd]evice acquire failed|synDeviceAcquire\w*(?:\([^)]{{0,80}}\))? (?:failed|"
        rf"returned)", confidence=0.85),
    Row("gaudi-graph", "unknown", SYMPTOM, "Gaudi's PyTorch bridge: a status of SynapseAI", "synStatus|MODULE:PT_",
        r"FATAL ERROR :: MODULE:PT_(?!DEVMEM)|synStatus(?:=|\s)\S*.{0,20}\[[\w ]+\]|synStatus \d+", confidence=0.3,
        means="the bridge says no more. Where only remote nodes say it, their variables differ",
        fix=GRAPH),
    Row("gaudi-collective", "unknown", SYMPTOM, "Gaudi's process_group_hccl_base.cpp",
        "Collective call returned error", "Collective call returned error", confidence=0.3,
        means="a collective over Gaudi's NICs failed, and the log of SynapseAI says why"),
))  # fmt: skip
