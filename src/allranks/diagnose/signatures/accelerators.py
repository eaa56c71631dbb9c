"""Accelerators of others than NVIDIA and AMD: Ascend and HCCL, Intel and oneCCL, TPUs and XLA, Gaudi."""

from __future__ import annotations

from .row import RAISED, Row, Sign, table

ROOT = Sign.ROOT
WEAK = Sign.WEAK
SYMPTOM = Sign.SYMPTOM
CASCADE = Sign.CASCADE
_HCCL = "CANN hcomm src/common/err_msg, HCCL's codes"
_RUNTIME = "torch_npu csrc/core/npu/NPUErrorCodes.h, NPUException.cpp, acl/error_codes/rt_error_codes.h"
_RESULTS = "hccl/hccl_types.h HcclResult"
_CODE = r"(?:error code(?: is)?|[Rr]et[Cc]ode|errno)[ :=]{1,2}"
_HCCL_CALL = r"\b[Hh]ccl[A-Z].{0,120}error code is "
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
ROWS = (
    # -- Ascend ------------------------------------------------------------------------------------------------
    *table(
        _HCCL, ROOT, "bad-launch-arguments",
        [("hccl-variable", "EI0001|EI0016", r"\bEI00(?:01|16)\b", 0.8, "HCCL refuses a variable or a value"),
        ("hccl-ranktable", "EI0004|EI0014|EI0017", r"\bEI00(?:04|14|17)\b", 0.8,
         "the rank table does not fit the devices")],
        scope=RAISED, fix=RANKTABLE,
    ),
    *table(
        _HCCL, ROOT, "collective-mismatch",
        [("hccl-arguments", "EI0005", r"\bEI0005\b", 0.75, "ranks call a collective with different arguments",
         "collective-shape-mismatch")],
        scope=RAISED,
    ),
    *table(
        _HCCL, ROOT, "cuda-out-of-memory",
        [("hccl-memory", "EI0011|EI0007|EL0004", r"\bE(?:I00(?:11|07)|L0004)\b", 0.75, "the NPU's memory ran out")],
        scope=RAISED,
    ),
    *table(
        _HCCL, ROOT, "nccl-version-mismatch",
        [("hccl-versions", "EI0008", r"\bEI0008\b", 0.95, "nodes have different versions of HCCL")],
        scope=RAISED,
    ),
    *table(
        _HCCL, ROOT, "nccl-p2p-error",
        [("hccl-p2p", "EI0010", r"\bEI0010\b", 0.8)],
        scope=RAISED,
    ),
    *table(
        _HCCL, ROOT, "port-in-use",
        [("hccl-bind", "EI0019|EJ0003|and specific port",
         r"\bE(?:I0019|J0003)\b(?:.*IP address (?P<peer>[\d.]+) and port (?P<port>\d+))?|"
         r"listen on ip\[[\d.]+\] and specific port\[(?P<port2>\d+)\] fail", 0.92,
         "HCCL's own port, 60000 to 60031 on the host or 16666 on the NPU, is held by another process",
         "orphan-process")],
        scope=RAISED,
    ),
    *table(
        _HCCL, ROOT, "orphan-process",
        [("hccl-process", "EJ0001", r"\bEJ0001\b", 0.85, "an earlier training process still runs on the NPUs")],
        scope=RAISED,
        fix="Run `npu-smi info` on {node}, which lists the processes on each NPU. End those of earlier runs, wait 10 s "
            "and start again",
    ),
    *table(
        _HCCL, ROOT, "node-network-down",
        [("hccl-port-down", "EJ0002", r"\bEJ0002\b", 0.85, "the NPU's network port is down")],
        scope=RAISED, fix=LINKS,
    ),
    *table(
        _HCCL, ROOT, "wrong-interface",
        [("hccl-address", "EJ0004", r"\bEJ0004\b", 0.75, "the address is not one of this NPU's port")],
        scope=RAISED, fix=LINKS,
    ),
    *table(
        _HCCL, ROOT, "nccl-ib-error",
        [("hccl-cqe", "EI0013|error cqe", r"\bEI0013\b(?:.*Peer information: server (?P<peer>[\w.-]+))?|error cqe", 0.7,
         "a transfer between NPUs failed: its link, or its peer ended before", "peer-died")],
        scope=RAISED,
    ),
    *table(
        _HCCL, SYMPTOM, "straggler",
        [("hccl-notify", "EI0002",
         r"\bEI0002\b(?:.*remote rank: ?\[?(?P<late>\d+))?", 0.48,
         "the rank that it names did not come to the collective within HCCL_EXEC_TIMEOUT: late, or it had failed "
         "before",
         "peer-died"),
        ("npu-stream", "EE1002|507046", r"\bEE1002\b|error code(?: is)? 507046", 0.4,
         "a stream on the NPU did not end in time, in most cases a collective that another rank did not join",
         "peer-died")],
        scope=RAISED,
    ),
    *table(
        _HCCL, SYMPTOM, "rendezvous-timeout",
        [("hccl-root", "EI0015", r"\bEI0015\b", 0.6, "not all ranks came to HCCL's rendezvous in HCCL_CONNECT_TIMEOUT",
         "wrong-interface"),
        ("hccl-socket", "EI0006|socket establish timeout",
         r"\bEI0006\b|wait socket establish timeout", 0.48,
         "a link between two NPUs was not made in HCCL_CONNECT_TIMEOUT: the other rank came late, or its link is down",
         "nccl-ib-error")],
        scope=RAISED,
    ),
    *table(
        _HCCL, SYMPTOM, "peer-died",
        [("hccl-transport", "EI0009|EI0012|507057",
         r"\berror code: ?507057|\bEI00(?:09|12)\b(?:.*dst_rank\[(?P<late>\d+)\])?", 0.45,
         "HCCL could not reach the other rank, and that one's own log must say why", "nccl-ib-error")],
        scope=RAISED,
    ),
    *table(
        "acl/error_codes/rt_error_codes.h: 107001", ROOT, "invalid-device-ordinal",
        [("npu-ordinal", "107001", r"aclrtSetDevice\b.*error code is 107001", 0.92)],
        scope=RAISED,
    ),
    *table(
        "torch_npu csrc/core/npu/sys_ctrl/npu_sys_ctrl.cpp, DCMI", ROOT, "cuda-device-unavailable",
        [("npu-open", "aclInit|aclrtSetDevice|dcmi|ascend_hal device|drvGetDevNum", r"(?:aclInit|"
         r"aclrtSetDevice)\b.*error code is 50[07]\d{3}|"
          r"dcmi mod\w+ initialize failed|get ascend_hal device count|drvGetDevNum failed", 0.85, "the NPU's driver "
          "does not open the device for this process")],
        scope=RAISED,
    ),
    *table(
        "torch_npu csrc/core/npu/NPUException.cpp, acl/error_codes/rt_error_codes.h", ROOT, "ecc-error",
        [("npu-ecc", "HBM MULTI BIT ECC|UCE ERROR|50705|ECC_ERROR",
         r"HBM MULTI BIT ECC ERROR|UCE ERROR|error code(?: is)? 50705[34]|HBM_MULTI_BIT_ECC_ERROR", 0.9)],
        scope=RAISED,
    ),
    *table(
        "torch_npu csrc/core/npu/NPUException.cpp, acl/error_codes/rt_error_codes.h", ROOT, "nvlink-error",
        [("npu-link", "LINK ERROR|507056", r"HCCS LINK ERROR|error code(?: is)? 507056", 0.8)],
        scope=RAISED,
    ),
    *table(
        _RUNTIME, ROOT, "cuda-kernel-fault",
        [("npu-core", "5070|vector core exception|aicore exception",
         rf"{_CODE}5070(?:1[4-8]|3[4-6]|4[2-5])\b|(?:vector core|aicore) exception", 0.75,
         "a kernel on the NPU failed: a bad address, index or shape")],
        scope=RAISED,
    ),
    *table(
        "CANN opp: kernels that are built for each chip, a package of their own", ROOT, "environment-mismatch",
        [("npu-kernels", "any binary|dynamic kernel config|opp not found", r"opp not found|Op \w+ does not has any "
         r"binary|Parse dynamic kernel "
         r"config fail", 0.85, "CANN has no kernel of that operator for this chip")],
        scope=RAISED,
    ),
    *table(
        _RUNTIME, ROOT, "cuda-out-of-memory",
        [("npu-memory", "207001|207005|207018|200000", rf"{_CODE}(?:2070(?:01|05|18)|200000)\b", 0.85)],
        scope=RAISED,
    ),
    *table(
        _RUNTIME, ROOT, "permission-denied",
        [("npu-permission", "207006", rf"{_CODE}207006\b", 0.85, "this user may not use the NPU")],
        scope=RAISED, fix="Put the user into the group that owns the devices: `ls -l /dev/davinci*; id` on {node}, "
                          "HwHiAiUser in most cases",
    ),
    *table(
        _RUNTIME, ROOT, "cuda-device-unavailable",
        [("npu-unavailable", "207004|507033|507899|507901|500004|507010",
         rf"{_CODE}(?:207004|507(?:033|899|901|010)|500004)\b", 0.75, "the NPU or its driver does not answer")],
        scope=RAISED,
    ),
    *table(
        _RUNTIME, ROOT, "limit-too-small",
        [("npu-streams", "20700|20701", rf"{_CODE}2070(?:0[789]|1[012])\b", 0.85,
         "the NPU has no streams, events or models left")],
        scope=RAISED,
        fix="Use fewer captured graphs (--cudagraph-capture-sizes or --enforce-eager of vLLM) and fewer process "
            "groups, with HCCL_OP_EXPANSION_MODE=AIV",
    ),
    *table(
        "CANN's aclnn return codes, acl/error_codes/rt_error_codes.h: 507008, 507009, 507027, 207000", ROOT,
        "environment-mismatch",
        [("npu-release", "5610|5611|50700|507027|20700|20000",
         rf"{_CODE}(?:561003|561103|5611(?:0[4-9]|1\d)|507(?:008|009|027)|207000|20000[16])\b", 0.65,
         "CANN has no kernel for this operator and chip, or is of another release than torch_npu and the driver")],
        scope=RAISED,
    ),
    *table(
        "CANN's aclnn return codes: 161001, 161002", ROOT, "program-exception",
        [("npu-arguments", "16100|107000", rf"{_CODE}(?:16100[12]|107000)\b", 0.6,
         "CANN refuses the shapes, types or values of that call")],
        scope=RAISED,
    ),
    *table(
        "torch_npu utils/_error_code.py", ROOT, "environment-mismatch",
        [("npu-feature", "feature not supported", r"\b(?:PTA|OPS|DIST|GRAPH) feature not supported", 0.7,
         "this release of torch_npu cannot do that")],
        scope=RAISED,
    ),
    *table(
        _RESULTS, ROOT, "cuda-out-of-memory",
        [("hccl-result-memory", "error code is 3|error code is 24", rf"{_HCCL_CALL}(?:3|24)\b", 0.6)],
        scope=RAISED,
    ),
    *table(
        _RESULTS, ROOT, "nccl-ib-error",
        [("hccl-result-network", "error code is 1", rf"{_HCCL_CALL}(?:1[34]|19)\b", 0.55,
         "a transfer between NPUs or the network under it failed", "peer-died")],
        scope=RAISED,
    ),
    *table(
        _RESULTS, SYMPTOM, "rendezvous-timeout",
        [("hccl-result-connect", "error code is 9|error code is 1", rf"{_HCCL_CALL}(?:9|1[12])\b", 0.48,
         "a link to another rank was not made in time: that one came late, or its link is down", "nccl-ib-error")],
        scope=RAISED,
    ),
    *table(
        _RESULTS, SYMPTOM, "peer-died",
        [("hccl-result-remote", "error code is 21|HCCL_E_REMOTE", rf"{_HCCL_CALL}21\b|HCCL_E_REMOTE\b", 0.45,
         "another rank ended, or its link did", "nccl-ib-error")],
        scope=RAISED,
    ),
    *table(
        "CANN runtime: reasons below EE9999", ROOT, "environment-mismatch",
        [("npu-reason", "reason=", r"reason=\[?[^\[\]]{0,100}(?:not support|capture mode)", 0.7,
         "this release of CANN does not take that call here")],
        scope=RAISED,
        fix="Run it without captured graphs (--enforce-eager of vLLM), or with the CANN and torch_npu that the program "
            "asks for: `python -m pip list | grep -i -e torch -e npu`",
    ),
    *table(
        "CANN's codes of operators: no kernel, tiling or type for that call", SYMPTOM, "environment-mismatch",
        [("npu-operator", "EZ|E89999|E80", r"\bE(?:Z\d{4}|89999|80\d{3}): ", 0.46, "an operator of CANN failed: its "
         "release "
          "lacks it for this chip or type, or the program calls it wrongly", "program-exception")],
        scope=RAISED,
    ),
    *table(
        "torch_npu csrc/distributed/ProcessGroupHCCL.cpp: the code of HCCL says why", SYMPTOM, "unknown",
        [("hccl-function", "function error|HCCL error in|ERR0",
         r"(?:HCCL|NPU|OPS) function error|HCCL error in:|\bERR0[12]\d{3}\b", 0.3, "a call of HCCL failed, and its "
                                                                                   "plog says why")],
        scope=RAISED,
    ),
    # -- Intel -------------------------------------------------------------------------------------------------
    *table(
        "Level Zero ze_api.h, Unified Runtime ur_api.h, SYCL's plug-ins", ROOT, "gpu-hardware-error",
        [("xpu-lost", "DEVICE_LOST|DEVICE_REQUIRES_RESET|70000001",
         r"(?:UR|ZE)_RESULT_ERROR_DEVICE_(?:LOST|REQUIRES_RESET)|\b0x70000001\b", 0.75,
         "the GPU was reset or lost: dmesg says whether a kernel hung or the card failed", "cuda-kernel-fault")],
        scope=RAISED,
    ),
    *table(
        "Level Zero ze_api.h, Unified Runtime ur_api.h, SYCL's plug-ins", ROOT, "cuda-out-of-memory",
        [("xpu-memory", "OUT_OF_DEVICE_MEMORY|OUT_OF_RESOURCES|70000003",
         r"(?:UR|ZE)_RESULT_ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES)|PI_ERROR_OUT_OF_RESOURCES|\b0x70000003\b", 0.75)],
        scope=RAISED,
    ),
    *table(
        "Level Zero ze_api.h, Unified Runtime ur_api.h, SYCL's plug-ins", ROOT, "host-out-of-memory",
        [("xpu-host-memory", "OUT_OF_HOST_MEMORY", r"(?:UR|ZE)_RESULT_ERROR_OUT_OF_HOST_MEMORY", 0.75)],
        scope=RAISED,
    ),
    *table(
        "Level Zero ze_api.h, Unified Runtime ur_api.h, SYCL's plug-ins", ROOT, "cuda-device-unavailable",
        [("xpu-none", "ERROR_UNINITIALIZED|ERROR_DEVICE_NOT_|DEVICE_IN_LOW_POWER|No XPU devices|No device of requested "
                     "type|ze_fd_manager",
         r"(?:ZE_RESULT|UR_RESULT|PI)_ERROR_(?:UNINITIALIZED|DEVICE_NOT_(?:FOUND|AVAILABLE)|DEVICE_IN_LOW_POWER_STATE)|"
         r"No XPU devices are available|"
         r"ze_fd_manager\.\w{1,4}:\d+ .*open(?:dir)? failed|No device of requested type available", 0.85)],
        scope=RAISED,
    ),
    *table(
        "Level Zero ze_api.h, Unified Runtime ur_api.h, SYCL's plug-ins", ROOT, "environment-mismatch",
        [("xpu-build", "ze_data was not|FUNCTION_ADDRESS|ERROR_UNSUPPORTED_|BUILD_|_LINK_FAILURE|_BINARY|"
         "DEPENDENCY_UNAVAILABLE|COMPILE_PROGRAM",
         rf"{_UR}(?:UNSUPPORTED_(?:VERSION|FEATURE)|INVALID_(?:NATIVE_)?BINARY|(?:MODULE|PROGRAM)_(?:BUILD|"
         rf"LINK)_FAILURE|"
         r"DEPENDENCY_UNAVAILABLE)|PI_ERROR_(?:FUNCTION_ADDRESS_IS_NOT_AVAILABLE|BUILD_PROGRAM_FAILURE|"
         r"COMPILE_PROGRAM_FAILURE|INVALID_BINARY)|ze_data was not initialized", 0.75,
         "the GPU's driver cannot build or load that kernel: another release than the library wants")],
        scope=RAISED,
    ),
    *table(
        "Level Zero ze_api.h, Unified Runtime ur_api.h, SYCL's plug-ins", ROOT, "permission-denied",
        [("xpu-permission", "INSUFFICIENT_PERMISSIONS", rf"{_UR}INSUFFICIENT_PERMISSIONS", 0.85)],
        scope=RAISED, fix="Put the user into the groups render and video, and give the container `--device /dev/dri`: "
                          "`ls -l /dev/dri; id` on {node}",
    ),
    *table(
        "oneCCL src/atl/atl_base_transport.cpp, atl_ofi.cpp", ROOT, "nccl-ib-error",
        [("oneccl-transport", "failed to initialize ATL|fabric provider|suitable provider|atl_ofi",
         r"failed to initialize ATL|atl_ofi\w*\.\w+:\d+ .*fi_getinfo error|(?:can't find|"
         r"could not find) (?:any )?suitable (?:fabric )?provider|"
         r"no fabric provider", 0.75, "oneCCL found no transport or provider that works here", "wrong-interface")],
        scope=RAISED,
    ),
    *table(
        "oneCCL src/atl/util/pm: the store at which its ranks meet", SYMPTOM, "master-unreachable",
        [("oneccl-store", "to kvs failed|pmi_resizable",
          r"connect to kvs failed|pmi_resizable\w*\.\w+:\d+ error", 0.46, "",
          "wrong-interface")],
        scope=RAISED,
    ),
    *table(
        "oneCCL src/common/global/global.cpp: ranks that no mpirun has started", ROOT, "bad-launch-arguments",
        [("oneccl-launcher", "local_idx/count|CCL_LOCAL_", r"could not get local_idx/count|CCL_LOCAL_(?:RANK|SIZE) "
         r"is not set", 0.8, "oneCCL asks mpirun for the ranks of the node, and another launcher has started them")],
        scope=RAISED,
        fix="Set CCL_PROCESS_LAUNCHER=none, and for each rank CCL_LOCAL_RANK=$LOCAL_RANK and "
            "CCL_LOCAL_SIZE=$LOCAL_WORLD_SIZE. Or start the ranks with mpirun",
    ),
    *table(
        "oneCCL src/atl/mpi/atl_mpi_ctx.cpp, Intel MPI", ROOT, "environment-mismatch",
        [("oneccl-mpi", "I_MPI_ROOT", r"neither I_MPI_ROOT nor ONEAPI_ROOT is set", 0.9)],
        scope=RAISED, fix="Run `source /opt/intel/oneapi/setvars.sh` on every node before the start, or set I_MPI_ROOT "
                          "or CCL_ATL_TRANSPORT=ofi",
    ),
    *table(
        "Level Zero, Unified Runtime and oneCCL: what no other row knows", SYMPTOM, "unknown",
        [("oneccl-error", "CCL_ERROR|Native API failed|oneCCL: ",
         r"\|CCL_ERROR\|(?! *$)|Native API failed|\boneCCL: .{0,80}EXCEPTION", 0.3)],
    ),
    # -- TPUs --------------------------------------------------------------------------------------------------
    Row("tpu-memory", "cuda-out-of-memory", role=ROOT, source="XLA tpu allocator, xla/service: HBM",
        needs=("Attempting to", "memory space hbm", "HBM capacity"),
        pattern=r"Attempting to (?:allocate|reserve) [\d.]+[KMG]?.{0,80}(?:not possible|HBM)|"
        r"Ran out of memory in memory space hbm|"
        r"Exceeded (?:the )?HBM capacity", confidence=0.93, means="the TPU's HBM ran out", scope=RAISED,
        fix=TPU_MEMORY),
    *table(
        "libtpu: one process owns the chips of a host", ROOT, "cuda-device-unavailable",
        [("tpu-held", "/dev/vfio/|/dev/accel|TPU is already in use|libtpu|TPU initialization failed|No TPU "
                      "devices|global TPU topology",
         r"TPU is already in use by process with pid (?P<pid>\d+)|libtpu_lockfile|TPU initialization failed|"
         r"/dev/(?:vfio/|accel)\d+.*resource busy|libtpu\.so (?:is )?already in use|"
         r"Failed to get global TPU topology|No TPU devices (?:were )?found", 0.88,
         "another process holds the chips, or not all workers of the slice have started the program")],
        scope=RAISED,
    ),
    *table(
        "torch_xla xla_client/mesh_service.cc", SYMPTOM, "rendezvous-timeout",
        [("xla-rendezvous", "to meet rendezvous", r"Failed to meet rendezvous '[^']*'", 0.48,
         "a worker did not come to this point: it had ended before, or took another path", "peer-died")],
        scope=RAISED,
    ),
    *table(
        "XLA tsl/distributed_runtime/coordination", SYMPTOM, "peer-died",
        [("xla-heartbeat", "unhealthy", r"tasks? (?:are|is) unhealthy \(stopped sending heartbeats\)", 0.55)],
    ),
    *table(
        "torch_xla runtime: no device was named", ROOT, "bad-launch-arguments",
        [("xla-device", "Missing XLA configuration", r"Missing XLA configuration", 0.95)],
        scope=RAISED, fix="Run `export PJRT_DEVICE=TPU` on all workers before the start",
    ),
    *table(
        "XLA's Mosaic: libtpu reads kernels up to a version", ROOT, "environment-mismatch",
        [("mosaic-version", "Mosaic module", r"Failed to deserialize the Mosaic module: .*Unsupported version", 0.95,
         "torch_xla or jax is newer than libtpu")],
        scope=RAISED,
    ),
    *table(
        _STATUSES, ROOT, "environment-mismatch",
        [("xla-unimplemented", "UNIMPLEMENTED:", rf"{_XLA}UNIMPLEMENTED:", 0.7,
         "this release of XLA or libtpu cannot do that")],
        scope=RAISED,
    ),
    *table(
        _STATUSES, SYMPTOM, "rendezvous-timeout",
        [("xla-late", "DEADLINE_EXCEEDED:|CoordinationService/RegisterTask",
         rf"{_XLA}DEADLINE_EXCEEDED:(?! Barrier timed out)|^RPC: \S*CoordinationService/RegisterTask", 0.45,
         "the coordinator or another worker did not answer in time: absent, late, or behind a firewall",
         "port-blocked")],
        scope=RAISED,
    ),
    *table(
        _STATUSES, SYMPTOM, "peer-died",
        [("xla-unavailable", "UNAVAILABLE:|ABORTED:|JAX distributed service",
          rf"JAX distributed service detected fatal errors|{_XLA}(?:UNAVAILABLE|ABORTED):", 0.45,
         "another worker or the coordinator does not answer: its own log must say why", "rendezvous-timeout")],
        scope=RAISED,
    ),
    *table(
        _STATUSES, SYMPTOM, "unknown",
        [("xla-internal", "INTERNAL: |RET_CHECK failure", rf"{_XLA}INTERNAL: |RET_CHECK failure", 0.3,
         "XLA met what it does not expect, and does not say why")],
        scope=RAISED,
    ),
    # -- EFA and other fabrics of libfabric ------------------------------------------------------------------------
    *table(
        "libfabric fi_errno.h: 12 ENOMEM of what is pinned", ROOT, "memlock-limit",
        [("ofi-memory", "fi_", r"\bfi_[a-z_]+(?:\(\))?.{0,100}(?:ret(?:urned)?[= ]-?12\b|\(-12\)|"
         r"Cannot allocate memory)", 0.8, "memory could not be locked for the fabric")],
        scope=RAISED,
    ),
    *table(
        "libfabric fi_errno.h: 61 ENODATA, util/info.c, AWS EFA device plugin, aws-ofi-nccl nccl_ofi_net.c", ROOT,
        "nccl-ib-error",
        [("ofi-none", "fi_getinfo|No valid EFA devices|NET/OFI",
         r"fi_getinfo\b.{0,60}(?:-61\b|No data available)|No valid EFA devices found|"
         r"NET/OFI (?!Using|Selected)(?:Plugin )?.{0,60}(?:initialization failed|No eligible providers|"
         r"Failed to initialize|find any optimal provider)", 0.85,
         "libfabric found no provider or device that it can open here")],
        scope=RAISED,
        fix="Run `fi_info -p efa; ls -l /dev/infiniband; ls /sys/class/infiniband` on {node}, and in its container. "
            "Give the container the EFA devices alone (vpc.amazonaws.com/efa), not all of /dev/infiniband. An instance "
            "without EFA takes FI_PROVIDER=tcp",
    ),
    # -- any -------------------------------------------------------------------------------------------------
    *table(
        "torch c10d ProcessGroup.hpp, FallbackKernel.cpp: no backend of the group is for that device", ROOT,
        "environment-mismatch",
        [("device-backend", "No backend type associated|currently implemented for the",
         r"No backend type associated with device type \w+|"
         r"'c10d::\w+' is not currently implemented for the \w+ device", 0.9,
         "the process group has no backend for that device")],
        scope=RAISED, fix="{own_backend}",
    ),
    *table(
        "torch fsdp/_flat_param.py: a rank's tensors lie on another device than its own", ROOT, "duplicate-gpu",
        [("other-device", "on the compute device",
         r"Expects tensor to be on the compute device \w+:\d+, was on \w+:(?P<gpu>\d+)", 0.7,
         "the rank's device is not the one that it was given")],
        scope=RAISED,
        fix="Call `{set_device}(int(os.environ['LOCAL_RANK']))` before the model is made. Where Ray starts the ranks, "
            "let it set {visible}: unset RAY_EXPERIMENTAL_NOSET_{visible}",
    ),
    *table(
        "MIOpen miopen.h miopenStatus_t, hipoc_program.cpp", ROOT, "environment-mismatch",
        [("miopen-build", "Code object build failed|comgr status|miopenStatus",
         r"Code object build failed|comgr status = |miopenStatus(?:NotImplemented|UnsupportedOp|VersionMismatch)", 0.8,
         "this ROCm has no code for this GPU, or cannot build it")],
        scope=RAISED,
    ),
    *table(
        "MIOpen miopen.h miopenStatus_t", ROOT, "cuda-out-of-memory",
        [("miopen-memory", "miopenStatusAllocFailed", r"miopenStatusAllocFailed", 0.8)],
        scope=RAISED,
    ),
    *table(
        "MIOpen miopen.h miopenStatus_t", SYMPTOM, "unknown",
        [("miopen-internal", "miopenStatus", r"miopenStatus(?:InternalError|UnknownError|NotInitialized)", 0.3,
         "MIOpen says no more")],
        scope=RAISED,
        fix="Run it again with MIOPEN_ENABLE_LOGGING=1 MIOPEN_LOG_LEVEL=5. Remove ~/.config/miopen and "
            "~/.cache/miopen, or give each node its own with MIOPEN_USER_DB_PATH. Compare `rocminfo | grep gfx` with "
            "the GPUs of this ROCm",
    ),
    *table(
        "CUDA cudaErrorFileNotFound, HIP hipErrorFileNotFound: the kernels of a library", ROOT, "environment-mismatch",
        [("gpu-code-file", "rror: file not found|ErrorFileNotFound",
         r"(?:CUDA|HIP) error: file not found|(?:cuda|hip)ErrorFileNotFound", 0.8,
         "a library's file of kernels is not where it looks: two installations are mixed")],
        scope=RAISED,
    ),
    # -- AMD -------------------------------------------------------------------------------------------------
    *table(
        "ROCR-Runtime inc/hsa.h, hipBLAS hipblas.h, MIOpen miopen.h", ROOT, "environment-mismatch",
        [("rocm-isa", "INVALID_ISA|INVALID_CODE_OBJECT|_ARCH_MISMATCH|HIPBLAS_STATUS_NOT_SUPPORTED|"
                      "HSA_STATUS_ERROR_INCOMPATIBLE",
         r"HSA_STATUS_ERROR_(?:INVALID_ISA(?:_NAME)?|INVALID_CODE_OBJECT|INCOMPATIBLE_\w+)|"
         r"HIPBLAS_STATUS_(?:ARCH_MISMATCH|NOT_SUPPORTED)", 0.75, "this build of a library has no code for this GPU")],
        scope=RAISED,
    ),
    # -- Gaudi -------------------------------------------------------------------------------------------------
    *table(
        "Gaudi's HCL: the ports between cards and nodes", ROOT, "nccl-ib-error",
        [("gaudi-ports", "HCL: Ports|NIC port|nic port", r"(?:(?i:nic ports?)(?: \S+)?|HCL: Ports) (?:are|is) "
         r"(?i:down)", 0.85),
        ("gaudi-ib", "Habana IB device|hcl_ibverbs", r"failed to find matching Habana IB device|hcl_ibverbs_t::init\b",
         0.85, "habanalabs_ib is not loaded, or the container does not see its devices")],
        scope=RAISED,
    ),
    *table(
        "Gaudi's PyTorch bridge: HPU graphs over several cards", ROOT, "bad-launch-arguments",
        [("gaudi-graph-collective", "nonSFG", r"collective nonSFG is not supported", 0.95,
         "HPU graphs take collectives in lazy mode alone")],
        scope=RAISED, fix="Set PT_HPU_ENABLE_LAZY_COLLECTIVES=true before habana_frameworks is imported, on all nodes",
    ),
    *table(
        "Gaudi's PyTorch bridge, PT_DEVMEM", ROOT, "cuda-out-of-memory",
        [("gaudi-memory", "PT_DEVMEM|synStatus", rf"PT_DEVMEM.*(?:llocation failed|[Oo]ut of memory|FATAL)|"
                                             rf"{_SYN}(?:4|14|27)\b", 0.88)],
        scope=RAISED,
    ),
    *table(
        "SynapseAI syn_api_types.h: 18", ROOT, "environment-mismatch",
        [("gaudi-unsupported", "synStatus", rf"{_SYN}18\b", 0.7, "this release of SynapseAI cannot do that")],
        scope=RAISED,
    ),
    *table(
        "SynapseAI syn_api_types.h, Gaudi's PyTorch bridge", ROOT, "cuda-device-unavailable",
        [("gaudi-acquire", "evice acquire failed|synDeviceAcquire|synStatus",
         rf"{_SYN}(?:8|16|17|20)\b|[Dd]evice acquire failed|synDeviceAcquire\w*(?:\([^)]{{0,80}}\))? "
         r"(?:failed|returned)", 0.85)],
        scope=RAISED,
    ),
    Row("gaudi-graph", "unknown", role=SYMPTOM, source="Gaudi's PyTorch bridge: a status of SynapseAI",
        needs=("synStatus", "MODULE:PT_"),
        pattern=r"FATAL ERROR :: MODULE:PT_(?!DEVMEM)|synStatus(?:=|\s)\S*.{0,20}\[[\w ]+\]|synStatus \d+",
        confidence=0.3,
        means="the bridge says no more. Where only remote nodes say it, their variables differ", scope=RAISED,
        fix=GRAPH),
    *table(
        "Gaudi's process_group_hccl_base.cpp", SYMPTOM, "unknown",
        [("gaudi-collective", "Collective call returned error", r"Collective call returned error", 0.3,
         "a collective over Gaudi's NICs failed, and the log of SynapseAI says why")],
        scope=RAISED,
    ),
)  # fmt: skip
