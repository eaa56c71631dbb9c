"""What --ray starts on a node: the head, a worker, the driver."""

from dataclasses import replace

from allranks.cluster import Node
from allranks.plan.environment import NodeLaunch, Place
from allranks.plan.launchers import OF_RAY
from allranks.plan.plan import orders
from allranks.plan.ranks import Attempt, NodePlan
from allranks.protocol.facts import Gpus, Interpreter
from allranks.protocol.orders import RankOrder
from allranks.protocol.plan_facts import NodeFacts
from allranks.settings.layers import resolve
from allranks.settings.roles import spec_of

PEERS = {"ray.address": "10.0.0.1", "ray.port": "6400", "ray.addresses": "10.0.0.1,10.0.0.2"}
FACTS = NodeFacts(interpreter=Interpreter("", "--python", "/opt/rl/bin/python"), gpus=Gpus(count_=8))


def launch(rank: int, *start: str, role: int = 0, slots: int | None = None, local: int | None = None) -> NodeLaunch:
    options = {"ray": True, "ray_start": list(start), "command": ["bash", "train.sh"], "local": local}
    run = resolve({k: v for k, v in options.items() if v is not None}, {}, {}, config_source="x").spec  # type: ignore[misc]
    node = NodePlan(Node(rank, f"h{rank}", f"h{rank}", slots=slots), 1, rank, 2, rank)
    place = Place("/tmp/n", "/work", "/out", False, "u/node_00", "run-1", peers=PEERS, role="ray")
    spec = spec_of(run, run.launch.roles[role])
    return NodeLaunch(spec, 2, node, place, Attempt(0, "10.0.0.1", 6400), FACTS)


def started(launch: NodeLaunch) -> RankOrder:
    (rank,) = orders(launch).ranks
    assert not rank.starts_ranks and rank.path_first == "/opt/rl/bin"
    assert {"RANK", "WORLD_SIZE", "MASTER_ADDR"}.isdisjoint(rank.env)
    return rank


def test_the_head_has_the_proved_port_and_waits_for_all_nodes() -> None:
    argv = started(launch(0, "--num-cpus=4 --dashboard-host=0.0.0.0")).argv
    assert argv[:2] == ("/opt/rl/bin/python", "/tmp/n/runner_ray.py")
    assert argv[argv.index("--nodes") + 1] == "10.0.0.1,10.0.0.2"
    head = argv[argv.index("start") :]
    assert head[1:5] == ("--head", "--port=6400", "--include-dashboard=false", "--node-ip-address=10.0.0.1")
    assert {"--temp-dir=/tmp/n/ray", "--num-gpus=8", "--num-cpus=4", "--dashboard-host=0.0.0.0", "--block"} <= set(head)


def test_a_worker_has_the_address_of_the_head_and_nothing_that_only_heads_take() -> None:
    one = launch(1, "--num-cpus=4 --dashboard-host=0.0.0.0", slots=2)
    argv = started(one).argv
    assert "--nodes" not in argv
    worker = argv[argv.index("start") :]
    assert worker[1:3] == ("--address=10.0.0.1:6400", "--node-ip-address=10.0.0.2")
    assert {"--num-gpus=2", "--num-cpus=4"} <= set(worker) and "--dashboard-host=0.0.0.0" not in worker
    assert [entry.path for entry in orders(one).follow if entry.kind == "ray"] == ["/tmp/n/ray_a0.log"]


def test_virtual_nodes_share_the_gpus_of_this_machine() -> None:
    rank = started(launch(1, local=2))
    assert rank.env["CUDA_VISIBLE_DEVICES"] == "4,5,6,7" and "--num-gpus=4" in rank.argv


def test_the_driver_has_the_address_of_ray_alone() -> None:
    rank = started(launch(0, role=1))
    assert rank.argv == ("bash", "train.sh") and rank.env["RAY_ADDRESS"] == "10.0.0.1:6400"


def test_an_address_of_ipv6_stands_in_brackets() -> None:
    one = launch(0, role=1)
    rank = started(replace(one, place=replace(one.place, peers={**PEERS, "ray.address": "fd00::1"})))
    assert rank.env["RAY_ADDRESS"] == "[fd00::1]:6400"
    assert set(OF_RAY) == {"ray", "ray-driver"}
