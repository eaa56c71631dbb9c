"""What to do about each cause: commands or settings to paste (pure). A row's own fix goes before it."""

from __future__ import annotations

_RANK_ENV = "torchrun --nnodes N --nproc-per-node K --node-rank R --master-addr A … sets it; or `allranks run`"
FIXES: dict[str, str] = {
    "master-unreachable": "on a worker: getent hosts MASTER; nc -vz MASTER PORT; on the master: ss -ltnp | grep PORT",
    "name-resolution": "getent hosts NAME on every node; add the name to DNS or /etc/hosts, or use the address",
    "hostname-resolves-to-loopback": "remove the node's own name from the 127.x lines of /etc/hosts, "
    "or export GLOO_SOCKET_IFNAME=IFACE NCCL_SOCKET_IFNAME=IFACE",
    "port-in-use": "ss -ltnp 'sport = :PORT' names the holder; end it, or choose "
    "another MASTER_PORT (torchrun: --rdzv-endpoint HOST:0)",
    "port-blocked": "open the port range between the nodes (also NCCL's own, not "
    "only MASTER_PORT): nft list ruleset; sysctl net.ipv4.ip_local_port_range",
    "wrong-interface": "ip -br addr on every node; export NCCL_SOCKET_IFNAME=IFACE GLOO_SOCKET_IFNAME=IFACE "
    "with the one that links the nodes",
    "no-interface": "ip -br addr on every node; unset NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, "
    "or name an interface that is there",
    "data-not-split": "shard by the global rank (RANK of WORLD_SIZE), once; allranks data audit --loader "
    "module:function reads a whole epoch on virtual ranks",
    "peer-died": "read the log of the rank that ended first, and dmesg -T on its node",
    "rendezvous-timeout": "count what started: which ranks of the world have a log at all? "
    "Then nc -vz MASTER PORT from the absent ones",
    "world-size-mismatch": "the same --nnodes and --nproc-per-node on every node; one task a rank under srun",
    "rank-missing-or-duplicate": "give every node its own --node-rank (0 … nnodes-1), or use --rdzv-backend c10d",
    "orphan-process": "ps -eo pid,lstart,cmd | grep python on the node; end what an "
    "earlier run left (allranks clean --leftovers TARGET)",
    "collective-mismatch": "make every rank call the same collectives in the same order: "
    "look for a branch on the rank or on the data; TORCH_DISTRIBUTED_DEBUG=DETAIL "
    "names them",
    "straggler": "py-spy dump --pid PID on the late rank; TORCH_NCCL_TRACE_BUFFER_SIZE=2000 "
    "keeps what each rank did last",
    "collective-shape-mismatch": "print the shapes on every rank before the call; pad, or gather the sizes first",
    "uneven-data": "DistributedSampler(drop_last=True), or `with model.join():`; "
    "compare the number of batches of all ranks",
    "nccl-ib-error": "ibstat; ibv_devinfo; show_gids on both nodes; NCCL_IB_HCA=DEVICE, "
    "unset NCCL_IB_GID_INDEX; NCCL_IB_DISABLE=1 proves that it is "
    "the fabric",
    "nccl-p2p-error": "lsmod | grep peermem; nvidia-smi topo -p2p r; NCCL_NET_GDR_LEVEL=LOC "
    "or NCCL_P2P_DISABLE=1 proves it",
    "nvlink-error": "nvidia-smi nvlink -s; nvidia-smi nvlink -e; dmesg -T | grep -i xid; take the node out",
    "fabric-manager": "systemctl status nvidia-fabricmanager; its version must equal "
    "the driver's; systemctl restart nvidia-fabricmanager",
    "shm-too-small": "df -h /dev/shm; docker: --shm-size=16g or --ipc=host; Kubernetes: "
    "an emptyDir with medium: Memory on /dev/shm",
    "nccl-version-mismatch": "python -c 'import torch; print(torch.cuda.nccl.version())' on "
    "every node; unset LD_LIBRARY_PATH entries with another libnccl",
    "driver-version-mismatch": "nvidia-smi; cat /proc/driver/nvidia/version; install matching "
    "driver parts and reboot, or a torch built for this driver",
    "environment-mismatch": "python -m torch.utils.collect_env on every node; use one image or environment",
    "duplicate-gpu": "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before "
    "the first collective; one process a GPU",
    "invalid-device-ordinal": "use LOCAL_RANK, not RANK, as device; nvidia-smi -L and $CUDA_VISIBLE_DEVICES "
    "on the node against --nproc-per-node",
    "cuda-device-unavailable": "nvidia-smi on the node (processes, compute mode, errors); python "
    "-c 'import torch; print(torch.cuda.device_count())'",
    "cuda-out-of-memory": "a smaller micro batch, activation checkpointing or more sharding; "
    "nvidia-smi shows who else holds memory; PYTORCH_ALLOC_CONF=expandable_segments:True",
    "host-out-of-memory": "dmesg -T | grep -i 'killed process' on the node; fewer data-loader "
    "workers, sharded loading, or a larger --mem",
    "k8s-out-of-memory": "raise resources.limits.memory of the container; kubectl describe pod shows the last state",
    "gpu-hardware-error": "dmesg -T | grep -i xid; nvidia-smi --gpu-reset -i N or reboot; take the node out of the job",
    "ecc-error": "nvidia-smi -q -d ECC,ROW_REMAPPER; take the node out, reset "
    "the GPU, have it replaced if it comes back",
    "gpu-fell-off-bus": "take the node out and reboot it; if it comes back: reseat or "
    "replace the GPU, look at power and PCIe",
    "cuda-kernel-fault": "run once with CUDA_LAUNCH_BLOCKING=1; check indices and labels "
    "against the sizes; compute-sanitizer python …",
    "program-exception": "correct the program at the place shown; run that rank's input alone",
    "unused-parameters-ddp": "DistributedDataParallel(…, find_unused_parameters=True), or "
    "use every output in the loss; TORCH_DISTRIBUTED_DEBUG=DETAIL "
    "names them",
    "missing-module": "PYTHON -m pip install MODULE in the training environment of every node",
    "missing-file": "ls -ld PATH on every node; mount or copy what is missing, or correct the path",
    "disk-full": "df -h; df -i; quota -s on the node; remove old checkpoints",
    "too-many-open-files": "ulimit -n 65536 before the start; torch.multiprocessing.set_sharing_strategy('file_s"
    "ystem'); fewer workers",
    "memlock-limit": "ulimit -l must say unlimited: /etc/security/limits.conf, LimitMEMLOCK=infinity "
    "of the service (slurmd, docker)",
    "permission-denied": "ls -ld PATH on the node as the user who trains; id",
    "checkpoint-unreadable": "compare size and sha256sum with the original, and the configuration "
    "with the one that was saved; resume from an older one",
    "dataloader-worker-killed": "dmesg -T on the node; df -h /dev/shm; fewer workers or num_workers=0 "
    "to see the exception itself",
    "segfault-native": "python -X faulthandler …; coredumpctl gdb; compare versions of torch, CUDA and extensions",
    "ssh-auth": "ssh -v -o BatchMode=yes HOST true; ssh-copy-id HOST",
    "ssh-hostkey": "ssh-keygen -R HOST; ssh-keyscan HOST >> ~/.ssh/known_hosts after comparing the fingerprint",
    "ssh-unreachable": "nc -vz HOST 22; systemctl status sshd on the host; MaxStartups of sshd where only some fail",
    "slurm-config": "sinfo -o '%P %l %G %m'; sacctmgr show assoc user=$USER; ask for what a node of the partition has",
    "slurm-preempted-or-timeout": "save a checkpoint before it (--signal=B:USR1@300); ask for more --time or --requeue",
    "slurm-cancelled": "sacct -j JOB -o JobID,State,ExitCode,End; start again if it was not meant",
    "k8s-scheduling": "kubectl describe pod POD; kubectl describe nodes | grep -A8 "
    "Allocated; free or add nodes, or correct selector and tolerations",
    "k8s-image": "kubectl describe pod POD; check name, tag and imagePullSecrets: crictl pull IMAGE on the node",
    "deepspeed-config": "train_batch_size = micro batch x accumulation x world size; "
    "correct the named key of the DeepSpeed configuration",
    "accelerate-config": "accelerate config (or --config_file on every node with its own "
    "machine_rank); accelerate env shows what is read",
    "proxy-env": "unset http_proxy https_proxy all_proxy; export no_proxy=localhost,127.0.0.1,HOSTS",
    "ipv6-problem": "use an IPv4 address as master; export GLOO_SOCKET_IFNAME=IFACE NCCL_SOCKET_FAMILY=AF_INET",
    "mtu-or-packet-loss": "ping -M do -s 8972 PEER (jumbo) or -s 1472; ip link set IFACE "
    "mtu 1500 on every node; ethtool -S IFACE | grep -i err",
    "clock-skew": "chronyc tracking (or timedatectl) on every node; systemctl restart chronyd",
    "bad-launch-arguments": "compare the command with --help of launcher and script; " + _RANK_ENV,
    "node-network-down": "ip -br link and dmesg -T on the node; take it out of the list, or bring the link back",
    "remote-path-missing": "ssh NODE ls -ld PATH; ssh NODE 'command -v python3'; use full "
    "paths or the same image on every node",
    "unknown": "collect the logs of all ranks from their beginning, dmesg -T "
    "of their nodes, and the scheduler's last words",
}
