"""N hosts on one machine: real sshd, own network, name, /proc, /dev/shm, and faults that are real.

    with Bed.up(4, tmp_path) as bed:
        bed.ssh("h1", "hostname")            # as a user would: ssh, keys, known hosts
        bed.hosts[1].drop_port(29500)        # a firewall on h2
        subprocess.run(["allranks", …], env=bed.env())

bed.py up and down, ssh configuration · host.py namespaces, power, processes · netfaults.py, sysfaults.py the
fault verbs · network.py slots and bridges · relay.py delay · __main__.py `python -m tests.hosts.bed up 4`.
"""

from tests.hosts.bed.bed import TRAINER, Bed, Host, missing
from tests.hosts.bed.commands import BedError, Unavailable
from tests.hosts.bed.host import Process

__all__ = ["TRAINER", "Bed", "BedError", "Host", "Process", "Unavailable", "missing"]
