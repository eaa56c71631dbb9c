"""The causes a verdict may name: one row each, with all that is said and done about it (pure).

Messages, `--json`, `docs/reference/causes.md`, exit codes (`exit_code`) and retries (`gang/policy.py`) read this
table. One cause is at fault; what follows from it in other ranks is a victim.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from allranks import exitcodes
from allranks.findings import Verdict, Where

from .worlds import NOWHERE, World, Worlds, tools

_NOWHERE = Where()
_NO_VALUES: Mapping[str, str] = {}


class FixReader(enum.Enum):
    """Where a fix is read: it names only commands that are there."""

    ANYWHERE = "the page of a cause"
    LOGS = "a verdict on logs alone, of any launcher"
    RUN = "a run on hosts or on this machine"
    SLURM = "a run in a Slurm job"
    SCHEDULED = "a run whose nodes another scheduler may have given"


class Charge(enum.Enum):
    """What a failure is charged to: it decides whether another attempt can help."""

    SETTINGS = "settings"  # what is set wrongly
    PROGRAM = "program"
    MEMORY = "memory"  # the program needs more than there is
    LIMIT = "limits"  # of the operating system
    HANG = "hang"  # a rank that the others wait for
    EXIT = "exit"  # a rank that left without an exception
    CRASH = "crash"  # native code; may be the machine's
    KILLED = "killed"  # a signal from outside
    NODE = "node"
    NETWORK = "network"  # a link or a service
    SCHEDULER = "preempted"  # it took the machines back
    PERSON = "stopped"  # a person or a service ended it
    ALLRANKS = "allranks"
    SITE = "site"  # a site's own cause, whose signature names no charge
    UNKNOWN = "unknown"


class Ends(enum.Enum):
    """The exit code: where a rank failed, and where none did."""

    PROGRAM = (exitcodes.PROGRAM_FAILED, exitcodes.CHECK_FAILED)
    PROGRAM_ALWAYS = (exitcodes.PROGRAM_FAILED, exitcodes.PROGRAM_FAILED)
    NODE_OR_PROGRAM = (exitcodes.PROGRAM_FAILED, exitcodes.NODE_FAILED)
    NODE = (exitcodes.NODE_FAILED, exitcodes.NODE_FAILED)
    HANG = (exitcodes.HANG, exitcodes.HANG)
    INTERNAL = (exitcodes.INTERNAL, exitcodes.INTERNAL)


_SACCT = "`sacct -j {job} -o State,MaxRSS`"
_KUBECTL = "`kubectl describe pod {pod}`"
_SCHEDULERS = f", and ask the scheduler where there is one: {_SACCT} or {_KUBECTL}"
_OF_RUNS = (FixReader.RUN, FixReader.SLURM, FixReader.SCHEDULED)
# Parts of a fix by its reader; ANYWHERE stands for readers that have none of their own.
_WORDS = {
    "with_logs": {
        FixReader.ANYWHERE: " (of a run with `allranks logs`)", FixReader.LOGS: "",
        **dict.fromkeys(_OF_RUNS, " with `allranks logs`"),
    },
    "with_log_of_rank": {
        FixReader.ANYWHERE: " (of a run with `allranks logs --rank {rank}`)", FixReader.LOGS: "",
        **dict.fromkeys(_OF_RUNS, " with `allranks logs --rank {rank}`"),
    },
    "ask_scheduler": {FixReader.ANYWHERE: _SCHEDULERS, FixReader.RUN: "", FixReader.SLURM: f", and {_SACCT}"},
    "mem_option": {FixReader.ANYWHERE: " (of Slurm: --mem)", FixReader.RUN: "", FixReader.SLURM: " (--sbatch --mem=…)"},
    "if_memory": {
        FixReader.ANYWHERE: ". Where the kernel killed it for memory, use fewer data-loader workers or sharded loading",
        **dict.fromkeys(_OF_RUNS, ""),
    },
    "given": {FixReader.ANYWHERE: "`{list}` on every node"},
    "port_of_torchrun": {
        FixReader.ANYWHERE: " (torchrun: `--rdzv-endpoint {master}:0`)", **dict.fromkeys(_OF_RUNS, ""),
    },
}  # fmt: skip
# The same parts where logs or nodes tell what had started the ranks.
_WORDS_OF_WORLD = {
    "ask_scheduler": {World.RAY: ", and `ray status`", World.SLURM: f", and {_SACCT}",
                      World.KUBERNETES: f", and {_KUBECTL}"},
    "given": {World.RAY: "`ray status` shows the resources that Ray has and has given away",
              World.SLURM: "`scontrol show job {job}`", World.KUBERNETES: "`kubectl describe pod {pod}`"},
    "mem_option": {World.RAY: "", World.SLURM: " (--mem of sbatch)", World.KUBERNETES: ""},
}  # fmt: skip


@dataclass(frozen=True)
class InWorld:
    """What is said in one world; without `next_step` or `fix` that of the cause holds."""

    next_step: str = ""
    fix: str = ""

    @property
    def text(self) -> str:
        """Both as they are read."""
        return f"{self.next_step}. {self.fix}"


@dataclass(frozen=True)
class Cause:
    """`meaning`: when it is at fault. `next_step`: what shows more. `fix`: what ends it. Both are sentences.

    Both may hold places of a finding, values of the evidence (`in_place`), names of tools (worlds.py), and the names of
    _WORDS, which depend on where the fix is read. `effects` are causes that only follow from this one where both are
    observed.
    """

    id: str
    meaning: str
    next_step: str
    fix: str
    charge: Charge
    ends: Ends = Ends.PROGRAM
    effects: str = ""

    @cached_property
    def explains(self) -> frozenset[str]:
        """Its effects, one by one."""
        return frozenset(self.effects.split())

    @property
    def worlds(self) -> Mapping[World, InWorld]:
        """The columns of worlds where another step or fix is right."""
        return _COLUMNS.get(self.id, {})

    def column(self, worlds: Worlds) -> InWorld:
        """Give the next step and the fix for a world: those of the first column that is of it."""
        chosen = next((column for world, column in self.worlds.items() if world in worlds), InWorld())
        return InWorld(chosen.next_step or self.next_step, chosen.fix or self.fix)

    def remedy(
        self,
        where: Where = _NOWHERE,
        reader: FixReader = FixReader.ANYWHERE,
        worlds: Worlds = NOWHERE,
    ) -> str:
        """Give the next step and the fix for a place; names that are not established stay in capitals."""
        return in_place(self.column(worlds).text, where, reader, worlds)


_FIELD = re.compile(r"\{(\w+)\}")
_PLACEHOLDERS = {
    "node": "NODE", "peer": "PEER", "rank": "RANK", "port": "PORT", "interface": "IFACE", "gpu": "GPU", "path": "PATH",
    "host": "NAME", "master": "MASTER", "module": "MODULE", "package": "PACKAGE", "job": "JOB", "pod": "POD",
    "image": "IMAGE", "at_peer": "",
    "container": "CONTAINER", "mtu": "1500", "variable": "VARIABLE", "driver": "VERSION",
    "link": "IFACE",
}  # fmt: skip


def in_place(
    text: str,
    where: Where = _NOWHERE,
    reader: FixReader = FixReader.ANYWHERE,
    worlds: Worlds = NOWHERE,
    values: Mapping[str, str] = _NO_VALUES,
) -> str:
    """Fill places, values and names of tools into a fix; what is not established stays in capitals."""
    names = dict(_PLACEHOLDERS)
    names |= values
    names["at_peer"] = "" if where.peer is None and where.node is None else f" ({where.node or where.peer})"
    of_place = {name: value for name, value in where._asdict().items() if name in _PLACEHOLDERS}
    names |= {name: str(value) for name, value in of_place.items() if value is not None}
    if where.nodes and where.node is None:
        names["node"] = where.nodes[0]
    text = _with_words(text, reader, worlds)
    return _FIELD.sub(lambda match: names.get(match[1], match[0]), text)


def fields_of(text: str, reader: FixReader, worlds: Worlds) -> frozenset[str]:
    """List the places and values that a fix has."""
    return frozenset(_FIELD.findall(_with_words(text, reader, worlds))) & set(_PLACEHOLDERS)


def _with_words(text: str, reader: FixReader, worlds: Worlds) -> str:
    """Put in what depends on the reader and on the world; it may have places itself."""
    words = tools(worlds)
    for name, by_reader in _WORDS.items():
        words[name] = by_reader.get(reader, by_reader[FixReader.ANYWHERE])
        if reader in (FixReader.LOGS, FixReader.SCHEDULED):
            of_world = _WORDS_OF_WORLD.get(name, {})
            words[name] = next((part for world, part in of_world.items() if world in worlds), words[name])
    for _ in range(2):  # a word may hold the name of a tool
        text = _FIELD.sub(lambda match: words.get(match[1], match[0]), text)
    return text


# EFA: aws-ofi-nccl doc, the AWS EC2 user guide on EFA and NCCL. RoCE: NCCL's environment variables (NCCL_IB_GID_INDEX).
# HCCL: CANN hcomm src/common/err_msg, its page of each code. TCPX: Google's GPUDirect-TCPX guide.
_EFA = InWorld(
    "Run `fi_info -p efa; ls -l /dev/infiniband; dmesg -T | grep -i efa` on {node}, in the container where there is "
    "one",
    "Give the container /dev/infiniband (`--device /dev/infiniband`, on Kubernetes the resource vpc.amazonaws.com/efa) "
    "and memlock without a limit. Let the security group allow all traffic from and to itself, inbound and outbound. "
    "Use the same EFA installer on all nodes, with FI_PROVIDER=efa, and FI_LOG_LEVEL=warn shows more",
)
_ROCE = InWorld(
    "Run `show_gids; ibv_devinfo; ethtool -S {interface} | grep -i -e pause -e discard` on both nodes",
    "Set NCCL_IB_GID_INDEX to the index of the RoCE v2 address on each node (3 is usual), or leave it unset with NCCL "
    "2.21 and later. Choose the devices with NCCL_IB_HCA, and make the fabric lossless (PFC and ECN on hosts and "
    "switches). A run with NCCL_IB_DISABLE=1 proves that it is the fabric",
)
_HCCL = InWorld(
    "Run `hccn_tool -i 0 -link -g; hccn_tool -i 0 -ip -g; hccn_tool -i 0 -tls -g; npu-smi info` for each NPU on both "
    "nodes, and `hccn_tool -i 0 -ping -g address ADDRESS` to the other's",
    "Bring the NPUs' links up, with one network, the same TLS switch and the same CANN on all nodes. `grep -rn ERROR "
    "~/ascend/log` finds the rank that failed first, whose error comes before",
)
_GAUDI = InWorld(
    "Run `hl-smi; hl-smi -n link; lsmod | grep habanalabs; dmesg -T | grep habanalabs` on every node",
    "Load habanalabs_ib (after ib_uverbs), bring the NICs up, and give every node the same HCCL_OVER_OFI, "
    "HCCL_SOCKET_IFNAME and LD_LIBRARY_PATH. DeepSpeed takes a line each in ~/.deepspeed_env",
)
_ONECCL = InWorld(
    "Run `fi_info; xpu-smi discovery; env | grep -e CCL_ -e FI_` on every node, and once with CCL_LOG_LEVEL=debug",
    "Choose the transport with CCL_ATL_TRANSPORT=ofi or mpi, the provider with FI_PROVIDER=tcp, and the interface with "
    "FI_TCP_IFACE={link}",
)
_COLUMNS: Mapping[str, Mapping[World, InWorld]] = {
    "nccl-ib-error": {
        World.GAUDI: _GAUDI, World.ASCEND: _HCCL, World.XPU: _ONECCL, World.EFA: _EFA,
        World.TCPX: InWorld(
            "Run `ip -br addr; dmesg -T | tail -n 50` on both nodes, and look at the log of the receive-datapath "
            "manager (tcpgpudmarxd, fastrak_gpumem_manager)",
            "Start that manager on every node before the ranks, and give their container its sockets. Open the ports "
            "of GPUDirect-TCPX between the nodes",
        ),
        World.TPU: InWorld("Run `tpu-info; ip -br addr` on every worker", "Make the TPU VM again where a link is down"),
        World.ROCE: _ROCE,
    },
    "nccl-p2p-error": {
        World.ASCEND: InWorld("Run `npu-smi info -t topo; npu-smi info` on {node}", "Set HCCL_INTRA_ROCE_ENABLE=1"),
        World.AMD: InWorld(
            "Run `amd-smi topology; cat /proc/cmdline; lsmod | grep peer_mem` on {node}",
            "Boot with iommu=pt, load ib_peer_mem, or avoid it with NCCL_NET_GDR_LEVEL=LOC or NCCL_P2P_DISABLE=1",
        ),
        World.EFA: InWorld(
            "Run `modinfo efa | grep ^version; ls /sys/class/infiniband; lsmod | grep -e gdrdrv -e peermem` on {node}",
            "Use an EFA driver with GPUDirect (1.14 and later) and instances that have it, or set "
            "FI_EFA_USE_DEVICE_RDMA=0",
        ),
        **dict.fromkeys((World.XPU, World.GAUDI, World.TPU), InWorld(
            "Run `{list}; dmesg -T | tail -n 50` on {node}", "Use the same driver and library on all nodes")),
    },
    "nvlink-error": {
        World.AMD: InWorld("Run `amd-smi xgmi; dmesg -T | grep -i xgmi` on {node}"),
        World.ASCEND: InWorld("Run `npu-smi info -t health -i {gpu}; npu-smi info -t topo` on {node}"),
        **dict.fromkeys((World.XPU, World.GAUDI, World.TPU), InWorld("Run `{smi}; {kernel_log}` on {node}")),
    },
    "nccl-version-mismatch": {
        World.AMD: InWorld(
            "Run `python -c 'import torch; print(torch.version.hip, torch.cuda.nccl.version())'` on every node",
            "Use one image on all nodes, and remove entries of LD_LIBRARY_PATH that hold another librccl",
        ),
        World.ASCEND: InWorld(
            "Run `cat /usr/local/Ascend/ascend-toolkit/latest/*/ascend_toolkit_install.info` on every node",
            "Install the same CANN on all nodes, and use one image",
        ),
        **dict.fromkeys((World.XPU, World.GAUDI, World.TPU), InWorld(
            "Run `python -m pip list | grep -i -e ccl -e habana -e xla` on every node", "Use one image on all nodes")),
    },
    "driver-version-mismatch": {
        World.AMD: InWorld("Run `amd-smi version; cat /sys/module/amdgpu/version` on every node"),
        World.ASCEND: InWorld(
            "Run `npu-smi info; cat /usr/local/Ascend/driver/version.info` on every node",
            "Install the driver and firmware that this CANN and torch_npu ask for, and reboot",
        ),
        World.XPU: InWorld("Run `xpu-smi discovery; sycl-ls` on every node"),
        World.TPU: InWorld("Run `python -m pip list | grep -i -e libtpu -e xla` on every worker",
                           "Install the libtpu that this torch_xla asks for, on all workers"),
        World.GAUDI: InWorld("Run `hl-smi; python -m pip list | grep -i habana` on every node",
                             "Install the driver and the SynapseAI packages of one release on all nodes"),
    },
    "environment-mismatch": {
        World.ASCEND: InWorld(
            "Run `python -m pip list | grep -i -e torch -e npu -e vllm; cat "
            "/usr/local/Ascend/ascend-toolkit/latest/*/ascend_toolkit_install.info` on every node",
            "Install torch, torch_npu and CANN of one release of Ascend's table, with CANN's kernels for this chip, "
            "and the same on all nodes. Then `source /usr/local/Ascend/ascend-toolkit/set_env.sh`",
        ),
        World.TPU: InWorld(
            "Run `python -m pip list | grep -i -e torch -e libtpu -e jax` on every worker",
            "Install both of one version, with the libtpu that belongs to it: `python -m pip install torch==VERSION "
            "'torch_xla[tpu]==VERSION'`",
        ),
        World.AMD: InWorld(
            "Run `rocminfo | grep gfx; python -c 'import torch; print({torch_version})'` on every node",
            "Use one image, with torch and extensions that are built for this ROCm and for that gfx",
        ),
        World.XPU: InWorld(
            "Run `python -m pip list | grep -i -e torch -e ccl -e intel; sycl-ls` on every node",
            "Install torch, its oneCCL and the GPU's driver of one release, and the same on all nodes",
        ),
        World.GAUDI: InWorld(
            "Run `hl-smi; python -m pip list | grep -i -e torch -e habana` on every node",
            "Use one of Habana's images, of the same release as the driver, on all nodes",
        ),
        World.EFA: InWorld(
            "Run `fi_info --version; ls -l /opt/amazon/efa/lib*/libfabric.so*; env | grep LD_LIBRARY_PATH`, in the "
            "container too",
            "Install the same EFA installer on the host and in the image, with the aws-ofi-nccl that it brings. Let no "
            "older libfabric stand before it in LD_LIBRARY_PATH",
        ),
    },
    "disk-full": {
        World.RAY: InWorld(
            "Run `df -h /tmp/ray; du -sh /tmp/ray/*; ray memory` on {node}",
            "Remove old sessions below /tmp/ray, or give Ray another disk: `ray start --temp-dir DIRECTORY`. Its "
            "object store spills there: a larger object_store_memory or fewer objects spill less",
        ),
        World.KUBERNETES: InWorld(
            "Run `kubectl describe pod {pod} | grep -i -e evict -e storage`, and `df -h` in the container",
            "Write checkpoints and caches (HF_HOME, TMPDIR) to a volume. What the container itself may write is "
            "resources.limits of ephemeral-storage, and the request keeps it from being evicted",
        ),
    },
    "fabric-manager": dict.fromkeys(
        (World.AMD, World.ASCEND, World.XPU, World.TPU, World.GAUDI),
        InWorld("Run `{smi}; {kernel_log}` on {node}", "Start the services of the accelerator's driver"),
    ),
    "cuda-device-unavailable": {
        World.AMD: InWorld(
            "Run `rocminfo; amd-smi list; ls -l /dev/kfd /dev/dri` on {node} and `python -c 'import torch; "
            "print({torch_version})'`",
            "Load amdgpu, give the container `--device /dev/kfd --device /dev/dri`, put the user into the groups "
            "render and video, or end what holds the GPU. Set ROCR_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES alone, "
            "because the second counts within the first",
        ),
        World.ASCEND: InWorld(
            "Run `npu-smi info; ls -l /dev/davinci*` on {node} and `python -c 'import torch_npu, torch; "
            "print({torch_version})'`",
            "Give the container /dev/davinci0 to 7, /dev/davinci_manager, /dev/devmm_svm and /dev/hisi_hdc, source "
            "set_env.sh of CANN, or end what holds the NPU",
        ),
        World.XPU: InWorld(
            "Run `sycl-ls; xpu-smi discovery; ls -l /dev/dri` on {node}",
            "Give the container `--device /dev/dri`, put the user into the group render, or end what holds the GPU",
        ),
        World.TPU: InWorld(
            "Run `tpu-info; sudo lsof /dev/accel* /dev/vfio/*` on every worker",
            "End the process that holds the TPU, and remove /tmp/libtpu_lockfile. Start the program on all workers at "
            "once (`gcloud compute tpus tpu-vm ssh NAME --worker=all`)",
        ),
        World.GAUDI: InWorld(
            "Run `hl-smi; ls -l /dev/accel` on {node}",
            "End what holds the device, and give the container `--runtime=habana -e HABANA_VISIBLE_DEVICES=all`",
        ),
        World.RAY: InWorld(
            "Run `ray status`, which shows the GPUs that Ray has and has given away",
            "Start the driver on a node with a GPU (vLLM: VLLM_HOST_IP of a GPU node), and ask for no more than "
            "`ray status` shows",
        ),
        World.KUBERNETES: InWorld(
            "",
            "End what holds the GPU, give the container its resource limit and a security context that may use the "
            "devices, or take the node out",
        ),
    },
    "duplicate-gpu": {
        World.TPU: InWorld("", "Start one process a host, and let torch_xla.launch start the others"),
    },
    "host-out-of-memory": {
        World.RAY: InWorld(
            "`ray status` and `ray memory` show who holds it. Ray's own monitor ends workers before the kernel does, "
            "so dmesg may show nothing on {node}",
            "Use fewer actors a node (larger num_cpus), a smaller object_store_memory, or nodes with more memory. "
            "RAY_memory_usage_threshold (0.95) sets where Ray's monitor begins, and RAY_memory_monitor_refresh_ms=0 "
            "ends it",
        ),
    },
    "master-unreachable": {
        World.TPU: InWorld(
            "Read the log of every worker from its beginning, and run `nc -vz {master} {port}` on the others",
            "Start the program on all workers at once (`gcloud compute tpus tpu-vm ssh NAME --worker=all --command …`)"
            ", and open the coordinator's port between them",
        ),
        World.RAY: InWorld(
            "Run `ray status` on the head, and `nc -vz {master} {port}` on this node",
            "Run `ray start --head` there and `ray start --address {master}:{port}` here, with one version of Ray "
            "(`python -m pip install 'ray[default]'`), and open that port in the firewall with those of Ray's workers",
        ),
    },
    "node-network-down": {
        World.RAY: InWorld(
            "Run `ray status`, and read raylet.out and gcs_server.out in /tmp/ray/session_latest/logs on {node}",
            "Bring the node back with `ray start --address MASTER:6379`, or take it out",
        ),
    },
    "rank-killed": {
        World.RAY: InWorld(
            "Run `journalctl -k --since -1h` on {node}, and `ray logs cluster raylet.out -ip {node}`",
            "Look for the sender: the kernel for memory, Ray's memory monitor (RAY_memory_usage_threshold), `ray "
            "stop`, or the limit of a container",
        ),
    },
    "peer-died": {
        World.ASCEND: InWorld(
            "Run `grep -rn ERROR ~/ascend/log` on every node: the rank whose error is the earliest is at fault. "
            "`npu-smi info; hccn_tool -i 0 -link -g` shows the state of each NPU and its link",
        ),
        World.EFA: InWorld(
            "", "Correct what ended that rank. Where no rank ended, let the security group allow all traffic from and "
            "to itself, inbound and outbound, and look with `fi_info -p efa`"),
    },
    "port-in-use": {
        World.ASCEND: InWorld(
            "`ss -ltnp 'sport = :{port}'` names the holder, and `npu-smi info` lists the processes on each NPU",
            "End it, or choose other ports with HCCL_IF_BASE_PORT, HCCL_HOST_SOCKET_PORT_RANGE and --master-port",
        ),
    },
    "rendezvous-timeout": {
        World.ASCEND: InWorld(
            "Run `grep -rn ERROR ~/ascend/log` on every node: the rank whose error is the earliest is at fault. Then "
            "`hccn_tool -i 0 -link -g; hccn_tool -i 0 -tls -g` for each NPU",
            "Start the absent ranks, set HCCL_SOCKET_IFNAME to the interface that links the nodes, and give slow ones "
            "longer with HCCL_CONNECT_TIMEOUT=1200",
        ),
        World.SLURM: InWorld(
            "",
            "Start the absent ranks: under Slurm `srun` starts one task a rank, or one a node for torchrun, and a "
            "plain `python` one in all. With torchrun give all nodes one --rdzv-endpoint and one --rdzv-id",
        ),
        World.TPU: InWorld(
            "Read the log of every worker from its beginning: one that is absent from the rendezvous had ended "
            "before, or took another path",
            "Start the program on all workers at once (`gcloud compute tpus tpu-vm ssh NAME --worker=all --command …`)",
        ),
    },
    "port-blocked": {
        World.EFA: InWorld(
            "Run `fi_info -p efa`, and look at the security group of both instances",
            "Let the security group allow all traffic from and to itself, inbound and outbound",
        ),
    },
    "unknown": {
        World.GAUDI: InWorld(
            "Collect the logs of all ranks from their beginning, /var/log/habana_logs, and `hl-smi; dmesg -T | grep "
            "habanalabs` of their nodes",
            "Run it again with LOG_LEVEL_ALL=3 and ENABLE_CONSOLE=true, and compare the variables of all nodes "
            "(DeepSpeed gives those of ~/.deepspeed_env)",
        ),
        World.ASCEND: InWorld(
            "Collect the logs of all ranks from their beginning, ~/ascend/log of their nodes, and `npu-smi info; "
            "hccn_tool -i 0 -link -g; hccn_tool -i 0 -tls -g` for each NPU",
            "Read the plog of the rank whose ERROR is the earliest. ASCEND_GLOBAL_LOG_LEVEL=1 shows more",
        ),
        World.XPU: InWorld(
            "Collect the logs of all ranks from their beginning, and `xpu-smi health -l; sycl-ls; dmesg -T` of their "
            "nodes",
            "Run it again with CCL_LOG_LEVEL=debug and TORCH_DISTRIBUTED_DEBUG=DETAIL",
        ),
        World.TPU: InWorld(
            "Collect the logs of every worker from their beginning, and /tmp/tpu_logs of them",
            "Run it again with TPU_STDERR_LOG_LEVEL=0 and PT_XLA_DEBUG_LEVEL=2",
        ),
        World.EFA: InWorld(
            "Collect the logs of all ranks from their beginning, and `fi_info -p efa; dmesg -T` of their nodes",
            "Run it again with NCCL_DEBUG=INFO and FI_LOG_LEVEL=warn",
        ),
        World.RAY: InWorld(
            "Run `ray status`, and `ray logs cluster` for the worker's own log (/tmp/ray/session_latest/logs on its "
            "node). `dmesg -T` there tells of a kill for memory",
            "Run it again with RAY_DEDUP_LOGS=0, so that every worker's words are there",
        ),
    },
}  # fmt: skip


_OF_GPU = (
    "cuda-out-of-memory cuda-kernel-fault cuda-device-unavailable nvlink-error nccl-p2p-error nccl-ib-error "
    "segfault-native driver-version-mismatch fabric-manager gpu-hardware-error k8s-scheduling "
)
S = Charge.SETTINGS
P = Charge.PROGRAM
N = Charge.NODE

_TABLE = (
    # -- reaching the master -------------------------------------------------------------------------------
    Cause("master-unreachable", "the master's address does not answer: host down, no route, or nothing listens",
        next_step="Run `getent hosts {master}; nc -vz {master} {port}` on a worker and `ss -ltnp | grep {port}` on "
                  "the master",
        fix="Start rank 0 on that host, name the address that every node reaches (--master-addr, --rdzv-endpoint), or "
            "open the port in its firewall",
        charge=Charge.NETWORK, ends=Ends.NODE),
    Cause("name-resolution", "a host name does not resolve, or to different addresses on different nodes",
        next_step="Run `getent hosts {host}` on every node",
        fix="Add the name to DNS or /etc/hosts, or use the full name or the address. A pod needs `subdomain` and a "
            "headless service of that name",
        charge=Charge.NETWORK, ends=Ends.NODE,
        effects="ssh-unreachable master-unreachable rendezvous-timeout missing-file"),
    Cause("hostname-resolves-to-loopback", "a node's own name resolves to 127.x or ::1 and is used for others",
        next_step="Run `getent hosts $(hostname)` on the node",
        fix="Remove the node's own name from the 127.x lines of /etc/hosts, or run `export GLOO_SOCKET_IFNAME={link} "
            "{ifname}={link}`",
        charge=S, ends=Ends.NODE, effects="wrong-interface master-unreachable port-blocked"),
    Cause("port-in-use", "something else holds the port",
        next_step="`ss -ltnp 'sport = :{port}'` names the holder",
        fix="End it, or choose another port with --master-port 0{port_of_torchrun}",
        charge=Charge.NETWORK, ends=Ends.NODE, effects="master-unreachable"),
    Cause("port-blocked", "the host answers but the port is filtered",
        next_step="Run `nft list ruleset; sysctl net.ipv4.ip_local_port_range`",
        fix="Open the port range in the firewall between the nodes, for {library}'s own ports as well as MASTER_PORT. "
            "Or choose the interface that links the nodes ({ifname})",
        charge=S, ends=Ends.NODE, effects="master-unreachable rendezvous-timeout"),
    Cause("wrong-interface", "an interface was chosen that peers cannot reach",
        next_step="Run `ip -br addr` on every node",
        fix="Choose the interface that links the nodes with --network CIDR, or run `export {ifname}={link} "
            "GLOO_SOCKET_IFNAME={link}`",
        charge=S, ends=Ends.NODE, effects="master-unreachable port-blocked rendezvous-timeout"),
    Cause("no-interface", "the interface filter matches nothing",
        next_step="Run `ip -br addr` on every node",
        fix="Remove {ifname} and GLOO_SOCKET_IFNAME where they are set (--env, [env], this shell, ~/.bashrc), or name "
            "an interface that exists",
        charge=S, ends=Ends.NODE, effects="master-unreachable port-blocked rendezvous-timeout"),
    Cause("peer-died", "a peer went away and the evidence at hand does not say why",
        next_step="Read the log of the rank that ended first{with_logs}, and `dmesg -T` on its node{at_peer}",
        fix="Correct what ended that rank, because the error of this one only follows",
        charge=Charge.NETWORK),
    # -- the gang ------------------------------------------------------------------------------------------
    Cause("rendezvous-timeout", "nodes or ranks never joined, and nothing says why",
        next_step="Count which ranks of the world have a log at all, and run `nc -vz {master} {port}` from the absent "
                  "ones",
        fix="Start the absent ranks on every node, with one --rdzv-endpoint that all reach and one --rdzv-id. Or give "
            "slow nodes longer (--init-timeout)",
        charge=Charge.NETWORK, ends=Ends.HANG),
    Cause("world-size-mismatch", "nodes disagree on the number of nodes or ranks",
        next_step="Compare WORLD_SIZE and the number of GPUs (`{list} | wc -l`) on every node",
        fix="Use the same --nnodes and --nproc-per-node on every node, and one task a rank under srun",
        charge=S),
    Cause("nodes-train-apart", "each node made a world of its own, and none was made for all of them",
        next_step="Look for a launcher in the command or its script, such as torchrun, accelerate or mpirun. Or for "
                  "torch.multiprocessing.spawn in the program",
        fix="Let allranks start the ranks: `allranks run TARGET train.py`. Or give the launcher $NNODES, $NODE_RANK, "
            "$NPROC_PER_NODE, $MASTER_ADDR and $MASTER_PORT. Where it is meant, use --allow nodes-train-apart",
        charge=S, ends=Ends.PROGRAM_ALWAYS),
    Cause("rank-missing-or-duplicate", "two nodes carry the same rank, or one is missing",
        next_step="Compare RANK and --node-rank on every node",
        fix="Give every node its own --node-rank (0 … nnodes-1), or use --rdzv-backend c10d",
        charge=S),
    Cause("orphan-process", "a process of an earlier run is in the way",
        next_step="Run `ps -eo pid,lstart,cmd | grep python` on {node}",
        fix="End the processes of earlier runs with `allranks clean --orphans TARGET`",
        charge=N, ends=Ends.NODE, effects="port-in-use"),
    Cause("controller-ended", "allranks run ended before the run did, and its ranks by their lease",
        next_step="Look in controller.log of the run directory, and run `journalctl --since -1h` on the launching "
                  "machine",
        fix="Start it with --detach, so that it outlives the terminal. `allranks attach` takes a run over within its "
            "--lease",
        charge=Charge.KILLED, ends=Ends.NODE),
    Cause("rank-killed", "a signal from outside ended a rank, and the sender is not known",
        next_step="Run `journalctl -k --since -1h` on {node}{ask_scheduler}",
        fix="Look for the sender: the program itself, pkill in a script, a job manager, or the limit of a cgroup or "
            "container{if_memory}",
        charge=Charge.KILLED, ends=Ends.NODE_OR_PROGRAM),
    Cause("rank-exited-early", "a rank left without an exception while the others went on",
        next_step="`allranks logs --rank {rank}` shows its last words",
        fix="Let every rank run to the end, with as many steps on all (drop_last, equal shards, torch's Join) and no "
            "sys.exit on one alone. Call torch.distributed.destroy_process_group() before the end",
        charge=Charge.EXIT, ends=Ends.PROGRAM_ALWAYS),
    # -- collectives ---------------------------------------------------------------------------------------
    Cause("collective-mismatch", "ranks called different collectives, or one rank skipped one",
        next_step="`--debug` (TORCH_DISTRIBUTED_DEBUG=DETAIL) names the calls",
        fix="Let every rank call the same collectives in the same order with the same shapes. Look for a branch on "
            "the rank or on the data",
        charge=Charge.HANG, ends=Ends.HANG),
    Cause("straggler", "one rank was late: slow disk, data, evaluation or save on one rank",
        next_step="Run `py-spy dump --pid PID` on the late rank{recorder}",
        fix="Move slow work off the training path, or let all ranks do it alike. Let all call the same collectives in "
            "the same order",
        charge=Charge.HANG, ends=Ends.HANG),
    Cause("collective-shape-mismatch", "ranks called the same collective with different shapes or types",
        next_step="Print the shapes on every rank before the call, or let `--debug` (TORCH_DISTRIBUTED_DEBUG=DETAIL) "
                  "name the calls",
        fix="Pad, or gather the sizes first",
        charge=P),
    Cause("data-not-split", "ranks read the same samples, samples are read by no rank, or shares are unequal",
        next_step="`allranks data audit --loader module:function` reads a whole epoch on virtual ranks",
        fix="Shard by the global rank (RANK of WORLD_SIZE), once",
        charge=S),
    Cause("metric-rule", "a rule of --fail-on holds: a loss that is not a number, no step for too long",
        next_step="Read `allranks logs --metrics --rank {rank}` around the step that the verdict names",
        fix="Go back to the last checkpoint before it. Where the rule is wrong, correct --fail-on",
        charge=P, ends=Ends.PROGRAM_ALWAYS),
    Cause("code-differs", "nodes have different versions of the program",
        next_step="Run `sha256sum SCRIPT` on every node",
        fix="Ship this machine's code to all nodes with `allranks run --sync`, or copy the right file to {node}",
        charge=S),
    Cause("data-differs", "nodes have different files at a data path",
        next_step="Run `find {path} -type f | wc -l; du -sb {path}` on every node",
        fix="Copy what is missing, or allow it with `--allow data-differs` where each node has a share of its own",
        charge=S),
    Cause("tree-not-shipped", "a node did not take the directory that --sync sends, or not all of it",
        next_step="Run `df -h {path}; ls -ld {path}` on {node}, and look at its `allranks logs`",
        fix="Correct what it refuses, name another place with --node-dir, or run without --sync where every node has "
            "the code",
        charge=Charge.LIMIT, ends=Ends.NODE_OR_PROGRAM),
    Cause("uneven-data", "ranks ran out of data at different steps",
        next_step="Compare the number of batches of all ranks",
        fix="Use DistributedSampler(drop_last=True), equal shards, or `with model.join():`",
        charge=Charge.HANG, ends=Ends.HANG),
    # -- NCCL, fabric, versions ----------------------------------------------------------------------------
    Cause("nccl-ib-error", "InfiniBand or RoCE failed under NCCL",
        next_step="Run `ibstat; ibv_devinfo; show_gids` on both nodes. A run with NCCL_IB_DISABLE=1 proves that it is "
                  "the fabric",
        fix="Have the link repaired, or leave its device out with NCCL_IB_HCA. On RoCE set NCCL_IB_GID_INDEX to the "
            "index of a routed RoCE v2 address (3 is usual), on InfiniBand leave it unset. NCCL_IB_DISABLE=1 runs "
            "over sockets meanwhile",
        charge=N, ends=Ends.NODE),
    Cause("nccl-p2p-error", "GPUDirect RDMA or peer-to-peer between GPUs failed under NCCL",
        next_step="Run `lsmod | grep peermem; nvidia-smi topo -p2p r`",
        fix="Load nvidia-peermem, or avoid it with NCCL_NET_GDR_LEVEL=LOC or NCCL_P2P_DISABLE=1",
        charge=N, effects="memlock-limit nccl-ib-error"),
    Cause("nvlink-error", "NVLink failed",
        next_step="Run `nvidia-smi nvlink -s; nvidia-smi nvlink -e; dmesg -T | grep -i xid`",
        fix="Take the node out",
        charge=N, ends=Ends.NODE, effects="cuda-kernel-fault nccl-p2p-error"),
    Cause("fabric-manager", "the fabric manager of an NVSwitch machine does not run or does not fit",
        next_step="Run `systemctl status nvidia-fabricmanager`, whose version must equal the driver's",
        fix="Run `systemctl restart nvidia-fabricmanager`",
        charge=N, ends=Ends.NODE, effects="cuda-device-unavailable driver-version-mismatch invalid-device-ordinal"),
    Cause("shm-too-small", "/dev/shm is too small",
        next_step="Run `df -h /dev/shm` on {node}",
        fix="Run `mount -o remount,size=16G /dev/shm`. Containers take `--shm-size=16g` or `--ipc=host`, pods an "
            "emptyDir with `medium: Memory` on /dev/shm",
        charge=Charge.LIMIT, effects="disk-full dataloader-worker-killed segfault-native host-out-of-memory"),
    Cause("nccl-version-mismatch", "nodes run different versions of NCCL that do not fit",
        next_step="Run `python -c 'import torch; print(torch.cuda.nccl.version())'` on every node",
        fix="Use one image on all nodes. Remove entries of LD_LIBRARY_PATH that hold another libnccl, and all "
            "nvidia-nccl packages but that of torch's CUDA (`python -m pip list | grep nccl`)",
        charge=S),
    Cause("driver-version-mismatch", "the GPU driver does not fit the CUDA or ROCm in use, or differs between nodes",
        next_step="Run `nvidia-smi; cat /proc/driver/nvidia/version`",
        fix="Install matching driver parts and reboot, or install a torch built for this driver",
        charge=S, effects="cuda-device-unavailable environment-mismatch invalid-device-ordinal"),
    Cause("environment-mismatch", "Python, torch or the environment differ between nodes or do not fit",
        next_step="Run `python -m torch.utils.collect_env` on every node",
        fix="Use one image or environment",
        charge=S, ends=Ends.NODE_OR_PROGRAM, effects="missing-module"),
    # -- devices -------------------------------------------------------------------------------------------
    Cause("duplicate-gpu", "two ranks use the same GPU",
        next_step="Compare LOCAL_RANK and {visible} of the ranks",
        fix="Call `{set_device}(int(os.environ['LOCAL_RANK']))` before the first collective, and start one process a "
            "GPU",
        charge=S),
    Cause("invalid-device-ordinal", "a rank asks for a GPU that the node does not have or does not show",
        next_step="Compare `{list}; echo ${visible}` on {node} with --nproc",
        fix="As the device use LOCAL_RANK, not RANK",
        charge=S),
    Cause("cuda-device-unavailable", "a GPU is there and cannot be used: busy, exclusive, or in error",
        next_step="Run `{smi}` on {node} (processes, compute mode, errors) and `python -c 'import torch; "
                  "print({torch_version})'`",
        fix="End what holds the GPU, install a driver for that CUDA, or take the node out",
        charge=N),
    Cause("cuda-out-of-memory", "the GPU's memory ran out",
        next_step="`{smi}` on {node} shows who else holds memory",
        fix="Use a smaller micro batch, activation checkpointing or more sharding{allocator}",
        charge=Charge.MEMORY),
    Cause("host-out-of-memory", "the host's memory ran out and the kernel killed a process",
        next_step="Run `dmesg -T | grep -i 'killed process'` on {node}",
        fix="Use fewer data-loader workers, sharded loading, or a larger limit{mem_option}",
        charge=Charge.MEMORY, ends=Ends.NODE_OR_PROGRAM,
        effects="dataloader-worker-killed segfault-native rank-killed"),
    Cause("k8s-out-of-memory", "the pod's memory limit was reached",
        next_step="`kubectl describe pod {pod}` shows the last state",
        fix="Raise resources.limits.memory of the container",
        charge=Charge.MEMORY, effects="host-out-of-memory dataloader-worker-killed rank-killed"),
    Cause("gpu-hardware-error", "the GPU's driver reported a fault of the card",
        next_step="Run `{kernel_log}` on {node}",
        fix="{reset}, and take the node out of the job",
        charge=N, ends=Ends.NODE, effects="cuda-kernel-fault cuda-device-unavailable segfault-native k8s-scheduling"),
    Cause("ecc-error", "a GPU's memory has uncorrectable errors",
        next_step="Run `{ecc}` on {node}",
        fix="Take the node out and reset the GPU. Have it replaced if the errors come back",
        charge=N, ends=Ends.NODE, effects=_OF_GPU),
    Cause("gpu-fell-off-bus", "a GPU vanished from the PCIe bus",
        next_step="Run `{kernel_log}` on {node}",
        fix="Take the node out and reboot it. If it comes back, reseat or replace the GPU and check its power and "
            "PCIe slot",
        charge=N, ends=Ends.NODE, effects=_OF_GPU + "ecc-error"),
    Cause("cuda-kernel-fault", "a kernel on a GPU had a bad access, a bad index or a failed assertion",
        next_step="{blocking}",
        fix="Check indices and labels against the sizes",
        charge=P),
    # -- the program ---------------------------------------------------------------------------------------
    Cause("program-exception", "the program raised an exception that none of the others explains",
        next_step="Read the traceback in that rank's log{with_log_of_rank}",
        fix="Correct the program at the place shown, and run that rank's input alone",
        charge=P),
    Cause("unused-parameters-ddp", "DDP waits for gradients of parameters that took no part in the loss",
        next_step="TORCH_DISTRIBUTED_DEBUG=DETAIL names the unused ones",
        fix="Use every output in the loss, or DistributedDataParallel(…, find_unused_parameters=True)",
        charge=P),
    Cause("missing-module", "the program imports a module that is not installed",
        next_step="Run `PYTHON -m pip list` with the interpreter that runs the training",
        fix="Run `PYTHON -m pip install {module}` on every node, or choose another interpreter with --python or "
            "--prelude. For a module of your own project, compare `git status` on every node, or ship it with "
            "`allranks run --sync`",
        charge=S),
    Cause("missing-file", "the program opens a file or data path that is not there",
        next_step="Run `ls -ld {path}` on every node",
        fix="Mount or copy what is missing, or correct the path",
        charge=S),
    Cause("shared-file-race", "nodes or ranks write, replace or remove one file of a shared file system at once",
        next_step="Run `df -hT {path}` on every node: nfs, lustre, gpfs and beegfs are shared by all",
        fix="Write, rename and remove on one rank alone, with a barrier behind it. Give each node its own caches on a "
            "local disk (TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR, TORCH_EXTENSIONS_DIR, HF_DATASETS_CACHE)",
        charge=S, effects="missing-file straggler"),
    Cause("storage-error", "a disk or a file system of the node, or its file server, failed",
        next_step="Run `dmesg -T | tail -n 50; df -h {path}; mount | grep -e nfs -e fuse -e lustre` on {node}",
        fix="Mount it again (`umount -l`, then `mount`) where the server is up. Leave {node} out where its disk or "
            "its file system is damaged",
        charge=N, ends=Ends.NODE_OR_PROGRAM, effects="missing-file checkpoint-unreadable disk-full"),
    Cause("hub-unreachable", "a hub or a package index does not answer this node, or refuses it",
        next_step="Run `curl -sI https://{host} | head -n 1` on {node}",
        fix="Load it once where there is internet (a login node, `hf download`), into a directory that every node "
            "has. Then run with HF_HOME set to it and HF_HUB_OFFLINE=1. Where the hub refuses, set HF_TOKEN, or a "
            "mirror with HF_ENDPOINT, and let one rank a node load",
        charge=Charge.NETWORK, ends=Ends.NODE_OR_PROGRAM, effects="name-resolution missing-file"),
    Cause("disk-full", "a disk has no space, no inodes or no quota left",
        next_step="Run `df -h; df -i; quota -s` on {node}",
        fix="Remove old checkpoints, or write to another disk",
        charge=Charge.LIMIT, effects="checkpoint-unreadable"),
    Cause("too-many-open-files", "the limit of open files was reached",
        next_step="Run `ulimit -Hn` on {node}",
        fix="Run `ulimit -n 65536` before the start, or use fewer workers. "
            "`torch.multiprocessing.set_sharing_strategy('file_system')` needs fewer files",
        charge=Charge.LIMIT, ends=Ends.NODE_OR_PROGRAM, effects="dataloader-worker-killed"),
    Cause("limit-too-small", "a limit of the system leaves the ranks no room: processes, ports or connections",
        next_step="Run `ulimit -Hu; sysctl kernel.pid_max net.ipv4.ip_local_port_range` on {node}",
        fix="Raise the limit that the message names, or start fewer ranks a node (--nproc)",
        charge=Charge.LIMIT),
    Cause("memlock-limit", "the limit of locked memory is too small for RDMA",
        next_step="`ulimit -l` must say unlimited",
        fix="Raise it in /etc/security/limits.conf, or with LimitMEMLOCK=infinity of the service (slurmd, docker). A "
            "container takes `--ulimit memlock=-1`",
        charge=Charge.LIMIT, effects="host-out-of-memory nccl-ib-error"),
    Cause("permission-denied", "the operating system refused access",
        next_step="Run `ls -ld {path}; id` on {node} as the user who trains",
        fix="Change the owner or the mode, or use another path",
        charge=S),
    Cause("checkpoint-unreadable", "a checkpoint could not be loaded or saved",
        next_step="Compare size and sha256sum with the original, and the configuration with the one that was saved",
        fix="Resume from an older one",
        charge=P, effects="missing-file"),
    Cause("dataloader-worker-killed", "a data-loader worker was killed",
        next_step="Run `dmesg -T; df -h /dev/shm` on {node}",
        fix="Use fewer workers or a smaller batch. With num_workers=0 the exception itself shows",
        charge=Charge.CRASH, effects="segfault-native"),
    Cause("segfault-native", "native code crashed: segmentation fault, abort, illegal instruction",
        next_step="Run it with `--env PYTHONFAULTHANDLER=1` to see the Python line, or read a core with `coredumpctl "
                  "gdb` on {node}",
        fix="Update or rebuild the extension that crashes, and compare versions of torch, CUDA and extensions",
        charge=Charge.CRASH),
    # -- reaching the nodes --------------------------------------------------------------------------------
    Cause("ssh-auth", "ssh refused the key or the user",
        next_step="Run `ssh -v -o BatchMode=yes {node} true`",
        fix="Run `ssh-copy-id {node}`",
        charge=S, ends=Ends.NODE),
    Cause("ssh-hostkey", "ssh does not know the host's key, or it has changed",
        next_step="Run `ssh-keyscan {node}` and compare the fingerprint",
        fix="Run `ssh-keygen -R {node}; ssh-keyscan {node} >> ~/.ssh/known_hosts`",
        charge=S, ends=Ends.NODE, effects="ssh-auth"),
    Cause("ssh-unreachable", "ssh does not reach the host",
        next_step="Run `nc -vz {node} 22; ip route get {node}`, and `systemctl status sshd` on it",
        fix="Start sshd there or take the node out. Where only some connections fail, raise MaxStartups of sshd",
        charge=N, ends=Ends.NODE),
    Cause("slurm-config", "Slurm refused the job or its step",
        next_step="Run `sinfo -o '%P %l %G %m'; sacctmgr show assoc user=$USER`",
        fix="Ask for what a node of the partition has",
        charge=S, ends=Ends.NODE),
    Cause("slurm-preempted-or-timeout", "Slurm ended the job: preempted, or its time was up",
        next_step="Run `sacct -j {job} -o JobID,State,Timelimit,End`",
        fix="Save a checkpoint before it (`--signal=B:USR1@300`), and ask for more --time or --requeue",
        charge=Charge.SCHEDULER, ends=Ends.NODE, effects="slurm-cancelled"),
    Cause("slurm-cancelled", "the job was cancelled by a person or a service",
        next_step="Run `sacct -j {job} -o JobID,State,ExitCode,End`",
        fix="Start it again if it was not meant",
        charge=Charge.PERSON, ends=Ends.NODE),
    Cause("k8s-scheduling", "Kubernetes could not make or place the pods",
        next_step="Run `kubectl describe pod {pod}; kubectl describe nodes | grep -A8 Allocated`",
        fix="Free or add nodes, or correct selector and tolerations",
        charge=Charge.SCHEDULER, ends=Ends.NODE),
    Cause("k8s-image", "Kubernetes could not get the image",
        next_step="Run `kubectl describe pod {pod}`, and `crictl pull {image}` on the node",
        fix="Correct name, tag or imagePullSecrets",
        charge=S, ends=Ends.NODE, effects="permission-denied missing-file"),
    Cause("deepspeed-config", "DeepSpeed refused its configuration",
        next_step="Check that train_batch_size = micro batch x accumulation x world size",
        fix="Correct the named key of the DeepSpeed configuration",
        charge=S),
    Cause("accelerate-config", "Accelerate refused its configuration",
        next_step="`accelerate env` shows what is read",
        fix="Run `accelerate config`, or pass --config_file on every node with its own machine_rank",
        charge=S),
    # -- the network's state -------------------------------------------------------------------------------
    Cause("proxy-env", "proxy variables send the ranks' own traffic to a proxy",
        next_step="Run `env | grep -i proxy` on {node}",
        fix="Run `unset http_proxy https_proxy all_proxy; export no_proxy=localhost,127.0.0.1,HOSTS`",
        charge=S, ends=Ends.NODE, effects="name-resolution missing-file permission-denied k8s-image"),
    Cause("ipv6-problem", "IPv6 is used on one side only, or does not work",
        next_step="Run `ip -6 -br addr` on every node",
        fix="Use an IPv4 address as master, and `export GLOO_SOCKET_IFNAME={link}{family}`",
        charge=S, ends=Ends.NODE),
    Cause("mtu-or-packet-loss", "large packets or some packets do not arrive",
        next_step="Run `ping -M do -s 8972 {peer}` (jumbo) or with `-s 1472`, and `ethtool -S {interface} | grep -i "
                  "err`",
        fix="Run `ip link set {interface} mtu {mtu}` on every node",
        charge=Charge.NETWORK, ends=Ends.NODE),
    Cause("slow-link", "a link carries far less than the ranks send, so that all of them wait for it",
        next_step="`allranks test --hosts HOSTS --suite pairs` measures every link, and `ethtool {interface}` shows "
                  "its speed",
        fix="Correct cable, speed, MTU or traffic shaping (`tc qdisc`) between {node} and {peer}, or take the node out",
        charge=Charge.NETWORK, ends=Ends.NODE),
    Cause("clock-skew", "the nodes' clocks differ too much",
        next_step="Run `chronyc tracking` or `timedatectl` on every node",
        fix="Run `systemctl restart chronyd`",
        charge=S, effects="slurm-config"),
    Cause("bad-launch-arguments", "the launcher or the script refused its arguments",
        next_step="Compare the command with --help of launcher and script",
        fix="Use `allranks run`, or set the ranks' environment with `torchrun --nnodes N --nproc-per-node K "
            "--node-rank R --master-addr A …`",
        charge=S),
    Cause("node-network-down", "a node lost its link or its power",
        next_step="Is it up? Run `ping {node}; ssh {node} uptime`, then `ip -br link; journalctl -k --since -1h` on it",
        fix="Bring the link back, or take the node out of the list",
        charge=N, ends=Ends.NODE),
    Cause("remote-path-missing", "the working directory, script or interpreter is absent on a node",
        next_step="Run `ssh {node} ls -ld {path}; ssh {node} 'command -v python3'`",
        fix="Use full paths or the same image on every node, ship this directory with `run --sync`, or name others "
            "with --workdir, --python and --prelude",
        charge=S, ends=Ends.NODE_OR_PROGRAM, effects="missing-file slurm-config"),
    Cause("agent-killed", "allranks' own process on a node was killed or stopped",
        next_step="Run `journalctl -k | grep -i 'killed process'; ps -eo pid,stat,args | grep allranks` on {node}",
        fix="Ask who did it (pkill, an administrator, a limit, a frozen container), and run again",
        charge=Charge.KILLED, ends=Ends.NODE),
    Cause("controller-paused", "the launching machine slept, or allranks was stopped there for as long as the lease",
        next_step="Run `journalctl --since -1h | grep -i suspend` on the launching machine",
        fix="Start the run with --detach on a machine that stays awake, or with a longer --lease",
        charge=Charge.NETWORK, ends=Ends.NODE_OR_PROGRAM),
    # -- the roles of a run ----------------------------------------------------------------------------------
    Cause("role-not-ready", "a role has started and its ready test has not passed in time",
        next_step="See what it printed with `allranks logs`, and ask its address by hand",
        fix="Correct its command or the test, or set a longer ready_timeout",
        charge=S, ends=Ends.NODE),
    Cause("role-ended", "a role that was to run as long as the others has ended with success",
        next_step="See why with `allranks logs`",
        fix='Correct its command. Where its end is meant, set ends = "any" for the role',
        charge=P, ends=Ends.PROGRAM_ALWAYS),
    Cause("roles-deadlock", "two roles wait for each other, as in a weight sync that both begin differently",
        next_step="Compare the stacks of both roles in evidence/ of the run directory",
        fix="Let both sides begin a weight sync in the same order, and enter its collectives only once the other has "
            "said that it does",
        charge=Charge.HANG, ends=Ends.HANG),
    # -- neither the program nor the machines ----------------------------------------------------------------
    Cause("internal-error", "allranks itself failed",
        next_step="`allranks report --bundle` makes a zip without secrets, with all logs",
        fix="Report it to the maintainers of allranks",
        charge=Charge.ALLRANKS, ends=Ends.INTERNAL),
    Cause("unknown", "the evidence does not establish a cause",
        next_step="Collect the logs of all ranks from their beginning, `dmesg -T` of their nodes, and the scheduler's "
                  "words",
        fix="Run it again with NCCL_DEBUG=INFO and TORCH_DISTRIBUTED_DEBUG=DETAIL (`allranks run --debug`)",
        charge=Charge.UNKNOWN, ends=Ends.NODE_OR_PROGRAM),
)  # fmt: skip

CAUSES: dict[str, Cause] = {cause.id: cause for cause in _TABLE}
UNKNOWN = CAUSES["unknown"]
# What a verdict says where one of these causes of a hang has ended the program instead.
OF_THE_PROGRAM = {"collective-mismatch": " raised ", "uneven-data": "destroy_process_group"}


UNSURE = "nothing here is sure enough. Most likely "


def likeliest(verdict: Verdict) -> str:
    """Give the cause of a verdict; of one that is not sure enough, the cause that it says is most likely."""
    if verdict.cause == UNKNOWN.id and verdict.runners_up and verdict.finding.message.startswith(UNSURE):
        return verdict.runners_up[0].id
    return verdict.cause or UNKNOWN.id


def cause_or_unknown(label: str) -> str:
    """Give the label where it names a cause, else `unknown`."""
    return CAUSES.get(label, UNKNOWN).id


def exit_code(verdict: Verdict | None, stop_reason: str | None, program_failed: bool) -> int:
    """Give the command's exit code. `program_failed`: a rank ended with something else than 0."""
    if verdict is None and stop_reason == "ctrl-c":
        return exitcodes.CTRL_C
    if verdict is None and stop_reason is not None:
        return exitcodes.TERMINATED
    if verdict is None:
        return exitcodes.code_if(program_failed, exitcodes.PROGRAM_FAILED)
    ends = CAUSES.get(verdict.cause or "", UNKNOWN).ends
    words = OF_THE_PROGRAM.get(verdict.cause or "")
    if ends is Ends.HANG and words is not None and words in verdict.finding.message:  # nothing hung
        ends = Ends.PROGRAM
    code_of_program, code_of_nodes = ends.value
    return code_of_program if program_failed else code_of_nodes
