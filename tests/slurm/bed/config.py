"""slurm.conf and gres.conf of a bed: everything under one directory, times short."""

from collections.abc import Mapping
from pathlib import Path

CPUS = 8  # told, not counted: the machine's few cores stand for many
KILL_WAIT = 6
GRACE_TIME = 10  # of the partitions that are preempted

SLURM = """ClusterName=bed
SlurmctldHost={machine}({head})
SlurmctldPort={port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool-%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd-%n.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SrunPortRange=61001-63000
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
ReturnToService=2
SlurmdTimeout=4
KillWait={kill_wait}
MinJobAge=300
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP PriorityTier=5 PreemptMode=OFF
PartitionName=short Nodes={names} MaxTime=1 State=UP PriorityTier=5 PreemptMode=OFF
PartitionName=low Nodes={names} MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_time}
PartitionName=spot Nodes={names} MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=CANCEL GraceTime={grace_time}
PartitionName=high Nodes={names} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def slurm_conf(directory: Path, machine: str, head: str, nodes: Mapping[str, str], gpus: int, port: int) -> str:
    """The text of slurm.conf; `nodes` are addresses by name, `port` is slurmctld's on this machine."""
    gres = f" Gres=gpu:{gpus}" if gpus else ""
    lines = [f"NodeName={n} NodeAddr={a} CPUs={CPUS} RealMemory=1000 State=UNKNOWN{gres}" for n, a in nodes.items()]
    return SLURM.format(
        machine=machine, head=head, dir=directory, kill_wait=KILL_WAIT, grace_time=GRACE_TIME, nodes="\n".join(lines),
        names=",".join(nodes), port=port, node_port=26818,
    )  # fmt: skip


def gres_conf(directory: Path, gpus: int) -> str:
    """GPUs that are device files: what they are makes no difference to Slurm."""
    files = "".join(f"Name=gpu File={directory}/gpu{i}\n" for i in range(gpus))
    return "AutoDetect=off\n" + files
