"""torch.distributed: stores, rendezvous, Gloo, DDP, the watchdog."""

from __future__ import annotations

import re
from math import prod

from .row import CASCADE, RAISED, ROOT, SYMPTOM, WEAK, Row, table

LAUNCHER = (
    "Start the program with a launcher, which sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT: "
    "`allranks run`, `torchrun` or `accelerate launch`, under Slurm with srun"
)
HOST_NETWORK = (
    "Run `ip -br addr` on every node. Start containers with `--network=host`, and pods with hostNetwork. Or choose the "
    "interface that links the nodes with --network CIDR, or run `export {ifname}={link} "
    "GLOO_SOCKET_IFNAME={link}`"
)
_RETRIED = "nothing answered there: is rank 0 running on that host, and does every node reach the address?"
ROWS = (
    *table("torch socket.cpp (gai error), getaddrinfo(3), OpenSSH, curl", ROOT, "name-resolution", [
        ("gai", "cannot be retrieved|gai error|getaddrinfo|gaierror",
         r"network addresses of \(?(?P<node>[^,()]+), (?P<port>\d+)\)? cannot be retrieved|gai error|"
         r"\bgaierror\b|getaddrinfo (?:failed|\S*:? ?(?:Name|Temporary|No address))"),
        ("resolve",
         "unknown host|resolve name|resolve address|resolve the host|esolve hostname|Name or service not known|"
         "in name resolution|nodename nor servname|No address associated|esolve host|UnknownHost|no such host|"
         "NXDOMAIN|Unknown host|cannot resolve",
         r"Could not resolve (?:hostname|host:?) (?P<node>[\w.-]+)|Name or service not known|"
         r"Temporary failure in name resolution|nodename nor servname provided|"
         r"No address associated with hostname|UnknownHostException|: no such host|NXDOMAIN|[Uu]nknown host|"
         r"(?:[Ff]ailed|[Uu]nable|cannot) (?:to )?resolve (?:host|the host|address|name)(?!\w* to a \()"),
    ], scope=RAISED),
    *table("gloo ProcessGroupGloo.cpp, socket.cpp", ROOT, "hostname-resolves-to-loopback", [
        ("loopback-refused", "127.0.",
         r"(?:connectFullMesh failed|SO_ERROR: ).*remote=\[?127\.0\.|(?:[Rr]efused|[Tt]imed out|"
         r"unreachable).*\[?127\.0\.1\.1\b|\b127\.0\.1\.1\b.*(?:refused|timed out|failed|unreachable)", 0.85,
         "a peer announced its loopback address: its own name resolves to 127.x in /etc/hosts"),
        ("resolves-to-loopback", "oopback", r"(?i)resolv\w* to (?:a |the )?loopback", 0.75),
    ]),
    Row("mpi-tcp", "wrong-interface", ROOT, "Open MPI opal/mca/btl/tcp/btl_tcp_endpoint.c",
        "btl_tcp_endpoint|btl: tcp:|Message: connect|failed to TCP connect",
        r"btl_tcp_endpoint.*connect\(\) to (?P<peer>[\w.:]{2,60}) failed|"
        r"^ *Message: connect\(\) to (?P<peer2>[\w.:]{2,60}) failed|failed to TCP connect to a peer MPI process|"
        r"btl_tcp_endpoint.*received unexpected process identifier|"
        r"btl: tcp: Match incoming connection from .* failed", confidence=0.7,
        means="the peer announced an address that this node does not reach, of a bridge or of another network",
        also="port-blocked",
        fix="Name the network that links the nodes: `mpirun --mca btl_tcp_if_include 10.0.0.0/24 --mca "
            "oob_tcp_if_include 10.0.0.0/24 …`, or leave bridges out with btl_tcp_if_exclude lo,docker0,virbr0"),
    Row("bridge-address", "wrong-interface", ROOT,
        "docker0, virbr0 and link-local (RFC 3927): each node has these addresses for itself",
        "172.17.|169.254.|192.168.122.",
        r"\b(?P<peer>(?:172\.17|169\.254|192\.168\.122)(?:\.\d{1,3}){1,2})\b(?=.{0,60}(?:refused|timed out|"
        r"No route|unreachable))|timed out .{0,60}connect to \(?(?P<peer2>(?:172\.17|169\.254|"
        r"192\.168\.122)(?:\.\d{1,3}){1,2})\b", confidence=0.75,
        means="that is an address of a bridge or of one link only: other nodes cannot reach it", scope=RAISED,
        fix=HOST_NETWORK),
    Row("gloo-loopback", "hostname-resolves-to-loopback", SYMPTOM, "torch ProcessGroupGloo.cpp",
        "Unable to resolve hostname to a", r"Unable to resolve hostname to a \(local\) address", confidence=0.6),
    *table("torch TCPStoreLibUvBackend.cpp, socket.cpp, errno 98, accelerate commands/launch.py", ROOT,
           "port-in-use", [
        ("address-in-use", "is unavailable|occupied|usage of each socket|in use|EADDRINUSE|rrno 98",
         r"port: (?P<port3>\d+),.{0,80}EADDRINUSE|\[::\]:(?P<port>\d+).{0,40}ddress already in use|EADDRINUSE|"
         r"[Aa]ddress (?:is )?already in use|\[Errno 98\]|[Pp]ort (?P<port2>\d+) is (?:unavailable|"
         r"(?:already )?(?:in use|occupied))|[Oo]nly one usage of each socket", 0.92),
        ("port-taken", "Ray component|another process|being used|on port|port is already|another process is utilizing",
         r"Tried to launch distributed communication on port `(?P<port>\d+)`|port is already allocated|"
         r"Ray component .{0,60} port number (?P<port2>\d+)|port \d+ .*(?:another process|already being used)", 0.92),
    ], scope=RAISED),
    Row("foreign-client", "port-in-use", WEAK, "torch TCPStoreBackend.cpp the handshake's magic number",
        "VALIDATE query|magic number", "(?:incorrect|expected) VALIDATE query|[Vv]alidation of .*magic number",
        confidence=0.5, means="something else than a rank of this job speaks to the store's port",
        also="orphan-process"),
    Row("any-address", "master-unreachable", ROOT, "RFC 1122: 0.0.0.0 is what a server listens on",
        "0.0.0.0", r"(?:connect(?:/validate)? to (?:host )?\(?\[?)0\.0\.0\.0\b", confidence=0.92,
        means="0.0.0.0 is an address to listen on and no host's: a client cannot reach a server by it",
        fix="Name the server's own address in the client's settings instead of 0.0.0.0. `hostname -I` on its "
            "host prints it. For trl it is vllm_server_host"),
    Row("client-connect", "master-unreachable", SYMPTOM, "torch socket.cpp", "client socket has failed to connect",
        r"client socket has failed to connect to \[?(?P<peer>[^\]\s]+?)\]?:(?P<port>\d+) \((?:errno|"
        r"system error): (?P<errno>\d+) - (?P<error>[^)]*)", rule="connect-refused"),
    *table("torch dynamic_rendezvous.py shutdown: an agent that ends tells its rendezvous so, gloo "
           "transport/tcp/pair.cc, torch TCPStore.cpp, socket.cpp a peer's end", CASCADE, "", [
        ("rendezvous-shutdown", "shutdown the rendezvous|shut down the rendezvous",
         "failed to shut ?down the rendezvous"),
        ("peer-closed", "closed by peer|reset by peer|ead error|roken pipe|rite error|pair closure",
         r"[Cc]onnection (?:closed|reset) by peer(?: \[(?P<peer>[0-9a-fA-F.:]+)\]:\d+)?|"
         r"Application timeout caused pair closure|gloo.*(?:Read|Write) error|[Bb]roken pipe"),
        ("store-lost", "got 0 bytes|recvValue|sendBytes|recvBytes|sendVector|recvVector|remote server shutdown",
         "got 0 bytes|(?:recvValue|sendBytes|recvBytes|sendVector|recvVector) failed|remote server shutdown"),
        ("store-heartbeat", "should dump|has been shut down|TCPStore",
         r"Failed to check the \"should dump\" flag on TCPStore|TCPStore.*(?:has been shut down|connection)"),
    ]),
    *table("torch socket.cpp, TCPStore.cpp, c10d_rendezvous_backend.py, ping(8): nothing comes back", SYMPTOM,
           "master-unreachable", [
        ("client-timeout", "client socket has timed out|connect() timed out",
         r"\bconnect\(\) timed out\. Original timeout was \d+ ms|"
         r"client socket has timed out after \w+(?: while trying to connect to \(?(?P<peer>[^,()]+), (?P<port>\d+"
         r")|$)", 0.7, _RETRIED),
        ("all-failed", "failed to connect to any network address|failed to connect to",
         r"client socket has failed to connect to any network address of \(?(?P<peer>[^,()]+), (?P<port>\d+)", 0.7,
         _RETRIED),
        ("master-not-ready", "not ready",
         r"[Mm]aster(?: node)? (?P<peer>[\w.-]+):(?P<port>\d+) (?:is|was) not ready (?:after|within) \d+|"
         r"[Mm]aster(?: node)? (?:is|was) not ready (?:after|within) \d+", 0.7, _RETRIED, "port-blocked"),
        ("master-awaited", "aiting for",
         r"still waiting for master (?P<peer>[\w.-]+):(?P<port>\d+) \(\d+ s\)|"
         r"[Ww]aiting for (?:the )?master(?: node)? to be (?:ready|up|available)", 0.6, _RETRIED, "port-blocked"),
        ("c10d-store", "C10d store has failed|RendezvousConnectionError",
         "connection to the C10d store has failed|RendezvousConnectionError", 0.65, _RETRIED),
        ("no-route", "No route to host|etwork is unreachable|Host is unreachable",
         "No route to host|[Nn]etwork is unreachable|Host is unreachable", 0.5, "", "port-blocked"),
        ("refused", "onnection refused|ConnectionRefusedError|rrno 111",
         r"[Cc]onnection refused|ConnectionRefusedError|\[Errno 111\]", 0.42,
         "the host answers and nothing listens there: a longer timeout does not help", "peer-died"),
        ("connect-timeout", "onnection timed out|rrno 110", r"[Cc]onnection timed out|\[Errno 110\]", 0.42, "",
         "port-blocked"),
        ("not-assignable", "No such device (addr|rrno 99|assign requested address|EADDRNOTAVAIL",
         r"Cannot assign requested address|\[Errno 99\]|EADDRNOTAVAIL|No such device \(addr", 0.5,
         "the address is not one of this host: MASTER_ADDR names another node than the one of rank 0", "ipv6-problem"),
        ("all-lost", "100% packet loss", "100% packet loss", 0.6, "", "node-network-down"),
    ]),
    Row("connect-aborted", "port-blocked", ROOT, "connect(2): ECONNABORTED comes from the own host's filter",
        "irewall|caused connection abort|filtered|administratively",
        r"[Ss]oftware caused connection abort|administratively prohibited|\b\d{1,5}/tcp +filtered|"
        r"(?i:firewall).*(?:block|drop|reject|den)", confidence=0.65),
    Row("clients-joined", "rendezvous-timeout", SYMPTOM, "torch TCPStore.cpp",
        "clients joined", r"(?<!\d)(?P<joined>\d+)/(?P<world>\d+) clients joined", rule="clients-joined"),
    Row("nccl-id-awaited", "straggler", SYMPTOM,
        "torch ProcessGroupNCCL.cpp broadcastUniqueNCCLID: the store has no answer of rank 0", "ncclUniqueId",
        r"retrieving ncclUniqueId from \[\d+\] via .*got error(?!.*(?:reset|closed|[Bb]roken))", confidence=0.45,
        means="rank 0 has not come to this first collective: late, elsewhere, or ended", also="peer-died",
        fix="Read rank 0's log. Where it prepares data at that time, do that before init_process_group, or raise the "
            "timeout of the process group (--pg-timeout, init_process_group(timeout=…))"),
    *table("torch TCPStore.cpp, dynamic_rendezvous.py, distributed_c10d.py", SYMPTOM, "rendezvous-timeout", [
        ("rendezvous-error", "RendezvousTimeoutError", "RendezvousTimeoutError", 0.48, "", "master-unreachable"),
        ("rendezvous-timeout", "endezvous|Barrier timed out",
         "(?i:rendezvous.*(?:timed out|timeout))|(?i:timed? ?out.*rendezvous)|"
         "DEADLINE_EXCEEDED: Barrier timed out", 0.62),
        ("store-wait", "wait timeout after|DistStoreError|Timed out after",
         r"wait timeout after \d+ms, keys: (?P<keys>\S+)|DistStoreError(?!: Socket Timeout)|"
         r"Timed out after \d+ seconds waiting", 0.5),
        # torch's store of before 2.0 says no more of any value that did not come.
        ("store-timeout", "Socket Timeout", "Socket Timeout", 0.45, "", "straggler"),
        ("waiting", "aiting for ",
         r"[Ww]aiting for (?:other (?:processes|workers|nodes|ranks)|all (?:nodes|workers|ranks|processes)|"
         r"\d+ more (?:nodes|workers))", 0.4),
        ("closed-rendezvous", "ezvous was closed|ezvous has been closed|RendezvousClosedError|rendezvous is closed",
         "RendezvousClosedError|rendezvous (?:is|has been|was) closed", 0.4,
         "the rendezvous of this id is over: another node had already left it, or the id is an old run's",
         "orphan-process"),
    ]),
    Row("store-barrier", "rendezvous-timeout", SYMPTOM, "torch distributed_c10d.py _store_based_barrier",
        "store based barrier|store_based_barrier",
        r"store(?: based |_based_)barrier.*world_size=(?P<world>\d+), (?:worker_count|"
        r"num_workers_joined)=(?P<joined>\d+)", rule="clients-joined"),
    *table("torch TCPStore, elastic agents, distributed_c10d.py", ROOT, "world-size-mismatch", [
        ("checkpoint-shards", "but world size is", r"checkpoint for MP=\d+ but world size is \d+", 0.9,
         "the checkpoint is in as many parts as ranks must be started"),
        ("expected-world", "xpected world|xpected group|match|not equal|differs|inconsistent",
         r"[Ee]xpected (?:world|group) ?size:? \d+,? but (?:got|found|was)|world[_ ]size .*(?:does not match|"
         r"mismatch|is not equal|differs)|WORLD_SIZE .*(?:not equal|does not match|mismatch)|(?:mismatch|"
         r"inconsistent) .*(?:world[_ ]size|nnodes)|nnodes .*mismatch"),
        ("beyond-world", "orld size|world_size",
         r"(?:bigger than|must not exceed the|be less or equal to the) (?:default )?world[_ ]size|"
         r"rank should be within the world_size|World size \(\d+\) is not valid", 0.85,
         "the program's groups of ranks do not fit the number of ranks that were started"),
        ("lightning-slurm", "configured in SLURM",
         "but the number of (?:tasks per node|nodes) configured in SLURM .{0,60}does not match"),
        ("ranks-expected", "xpected",
         r"[Ee]xpected \d+ (?:ranks|processes|workers|nodes),? (?:but )?(?:got|found|only)", 0.75),
    ]),
    Row("world-indivisible", "world-size-mismatch", ROOT,
        "Megatron core/parallel_state.py, NeMo, DeepSpeed: sizes of the groups of ranks",
        "divisible", "(?i)world[_ ]size .{0,60}(?:not|must be) divisible", confidence=0.75,
        means="the number of ranks does not fit the sizes of tensor, pipeline and other groups",
        fix="Choose tensor, pipeline, context and expert sizes whose product divides the number of ranks, or "
            "start as many ranks as that product (--nnodes times --nproc-per-node)"),
    *table("torch distributed_c10d.py, rendezvous.py, vLLM v1/engine/utils.py, DeepSpeed", ROOT,
           "rank-missing-or-duplicate", [
        ("rank-taken",
         "been used|been taken|been joined|been in use|been registered|rank is|rank has|rank was|uplicate|"
         "already|same rank|same node rank",
         r"(?i)duplicate (?:node )?rank|rank \d+ (?:is|was|has)? ?(?:already|been) (?:taken|registered|joined|"
         r"in use|used)|multiple (?:nodes|processes) .*same (?:node )?rank|(?:two|more than one) (?:nodes?|"
         r"process(?:es)?) .*same (?:node )?rank"),
        ("rank-beyond",
         ">=world|interval|must be|>= world|out of range|greater than|nvalid rank|nvalid node|LOCAL_RANK|match "
         "torch rank",
         r"(?i)\brank (?:value )?\(?\d+\)? .*(?:should be in the interval|must be (?:smaller|less)|>= ?world|"
         r"out of range|greater than)|invalid (?:node[ _])?rank|LOCAL_RANK \(\d+\) != |"
         r"MPI rank \d+ does not match torch rank", 0.7),
        ("engine-hello", "message from",
         r"message from (?:remote|local) engine \d+, expected it to be (?:remote|local)", 0.8,
         "two nodes start with the same data-parallel rank"),
    ]),
    # The rank is what env:// asks for first: a process that no launcher has started has none.
    Row("rank-unset", "rank-missing-or-duplicate", ROOT, "torch distributed/rendezvous.py (env://), os.environ",
        "environment variable|KeyError",
        r"environment variable (?:LOCAL_|NODE_)?RANK\b.*(?:expected|not set)|"
        r"requires the LOCAL_RANK environment variable|KeyError: '(?:RANK|LOCAL_RANK|NODE_RANK|GROUP_RANK|"
        r"SLURM_(?:PROC|LOCAL|NODE)ID)'", confidence=0.88,
        means="no launcher that gives each process its rank has started the program", fix=LAUNCHER),
    Row("env-missing", "bad-launch-arguments", ROOT,
        "torch distributed/rendezvous.py (env://), os.environ of the program",
        "environment variable|KeyError|env was not set",
        r"environment variable (?:WORLD_SIZE|MASTER_ADDR|MASTER_PORT)\b.*(?:expected|not set)|"
        r"`MASTER_ADDR` env was not set|KeyError: '(?:WORLD_SIZE|MASTER_ADDR|MASTER_PORT|LOCAL_WORLD_SIZE|SLURM_\w+)'",
        confidence=0.88, means="the program was not started by a launcher that sets the ranks' environment"),
    Row("group-absent", "bad-launch-arguments", ROOT, "torch distributed_c10d.py _get_default_group",
        "Default process group has not", "Default process group has not been initialized", confidence=0.6,
        means="a process calls a collective before it has joined the group, or without a launcher",
        also="program-exception", fix=LAUNCHER),
    Row("mismatch", "collective-mismatch", ROOT, "torch ProcessGroupWrapper.cpp",
        "Detected mismatch between collectives|Collectives differ",
        "Detected mismatch between collectives|Collectives differ in the following", rule="collective-mismatch",
        scope=RAISED),
    *table("torch reducer.cpp, Lightning strategies/ddp.py", ROOT, "unused-parameters-ddp", [
        ("unused-parameters",
         "Expected to have finished reduction|did not receive grad|parameters that were not used in",
         r"Expected to have finished reduction in the prior iteration|"
         r"LightningModule has parameters that were not used in|"
         r"did not receive grad(?:ient)? for rank (?P<rank>\d+)", 0.95),
        ("unused-parameters-static", "graph has changed in this", "training graph has changed in this iteration",
         0.75, "a parameter is unused in some steps only, which static_graph does not allow"),
    ], scope=RAISED),
    Row("inputs-exhausted", "uneven-data", ROOT, "torch distributed/algorithms/join.py",
        "rank that exhausted inputs", "at least one rank that exhausted inputs", confidence=0.95, scope=RAISED),
    Row("ddp-model", "collective-shape-mismatch", WEAK, "torch reducer.cpp verify_params_across_processes",
        "DDP expects same model|appears not to match s",
        "DDP expects same model across all ranks|appears not to match (?:sizes|strides) of the same param",
        confidence=0.72, rule="accused"),
    Row("monitored-barrier", "straggler", SYMPTOM, "torch ProcessGroupGloo.cpp monitoredBarrier",
        "monitoredBarrier", r"[Rr]anks? [\d, ]+ failed to pass monitoredBarrier|failed to pass monitoredBarrier",
        confidence=0.72, rule="accused"),
    Row("barrier-reached", "", CASCADE, "torch ProcessGroupGloo.cpp monitoredBarrier (every rank but 0)",
        "monitoredBarrier", "successfully reached monitoredBarrier, but received errors"),
    Row("watchdog", "unknown", SYMPTOM, "torch ProcessGroupNCCL.cpp checkTimeout",
        "Watchdog caught collective operation timeout",
        r"(?:Rank (?P<rank>\d+)\] )?Watchdog caught collective operation timeout: WorkNCCL\((?:SeqNum=(?P<seq>\d+"
        r"), )?(?:OpType=(?P<op>\w+))(?:.*?NumelIn=(?P<numel>\d+))?(?:.*?NumelOut=(?P<out>\d+))?",
        rule="collective-timeout"),
    Row("work-counts", "unknown", SYMPTOM, "torch ProcessGroupNCCL.cpp (pg_status)", "last enqueued|Last enqueued",
        r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)",
        rule="collective-timeout"),
    Row("dump-signal", "unknown", CASCADE, "torch ProcessGroupNCCL.cpp heartbeatMonitor", "dump signal",
        r"(?:Received a|Observed flight recorder) dump signal(?: due to a collective timeout from (?:this local rank|"
        r" rank (?P<from>\d+)))?", rule="collective-timeout"),
    Row("dump-written", "unknown", CASCADE, "torch FlightRecorder.cpp DebugInfoWriter::write",
        "Flight Recorder debug info", r"Finished writing Flight Recorder debug info to (?P<path>\S+)",
        rule="collective-timeout"),
    Row("watchdog-stuck", "unknown", SYMPTOM, "torch ProcessGroupNCCL.cpp heartbeatMonitor",
        "eartbeatMonitor|eartbeat monitor|eartbeat Monitor|eartbeatmonitor|watchdog got stuck|HeartbeatMonitor|"
        "acquire GIL", "watchdog got stuck for|Could not acquire GIL|[Hh]eartbeat ?[Mm]onitor timed out",
        confidence=0.35, means="a CUDA call or Python's lock does not return on this rank"),
    Row("nccl-virtual", "wrong-interface", CASCADE, "NCCL socket.cc ncclFindInterfaces",
        "]veth|]docker|]br-|]virbr|]lxc|]cni|]cali|]flannel|Using interface",
        r"NCCL INFO (?:Bootstrap|NET/Socket) ?: Using .*\[\d+\](?P<interface>(?:veth|docker|br-|virbr|lxc|cni|"
        r"cali|flannel)[\w.-]*):|NET : Using interface (?P<local>(?:lo|veth|docker|br-|virbr|lxc|cni|cali|"
        r"flannel)[\w.-]*):", rule="virtual-interface"),
    Row("rank-announced", "rank-missing-or-duplicate", CASCADE, "Lightning fabric/utilities/distributed.py",
        "GLOBAL_RANK: ", r"GLOBAL_RANK: (?P<announced>\d{1,6}), MEMBER: \d{1,6}/(?P<world>\d{1,6})",
        rule="ranks-announced"),
    Row("preparing", "straggler", CASCADE, "datasets arrow_dataset.py: its progress, while other ranks wait",
        "Running tokenizer|Tokenizing|Map|Filter|Grouping texts|Generating ",
        r"^(?:Running tokenizer|Tokenizing|Map|Filter|Grouping texts|"
        r"Generating \w+ split)\b[^:]{0,60}:? +\d{1,3}%", rule="preparing"),
    *table("torch ProcessGroupNCCL desync debug, gloo unbound_buffer.cc", SYMPTOM, "straggler", [
        ("weights-awaited", "finish the model loading|finish loading",
         "there are other ranks that didn't finish loading", 0.6,
         "other ranks did not load the weights in time: one has failed, or reads from a slow disk"),
        ("desync", "lagging|desync",
         r"(?i)ranks? \[?(?P<late>[\d, ]+)\]? (?:are|is) the lagging|lagging.*ranks that caused|"
         r"that caused the desync", 0.7),
        ("gloo-waited", "Timed out waiting", r"Timed out waiting \d+ms for (?:recv|send)", 0.4,
         "a peer did not come in time, and this side can't name it"),
    ]),
    Row("gloo-mesh", "wrong-interface", SYMPTOM, "torch ProcessGroupGloo.cpp, gloo transport/tcp/pair.cc",
        "connectFullMesh failed|gloo/transport/tcp/",
        r"gloo/transport/tcp/\S{1,40} rv != -1\. -1 vs -1\. connect: (?P<error2>.*)|"
        r"connectFullMesh failed(?:.*?remote=\[?(?P<peer>[\w.:]+?)\]?:(?P<port>\d+))?|"
        r"gloo/transport/tcp/\S{1,40} (?:Connect timeout|"
        r"connect) \[(?P<peer2>[\w.:]+)\]:(?P<port2>\d+)(?:: (?P<error>.*))?", rule="connect-refused"),
    *table("mtu EMSGSIZE, ICMP frag needed, ping", ROOT, "mtu-or-packet-loss", [
        ("mtu",
         "essage too long|rag needed|ragmentation needed|mtu mismatch|MTU mismatch|mtu too|MTU too|bad MTU|mtu "
         "differs|MTU differs",
         "[Mm]essage too long|[Ff]rag(?:mentation)? needed|(?i:mtu (?:mismatch|differs|too))|bad MTU", 0.85),
        ("loss", "packet loss", r"(?<![\d.])(?:[1-9]|[1-9]\d)(?:\.\d+)?% packet loss", 0.8),
    ]),
    Row("ipv6", "ipv6-problem", ROOT, "errno 97 EAFNOSUPPORT, getaddrinfo EAI_ADDRFAMILY, IPv6 only on one side",
        "IPv6|ipv6|Address family for hostname|AF_INET6",
        "(?i)Address family for hostname not supported|ipv6.{0,40}(?:unreachable|disabled|not supported|not available|"
        "no route)|(?:no|without) (?:global )?ipv6|AF_INET6.{0,40}(?:not|fail)", confidence=0.7),
    Row("ipv6-bind", "ipv6-problem", SYMPTOM, "torch socket.cpp no IPv6 on this host, and no second attempt",
        "errno: 97", "failed to (?:bind|listen).{0,60}errno: 97", confidence=0.45),
    Row("proxy", "proxy-env", ROOT, "tcp and http proxies RFC 9110 407, urllib3 ProxyError, curl",
        "X-Squid|ERR_TUNNEL|Tunnel connection|roxy|HTTP code|via proxy",
        r"ProxyError|Tunnel connection failed|Proxy Authentication Required|Received HTTP code \d+ from proxy|"
        r"Cannot connect to proxy|proxy: .*(?:refused|failed|denied)|\b407 Proxy|(?i:https?_proxy).*(?:unset|"
        r"wrong|intercept)|ERR_(?:TUNNEL|PROXY)_CONNECTION|X-Squid-Error|via (?:the )?proxy .*(?:fail|refus)",
        confidence=0.85),
)  # fmt: skip


SCALAR = 64
FAR = 100  # a count or a loss against a bucket of gradients is another call, not another shape
OP = re.compile(r"OpType=(\w+)|\b([A-Za-z_]\w+) ?\(TensorShape|Rank \d+: +(\w+), TensorShape")
SHAPE = re.compile(r"TensorShape\s?=\[([\d, ]*)\]")  # a terminal breaks lines
DTYPES = re.compile(r"TensorDtypes=([\w ]+)")
_ASPECTS = re.compile(r"aspects:(.*)", re.DOTALL)


def compare_calls(text: str) -> tuple[str, float]:
    """Give the cause and its confidence, by the text of the message (CollectiveFingerPrint)."""
    ops = {m for ms in OP.findall(text) for m in ms if m}
    sizes = [prod(int(n) for n in s.split(",") if n.strip()) for s in SHAPE.findall(text)]
    aspects = _ASPECTS.search(text)
    if aspects and re.search(r"Sequence number|Op type", aspects[1]):
        return "collective-mismatch", 0.92
    if len(ops) > 1:
        return "collective-mismatch", 0.92
    if sizes and min(sizes) <= SCALAR and max(sizes) >= FAR * max(1, min(sizes)):
        return "collective-mismatch", 0.75
    if len(set(sizes)) > 1 or (aspects and re.search(r"shape|dtype", aspects[1])):
        return "collective-shape-mismatch", 0.9
    return "collective-mismatch", 0.6
