"""Node, Cluster and the host lists people have: hostfiles, comma lists, node[01-04].

Pure: text in, frozen objects out. No socket, no file, no environment.
"""

from .build import make_cluster, virtual_cluster
from .hostfile import parse_host_argument, parse_hostfile, render_hostfile
from .hostlist import expand, fold
from .nodes import Cluster, Node

__all__ = [
    "Cluster",
    "Node",
    "expand",
    "fold",
    "make_cluster",
    "parse_host_argument",
    "parse_hostfile",
    "render_hostfile",
    "virtual_cluster",
]
