"""Node, Cluster and the host lists people have: hostfiles, comma lists, node[01-04].

Pure: text in, frozen objects out. No socket, no file, no environment. The readers of host lists are in modules of
their own: who names a node loads none of them.
"""

from .nodes import Cluster, Node

__all__ = ["Cluster", "Node"]
