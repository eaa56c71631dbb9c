"""A real Slurm on namespace hosts: munge, slurmctld on this machine, a slurmd on each host, GPUs by gres.

    with SlurmBed.up(4, tmp_path) as bed:
        bed.call("srun", "-N4", "hostname")                 # as a user on the login node
        bed.scontrol("update", "nodename=h2", "state=down", "reason=test")
        bed.kill_slurmd("h3")                               # the service dies, the host lives
        bed.hosts.host("h4").power_off()                    # the host dies

slurm.py the cluster · config.py its files · __main__.py `python -m tests.slurm.bed up 4`.
"""

from tests.slurm.bed.slurm import SlurmBed, missing

__all__ = ["SlurmBed", "missing"]
