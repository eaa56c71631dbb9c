"""A module like engines.LISTED, for tests: the nodes of --hosts behind a command `reach HOST WORD…` instead of ssh."""

from allranks.cluster import Cluster, Node
from allranks.cluster.nodes import make_cluster
from allranks.gang.transport import NodeReach, Transport
from allranks.settings import RunSpec


class Reach(Transport):
    def client(self, node: Node) -> list[str]:
        return ["reach", node.host, "/bin/sh", "-s"]


def find_nodes(spec: RunSpec, spares: int) -> Cluster:
    hosts = (spec.target.hosts or "").split(",")
    nodes = [Node(index, host, host) for index, host in enumerate(hosts)]
    return make_cluster(nodes, source="a test", first=None, is_local=lambda host: False)


def reach(spec: RunSpec, cluster: Cluster) -> NodeReach:
    return NodeReach(Reach(spec.launch), keeps_launch=True)
