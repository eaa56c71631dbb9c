"""The labels a verdict may carry, each with one line of what it means (design: reference/causes.md).

One label is the root cause; what follows from it in other ranks is a victim.
"""

from __future__ import annotations

CAUSES: dict[str, str] = {
    # reaching the master
    "master-unreachable": "the master's address answers to nobody: host down, no route, nobody listens",
    "name-resolution": "a host name does not resolve, or to different addresses on different nodes",
    "hostname-resolves-to-loopback": "a node's own name resolves to 127.x or ::1 and is used for others",
    "port-in-use": "something else holds the port",
    "port-blocked": "the host answers but the port is filtered",
    "wrong-interface": "an interface was chosen that peers cannot reach",
    "no-interface": "the interface filter matches nothing",
    "peer-died": "a peer went away and the evidence at hand does not say why",
    # the gang
    "rendezvous-timeout": "nodes or ranks never joined, and nothing says why",
    "world-size-mismatch": "nodes disagree on the number of nodes or ranks",
    "rank-missing-or-duplicate": "two nodes carry the same rank, or one is missing",
    "orphan-process": "a process of an earlier run is in the way",
    # collectives
    "collective-mismatch": "ranks called different collectives, or one rank skipped one",
    "straggler": "one rank was late: slow disk, data, evaluation or save on one rank",
    "collective-shape-mismatch": "same collective, different shapes or types",
    "data-not-split": "several ranks read the same samples, some are read by nobody, or shares are unequal",
    "uneven-data": "ranks ran out of data at different steps",
    # NCCL, fabric, versions
    "nccl-ib-error": "InfiniBand or RoCE failed under NCCL",
    "nccl-p2p-error": "GPUDirect RDMA or peer-to-peer between GPUs failed under NCCL",
    "nvlink-error": "NVLink failed",
    "fabric-manager": "the fabric manager of an NVSwitch machine does not run or does not fit",
    "shm-too-small": "/dev/shm too small",
    "nccl-version-mismatch": "nodes run different versions of NCCL that do not fit",
    "driver-version-mismatch": "the GPU driver does not fit the CUDA or ROCm in use, or differs between nodes",
    "environment-mismatch": "Python, torch or the environment differ between nodes or do not fit",
    # devices
    "duplicate-gpu": "two ranks use the same GPU",
    "invalid-device-ordinal": "a rank asks for a GPU that the node does not have or does not show",
    "cuda-device-unavailable": "a GPU is there and cannot be used: busy, exclusive, or in error",
    "cuda-out-of-memory": "the GPU's memory ran out",
    "host-out-of-memory": "the host's memory ran out and the kernel killed a process",
    "k8s-out-of-memory": "the pod's memory limit was reached",
    "gpu-hardware-error": "the NVIDIA driver reported a hardware Xid",
    "ecc-error": "a GPU's memory has uncorrectable errors",
    "gpu-fell-off-bus": "a GPU vanished from the PCIe bus",
    "cuda-kernel-fault": "a kernel's bad access, index or assertion",
    # the program
    "program-exception": "an exception in the program that none of the others explains",
    "unused-parameters-ddp": "DDP waits for gradients of parameters that took no part in the loss",
    "missing-module": "the program imports a module that is not installed",
    "missing-file": "the program opens a file or data path that is not there",
    "disk-full": "no space, no inodes or no quota left",
    "too-many-open-files": "the limit of open files was reached",
    "memlock-limit": "the limit of locked memory is too small for RDMA",
    "permission-denied": "the operating system refused access",
    "checkpoint-unreadable": "loading or saving a checkpoint",
    "dataloader-worker-killed": "a data-loader worker was killed",
    "segfault-native": "native code crashed: segmentation fault, abort, illegal instruction",
    # reaching the nodes
    "ssh-auth": "ssh refused the key or the user",
    "ssh-hostkey": "ssh does not know the host's key, or it has changed",
    "ssh-unreachable": "ssh does not reach the host",
    "slurm-config": "Slurm refused the job or its step",
    "slurm-preempted-or-timeout": "Slurm ended the job: preempted, or its time was up",
    "slurm-cancelled": "the job was cancelled by a person or a service",
    "k8s-scheduling": "Kubernetes could not place the pods",
    "k8s-image": "Kubernetes could not get the image",
    "deepspeed-config": "DeepSpeed refused its configuration",
    "accelerate-config": "Accelerate refused its configuration",
    # the network's state
    "proxy-env": "proxy variables send the ranks' own traffic to a proxy",
    "ipv6-problem": "IPv6 is used on one side only, or does not work",
    "mtu-or-packet-loss": "large packets or some packets do not arrive",
    "clock-skew": "the nodes' clocks differ too much",
    "bad-launch-arguments": "the launcher or the script refused its arguments",
    "node-network-down": "a node lost its link or its power",
    "remote-path-missing": "the working directory, script or interpreter is absent on a node",
    "unknown": "the evidence does not establish a cause: say so, and say what to collect",
}
