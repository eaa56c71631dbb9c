"""NCCL, RCCL and their transports."""

from __future__ import annotations

from .row import CASCADE, RAISED, ROOT, SYMPTOM, Row, table

NO_DEVICE = (
    "Run `ls -l /dev/infiniband; ibv_devinfo` where the ranks run. A container takes `--device /dev/infiniband "
    "--ulimit memlock=-1`, a pod the resource of its RDMA device plugin and IPC_LOCK. The image's rdma-core must fit "
    "the host's driver. NCCL_IB_DISABLE=1 runs over sockets meanwhile"
)
ROWS = (
    Row("no-interface", "no-interface", ROOT, "NCCL bootstrap.cc, socket.cc, gloo transport/tcp/device.cc",
        "no interface found|no socket interface|No interface found|o IP interface|no device found|usable network "
        "interfaces|network device '|no usable transports|Unable to find address for|Unable to find interface|No "
        "usable",
        r"no socket interface found|[Nn]o (?:IP )?interface found|no device found (?:matching|after excluding) |"
        r"Unable to find address for: (?P<interface>\S+)|Unable to find interface for|"
        r"No usable (?:listening )?interface|No usable network interfaces were found|"
        r"no usable transports/devices \(asked .*network:|"
        r"network device '(?P<interface2>[\w:.-]+)' is not available", confidence=0.95, scope=RAISED),
    *table("NCCL bootstrap.cc, socket.cc, gloo transport/tcp/device.cc", ROOT, "no-interface", [
        # An address that was never filled in has a random family.
        ("interface-family", "nor AF_INET6", r"with family \d+ is neither AF_INET\(\d+\) nor AF_INET6", 0.75,
         "a rank has announced no address: its interface filter, NCCL_SOCKET_IFNAME, matches nothing"),
        ("socket-family", "Socket creation failed", "Socket creation failed ?: Address family not supported", 0.6,
         "the interface has no address of a family that this host supports", "ipv6-problem"),
        ("interface-absent", "nterface",
         r"(?i)(?:network )?interface (?P<interface>\S+) (?:does not exist|not found|is not available)|"
         r"(?:invalid|no such|unknown) (?:network )?interface", 0.75),
    ]),
    Row("nccl-mismatch", "collective-mismatch", ROOT, "NCCL init.cc",
        "Mismatched collective", "NCCL WARN Mismatched collective detected", confidence=0.85),
    Row("topology-file", "environment-mismatch", ROOT, "NCCL graph/xml.h: a topology file lacks what this NCCL reads",
        "NCCL WARN Attribute", r"NCCL WARN Attribute \S{1,60} of node \S{1,60} not found", confidence=0.8,
        fix="Use an aws-ofi-nccl for this NCCL, as its plugin brings a topology file. Unset NCCL_TOPO_FILE where it "
            "names one of another machine"),
    *table("NCCL misc/shmutils.cc, shm.h, torch MapAllocator.cpp", ROOT, "shm-too-small", [
        ("nccl-shm", "nccl-|posix_fallocate|shared memory segment",
         r"failed to extend /dev/shm/nccl-|creating shared memory segment|posix_fallocate failed : No space|"
         r"/dev/shm/nccl-\S.*(?:No space|failed)"),
        ("torch-shm", "</torch_|shared memory|/dev/shm",
         r"</torch_[^>]*>.*(?:No space left|\(28\)|Cannot allocate|unable to)|unable to (?:write to|allocate|resize|"
         r"mmap|open).{0,40}shared memory.*(?:No space|\(28\)|Cannot)|unable to (?:write|resize).{0,20}</torch_|"
         r"No space left on device.*/dev/shm|/dev/shm.*No space left|out of shared memory\b(?!.*try)", 0.85),
    ], scope=RAISED),
    *table("NCCL misc/shmutils.cc (the segment of another rank is opened), NCCL nccl.h ncclSystemError, "
           "ncclInternalError, ncclInvalidUsage without their last error they say nothing", SYMPTOM, "unknown", [
        ("shm-attach", "attaching to shared memory segment|NCCL WARN Call to open failed",
         "Error while attaching to shared memory segment|NCCL WARN Call to open failed", 0.35,
         "the shared memory of another rank on this host is not there: that rank has ended, or their containers "
         "do not share /dev/shm"),
        ("nccl-general",
         "ncclSystemError|ncclInternalError|ncclInvalidUsage|ncclUnhandledCudaError|unhandled system error|"
         "unhandled cuda error|Test NCCL failure|Test CUDA failure",
         "Test (?:NCCL|CUDA) failure |nccl(?:SystemError|InternalError|InvalidUsage|UnhandledCudaError)|"
         "unhandled (?:system|cuda) error", 0.3),
    ]),
    *table("NCCL init.cc, bootstrap.cc (versions in the handshake), the dynamic linker", ROOT,
           "nccl-version-mismatch", [
        ("nccl-versions", "Mismatched NCCL version", r"Mismatched NCCL version.*?rank (?P<rank>\d+)", 0.95),
        ("nccl-library", "NCCL library is|version of NCCL|NCCL version mismatch",
         "NCCL library is (?:too old|not backwards compatible)|compiled with too old version of NCCL|"
         "NCCL version mismatch with remote", 0.9, "another libnccl is found than the one that torch was built with"),
        ("nccl-symbol", "undefined symbol: nccl", r"undefined symbol: nccl\w+", 0.85,
         "an older libnccl is found before the one that torch was built with"),
        ("nccl-too-old", "NCCL version|requires NCCL",
         r"NCCL version .*(?:is too old|not supported|or (?:higher|newer) is required)|"
         r"requires NCCL (?:version )?>=? ?\d", 0.7),
    ]),
    Row("ib-register-address", "nccl-ib-error", ROOT,
        "ibv_reg_mr(3), errno EFAULT: an address that cannot be pinned, perftest perftest_resources.c", "Bad address",
        r"ibv_reg_mr\w{0,10}(?:\([^)]{0,100}\))? failed(?: with error|:) Bad address|^ERRNO: Bad address",
        confidence=0.75, means="the adapter cannot pin this address. Of GPU memory it does so without nvidia-peermem",
        also="nccl-p2p-error", scope=RAISED,
        fix="Run `lsmod | grep peermem; ibv_devinfo` on {node}. Load nvidia-peermem (`modprobe nvidia-peermem`), with "
            "a driver that was installed after OFED, or keep GPU memory from the adapter with NCCL_NET_GDR_LEVEL=LOC. "
            "A run with NCCL_IB_DISABLE=1 proves that it is the fabric"),
    Row("ib-register-refused", "nccl-ib-error", ROOT,
        "ibv_reg_mr(3): errno ENOMEM is the limit's, EFAULT of an address that cannot be pinned, others the adapter's",
        "ibv_reg_mr", r"ibv_reg_mr\w{0,10}(?:\([^)]{0,100}\))? failed(?: with error|:) (?!Cannot\b)\S", confidence=0.75,
        means="the adapter refused to register memory. Of GPU memory it does so without nvidia-peermem",
        also="nccl-p2p-error", scope=RAISED),
    *table("NCCL misc/ibvwrap.cc, ENOMEM of registration and of queues", ROOT, "memlock-limit", [
        ("ib-register", "ibv_reg_mr", "ibv_reg_mr.*(?:Cannot allocate|failed)", 0.8),
        ("ib-queue-memory", "ibv_create|o create ",
         r"(?:ibv_create_(?:qp|srq|comp_channel)\S* failed|[Ff]ailed to create (?:QP|SRQ)).*Cannot allocate", 0.8),
        # A completion queue is memory of the kernel as well: an adapter that is short of its own says the same.
        ("ib-cq-memory", "ibv_create_cq|o create CQ",
         r"(?:ibv_create_cq\S* failed|[Ff]ailed to create CQ).*Cannot allocate", 0.46, "", "nccl-ib-error"),
        ("ib-memory", "Cannot allocate memory", "(?:Ib failure|InfiniBand|mlx5).{0,60}: Cannot allocate memory", 0.7),
        ("memlock", "RLIMIT_MEMLOCK|memlock|locked memory|max locked",
         "(?i)RLIMIT_MEMLOCK|memlock.*(?:limit|too)|locked memory limit|max locked memory", 0.75),
        ("ucx-register", "ailed to register|o register MR|fi_mr_reg|ibfabric error|EFA internal error",
         r"[Ff]ailed to register .*: Cannot allocate memory|(?:fi_mr_reg|Unable to register MR)\b.*Cannot allocate|"
         r"Libfabric error: \(-12\)|EFA internal error: \(4112\)", 0.7, "libfabric and UCX lock what they register"),
    ], scope=RAISED),
    Row("ib-completion", "nccl-ib-error", SYMPTOM, "NCCL transport/net_ib.cc, ibv_wc_status",
        "Got completion from peer|Got completion with",
        r"Got completion (?:from peer (?P<peer>[\w.:\[\]%-]+?)(?:<\d+>)? )?with (?:status=\S*?\(?|"
        r"error )(?P<status>\d+)", rule="ib-completion"),
    Row("ib-modify-qp", "nccl-ib-error", ROOT,
        "ibv_modify_qp(3) of NCCL, NVSHMEM, Mooncake, perftest: a queue pair finds no way to its peer",
        "ibv_modify_qp|modify QP", r"ibv_modify_qp\S* failed(?: with(?: error)?)?|[Ff]ailed to modify QP",
        confidence=0.85, scope=RAISED,
        fix="Run `show_gids; ibv_devinfo` on both nodes. For RoCE set NCCL_IB_GID_INDEX to the index of a routed RoCE "
            "v2 address (3 is usual). Where only NICs of one rail reach each other, set NCCL_CROSS_NIC=0. Choose "
            "devices that are up with NCCL_IB_HCA. A run with NCCL_IB_DISABLE=1 proves that it is the fabric"),
    Row("verbs-abi", "environment-mismatch", ROOT,
        "libibverbs/init.c: a provider of another release than the kernel's driver", "kernel ABI",
        r"libibverbs: Warning: Driver \S{1,40} does not support the kernel ABI", confidence=0.92,
        fix="Run `ibv_devinfo; dpkg -l | grep -e ibverbs -e rdma-core -e ofed` on the host and in the image. Install "
            "the rdma-core (libibverbs1, ibverbs-providers) into the image that belongs to the host's driver"),
    Row("ib-open", "nccl-ib-error", ROOT,
        "NCCL transport/net_ib.cc, verbs(7): a device that cannot be opened",
        "ibv_open_device|Unable to open",
        r"ibv_open_device\S{0,60} failed|NET/IB ?: (?:Unable to open |ibv_open_device)", confidence=0.75,
        fix=NO_DEVICE),
    Row("ib-none", "nccl-ib-error", ROOT, "perftest_parameters.c, ibv_devinfo(1)",
        "IB devices found|Infiniband/RoCE device", "No IB devices found|Unable to find the Infiniband/RoCE device",
        confidence=0.6, fix=NO_DEVICE),
    *table("NCCL transport/net_ib.cc, misc/ibvwrap.cc, verbs(7)", ROOT, "nccl-ib-error", [
        ("ib-verbs", "ibv_|mlx5dv_create|Unable to |Fatal error",
         r"ibv_(?:alloc_pd|query_|create_|post_|poll_cq|get_)\S{0,60} failed|mlx5dv_create_\w{1,20} failed|"
         r"NET/IB ?: Unable to query |NET/IB: Fatal error", 0.75),
        ("ib-async", "async fatal|async event",
         "(?i)NET/IB.*async fatal event|async fatal event|Got (?:non-fatal )?async event.*(?:port error|"
         "device fatal|fatal|port active|error)", 0.85),
        ("ib-mixed", "incompatible devices|device is incompatible",
         "incompatible devices|device is incompatible with the local", 0.8),
        ("ib-network-absent",
         "ib not found|Ib not found|network IB not found|etwork OFI not found|etwork IB not found|etwork AWS|"
         "etwork UCX", r"(?:Error|WARN).*[Nn]etwork (?:IB|OFI|AWS\S*|UCX|\S*[Ii]b) not found", 0.8),
        ("ib-status", "IBV_WC",
         r"IBV_WC_(?:RETRY_EXC|RNR_RETRY_EXC|REM_\w+|LOC_PROT|GENERAL|FATAL|RESP_TIMEOUT)_ERR|"
         r"IBV_WC_SUCCESS\. [1-9]\d? vs 0", 0.8, "a transfer over InfiniBand ended with an error"),
        ("ofi", "NET/OFI",
         r"NCCL WARN NET/OFI|WARN: Function: \w{1,60} Line: \d+: NET/OFI|^(?:Last error: ?)?NET/OFI (?!Selected|"
         r"Using|Init|Setting|Running|Config|Forc)", 0.6),
        ("efa-receiver", "Unresponsive receiver", "Unresponsive receiver", 0.85,
         "the peer does not answer over EFA: it has ended, or its security group forbids"),
        ("efa-kernel", "efa_", r"\befa_\d{1,2}: Failed to", 0.6, "the kernel's driver of EFA refuses"),
        ("efa-none", "provider efa", "provider efa output empty list", 0.6, "libfabric finds no EFA device here"),
        ("rdma-transport",
         "NIXL_ERR_|nixlBackend|remote transport: i|RDMA transport|RDMA devices found|retry counter exceeded|"
         "efa_rdm_|addrinfo()",
         r"NIXL_ERR_BACKEND|nixlBackendError|init failed for remote transport: ib|install RDMA transport|"
         r"No RDMA devices found|(?i:transport retry counter exceeded)|efa_rdm_\w{1,60}\(\).{0,20}<warn> err: |"
         r"OFI addrinfo\(\) failed", 0.75, "the fabric's own library found no device, or lost its peer"),
        ("ucx-transport",
         "ransport retry|endpoint timeout|RDMA_CM|ib_mlx5_log|no active messages transport|got completion with error",
         r"(?i)ib_mlx5_log\.c:\d+ .{0,60}\w error on|no active messages transport to |"
         r"^mlx5: \S+ got completion with error|transport retry count exceeded|RDMA_CM_EVENT_(?:UNREACHABLE|REJECTED|"
         r"ADDR_ERROR|ROUTE_ERROR)", 0.8),
        ("ib-port-down", "state:|State:",
         r"(?i)\b(?:infiniband|IB|mlx\d_|port \d).*state: {0,4}(?:1: )?(?:DOWN|Disabled|Polling)", 0.7),
    ]),
    *table("NCCL transport/net_ib.cc (INFO), UCX", SYMPTOM, "nccl-ib-error", [
        ("ib-no-device", "No device found", "NET/IB : No device found", 0.32),
        ("ucx-error", "UCX  ERROR", "UCX  ERROR (?!.*(?:refused|timed out|unreachable|No route|annot allocate))",
         0.35, "", "nccl-p2p-error"),
    ]),
    *table("NCCL transport/p2p.cc, net.cc, gdrwrap.cc, CUDA cudaErrorPeerAccessUnsupported, nvidia-peermem", ROOT,
           "nccl-p2p-error", [
        ("peer-access", "peer access|peer mapping|PeerAccess|PEER_ACCESS",
         r"peer access is not supported|peer mapping resources exhausted|cudaErrorPeerAccess\w+|"
         r"CUDA_ERROR_PEER_ACCESS\w+|peer access is not (?:enabled|possible)", 0.85),
        ("ipc-handle",
         "Error while opening|Error while importing|IpcOpenMemHandle|IpcGetMemHandle|ipc handle|cuMemImport|"
         "invalid resource handle",
         "(?i)cudaIpc(?:Open|Get)MemHandle.*(?:fail|error)|cuMemImportFromShareableHandle.*(?:fail|error)|"
         "Error while (?:opening|importing).*IPC", 0.75),
        ("peermem", "peermem|peer_mem",
         "(?i)neither nv_peer_mem, or nvidia_peermem|nvidia[-_]peermem.{0,60}(?:not loaded|fail|error|not found|"
         "invalid)|nv_peer_mem.{0,60}(?:not|fail|error)|module nvidia[-_]peermem not", 0.8),
        ("gdr",
         "GDRCOPY failure|gdr_pin_buffer|dma-buf|GDRCopy|GDR fail|GDR error|GPUDirect|GPU Direct|dmabuf|DMABUF|"
         "DmaBuf|gdrcopy",
         r"(?i)GDR(?:COPY)? (?:fail|error)|gdr_pin_buffer.{0,80}failed|(?:GPUDirect|GPU Direct|GDRCopy|"
         r"dma-?buf)\b.{0,60}(?:registration fail|fail(?:ed|ure)|error)|ibv_reg_dmabuf_mr.*fail", 0.75),
        ("p2p-warn", "p2p.cc|P2P is disabled|transport/p2p",
         r"P2P is disabled between NVLINK connected GPUs|transport/p2p\.cc:\d+ NCCL WARN|p2p\.cc.*NCCL WARN", 0.75),
    ]),
    Row("message-truncated", "collective-shape-mismatch", ROOT, "NCCL misc/socket.cc, NET/Socket sizes of both sides",
        "essage truncated|collective mismatch error",
        r"[Mm]essage truncated : receiv\w+ [\d,]+ bytes instead of \d+|collective mismatch error, local size",
        confidence=0.75, means="two ranks take part in one collective with different sizes", scope=RAISED,
        fix="Compare the NCCL_ variables and the version of NCCL on all nodes (`env | grep NCCL_; cat "
            "/etc/nccl.conf`): nodes that choose another algorithm or protocol send other sizes. Where they are "
            "alike, print the shapes before the call"),
    Row("gloo-preamble", "collective-shape-mismatch", ROOT, "accelerate utils/operations.py, gloo algorithm.h",
        "op.preamble.length", r"op\.preamble\.length <= op\.nbytes", confidence=0.85,
        means="two ranks take part in one collective with different sizes", scope=RAISED),
    Row("checked-in-twice", "rank-missing-or-duplicate", ROOT, "NCCL bootstrap.cc (check-in of ranks)",
        "already checked in", r"rank (?P<rank>\d+) of \d+ ranks? has already checked in", confidence=0.95),
    Row("rank-count", "world-size-mismatch", ROOT, "NCCL bootstrap.cc",
        "from procs", "mismatch in (?:rank count|info) from procs", confidence=0.95),
    Row("nccl-connect", "peer-died", SYMPTOM, "NCCL misc/socket.cc, errno of connect(2)",
        "onnect to|onnecting to|ocketPollConnect: connect",
        r"(?:NCCL|[Ss]ocket|"
        r"Connect to).*?[Cc]onnect(?:ing)? to (?P<peer>[\w.:\[\]%-]*?)<(?P<port>\d*)[^>]*> ?(?:failed|"
        r"returned)\D*(?P<error>.*)|[Cc]onnect to (?P<peer2>\S+) failed ?: (?P<error2>.*)|"
        r"[Ss]ocketPollConnect: connect returned (?P<error3>[^,]*)", rule="connect-refused"),
    *table("NCCL misc/socket.cc retries are used up", SYMPTOM, "port-blocked", [
        ("connect-retries",
         "exceeded retry count|exceeded error|exceeded error retry count|exceeded timeouts|exceeded retries|Call "
         "to connect failed",
         r"[Cc]onnect.*exceeded (?:error )?(?:retry count|timeouts|retries)|"
         r"socket\.h:\d+ (?:NCCL )?WARN Call to connect failed : (?:Connection timed out|No route)", 0.5,
         "a peer that is in the rendezvous cannot be reached on NCCL's own port: a firewall, or the wrong "
         "interface", "wrong-interface"),
        ("connect-tried-again", "Call to connect returned", "Call to connect returned .{0,60}, retrying", 0.45,
         "NCCL's own connection to a rank is not made: the interface that it takes does not lead there, or a "
         "filter", "wrong-interface"),
    ]),
    *table("NCCL misc/socket.cc, ncclRemoteError what the surviving side says", CASCADE, "", [
        ("remote-closed", "losed by remote peer|REMOTE_DISCONNECT|RemoteDisconnectError",
         r"NIXL_ERR_REMOTE_DISCONNECT|nixlRemoteDisconnectError|"
         r"[Cc]onnection closed by remote peer(?: (?P<peer>[\w.:%-]+?)<\d+>)?"),
        ("remote-error", "ncclRemoteError|remote process exited",
         "ncclRemoteError|remote process exited or there was a network error"),
        ("comm-aborted", "communicator was aborted|Abort COMPLETE", "NCCL communicator was aborted|Abort COMPLETE"),
        ("net-recv", "Call to ",
         r"(?:NCCL WARN|Net :|ocketProgressOpt:) Call to (?:recv|send|recvmsg)\S* (?:from|to)? ?\S* ?failed"),
    ]),
    Row("deepep-late", "straggler", SYMPTOM,
        "DeepEP csrc/deep_ep.cpp: kernels of dispatch and combine wait for the other ranks", "DeepEP",
        r"DeepEP\b.{0,40}timeout", confidence=0.46,
        means="another rank did not come to it, or the fabric lost what it sent", also="nccl-ib-error"),
    Row("nccl-net-id", "unknown", SYMPTOM,
        "NCCL graph/topo.h: a device of another rank's graph is not among this one's",
        "find NET with id", "Could not find NET with id", confidence=0.35,
        means="NCCL's search of the topology failed: nodes with other network devices, or a defect of this NCCL",
        fix="Run `NCCL_DEBUG=INFO` and compare the lines NET/IB and NET/Plugin of all nodes. Try another "
            "release of NCCL: `python -m pip install -U nvidia-nccl-cu12` on every node"),
    *table("NCCL misc/mlx5dvsymbols.cc, transport/net_ib/reg.cc no way to register GPU memory, RCCL init.cc "
           "(hints about the host)", SYMPTOM, "nccl-p2p-error", [
        ("dmabuf-symbol", "dlvsym failed|dlsym failed|RegMrDmaBuf|RDMA Disabled",
         r"dlv?sym failed on (?:mlx5dv|ibv)_reg_dmabuf|RegMrDmaBuf\w* ?\)? -> \d|GPU Direct RDMA Disabled", 0.35),
        ("iommu-pt", "iommu=pt", 'Missing "iommu=pt"', 0.35),
    ]),
)  # fmt: skip
